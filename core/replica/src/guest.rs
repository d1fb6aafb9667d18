//! This side's guest: its hypervisor's power, the gate before its NIC, and the sequence-number translation.

use crate::api::{Action, OperatorInput};
use crate::heir_streams::HeirStreams;
use crate::hypervisor::{Order, Unanswered};
use crate::pace::Pace;
use plover_matching::SequenceTranslator;
use plover_packets::by_connection;
use plover_policy::IdleDetector;
use plover_types::{Frame, Index, MachineWords, Micros, SyncNo, Unconsumed, Viewstamp};
use std::collections::VecDeque;

/// The hypervisor's state, as far as ordered and confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// No hypervisor.
    Off,
    /// Ordered, not yet up.
    Starting,
    /// The vCPUs stand.
    Paused,
    /// Ordered to stop.
    Pausing,
    /// The vCPUs run, or were ordered to.
    Running,
}

/// An input on its way to the guest, or a cut between inputs.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Frames(Vec<Frame>),
    /// Frames, and how many bytes the leader's guest had sent when it got them: see [`crate::pace`].
    Paced(u64, Vec<Frame>),
    Operator(OperatorInput),
    /// A syncvm: inputs after it stay behind the gate until the syncvm is over.
    Cut(Cut),
}

impl Input {
    /// The memory that its frames take.
    fn bytes(&self) -> usize {
        match self {
            Self::Frames(frames) | Self::Paced(_, frames) => bytes_of(frames),
            Self::Operator(_) | Self::Cut(_) => 0,
        }
    }
}

/// Memory that a frame takes beside its bytes, about: without it many small frames would count as nothing.
const FRAME_WEIGHT: usize = 64;

/// The memory that frames take while they wait, about.
pub(crate) fn bytes_of(frames: &[Frame]) -> usize {
    frames
        .iter()
        .map(|frame| frame.0.len() + FRAME_WEIGHT)
        .sum()
}

/// The order of frames that are given to the guest at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrange {
    /// As they came.
    AsTheyCame,
    /// One connection after the other.
    ByConnection,
}

/// A syncvm's place in the input order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub sync: SyncNo,
    pub at: Viewstamp,
    /// In the slot that begins here the secondary's guest rests.
    pub rests: bool,
}

/// The guest and the inputs that wait for it.
///
/// The gate is shut from the moment a syncvm cuts the input stream until the guest resumes:
/// inputs after the cut wait in the backlog, on both sides alike. The backlog may hold
/// further cuts: a leader that resumes fast can end its next slot before a slow secondary has
/// applied the last one.
#[derive(Debug)]
pub(crate) struct Guest {
    pub power: Power,
    /// The machine that the hypervisor has made.
    pub machine: MachineWords,
    /// The orders that the hypervisor has not answered.
    pub unanswered: Unanswered,
    /// The newest log entry whose input this guest has been given (or that waits for it).
    pub taken: Index,
    gate_open: bool,
    backlog: VecDeque<Input>,
    backlog_bytes: usize,
    /// Inputs that are through the gate. The first waits until this guest is as far as the leader's was; the
    /// others wait behind it.
    paced: VecDeque<(Micros, Input)>,
    /// Translates sequence numbers at the guest's NIC. Inputs behind the gate have the numbers that
    /// clients know; those that the hypervisor gives back have the guest's own.
    pub translator: SequenceTranslator,
    /// The pause that was ordered is no longer wanted: resume as soon as it is confirmed.
    pub resume_when_paused: bool,
    /// How far it is in its work, as the bytes that it has sent tell.
    pub pace: Pace,
    /// Whether it is idle.
    pub activity: Activity,
    /// The connections of its state that programs speak of, for a takeover.
    pub streams: HeirStreams,
}

/// Whether the guest is idle, and whether that was found too early.
#[derive(Debug)]
pub(crate) struct Activity {
    detector: IdleDetector,
    pub is_idle: bool,
    /// The last slot ended because the guest was idle, and whether it was is not known yet.
    pub is_unproven: bool,
}

impl Activity {
    pub fn new(threshold: Micros) -> Self {
        Self {
            detector: IdleDetector::new(threshold),
            is_idle: false,
            is_unproven: false,
        }
    }

    /// Takes a sample of the vCPUs' time, as [`IdleDetector::sample`] does.
    pub fn sample(&mut self, now: Micros, cpu: Option<Micros>) {
        self.is_idle = self.detector.sample(now, cpu);
    }

    /// The guest has something to do.
    pub fn disturb(&mut self) {
        self.detector.disturb();
        self.is_idle = false;
    }

    /// An input comes to the guest.
    pub fn fed(&mut self) {
        if std::mem::take(&mut self.is_unproven) {
            self.detector.was_timely();
        }
        self.disturb();
    }

    /// The guest has sent something.
    pub fn sent(&mut self) {
        if std::mem::take(&mut self.is_unproven) {
            self.detector.was_early();
        }
    }

    /// Another threshold from now on.
    pub fn set_threshold(&mut self, threshold: Micros) {
        self.detector.set(threshold);
    }

    /// How soon the next sample is of use.
    pub fn period(&self) -> Micros {
        self.detector.period()
    }

    /// How long the guest must look idle.
    pub fn threshold(&self) -> Micros {
        self.detector.threshold()
    }
}

impl Guest {
    pub fn new(idle_threshold: Micros) -> Self {
        Self {
            power: Power::Off,
            machine: MachineWords::default(),
            unanswered: Unanswered::default(),
            taken: Index(0),
            gate_open: false,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            paced: VecDeque::new(),
            translator: SequenceTranslator::default(),
            resume_when_paused: false,
            pace: Pace::default(),
            activity: Activity::new(idle_threshold),
            streams: HeirStreams::default(),
        }
    }

    /// The memory of the frames that wait behind the gate.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Gives the guest an input, or keeps it behind the gate. A cut at an open gate is the
    /// caller's to carry out; it gets it back.
    pub fn give(&mut self, now: Micros, input: Input, out: &mut Vec<Action>) -> Option<Cut> {
        if self.gate_open {
            return self.feed(now, input, out);
        }
        self.backlog_bytes += input.bytes();
        self.backlog.push_back(input);
        None
    }

    /// Whether it gets inputs at once.
    pub fn is_gate_open(&self) -> bool {
        self.gate_open
    }

    /// The input stream is cut here.
    pub fn shut_gate(&mut self) {
        self.gate_open = false;
    }

    /// Lets waiting inputs through, `first` before them, up to the next cut. At a cut the gate stays
    /// shut; the caller carries the cut out or opens the gate again. Frames between two cuts are
    /// `arrange`d together.
    pub fn open_gate(
        &mut self,
        now: Micros,
        first: Unconsumed,
        arrange: Arrange,
        out: &mut Vec<Action>,
    ) -> Option<Cut> {
        if !first.frames.is_empty() {
            out.push(Action::Feed(first.frames));
        }
        if !first.typed.is_empty() {
            out.push(Action::Operate(OperatorInput::Console(first.typed)));
        }
        while let Some(mut input) = self.backlog.pop_front() {
            self.backlog_bytes -= input.bytes();
            if let Input::Frames(frames) = &mut input {
                if arrange == Arrange::ByConnection {
                    self.join_waiting(frames);
                    by_connection(frames);
                }
            }
            if let Some(cut) = self.feed(now, input, out) {
                self.gate_open = false;
                return Some(cut);
            }
        }
        self.gate_open = true;
        None
    }

    /// Takes the frames that wait next, up to anything else.
    fn join_waiting(&mut self, frames: &mut Vec<Frame>) {
        while let Some(Input::Frames(more)) = self.backlog.front_mut() {
            self.backlog_bytes -= bytes_of(more);
            frames.append(more);
            self.backlog.pop_front();
        }
    }

    /// Lets waiting inputs through, up to the next cut, and the guest run.
    pub fn resume(
        &mut self,
        now: Micros,
        first: Unconsumed,
        arrange: Arrange,
        out: &mut Vec<Action>,
    ) -> Option<Cut> {
        assert_eq!(self.power, Power::Paused, "only a paused guest resumes");
        let cut = self.open_gate(now, first, arrange, out);
        self.power = Power::Running;
        self.unanswered.ordered(Order::Resume, now);
        out.push(Action::Resume);
        cut
    }

    /// Orders the guest to stop.
    pub fn pause(&mut self, now: Micros, out: &mut Vec<Action>) {
        assert_eq!(self.power, Power::Running, "only a running guest is paused");
        self.shut_gate();
        self.resume_when_paused = false;
        self.power = Power::Pausing;
        self.unanswered.ordered(Order::Pause, now);
        out.push(Action::Pause);
    }

    /// A joining guest's first state contains every input before the cut.
    pub fn forget_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_bytes = 0;
    }

    /// How many inputs wait behind the gate.
    pub fn backlog_inputs(&self) -> usize {
        let is_input = |input: &&Input| !matches!(input, Input::Cut(_));
        self.backlog.iter().filter(is_input).count()
    }

    /// The newest cut that waits.
    pub fn newest_cut(&self) -> Option<Cut> {
        let cut = |input: &Input| match input {
            Input::Cut(cut) => Some(*cut),
            _ => None,
        };
        self.backlog.iter().rev().find_map(cut)
    }

    /// Forgets what waits up to the cut of this syncvm, if that waits: its state contains it.
    pub fn skip_to_cut(&mut self, sync: SyncNo) {
        let is_it = |input: &Input| matches!(input, Input::Cut(cut) if cut.sync == sync);
        let Some(place) = self.backlog.iter().rposition(is_it) else {
            return;
        };
        for input in self.backlog.drain(..=place) {
            self.backlog_bytes -= input.bytes();
        }
    }

    /// The hypervisor is gone, and with it all waiting inputs. The next one starts after the entry
    /// `delivered` last: the old one may have been fed inputs that were never committed.
    pub fn off(&mut self, delivered: Index) {
        let threshold = self.activity.threshold();
        let off = Self::new(threshold);
        // The learnt idle threshold holds for the next hypervisor, too.
        let activity = std::mem::replace(&mut self.activity, Activity::new(threshold));
        *self = Self {
            taken: delivered,
            activity,
            ..off
        };
    }

    /// Since when the next input waits for the guest's pace, and for how many sent bytes.
    pub fn paced_until(&self) -> Option<(Micros, u64)> {
        let (since, input) = self.paced.front()?;
        match input {
            Input::Paced(after, _) => Some((*since, *after)),
            Input::Frames(_) | Input::Operator(_) | Input::Cut(_) => Some((*since, 0)),
        }
    }

    /// How many inputs wait for its pace.
    pub fn paced_inputs(&self) -> usize {
        self.paced.len()
    }

    /// The guest gets the next of what waits for its pace.
    pub fn take_paced(&mut self, now: Micros, out: &mut Vec<Action>) {
        if let Some((_, input)) = self.paced.pop_front() {
            self.put_in(now, input, out);
        }
    }

    /// The guest gets all that waits for its pace.
    pub fn take_all_paced(&mut self, now: Micros, out: &mut Vec<Action>) {
        for (_, input) in std::mem::take(&mut self.paced) {
            self.put_in(now, input, out);
        }
    }

    fn feed(&mut self, now: Micros, input: Input, out: &mut Vec<Action>) -> Option<Cut> {
        match input {
            Input::Cut(cut) => {
                // The guest gets all inputs before the cut before it is paused.
                self.take_all_paced(now, out);
                return Some(cut);
            }
            Input::Paced(..) => self.paced.push_back((now, input)),
            _ if !self.paced.is_empty() => self.paced.push_back((now, input)),
            _ => self.put_in(now, input, out),
        }
        None
    }

    fn put_in(&mut self, now: Micros, input: Input, out: &mut Vec<Action>) {
        match input {
            Input::Frames(frames) | Input::Paced(_, frames) => {
                let frames = frames.into_iter();
                let renumbered = frames.map(|frame| self.translator.incoming(now, frame));
                out.push(Action::Feed(renumbered.collect()));
            }
            Input::Operator(input) => out.push(Action::Operate(input)),
            Input::Cut(_) => {}
        }
    }
}

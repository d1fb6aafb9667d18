//! This side's guest: whether it runs, and the gate before its NIC.

use crate::api::{Action, OperatorInput};
use plover_types::{Frame, Index};
use std::collections::VecDeque;

/// What the hypervisor is doing, as far as ordered and confirmed.
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

/// An input on its way to the guest.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Frames(Vec<Frame>),
    Operator(OperatorInput),
}

/// The guest and the inputs that wait for it.
///
/// The gate is shut from the moment a syncvm cuts the input stream until the guest resumes:
/// what comes after the cut waits in the backlog, on both sides alike.
#[derive(Debug)]
pub(crate) struct Guest {
    pub power: Power,
    /// The newest log entry whose input this guest has been given (or that waits for it).
    pub taken: Index,
    gate_open: bool,
    backlog: VecDeque<Input>,
    backlog_frames: usize,
    /// The pause that was ordered is no longer wanted: resume as soon as it is confirmed.
    pub resume_when_paused: bool,
}

impl Guest {
    pub fn new() -> Self {
        Self {
            power: Power::Off,
            taken: Index(0),
            gate_open: false,
            backlog: VecDeque::new(),
            backlog_frames: 0,
            resume_when_paused: false,
        }
    }

    /// Frames that wait behind the gate.
    pub fn backlog_frames(&self) -> usize {
        self.backlog_frames
    }

    /// Gives the guest an input, or keeps it behind the gate.
    pub fn give(&mut self, input: Input, out: &mut Vec<Action>) {
        if self.gate_open {
            out.push(feed(input));
        } else {
            if let Input::Frames(frames) = &input {
                self.backlog_frames += frames.len();
            }
            self.backlog.push_back(input);
        }
    }

    /// The input stream is cut here.
    pub fn shut_gate(&mut self) {
        self.gate_open = false;
    }

    /// Lets everything that waits through, `first` before it.
    pub fn open_gate(&mut self, first: Vec<Frame>, out: &mut Vec<Action>) {
        self.gate_open = true;
        if !first.is_empty() {
            out.push(Action::Feed(first));
        }
        self.backlog_frames = 0;
        out.extend(self.backlog.drain(..).map(feed));
    }

    /// Lets everything through and the guest run.
    pub fn resume(&mut self, first: Vec<Frame>, out: &mut Vec<Action>) {
        assert_eq!(self.power, Power::Paused, "only a paused guest resumes");
        self.open_gate(first, out);
        self.power = Power::Running;
        out.push(Action::Resume);
    }

    /// Orders the guest to stop.
    pub fn pause(&mut self, out: &mut Vec<Action>) {
        assert_eq!(self.power, Power::Running, "only a running guest is paused");
        self.shut_gate();
        self.resume_when_paused = false;
        self.power = Power::Pausing;
        out.push(Action::Pause);
    }

    /// A joining guest's first state contains every input before the cut.
    pub fn forget_backlog(&mut self) {
        self.backlog.clear();
        self.backlog_frames = 0;
    }

    /// The hypervisor is gone, and with it whatever waited for it.
    pub fn off(&mut self) {
        let taken = self.taken;
        *self = Self::new();
        self.taken = taken;
    }
}

fn feed(input: Input) -> Action {
    match input {
        Input::Frames(frames) => Action::Feed(frames),
        Input::Operator(input) => Action::Operate(input),
    }
}

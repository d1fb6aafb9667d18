//! One replica's process: the brain, its clock, its hypervisor and its disk.

use crate::clock::Clock;
use crate::disk::Disk;
use crate::hypervisor::Hypervisor;
use plover_replica::{Action, Event, JobId, Replica, Watch};
use plover_syncvm::Phase;
use plover_types::{Index, Micros, PageNo, View};
use std::collections::VecDeque;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Down,
    /// It runs.
    Up,
    /// SIGSTOP: what happens to it waits; its clock goes on.
    Stopped,
}

/// A replica's process, and what stays when it is started again.
#[derive(Debug)]
pub struct Process {
    /// Whether it runs.
    pub state: State,
    /// Counts how often the process was started.
    pub incarnation: u64,
    /// The number of its incarnation, as it names itself to others.
    pub number: u64,
    /// The brain.
    pub replica: Option<Box<Replica>>,
    /// The events that the brain waits for, by its last turn.
    pub watch: Watch,
    /// Its clock.
    pub clock: Clock,
    /// Since when its clock stands still, with its host.
    pub suspended: Option<Micros>,
    /// When its clock last went on after it had stood still. For a while from then on the process may take a lease for
    /// valid that is over.
    pub clock_went_on: Option<Micros>,
    /// Its hypervisor.
    pub hypervisor: Option<Hypervisor>,
    /// How many hypervisors it has started.
    pub hypervisors: u64,
    /// Its disk, which outlives it.
    pub disk: Disk,
    /// When the disk is done with all writes that it was given.
    pub disk_free_at: Micros,
    /// The disk is slow.
    pub disk_slow: bool,
    /// How many writes a disk that hangs would have done by now.
    pub disk_hangs: Option<u32>,
    /// When all that it was given while it was slow is done.
    pub disk_slow_until: Micros,
    /// Whether it reads the TAP.
    pub facing: bool,
    /// Whether frames pass between the host and the clients.
    pub has_tap: bool,
    /// Events that are not applied yet.
    pub events: VecDeque<Event>,
    /// Actions that are not carried out yet.
    pub actions: VecDeque<Action>,
    /// Answers to work on pages that wait for the disk.
    pub answers: VecDeque<Event>,
    /// Reads for a copy that were put off.
    pub copy_reads: VecDeque<(JobId, Vec<PageNo>)>,
    /// Scans that were put off, each with the number of the hypervisor.
    pub scans: VecDeque<(u64, JobId)>,
    /// When the last of `answers` comes.
    pub answers_free_at: Micros,
    /// Events that came while it was stopped, with the number of the hypervisor if they are of one.
    pub missed: Vec<(Option<u64>, Event)>,
    /// When its next tick is due, and the number of that tick: a tick with an older number is ignored.
    pub tick: (Micros, u64),
    /// Whether a sample is planned, and its number: a sample with an older number is ignored.
    pub sample: (bool, u64),
    /// Up to where its log was read: the generation and the index.
    pub read: (View, Index),
    /// The phase of the syncvm that it leads.
    pub phase: Option<Phase>,
}

impl Process {
    /// A host on which no process runs yet.
    pub fn new() -> Self {
        Self {
            state: State::Down,
            incarnation: 0,
            number: 0,
            replica: None,
            watch: Watch::default(),
            clock: Clock::new(Micros::ZERO, Micros::ZERO, 0),
            suspended: None,
            clock_went_on: None,
            hypervisor: None,
            hypervisors: 0,
            disk: Disk::default(),
            disk_free_at: Micros::ZERO,
            disk_slow: false,
            disk_hangs: None,
            disk_slow_until: Micros::ZERO,
            facing: false,
            has_tap: true,
            events: VecDeque::new(),
            actions: VecDeque::new(),
            answers: VecDeque::new(),
            copy_reads: VecDeque::new(),
            scans: VecDeque::new(),
            answers_free_at: Micros::ZERO,
            missed: Vec::new(),
            tick: (Micros::NEVER, 0),
            sample: (false, 0),
            read: (View::NONE, Index(0)),
            phase: None,
        }
    }

    /// The process vanishes.
    pub fn vanish(&mut self) {
        self.state = State::Down;
        self.incarnation += 1;
        self.disk_hangs = self.disk_hangs.map(|_| 0);
        self.replica = None;
        self.hypervisor = None;
        self.facing = false;
        self.events.clear();
        self.actions.clear();
        self.answers.clear();
        self.copy_reads.clear();
        self.scans.clear();
        self.missed.clear();
        self.suspended = None;
        self.clock_went_on = None;
        self.tick = (Micros::NEVER, self.tick.1 + 1);
        self.sample = (false, self.sample.1 + 1);
        self.read = (View::NONE, Index(0));
        self.phase = None;
    }

    /// Whether it runs and holds a guest whose hypervisor is alive.
    pub fn has_guest(&self) -> bool {
        self.hypervisor
            .as_ref()
            .is_some_and(|hypervisor| !hypervisor.is_dead())
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

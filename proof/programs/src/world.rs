//! The simulated world: an agreed log, hosts with programs and disks, clients, and faults.

use crate::program::{Memory, Program, Reference};
use plover_program::{Canary, ConnectionId, Entrance, Held, Own, Replica, Sessions, State};
use plover_sim::invariants::Violation;
use plover_sim::rng::Rng;
use plover_sim::trace::Trace;
use plover_sim::{Coverage, TraceMode};
use plover_types::{Index, Micros, View, Viewstamp};
use std::collections::VecDeque;

/// Steps with faults, and at most so many without them, in which all must be well again.
const STEPS: u64 = 3000;
const STEPS_TO_HEAL: u64 = 40_000;

/// Moments that the seeds must reach, or they prove little.
pub const REACHED: [&str; 20] = [
    "client: a reply",
    "client: cut off",
    "leader: serves",
    "program: restored after its death",
    "program: restored after it diverged",
    "program: too far behind",
    "program: starts from a checkpoint",
    "program: stands still on the leader",
    "program: starts with connections",
    "checkpoint: connections go on",
    "checkpoint: fetched",
    "checkpoint: failed",
    "log: trimmed",
    "log: entries lost with their leader",
    "program: restored since it was ahead",
    "program: its reads fail",
    "leader: quiet",
    "leader: waits for programs",
    "program: answers before an end",
    "end: all is well",
];

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A known bug to put back.
    pub canary: Canary,
    /// How the trace is used.
    pub trace: TraceMode,
}

macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_on() {
            let now = $world.now;
            $world.trace.line(now, format_args!($($what)*));
        }
    };
}

mod clients;
mod consensus;
mod direct;
mod faults;
mod programs;
mod replicas;

#[derive(Debug, Default)]
struct Host {
    /// The process, if it runs.
    brain: Option<Replica>,
    program: Option<Program>,
    starts: Option<(Option<Viewstamp>, Micros)>,
    takes: Option<(Viewstamp, State, Micros)>,
    fetches: Option<(Held, Micros)>,
    /// Of a program that reads its clients itself: output or input that waits for the commit.
    waits: VecDeque<Waiting>,
    /// The program that was stopped last was wrong.
    was_wrong: bool,
    /// Its program was found to have diverged, and has not started since.
    has_diverged: bool,
    /// Connections that the log ends, and which the program has closed already.
    noticed: Vec<ConnectionId>,
    /// The program is cut off from its clients for a checkpoint.
    is_quiet: bool,
    /// The program reads nothing until then.
    still_until: Micros,
    /// The newest checkpoint that it has discarded: the program that took it had diverged.
    discarded: Index,
    /// The newest checkpoint that it had when its disk was lost.
    lost: Index,
    /// The checkpoint on its disk.
    disk: Option<(Own, Memory, State)>,
    commit: Index,
    base: Index,
    /// It has heard from a leader since it started.
    knows: bool,
}

impl Host {
    /// Its disk is lost, with the checkpoint on it.
    fn lose_disk(&mut self) {
        if let Some((own, ..)) = self.disk.take() {
            self.lost = self.lost.max(own.at.index);
        }
    }
}

/// Input or output that waits for the commit of an entry.
#[derive(Debug)]
struct Waiting {
    at: Viewstamp,
    connection: ConnectionId,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Client {
    /// The leader that it is connected to, and the connection's name.
    to: Option<(usize, ConnectionId)>,
    request: Option<u64>,
    unsent: Vec<u8>,
    got: Vec<u8>,
    /// Bytes of the program's that it has got in all.
    received: u64,
    has_login: bool,
}

/// A world.
#[derive(Debug)]
pub struct World {
    options: Options,
    rng: Rng,
    hosts: Vec<Host>,
    clients: Vec<Client>,
    log: Vec<(Viewstamp, Option<Vec<u8>>)>,
    /// How long the log was at most, with what was lost.
    longest: u64,
    entrance: Entrance,
    sessions: Sessions,
    /// A program is ended for a checkpoint, and started again.
    restarts: bool,
    /// Programs execute later than they read.
    slow: bool,
    committed: usize,
    leader: Option<(usize, View)>,
    round: u64,
    reference: Reference,
    requests: u64,
    faults: bool,
    pub(crate) now: Micros,
    pub(crate) steps: u64,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Trace,
    pub(crate) violation: Option<Violation>,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let replicas = rng.pick(&[3, 3, 3, 5]);
        let sessions = rng.pick(&[
            Sessions::Reconnect,
            Sessions::Reconnect,
            Sessions::Stateless,
            Sessions::Login,
        ]);
        let mut world = Self {
            hosts: (0..replicas).map(|_| Host::default()).collect(),
            clients: (0..3).map(|_| Client::default()).collect(),
            log: Vec::new(),
            longest: 0,
            entrance: rng.pick(&[
                Entrance::Fed,
                Entrance::Fed,
                Entrance::HoldsOutput,
                Entrance::HoldsInput,
            ]),
            sessions,
            restarts: rng.chance(0.3),
            slow: rng.chance(0.3),
            committed: 0,
            leader: None,
            round: 0,
            reference: Reference::new(sessions == Sessions::Login),
            requests: 0,
            faults: true,
            now: Micros(1),
            steps: 0,
            coverage: Coverage::default(),
            trace: Trace::new(options.trace),
            violation: None,
            rng,
            options,
        };
        (0..replicas).for_each(|host| world.begin(host));
        world
    }

    /// Runs to the end, or to the first violation.
    pub fn run(&mut self) {
        while self.violation.is_none() {
            self.steps += 1;
            self.now = self.now + self.rng.micros((10, 3000));
            if self.steps == STEPS {
                self.heal();
            }
            if !self.faults && self.steps % 100 == 0 && self.is_well() {
                return self.check_the_end();
            }
            if self.steps == STEPS + STEPS_TO_HEAL && self.is_beyond_limits() {
                return;
            }
            if self.steps == STEPS + STEPS_TO_HEAL {
                return self.fail("heals", "APUS §3", self.describe());
            }
            self.step();
        }
    }

    fn step(&mut self) {
        self.programs_execute();
        let host = self.rng.range(0, self.hosts.len() as u64 - 1) as usize;
        match self.rng.range(0, 99) {
            0..=9 => self.consensus(),
            10..=39 => self.turn(host),
            40..=69 => self.program_reads(host),
            70..=84 => self.finish(host),
            85..=96 => self.client(),
            _ if self.faults => self.fault(host),
            _ => {}
        }
    }

    fn fail(&mut self, invariant: &'static str, section: &'static str, message: String) {
        let violation = Violation {
            invariant,
            section,
            message,
        };
        trace!(self, "VIOLATION {violation}");
        self.violation.get_or_insert(violation);
    }
}

//! A simulated group: replicas, clocks, disks and a network that loses, doubles, delays and
//! reorders, all from one seed.
//!
//! The world plays the caller's part as the real one would: it writes disks (late), restarts
//! processes with what their disks hold, brings up secondaries and proposes in-sync sets. After
//! every step [`checks::Checks`] looks for a broken promise.
#![allow(dead_code)] // Each test binary uses its own part of the harness.

mod body;
pub mod checks;
pub mod disk;
mod fate;

use apus::{
    Apus, Canary, Configuration, Durability, DurableState, EntryKind, Event, Members, Phase,
    ProposeError,
};
use checks::Checks;
use disk::Disk;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, SplitMix64, Viewstamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub const HEARTBEAT: Micros = Micros::from_ms(20);
pub const TIMEOUT: Micros = Micros::from_ms(100);

/// Whether to drop a message, by sender, receiver and bytes.
pub type Filter = Box<dyn FnMut(usize, usize, &[u8]) -> bool>;

/// How hostile the network is, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub lost: u64,
    pub doubled: u64,
    /// Arrives up to half a second late.
    pub late: u64,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub replicas: u8,
    /// The group begins with so many of them.
    pub voters: u8,
    /// The log is all there is.
    pub any_voter_stands: bool,
    pub quorum_selection: bool,
    pub durability: Durability,
    pub canary: Canary,
    pub weather: Weather,
    /// Whether the leader keeps the in-sync set as the replica above would.
    pub manage_in_sync: bool,
    pub log_bytes_max: usize,
    pub message_bytes_max: usize,
}

impl Setup {
    pub fn new(seed: u64, replicas: u8, durability: Durability) -> Self {
        Self {
            seed,
            replicas,
            voters: replicas,
            any_voter_stands: false,
            quorum_selection: false,
            durability,
            canary: Canary::None,
            weather: Weather::default(),
            manage_in_sync: true,
            log_bytes_max: 1 << 20,
            message_bytes_max: 600,
        }
    }
}

impl Setup {
    pub fn first_members(&self) -> ReplicaSet {
        ReplicaSet::of((0..self.voters).map(ReplicaId))
    }
}

/// One replica's process and machine.
pub struct Node {
    pub core: Option<Apus>,
    pub incarnation: u64,
    pub disk: Disk,
    /// The last entry delivered in this life of the process.
    pub cursor: Option<Index>,
    pub holds: bool,
    pub empty: bool,
    /// The in-sync set at the base of the last jump.
    pub jumped_to: Option<ReplicaSet>,
    alive: BTreeMap<ReplicaId, bool>,
    offset: u64,
    /// Clock drift in thousandths, fast or slow.
    drift: i64,
    paused_until: Micros,
    booting: bool,
}

enum Step {
    Tick(usize, u64),
    Arrive {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    StateWritten(usize, u64, DurableState),
    EntriesWritten(usize, u64),
    LinkTold {
        node: usize,
        peer: usize,
        up: bool,
    },
    Synced {
        leader: usize,
        view: plover_types::View,
        peer: usize,
        incarnation: u64,
    },
    Bootstrap(usize, u64),
}

/// The whole simulated group.
pub struct World {
    pub setup: Setup,
    pub now: Micros,
    pub nodes: Vec<Node>,
    pub checks: Checks,
    pub random: SplitMix64,
    /// `cut[from][to]`: nothing gets through.
    pub cut: Vec<Vec<bool>>,
    /// How much longer what a replica sends or is sent takes.
    pub slow: Vec<Micros>,
    /// Whether the first leader boots a new guest when everyone has lost the old one.
    pub operator: bool,
    /// Drops what this says, for scripted scenarios.
    pub filter: Option<Filter>,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    steps: BTreeMap<u64, Step>,
    sequence: u64,
    pub writes: u64,
    /// (leader, peer, alive), as told.
    pub peer_log: Vec<(usize, u8, bool)>,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let mut random = SplitMix64::new(setup.seed ^ 0x0070_6c6f_7665);
        let first = Configuration {
            in_sync: ReplicaSet::of([ReplicaId(0)]),
            members: Members::of(setup.first_members()),
        };
        let nodes = (0..setup.replicas).map(|_| Node {
            core: None,
            incarnation: 0,
            disk: Disk::new(first),
            cursor: None,
            holds: false,
            empty: false,
            jumped_to: None,
            alive: BTreeMap::new(),
            offset: random.range(0, 1 << 40),
            drift: random.range(0, 80) as i64 - 40,
            paused_until: Micros::ZERO,
            booting: false,
        });
        let nodes: Vec<Node> = nodes.collect();
        let size = nodes.len();
        let mut world = Self {
            setup,
            now: Micros::from_ms(1),
            nodes,
            checks: Checks::default(),
            random,
            cut: vec![vec![false; size]; size],
            slow: vec![Micros::ZERO; size],
            operator: true,
            filter: None,
            queue: BinaryHeap::new(),
            steps: BTreeMap::new(),
            sequence: 0,
            writes: 0,
            peer_log: Vec::new(),
        };
        for node in 0..size {
            world.start(node);
        }
        world
    }

    /// The local clock of `node`.
    pub fn clock(&self, node: usize) -> Micros {
        let Node { offset, drift, .. } = self.nodes[node];
        Micros(offset + (self.now.0 as i64 * (1000 + drift) / 1000) as u64)
    }

    /// When the local clock of `node` will show `local`.
    fn global(&self, node: usize, local: Micros) -> Micros {
        let Node { offset, drift, .. } = self.nodes[node];
        let span = local.0.saturating_sub(offset).min(1 << 50);
        Micros(span * 1000 / (1000 + drift) as u64 + 1)
    }

    fn schedule(&mut self, after: Micros, step: Step) {
        self.sequence += 1;
        self.queue.push(Reverse((self.now + after, self.sequence)));
        self.steps.insert(self.sequence, step);
    }

    /// Proposes on `node`.
    pub fn propose(&mut self, node: usize, payload: Vec<u8>) -> Result<Viewstamp, ProposeError> {
        self.propose_kind(node, EntryKind::App, payload)
    }

    pub fn propose_kind(
        &mut self,
        node: usize,
        kind: EntryKind,
        payload: Vec<u8>,
    ) -> Result<Viewstamp, ProposeError> {
        let (now, mut out) = (self.clock(node), Vec::new());
        let core = self.nodes[node]
            .core
            .as_mut()
            .ok_or(ProposeError::NotLeader)?;
        let result = core.propose(now, kind, payload);
        core.flush(now, &mut out);
        self.obey(node, out);
        result
    }

    pub fn hold_state(&mut self, node: usize, holds: bool) {
        if let Some(core) = &mut self.nodes[node].core {
            core.set_holds_state(holds);
            self.nodes[node].holds = holds;
        }
    }

    // ---- looking

    pub fn core(&self, node: usize) -> &Apus {
        self.nodes[node].core.as_ref().expect("the replica is up")
    }

    pub fn up(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|node| self.nodes[*node].core.is_some())
            .collect()
    }

    /// The leader with the highest view.
    pub fn leader(&self) -> Option<usize> {
        let leaders = self.up().into_iter();
        let leaders = leaders.filter(|node| self.core(*node).status().phase == Phase::Leading);
        leaders.max_by_key(|node| self.core(*node).status().view)
    }

    pub fn lease_is_valid(&self, node: usize) -> bool {
        let core = self.nodes[node].core.as_ref();
        core.is_some_and(|core| core.lease_until() > self.clock(node))
    }

    // ---- time

    /// Runs for `span`.
    pub fn run(&mut self, span: Micros) {
        let end = self.now + span;
        while self.step_before(end) {}
        self.now = end;
    }

    /// Runs until `done`, at most for `span`; whether it came true.
    pub fn run_until(&mut self, span: Micros, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + span;
        while !done(self) {
            if !self.step_before(end) {
                self.now = end;
                return done(self);
            }
        }
        true
    }

    fn step_before(&mut self, end: Micros) -> bool {
        let Some(&Reverse((at, sequence))) = self.queue.peek() else {
            return false;
        };
        if at > end {
            return false;
        }
        self.queue.pop();
        self.now = self.now.max(at);
        let step = self.steps.remove(&sequence).expect("queued steps exist");
        self.perform(step);
        true
    }

    fn perform(&mut self, step: Step) {
        let node = match &step {
            Step::Tick(node, _) | Step::StateWritten(node, ..) | Step::Bootstrap(node, _) => *node,
            Step::Arrive { to, .. } => *to,
            Step::EntriesWritten(node, _) | Step::LinkTold { node, .. } => *node,
            Step::Synced { leader, .. } => *leader,
        };
        let wake = self.nodes[node].paused_until;
        if wake >= self.now && wake > Micros::ZERO {
            // One later than everything that was due while it slept, so the order stays.
            self.schedule(wake.since(self.now) + Micros(1), step);
            return;
        }
        match step {
            Step::Tick(node, incarnation) => {
                if self.nodes[node].incarnation == incarnation {
                    self.tick(node);
                }
            }
            Step::Arrive { from, to, bytes } => {
                let from = ReplicaId(from as u8);
                self.apply(
                    to,
                    Event::Received {
                        from,
                        bytes: &bytes,
                    },
                );
            }
            Step::StateWritten(node, incarnation, state) => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].core.is_some() {
                    self.nodes[node].disk.write_state(state);
                    self.apply(node, Event::StatePersisted(state.promised));
                }
            }
            Step::EntriesWritten(node, incarnation) => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].core.is_some() {
                    let last = self.nodes[node].disk.write_oldest();
                    self.apply(node, Event::EntriesPersisted(last));
                }
            }
            Step::LinkTold { node, peer, up } => {
                // The last word on a link is true; only words in between may be missed.
                if up == (self.cut[peer][node] || self.nodes[peer].core.is_none()) {
                    return;
                }
                self.apply(
                    node,
                    Event::Link {
                        peer: ReplicaId(peer as u8),
                        up,
                    },
                );
            }
            Step::Synced {
                leader,
                view,
                peer,
                incarnation,
            } => {
                self.synced(leader, view, peer, incarnation);
            }
            Step::Bootstrap(node, incarnation) => {
                if self.nodes[node].incarnation == incarnation {
                    self.bootstrap(node);
                }
            }
        }
    }

    fn tick(&mut self, node: usize) {
        let Some(core) = &self.nodes[node].core else {
            return;
        };
        let (now, deadline) = (self.clock(node), core.deadline());
        if deadline > now {
            return;
        }
        self.apply(node, Event::Tick);
        if let Some(core) = &self.nodes[node].core {
            assert!(
                core.deadline() > now,
                "a caller that waits for the deadline would spin"
            );
        }
    }

    fn schedule_tick(&mut self, node: usize) {
        let Some(core) = &self.nodes[node].core else {
            return;
        };
        let deadline = core.deadline();
        if deadline < Micros::NEVER {
            let at = self.global(node, deadline).max(self.now);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at.since(self.now), Step::Tick(node, incarnation));
        }
    }
}

//! The simulated world: hosts, network, time, and faults.
//!
//! The world does what a real caller does: it writes disks (late), restarts processes with what
//! their disks hold, keeps the in-sync set, and asks every core for its next deadline. Every step
//! is checked by the invariants, and the first violation ends the run.

use super::describe;
use super::heal::Healing;
use super::host::Host;
use super::invariants::{Check, Invariants, Violation, recovered_logs_are_stored};
use super::net::Net;
use super::replace::Replacing;
use super::scenario::Scenario;
use super::schedule::{Happening, Schedule};
use apus::{Apus, Canary, Durability, Event, Phase, Status};
use plover_sim::Coverage;
use plover_sim::rng::Rng;
use plover_sim::trace::{Trace, TraceMode, trace};
use plover_types::{Micros, ReplicaId, ReplicaSet};

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Replicas in every group, instead of what the seed says.
    pub replicas: Option<usize>,
    /// A known bug to put back.
    pub canary: Canary,
    /// How the trace is used.
    pub trace: TraceMode,
}

/// A world.
pub struct World {
    pub(super) scenario: Scenario,
    pub(super) plan: Schedule,
    pub(super) hosts: Vec<Host>,
    pub(super) net: Net,
    pub(super) disks: Rng,
    pub(super) faults: Rng,
    pub(super) work: Rng,
    pub(super) starts: Rng,
    pub(super) invariants: Invariants,
    pub(super) coverage: Coverage,
    pub(super) trace: Trace,
    pub(super) violation: Option<Violation>,
    pub(super) healing: Healing,
    pub(super) replacing: Replacing,
    pub(super) formed: bool,
    pub(super) done: bool,
}

impl World {
    /// The world of a seed, with every process of the first group started.
    pub fn new(seed: u64, options: &Options) -> Self {
        let mut chance = Rng::new(seed);
        let scenario = Scenario::draw(&mut chance.fork(1), options.replicas, options.canary);
        let mut clocks = chance.fork(2);
        let configuration = scenario.first_configuration();
        let size = scenario.hosts();
        let hosts = (0..size)
            .map(|_| Host::new(configuration, &mut clocks))
            .collect();
        let net = Net::new(size, scenario.weather, scenario.ring_bytes, chance.fork(3));
        let mut world = Self {
            plan: Schedule::default(),
            hosts,
            net,
            disks: chance.fork(4),
            faults: chance.fork(5),
            work: chance.fork(6),
            starts: chance.fork(7),
            invariants: Invariants::default(),
            coverage: Coverage::default(),
            trace: Trace::new(options.trace),
            violation: None,
            healing: Healing::default(),
            replacing: Replacing::default(),
            formed: false,
            done: false,
            scenario,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        trace!(self, "SCENARIO {:?}", self.scenario);
        for host in 0..self.scenario.replicas {
            self.hosts[host].enlisted = true;
            self.start(host);
        }
        let begin = Micros::from_ms(100);
        self.plan.after(begin, Happening::Work);
        self.plan.after(begin, Happening::NextFault);
        self.plan.after(begin, Happening::Operator);
        self.plan
            .after(begin + self.scenario.faults_for, Happening::Heal);
    }

    /// Runs to the end, or to the first violation.
    pub fn run(&mut self) {
        while !self.done && self.violation.is_none() {
            let Some(what) = self.plan.pop() else { return };
            self.perform(what);
            // Before it sleeps again, a process looks at all of its rings.
            for host in 0..self.hosts.len() {
                if std::mem::take(&mut self.hosts[host].awake) {
                    self.look_at_rings(host);
                }
            }
        }
    }

    /// Reads the records that came while the process slept and for which it was not woken.
    fn look_at_rings(&mut self, host: usize) {
        for (from, bytes) in std::mem::take(&mut self.hosts[host].unseen) {
            self.arrive(from, host, &bytes);
        }
    }

    /// Whether the process goes on sleeping when `from` writes to it, because fewer than it waits for
    /// have then (`Apus::awaited`), as servers of a log do.
    fn sleeps_on(&self, host: usize, from: usize) -> bool {
        let Some(awaited) = self.core(host).and_then(Apus::awaited) else {
            return false;
        };
        let unseen = self.hosts[host].unseen.iter().map(|(from, _)| *from);
        let written = unseen.chain([from]).map(|from| ReplicaId(from as u8));
        let answered = ReplicaSet(ReplicaSet::of(written).0 & awaited.from.0);
        !self.scenario.guest && answered.len() < awaited.count
    }

    /// Notes the first broken promise.
    pub(super) fn check(&mut self, check: Check) {
        if let Err(violation) = check {
            trace!(self, "VIOLATION {violation}");
            self.violation.get_or_insert(violation);
        }
    }

    fn perform(&mut self, what: Happening) {
        if let Some(host) = whose(&what) {
            let wake = self.hosts[host].paused_until;
            if wake > self.plan.now() {
                // One microsecond later than everything that was due while it slept, so the order
                // stays.
                return self.plan.at(wake + Micros(1), what);
            }
        }
        if let Happening::Arrival { from, to, bytes } = what {
            if self.sleeps_on(to, from) {
                self.coverage.hit("leader: slept on when an answer came");
                self.hosts[to].unseen.push((from, bytes));
                return;
            }
            self.look_at_rings(to);
            return self.arrive(from, to, &bytes);
        }
        // A process that wakes looks at its rings first.
        if let Some(host) = whose(&what) {
            self.look_at_rings(host);
        }
        match what {
            Happening::Tick { host, process } => self.tick(host, process),
            Happening::Arrival { .. } => unreachable!("taken above"),
            Happening::StateStored { host, process } => {
                if self.runs(host, process) {
                    let state = self.hosts[host].disk.store_state();
                    if self.scenario.durability == Durability::Disk {
                        let trusted = self.hosts[host].disk.is_trusted_for();
                        self.check(recovered_logs_are_stored::stored(host, trusted));
                    }
                    self.apply(host, Event::StatePersisted(state));
                }
            }
            Happening::EntriesStored { host, process } => {
                if self.runs(host, process) {
                    let (last, next) = self.hosts[host].disk.end_sync(&mut self.disks);
                    if let Some(span) = next {
                        let again = Happening::EntriesStored { host, process };
                        self.plan.after(span, again);
                    }
                    self.apply(host, Event::EntriesPersisted(last));
                }
            }
            Happening::LinkNotice { end, peer, up } => self.link_notice(end, peer, up),
            Happening::DeathReported { host, dead } => self.death_reported(host, dead),
            Happening::Copied {
                leader,
                view,
                peer,
                process,
            } => self.copied(leader, view, peer, process),
            Happening::Bootstrap { host, process } => {
                if self.runs(host, process) {
                    self.bootstrap(host);
                }
            }
            Happening::Work => self.work(),
            Happening::Operator => self.operator(),
            Happening::NextFault => self.next_fault(),
            Happening::Inject(fault) => self.inject(fault),
            Happening::Mend(fault) => self.mend(fault),
            Happening::Restart(host) => self.restart(host),
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
            Happening::EncoreCut => self.encore_cut(),
            Happening::EncoreHeal => self.encore_heal(),
            Happening::EncoreLook => self.encore_look(),
        }
    }

    /// Whether this process runs still.
    pub(super) fn runs(&self, host: usize, process: u64) -> bool {
        self.hosts[host].process == process && self.hosts[host].core.is_some()
    }

    fn tick(&mut self, host: usize, process: u64) {
        if !self.runs(host, process) {
            return;
        }
        self.hosts[host].tick_at = None;
        let now = self.clock(host);
        let deadline = self.core(host).map_or(Micros::NEVER, Apus::deadline);
        if deadline <= now {
            self.apply(host, Event::Tick);
            if let Some(core) = &self.hosts[host].core {
                let deadline = core.deadline();
                self.check(super::invariants::nothing_spins::ticked(
                    host, now, deadline,
                ));
            }
        }
        self.plan_tick(host);
    }

    /// Plans the next tick, unless one is planned that is early enough.
    pub(super) fn plan_tick(&mut self, host: usize) {
        let Host {
            core,
            clock,
            process,
            tick_at,
            ..
        } = &mut self.hosts[host];
        let Some(deadline) = core.as_ref().map(Apus::deadline) else {
            return;
        };
        if deadline == Micros::NEVER {
            return;
        }
        let at = clock.global(deadline).max(self.plan.now());
        if tick_at.is_none_or(|planned| planned > at) {
            *tick_at = Some(at);
            let process = *process;
            self.plan.at(at, Happening::Tick { host, process });
        }
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.net.read(from, to, bytes.len());
        if self.hosts[to].core.is_none() {
            return;
        }
        trace!(self, "r{to} <- r{from} {}", describe::record(bytes));
        let from = ReplicaId(from as u8);
        self.apply(to, Event::Received { from, bytes });
    }

    fn link_notice(&mut self, end: usize, peer: usize, up: bool) {
        // The last notice of a link is true; only notices before it may be missed.
        let passes = !self.net.is_cut(peer, end) && self.hosts[peer].core.is_some();
        if up == passes && self.hosts[end].core.is_some() {
            trace!(
                self,
                "r{end} learns that r{peer} is {}",
                if up { "up" } else { "down" }
            );
            let peer = ReplicaId(peer as u8);
            self.apply(end, Event::Link { peer, up });
        }
    }

    // ---- looking

    /// The local time of `host`.
    pub(super) fn clock(&self, host: usize) -> Micros {
        self.hosts[host].clock.local(self.plan.now())
    }

    pub(super) fn core(&self, host: usize) -> Option<&Apus> {
        self.hosts[host].core.as_ref()
    }

    pub(super) fn status(&self, host: usize) -> Option<Status> {
        self.core(host).map(Apus::status)
    }

    /// Hosts whose process runs.
    pub(super) fn up(&self) -> impl Iterator<Item = (usize, &Apus)> {
        let cores = self.hosts.iter().enumerate();
        cores.filter_map(|(host, state)| Some((host, state.core.as_ref()?)))
    }

    /// The leader of the newest view.
    pub(super) fn leader(&self) -> Option<usize> {
        let leads = self.up().map(|(host, core)| (host, core.status()));
        let leads = leads.filter(|(_, status)| status.phase == Phase::Leading);
        leads
            .max_by_key(|(_, status)| status.view)
            .map(|(host, _)| host)
    }
}

/// The host whose process would handle this.
fn whose(what: &Happening) -> Option<usize> {
    match what {
        Happening::Tick { host, .. }
        | Happening::StateStored { host, .. }
        | Happening::EntriesStored { host, .. }
        | Happening::Bootstrap { host, .. } => Some(*host),
        Happening::Arrival { to, .. } => Some(*to),
        Happening::LinkNotice { end, .. } => Some(*end),
        Happening::DeathReported { host, .. } => Some(*host),
        Happening::Copied { leader, .. } => Some(*leader),
        _ => None,
    }
}

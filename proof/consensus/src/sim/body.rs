//! The caller's part: carries out what a core commands.

use super::describe;
use super::disk::Write;
use super::host::Host;
use super::invariants::{
    committed_not_lost, deliveries_in_order, held_by_a_quorum, lease_exclusive, nobody_is_refused,
};
use super::net::Fate;
use super::scenario::{HEARTBEAT, KNOWN_AFTER, MESSAGE_BYTES_MAX, TIMEOUT, TIMEOUT_MIN};
use super::schedule::Happening;
use super::world::World;
use apus::{Apus, Command, Config, Durability, Entry, EntryKind, Event, Phase, Start, Status};
use plover_sim::trace::trace;
use plover_types::wire::WIRE_VERSION;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};

impl World {
    /// A process starts with what its disk holds.
    pub(super) fn start(&mut self, host: usize) {
        let now = self.clock(host);
        let durability = self.scenario.durability;
        let chosen = self.invariants.log.newest().last();
        let chosen = chosen.map_or(Viewstamp::default(), |entry| entry.viewstamp);
        let start = self.hosts[host].disk.start(durability, chosen);
        let cursor = match &start {
            Start::Restarted {
                base,
                forgotten: false,
                ..
            } => base.index,
            _ => Index(0),
        };
        // Rings end with their process.
        for (from, bytes) in std::mem::take(&mut self.hosts[host].unseen) {
            self.net.read(from, host, bytes.len());
        }
        let config = self.config(host);
        trace!(self, "r{host} starts: {}", describe::start(&start));
        let state = &mut self.hosts[host];
        assert!(state.core.is_none(), "one process a host");
        state.incarnation = config.seed;
        state.core = Some(Apus::new(config, start, now));
        state.process += 1;
        state.cursor = cursor;
        state.holds_guest = false;
        state.boots = false;
        state.alive.clear();
        state.paused_until = Micros::ZERO;
        state.tick_at = None;
        state.saw_election = false;
        for peer in 0..self.hosts.len() {
            if peer != host && self.hosts[peer].core.is_some() {
                self.notify(host, peer, true);
            }
        }
        self.plan_tick(host);
    }

    fn config(&mut self, host: usize) -> Config {
        let told = self.hosts[host].told;
        let lowest = told.iter().next().expect("a group has voters");
        Config {
            me: ReplicaId(host as u8),
            members: told,
            first_leader: lowest,
            any_voter_stands: !self.scenario.guest,
            pair: false,
            fencing: false,
            quorum_selection: !self.scenario.guest,
            newest_version: WIRE_VERSION,
            heartbeat: HEARTBEAT,
            timeout: TIMEOUT,
            timeout_min: TIMEOUT_MIN,
            durability: self.scenario.durability,
            log_bytes_max: self.scenario.log_bytes_max,
            message_bytes_max: MESSAGE_BYTES_MAX,
            seed: self.starts.word(),
            canary: self.scenario.canary,
            known_after: KNOWN_AFTER,
        }
    }

    /// Both ends of a link will learn that it is up, or down.
    pub(super) fn notify(&mut self, a: usize, b: usize, up: bool) {
        for (end, peer) in [(a, b), (b, a)] {
            let span = self.starts.micros((50, 900));
            self.plan
                .after(span, Happening::LinkNotice { end, peer, up });
        }
    }

    /// Applies one event to the core of `host`, and carries out its commands.
    pub(super) fn apply(&mut self, host: usize, event: Event<'_>) {
        self.turn(host, |core, now, out| core.apply(now, event, out));
    }

    /// One turn of a core: `act` on it, carry out what it commands, look at what has changed.
    pub(super) fn turn<T>(
        &mut self,
        host: usize,
        act: impl FnOnce(&mut Apus, Micros, &mut Vec<Command>) -> T,
    ) -> Option<T> {
        let now = self.clock(host);
        let mut out = Vec::new();
        self.hosts[host].awake = true;
        let core = self.hosts[host].core.as_mut()?;
        let before = core.status();
        let result = act(core, now, &mut out);
        let tail = core.entry(before.last.index).map(|entry| entry.viewstamp);
        self.observe(host, &before, tail);
        self.obey(host, &before, out);
        self.check_leases();
        if let Some(core) = &self.hosts[host].core {
            let base = core.status().base;
            self.hosts[host].disk.reclaim(base);
        }
        self.plan_tick(host);
        Some(result)
    }

    fn check_leases(&mut self) {
        let now = self.plan.now();
        let mut holders = Vec::new();
        for (place, host) in self.hosts.iter().enumerate() {
            if host.lease_is_valid(now) {
                holders.push(place);
            }
        }
        self.check(lease_exclusive::holders(&holders));
    }

    fn obey(&mut self, host: usize, before: &Status, commands: Vec<Command>) {
        let process = self.hosts[host].process;
        for command in commands {
            match command {
                Command::Write { to, bytes } => self.transmit(host, usize::from(to.0), bytes),
                Command::PersistState(state) => {
                    let (now, disk) = (self.plan.now(), &mut self.hosts[host].disk);
                    let span = disk.submit_state(state, now, &mut self.disks);
                    self.plan
                        .after(span, Happening::StateStored { host, process });
                }
                Command::PersistEntries {
                    after,
                    anew,
                    entries,
                } => {
                    let write = Write {
                        after,
                        entries,
                        anew,
                    };
                    let disk = &mut self.hosts[host].disk;
                    if let Some(span) = disk.submit(write, &mut self.disks) {
                        self.plan
                            .after(span, Happening::EntriesStored { host, process });
                    }
                }
                Command::Deliver(entry) => self.delivered(host, entry),
                Command::InstallSnapshot {
                    base,
                    configuration,
                } => {
                    self.hosts[host].in_sync = configuration.in_sync;
                    self.installed(host, base);
                }
                command => self.obey_news(host, before, command),
            }
        }
    }

    /// Takes in a command that is a report of the core, not a request.
    fn obey_news(&mut self, host: usize, before: &Status, command: Command) {
        match command {
            Command::Lead { view } => self.leads(host, before, view),
            Command::Follow { view, leader } => {
                trace!(self, "r{host} follows {leader:?} in {view}");
            }
            Command::Refuse { peer, why } => {
                self.check(nobody_is_refused::refused(host, peer, why))
            }
            Command::PeerAlive { peer, alive } => self.peer_alive(host, peer, alive),
            Command::GroupEmpty { fresh } => {
                trace!(self, "r{host} finds the group empty, fresh: {fresh}");
                self.coverage.hit("group: found empty");
                let process = self.hosts[host].process;
                // Only the first leader can act on this; the others' reports may come late.
                if host == 0 {
                    self.check(self.invariants.log.group_empty(host, fresh));
                    if fresh || self.scenario.operator {
                        let soon = Micros::from_ms(2);
                        self.plan
                            .after(soon, Happening::Bootstrap { host, process });
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn bootstrap(&mut self, host: usize) {
        self.turn(host, |core, now, out| core.bootstrap(now, out));
        let electing = self.status(host).map(|status| status.phase) == Some(Phase::Electing);
        if electing {
            self.hosts[host].boots = true;
            self.hosts[host].holds_guest = true;
        }
    }

    fn leads(&mut self, host: usize, before: &Status, view: View) {
        trace!(self, "r{host} LEADS {view}");
        if std::mem::take(&mut self.hosts[host].boots) {
            self.invariants.log.generation_begins(view);
            self.invariants.acknowledged.generation_begins();
            for host in &mut self.hosts {
                host.disk.owes_nothing();
            }
            self.hosts[host].cursor = Index(0);
            self.group_begins(self.hosts[host].told);
            self.coverage.hit("group: a generation begins");
        }
        self.hosts[host].alive.clear();
        let elected = self.invariants.one_leader_a_view.elected(host, view);
        self.check(elected);
        if let Some(core) = &self.hosts[host].core {
            let chosen = self.invariants.log.before(view);
            self.check(committed_not_lost::leads(host, core, chosen));
        }
        self.observe_election(host, before);
    }

    fn installed(&mut self, host: usize, base: Viewstamp) {
        trace!(self, "r{host} installs a snapshot at {base}");
        let cursor = self.hosts[host].cursor;
        self.check(deliveries_in_order::installed(host, cursor, base));
        self.hosts[host].cursor = base.index;
        let what = if base.index > Index(0) {
            "follower: installed a snapshot"
        } else {
            "follower: began a new generation"
        };
        self.coverage.hit(what);
    }

    fn delivered(&mut self, host: usize, entry: Entry) {
        let cursor = self.hosts[host].cursor;
        self.check(deliveries_in_order::delivered(
            host,
            cursor,
            entry.viewstamp,
        ));
        self.hosts[host].cursor = entry.viewstamp.index;
        let now = self
            .status(host)
            .map_or(entry.viewstamp.view, |status| status.view);
        match self.invariants.log.delivered(host, &entry, now) {
            Ok(true) => self.chosen(host, &entry),
            Ok(false) => {}
            Err(violation) => self.check(Err(violation)),
        }
        let status = self.status(host);
        let own = entry.viewstamp.view;
        let leads = |status: Status| status.phase == Phase::Leading && status.view == own;
        if entry.kind == EntryKind::App && status.is_some_and(leads) {
            let acknowledged = self.invariants.acknowledged.acknowledged(&entry);
            self.check(acknowledged);
        }
        if let EntryKind::InSync(set) = entry.kind {
            self.in_sync_delivered(host, set);
        }
    }

    /// An index is delivered for the first time, by `host`.
    fn chosen(&mut self, host: usize, entry: &Entry) {
        let viewstamp = entry.viewstamp;
        if let EntryKind::Members(members) = entry.kind {
            self.members_chosen(members);
            self.coverage.hit("members: a change was committed");
        }
        if self.scenario.durability == Durability::Disk {
            let members = self.members_by_log(host);
            let holds = |id: &ReplicaId| {
                let host: &Host = &self.hosts[usize::from(id.0)];
                host.disk.holds(viewstamp)
            };
            let holding = members.voters.iter().filter(holds).count();
            self.check(held_by_a_quorum::chosen(
                viewstamp,
                holding,
                members.quorum(),
            ));
        }
    }

    fn in_sync_delivered(&mut self, host: usize, set: ReplicaSet) {
        self.hosts[host].in_sync = set;
        let me = ReplicaId(host as u8);
        let named = |status: Status| status.in_sync.contains(me);
        if !set.contains(me) && !self.status(host).is_some_and(named) {
            // The others have gone on without this replica's guest.
            self.hold_guest(host, false);
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if to >= self.hosts.len() {
            return;
        }
        let fate = self.net.send(from, to, bytes.len());
        let mut deliver = |span: Micros, bytes| {
            self.plan
                .after(span, Happening::Arrival { from, to, bytes });
        };
        match fate {
            Fate::Arrives(span) => deliver(span, bytes),
            Fate::Doubled(first, second) => {
                deliver(first, bytes.clone());
                deliver(second, bytes);
            }
            Fate::Lost | Fate::Cut => {}
            Fate::RingFull => self.coverage.hit("network: a ring was full"),
        }
    }
}

//! The replicas: what their brains are told, and how their actions are carried out.

use super::{Host, World};
use crate::program::Connection;
use plover_program::{Action, Config, Event, LogState, Note, Replica, Taint};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};

/// Bytes that the log takes of clients, and of replicas beyond.
const ROOM: u64 = 3000;
const ROOM_OF_REPLICAS: u64 = 3000;

impl World {
    pub(super) fn begin(&mut self, host: usize) {
        let config = Config {
            me: ReplicaId(host as u8),
            members: ReplicaSet::of((0..self.hosts.len()).map(|id| ReplicaId(id as u8))),
            address: format!("r{host}"),
            check: Some(32),
            checkpoints: true,
            checkpoint_bytes: 600,
            checkpoint_bytes_max: 1500,
            room: ROOM,
            stall: Micros::from_ms(300),
            // Longer than a run: a group that waits for a checkpoint that nobody takes does not heal.
            checkpoint_within: Micros::from_ms(1_000_000),
            checkpoint_within_if_full: Micros::from_ms(1_000_000),
            entrance: self.entrance,
            sessions: self.sessions,
            restarts: self.restarts,
            canary: self.options.canary,
        };
        let own = self.hosts[host].disk.as_ref().map(|(own, ..)| own.clone());
        trace!(
            self,
            "r{host} starts, with {:?}",
            own.as_ref().map(|it| it.at)
        );
        let disk = self.hosts[host].disk.take();
        let (discarded, lost) = (self.hosts[host].discarded, self.hosts[host].lost);
        self.hosts[host] = Host {
            brain: Some(Replica::new(config, own)),
            disk,
            discarded,
            lost,
            ..Host::default()
        };
    }

    pub(super) fn log_state(&self, host: usize) -> LogState {
        let Host {
            commit,
            base,
            brain,
            knows,
            ..
        } = &self.hosts[host];
        let leads = self.leader.filter(|(leader, _)| *leader == host);
        let last = match leads {
            Some(_) => self.log.last().map(|it| it.0),
            None => self.at(*commit),
        };
        let own = brain
            .as_ref()
            .and_then(|it| it.own())
            .map(|own| own.at.index);
        let has = |index: &Index| *knows && index >= base && *index <= *commit;
        LogState {
            leads: leads.map(|it| it.1),
            base: *base,
            commit: *commit,
            last: last.unwrap_or_default(),
            bytes: self.log_bytes(),
            linked: ReplicaSet::of((0..self.hosts.len()).filter_map(|id| {
                self.hosts[id]
                    .brain
                    .is_some()
                    .then_some(ReplicaId(id as u8))
            })),
            at_own: own.filter(has).and_then(|index| self.at(index)),
        }
    }

    pub(super) fn turn(&mut self, host: usize) {
        let state = self.log_state(host);
        self.apply(host, Event::Log(state));
        for _ in 0..self.rng.range(1, 8) {
            let Some(index) = self.hosts[host].brain.as_ref().and_then(Replica::wants) else {
                return;
            };
            let (at, bytes) = self.log[index.0 as usize - 1].clone();
            self.apply(host, Event::Entry(at, bytes.as_deref()));
        }
    }

    pub(super) fn apply(&mut self, host: usize, event: Event<'_>) {
        let now = self.now;
        let mut out = Vec::new();
        let Some(brain) = self.hosts[host].brain.as_mut() else {
            return;
        };
        brain.apply(now, event, &mut out);
        for action in out {
            self.obey(host, action);
        }
        let brain = self.hosts[host].brain.as_ref();
        if brain.is_some_and(|it| it.status().waits) {
            self.coverage.hit("leader: waits for programs");
        }
        let may = self.hosts[host]
            .brain
            .as_ref()
            .is_some_and(Replica::may_lead);
        if !may && self.leader.is_some_and(|(leader, _)| leader == host) {
            trace!(self, "r{host} hands over");
            self.leader = None;
        }
    }

    pub(super) fn obey(&mut self, host: usize, action: Action) {
        trace!(self, "r{host} {action:?}");
        let soon = self.now + self.rng.micros((100, 60_000));
        let state = &mut self.hosts[host];
        let connections = state.program.as_mut().map(|it| &mut it.connections);
        match action {
            Action::Propose(bytes) => {
                let may_pass = self.rng.chance(0.9);
                if may_pass && self.log_bytes() <= ROOM + ROOM_OF_REPLICAS {
                    self.append(Some(bytes));
                }
            }
            Action::Connect(id, _) => {
                let new = Connection {
                    is_news: true,
                    ..Connection::default()
                };
                connections.expect("it runs").insert(id, new);
            }
            Action::Feed(id, bytes) => {
                let connection = connections
                    .expect("it runs")
                    .get_mut(&id)
                    .expect("it is open");
                connection.unread.extend(bytes);
                connection.is_news = true;
            }
            Action::Clock(time) => state.program.as_mut().expect("it runs").next_time = time,
            Action::EndInput(_) | Action::Finish(_) => {}
            Action::Close(id) => {
                match connections.and_then(|it| it.get_mut(&id)) {
                    Some(it) => (it.closes, it.is_news) = (true, true),
                    None => state.noticed.push(id),
                }
                self.cut_off(|to| to == (host, id));
            }
            Action::Reply(id, bytes) => self.reply((host, id), &bytes),
            Action::DropClients => self.cut_off_all(host),
            Action::Release(at) => self.release(host, at),
            Action::Forget => {
                state.waits.clear();
                self.coverage.hit("program: its reads fail");
            }
            Action::Quiesce => {
                state.is_quiet = true;
                self.cut_off_all(host);
            }
            Action::Start(from) => state.starts = Some((from, soon)),
            Action::Stop => {
                state.was_wrong = state.program.as_ref().is_some_and(|it| it.is_wrong);
                (state.program, state.starts, state.takes) = (None, None, None);
                state.waits.clear();
                state.noticed.clear();
                state.is_quiet = false;
            }
            Action::TakeCheckpoint(at, kept) => state.takes = Some((at, kept, soon)),
            Action::Fetch(held) => state.fetches = Some((held, soon)),
            Action::Discard(at) => {
                state.discarded = state.discarded.max(at.index);
                state.disk.take_if(|(own, ..)| own.at == at);
            }
            Action::Trim(to) => self.trim(host, to),
            Action::Note(note) => {
                let diverged = matches!(note, Note::Restores(Taint::Diverged(_)));
                state.has_diverged |= diverged;
                if diverged && !state.was_wrong {
                    let message = format!("r{host} is restored although its program is right");
                    self.fail("wrong_is_restored", "APUS §3", message);
                }
                self.note(&note);
            }
        }
    }

    pub(super) fn note(&mut self, note: &Note) {
        let what = match note {
            Note::Serves(_) => "leader: serves",
            Note::Restores(Taint::Died(_)) => "program: restored after its death",
            Note::Restores(Taint::Diverged(_)) => "program: restored after it diverged",
            Note::Restores(Taint::Ahead) => "program: restored since it was ahead",
            Note::Restores(Taint::Behind) => "program: too far behind",
            Note::CheckpointFailed(_) => "checkpoint: failed",
            Note::NoCheckpoint => "checkpoint: none to be had",
            Note::Excerpts(_) => "outputs: excerpts",
            _ => return,
        };
        self.coverage.hit(what);
    }

    pub(super) fn trim(&mut self, host: usize, to: Index) {
        let held = |it: &&Host| it.disk.as_ref().is_some_and(|(own, ..)| own.at.index >= to);
        let holders = self.hosts.iter().filter(held).count();
        // A disk that was lost held it once; so did one whose checkpoint was discarded because the program that
        // took it had diverged, which this leader may learn a little later.
        let has_lost = |it: &&Host| !held(it) && it.discarded.max(it.lost) >= to;
        let lost = self.hosts.iter().filter(has_lost).count();
        if holders + lost < self.quorum() {
            let message = format!("r{host} trims up to {to}, which {holders} replicas hold");
            self.fail("trim_is_held", "APUS §3", message);
        }
        self.coverage.hit("log: trimmed");
        self.hosts[host].base = to.min(self.hosts[host].commit);
    }
}

//! The caller's part: carries out what a core commands, and keeps the in-sync set as the replica
//! above would.

use super::disk::Write;
use super::{Step, World};
use apus::{Command, Entry, EntryKind, Event, Phase};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View};

impl World {
    pub fn apply(&mut self, node: usize, event: Event<'_>) {
        let (now, mut out) = (self.clock(node), Vec::new());
        let Some(core) = &mut self.nodes[node].core else {
            return;
        };
        let before = core.deadline();
        core.apply(now, event, &mut out);
        let moved = core.deadline() != before || core.deadline() <= now;
        self.obey(node, out);
        if moved {
            self.schedule_tick(node);
        }
    }

    pub(super) fn bootstrap(&mut self, node: usize) {
        let (now, mut out) = (self.clock(node), Vec::new());
        let Some(core) = &mut self.nodes[node].core else {
            return;
        };
        core.bootstrap(now, &mut out);
        if core.status().phase == Phase::Electing {
            self.nodes[node].booting = true;
            self.nodes[node].holds = true;
        }
        self.obey(node, out);
        self.schedule_tick(node);
    }

    pub(super) fn obey(&mut self, node: usize, commands: Vec<Command>) {
        let incarnation = self.nodes[node].incarnation;
        for command in commands {
            match command {
                Command::Write { to, bytes } => self.transmit(node, usize::from(to.0), bytes),
                Command::PersistState(state) => {
                    let delay = Micros(self.random.range(100, 3000));
                    let delay = self.nodes[node].disk.submit_state(self.now, delay);
                    self.schedule(delay, Step::StateWritten(node, incarnation, state));
                }
                Command::PersistEntries {
                    after,
                    anew,
                    entries,
                } => {
                    let write = Write {
                        after,
                        anew,
                        entries,
                    };
                    let disk = &mut self.nodes[node].disk;
                    let delay = disk.submit(write, self.now, &mut self.random);
                    self.schedule(delay, Step::EntriesWritten(node, incarnation));
                }
                Command::Deliver(entry) => self.delivered(node, entry),
                Command::InstallSnapshot {
                    base,
                    configuration,
                } => {
                    self.nodes[node].jumped_to = Some(configuration.in_sync);
                    self.nodes[node].cursor = Some(base.index);
                }
                Command::Lead { view } => {
                    if std::mem::take(&mut self.nodes[node].booting) {
                        self.checks.generation_begins(view);
                        self.nodes[node].cursor = Some(Index(0));
                    }
                    let last = self.core(node).status().last;
                    self.checks.leads(node, incarnation, view, last);
                    self.nodes[node].alive.clear();
                }
                Command::Follow { .. } => {}
                Command::PeerAlive { peer, alive } => self.peer_alive(node, peer, alive),
                Command::GroupEmpty { fresh } => {
                    self.nodes[node].empty = true;
                    if node == 0 {
                        // Others may say so a little late; only the first leader can act on it.
                        self.checks.group_empty(fresh);
                    }
                    if node == 0 && (fresh || self.operator) {
                        self.schedule(Micros::from_ms(2), Step::Bootstrap(node, incarnation));
                    }
                }
            }
        }
        let leases = (0..self.nodes.len()).filter(|node| self.lease_is_valid(*node));
        self.checks.leases(&leases.collect::<Vec<_>>());
        if let Some(core) = &self.nodes[node].core {
            let base = core.status().base;
            self.nodes[node].disk.reclaim(base);
        }
    }

    fn delivered(&mut self, node: usize, entry: Entry) {
        let cursor = self.nodes[node]
            .cursor
            .expect("a running replica has a cursor");
        self.checks.delivered(node, cursor, &entry);
        self.nodes[node].cursor = Some(entry.viewstamp.index);
        if let EntryKind::InSync(set) = entry.kind {
            let me = ReplicaId(node as u8);
            if !set.contains(me) && !self.core(node).status().in_sync.contains(me) {
                // The others have gone on without this replica's guest.
                self.hold_state(node, false);
            }
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        assert!(
            bytes.len() <= self.setup.message_bytes_max,
            "{} bytes",
            bytes.len()
        );
        self.writes += 1;
        let filtered = self
            .filter
            .as_mut()
            .is_some_and(|filter| filter(from, to, &bytes));
        if self.cut[from][to] || filtered {
            return;
        }
        let weather = self.setup.weather;
        if self.random.range(0, 999) < weather.lost {
            return;
        }
        let copies = if self.random.range(0, 999) < weather.doubled {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut delay = self.random.range(50, 2000);
            if self.random.range(0, 999) < weather.late {
                delay = self.random.range(2000, 500_000);
            }
            delay += self.slow[from].0.max(self.slow[to].0);
            self.schedule(
                Micros(delay),
                Step::Arrive {
                    from,
                    to,
                    bytes: bytes.clone(),
                },
            );
        }
    }

    // ---- the part of the replica above: who holds the guest

    fn peer_alive(&mut self, leader: usize, peer: ReplicaId, alive: bool) {
        self.nodes[leader].alive.insert(peer, alive);
        self.peer_log.push((leader, peer.0, alive));
        if !self.setup.manage_in_sync {
            return;
        }
        let status = self.core(leader).status();
        let mut set = status.in_sync;
        if !alive && set.contains(peer) {
            set.remove(peer);
            let _ = self.propose_kind(leader, EntryKind::InSync(set), Vec::new());
        }
        self.bring_up(leader);
    }

    /// Starts to copy the guest to some living peer, if nobody else has it.
    fn bring_up(&mut self, leader: usize) {
        let status = self.core(leader).status();
        let alive = &self.nodes[leader].alive;
        let candidate = alive
            .iter()
            .find(|(_, alive)| **alive)
            .map(|(peer, _)| *peer);
        if let (1, Some(peer)) = (status.in_sync.len(), candidate) {
            let peer = usize::from(peer.0);
            let incarnation = self.nodes[peer].incarnation;
            let copied = Step::Synced {
                leader,
                view: status.view,
                peer,
                incarnation,
            };
            self.schedule(Micros::from_ms(30), copied);
        }
    }

    pub(super) fn synced(&mut self, leader: usize, view: View, peer: usize, incarnation: u64) {
        let Some(core) = &self.nodes[leader].core else {
            return;
        };
        let status = core.status();
        if status.phase != Phase::Leading || status.view != view || status.in_sync.len() > 1 {
            return;
        }
        let ready = self.nodes[peer].core.as_ref().is_some_and(|core| {
            // Its guest is only worth something with the log that goes on from there.
            let follows = core.status().view == view && core.status().commit >= status.base;
            self.nodes[peer].incarnation == incarnation && follows
        });
        if !ready {
            self.bring_up(leader);
            return;
        }
        self.hold_state(peer, true);
        let set = ReplicaSet::of([ReplicaId(leader as u8), ReplicaId(peer as u8)]);
        let _ = self.propose_kind(leader, EntryKind::InSync(set), Vec::new());
    }

    /// Trims to what every member of the in-sync set has delivered.
    pub fn trim(&mut self, leader: usize) {
        let set = self.core(leader).status().in_sync;
        let covered = set
            .iter()
            .map(|id| self.nodes[usize::from(id.0)].cursor.unwrap_or_default());
        if let Some(index) = covered.min() {
            let core = self.nodes[leader].core.as_mut().expect("the leader is up");
            core.trim(index);
        }
    }
}

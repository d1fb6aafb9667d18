//! Three replicas whose messages arrive and whose guests and disks answer at once, but for a disk that hangs.

use super::*;
use crate::api::{Action, Config, Event, Note, Role};
use crate::log_ops::LogOp;
use crate::replica::Replica;
use apus::{Durability, Start};
use plover_types::{Lane, MachineWords, ReplicaSet, Viewstamp};
use std::collections::VecDeque;

struct Group {
    now: Micros,
    replicas: Vec<Replica>,
    due: VecDeque<(ReplicaId, Event)>,
    hangs: Option<ReplicaId>,
    /// Nothing comes to it or from it.
    away: Option<ReplicaId>,
    /// The last answer of the disk that hangs.
    held: Option<Event>,
    /// The entries that the leader's slow disk has still to store.
    queue: Option<VecDeque<Event>>,
    notes: Vec<Note>,
}

const LEADER: ReplicaId = ReplicaId(0);
const OTHER: ReplicaId = ReplicaId(1);

impl Group {
    /// A group whose leader serves alone.
    fn new(durability: Durability) -> Self {
        let ids = [0, 1, 2].map(ReplicaId);
        let replica = |id| {
            let config = Config {
                first_leader: LEADER,
                durability,
                // The guest is not paused for a syncvm here, so none ends or fails.
                hypervisor_timeout: Micros::from_ms(60_000),
                ..Config::new(id, ReplicaSet::of(ids), 16)
            };
            Replica::new(config, Start::Fresh, Micros(1))
        };
        let mut group = Self {
            now: Micros(1),
            replicas: ids.map(replica).into(),
            due: VecDeque::new(),
            hangs: None,
            away: None,
            held: None,
            queue: None,
            notes: Vec::new(),
        };
        for (id, peer) in ids.iter().flat_map(|id| ids.map(|peer| (*id, peer))) {
            if id != peer {
                group.due.push_back((id, Event::Link { peer, up: true }));
            }
        }
        group.run(1_000);
        assert!(group.leader().0.serving);
        group
    }

    fn leader(&mut self) -> (&mut Leader, &mut Context) {
        self.replicas[0].leading().expect("replica 0 leads")
    }

    /// This replica holds the guest, and is to be in sync with the leader.
    fn join(&mut self, joiner: ReplicaId) {
        let core = &mut self.replicas[usize::from(joiner.0)].cx.group.core;
        core.set_holds_state(true);
        let (leader, cx) = self.leader();
        leader.propose_in_sync(cx, ReplicaSet::of([LEADER, joiner]));
    }

    fn propose_input(&mut self) {
        let (_, cx) = self.leader();
        let input = LogOp::Inputs(Vec::new()).encode(cx.group.usable_version());
        assert!(cx.propose(apus::EntryKind::App, input).is_ok());
    }

    fn run(&mut self, ms: u64) {
        let until = self.now + Micros::from_ms(ms);
        while self.now < until {
            while let Some((to, event)) = self.due.pop_front() {
                self.apply(to, event);
            }
            self.now = self.now + Micros::from_ms(5);
            for id in [0, 1, 2].map(ReplicaId) {
                self.due.push_back((id, Event::Tick));
            }
        }
    }

    fn apply(&mut self, to: ReplicaId, event: Event) {
        let mut out = Vec::new();
        self.replicas[usize::from(to.0)].apply(self.now, event, &mut out);
        let hangs = self.hangs == Some(to);
        for action in out {
            let answer = match action {
                Action::Write {
                    to: peer,
                    lane: Lane::Log,
                    bytes,
                    ..
                } => {
                    if [Some(to), Some(peer)].contains(&self.away) {
                        continue;
                    }
                    let (from, lane) = (to, Lane::Log);
                    let event = Event::Received { from, lane, bytes };
                    self.due.push_back((peer, event));
                    continue;
                }
                Action::PersistState(state) if hangs => {
                    self.held = Some(Event::StatePersisted(state));
                    continue;
                }
                Action::PersistState(state) => Event::StatePersisted(state),
                Action::PersistEntries { after, entries, .. } if !hangs => {
                    let last = entries.last().map_or(after, |entry| entry.viewstamp);
                    let stored = Event::EntriesPersisted(last);
                    match self.queue.as_mut().filter(|_| to == LEADER) {
                        Some(queue) => {
                            queue.push_back(stored);
                            continue;
                        }
                        None => stored,
                    }
                }
                Action::StartGuest(_) => Event::GuestStarted(MachineWords::default()),
                Action::Resume => Event::GuestResumed,
                Action::Probe => Event::Probed,
                Action::Note(note) if to == LEADER => {
                    self.notes.push(note);
                    continue;
                }
                _ => continue,
            };
            self.due.push_back((to, answer));
        }
    }
}

/// With the log on disk, sets that were proposed one after the other may commit one at a time.
#[test]
fn an_older_entry_with_the_same_set_is_not_the_last_one() {
    let mut group = Group::new(Durability::Disk);
    let replica = &mut group.replicas[0];
    let [alone, both] = [vec![LEADER], vec![LEADER, OTHER]].map(ReplicaSet::of);
    let entries = [alone, both, alone].map(|set| {
        let (leader, cx) = replica.leading().expect("it leads");
        leader.propose_in_sync(cx, set);
        (set, leader.proposed_at)
    });
    let view = replica.cx.group.view;
    for (set, index) in entries {
        let (leader, cx) = replica.leading().expect("it leads");
        assert!(!leader.is_solo(cx), "before {index:?}");
        replica.on_in_sync(set, Viewstamp { view, index });
    }
    let (leader, cx) = group.leader();
    assert!(leader.is_solo(cx), "{:?}", leader.proposed);
}

/// It answers, and its disk hangs: what rests on its promise would wait for ever.
#[test]
fn a_joiner_that_does_not_store_its_promise_is_lost() {
    let mut group = Group::new(Durability::Memory);
    group.hangs = Some(OTHER);
    group.join(OTHER);
    group.run(100);
    let (leader, cx) = group.leader();
    assert!(!leader.is_solo(cx) && leader.proposed.is_some());
    group.run(3_000);
    let (leader, cx) = group.leader();
    assert!(leader.is_solo(cx), "{:?}", leader.proposed);
}

#[test]
fn a_disk_that_is_slow_for_a_moment_costs_nobody() {
    let mut group = Group::new(Durability::Memory);
    group.hangs = Some(OTHER);
    group.join(OTHER);
    group.run(100);
    group.hangs = None;
    let stored = group.held.take().expect("it has a promise to store");
    group.due.push_back((OTHER, stored));
    group.run(100);
    let (leader, cx) = group.leader();
    assert_eq!((leader.proposed, cx.group.in_sync.len()), (None, 2));
}

/// The others commit without it, but what waits for its disk takes more and more memory.
#[test]
fn a_leader_whose_own_disk_hangs_hands_over_if_another_one_holds_the_guest() {
    let resigned = |note: &Note| {
        let why = OwnFault::Storage;
        *note == Note::Resigned { why }
    };
    for joins in [false, true] {
        let mut group = Group::new(Durability::Disk);
        if joins {
            group.join(OTHER);
            group.run(100);
        }
        group.hangs = Some(LEADER);
        group.propose_input();
        group.run(3_000);
        let count = group.notes.iter().filter(|note| resigned(note)).count();
        assert_eq!(count, usize::from(joins));
        assert_eq!(group.replicas[0].role() == Role::Leader, !joins);
    }
}

/// It stores an entry now and then, and falls behind the others.
#[test]
fn a_leader_whose_own_disk_is_slow_hands_over_as_well() {
    let mut group = Group::new(Durability::Disk);
    group.join(OTHER);
    group.run(100);
    group.queue = Some(VecDeque::new());
    let mut inputs = 0;
    while group.replicas[0].role() == Role::Leader {
        assert!(inputs < 100, "it leads still");
        group.propose_input();
        group.run(50);
        inputs += 1;
        let stored = group.queue.as_mut().filter(|_| inputs % 4 == 0);
        let stored = stored.and_then(VecDeque::pop_front);
        group.due.extend(stored.map(|stored| (LEADER, stored)));
    }
    let why = OwnFault::Storage;
    assert!(group.notes.contains(&Note::Resigned { why }));
}

/// An input was on its way to the secondary that is replaced, and the joiner has acknowledged it before its disk hung.
#[test]
fn a_joiner_that_holds_more_than_is_committed_is_lost_all_the_same() {
    let mut group = Group::new(Durability::Memory);
    group.join(OTHER);
    group.run(100);
    group.away = Some(OTHER);
    group.propose_input();
    group.run(5);
    group.hangs = Some(ReplicaId(2));
    group.join(ReplicaId(2));
    group.run(10);
    group.away = None;
    group.run(3_000);
    let (leader, cx) = group.leader();
    assert!(leader.is_solo(cx), "{:?}", leader.proposed);
}

/// Nothing would be won: another in-sync set waits for the same majority.
#[test]
fn a_joiner_is_kept_where_commits_wait_for_a_majority_as_well() {
    let mut group = Group::new(Durability::Memory);
    group.away = Some(ReplicaId(2));
    group.hangs = Some(OTHER);
    group.join(OTHER);
    group.run(3_000);
    let both = ReplicaSet::of([LEADER, OTHER]);
    assert_eq!(group.leader().0.proposed, Some(both));

    let mut group = Group::new(Durability::Disk);
    group.join(OTHER);
    group.run(100);
    group.hangs = Some(OTHER);
    group.away = Some(ReplicaId(2));
    group.propose_input();
    group.run(3_000);
    let (leader, cx) = group.leader();
    assert_eq!((leader.proposed, cx.group.in_sync), (None, both));
}

#[test]
fn a_leader_that_stood_still_itself_blames_nobody() {
    let mut group = Group::new(Durability::Memory);
    group.hangs = Some(OTHER);
    group.join(OTHER);
    group.run(100);
    group.now = group.now + Micros::from_ms(5_000);
    group.apply(LEADER, Event::Outputs(Vec::new()));
    let both = ReplicaSet::of([LEADER, OTHER]);
    assert_eq!(group.leader().0.proposed, Some(both));
}

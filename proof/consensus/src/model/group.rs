//! The model: three processes, the records between them, and the promises to clients.

use super::process::{Effects, Process, REPLICAS};
use crate::sim::without_panic;
use apus::{Canary, Entry, EntryKind, Phase};
use plover_types::{Index, ReplicaSet, View};
use stateright::{Model, Property};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// How much may happen on one path.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Steps.
    pub depth: u8,
    /// Proposals of clients.
    pub proposals: u8,
    /// Timeouts of any process.
    pub timeouts: u8,
    /// Processes that lose their memory.
    pub forgets: u8,
    /// Records that arrive twice.
    pub doubles: u8,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            depth: 6,
            proposals: 2,
            timeouts: 3,
            forgets: 1,
            doubles: 1,
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A client proposes on this process, which leads.
    Propose(usize),
    /// This process's next deadline comes.
    TimeOut(usize),
    /// This process dies, and one without memory starts.
    Forget(usize),
    /// The record at this place arrives.
    Deliver(usize),
    /// The record at this place arrives, and will arrive again.
    DeliverTwice(usize),
}

/// A property that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    /// Two processes deliver different entries at one index, or one skips an index.
    LogsAgree,
    /// A view is led twice.
    OneLeaderAView,
    /// A leader lacks what was committed before its view.
    CommittedNotLost,
    /// The core panicked: an assertion of its own failed.
    NoPanic,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    from: usize,
    to: usize,
    bytes: Arc<[u8]>,
}

/// The promises so far: chosen entries and leaders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    /// Chosen entries, with the view that committed each.
    chosen: Vec<(View, u64)>,
    leaders: BTreeMap<View, usize>,
    /// Some replica has recovered its log.
    recovered: bool,
    /// A leader was elected while another replica had not recovered its log.
    elected_by_forgetful: bool,
}

/// A state of the group.
#[derive(Clone, Debug)]
pub struct State {
    processes: [Arc<Process>; REPLICAS],
    records: Vec<Record>,
    history: Arc<History>,
    proposals: u8,
    timeouts: u8,
    forgets: u8,
    doubles: u8,
    /// How many steps it is from where the path began. States that differ only in this are equal:
    /// the search is breadth first, so the first path to a state is the shortest.
    steps: u8,
    broken: Option<Broken>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for process in &self.processes {
            process.print.hash(state);
        }
        self.records.hash(state);
        self.history.hash(state);
        (self.proposals, self.timeouts, self.forgets, self.doubles).hash(state);
        self.broken.hash(state);
    }
}

impl PartialEq for State {
    /// Compares the prints of the processes.
    fn eq(&self, other: &Self) -> bool {
        let prints = |state: &Self| state.processes.each_ref().map(|process| process.print);
        let spent = |state: &Self| {
            (
                state.proposals,
                state.timeouts,
                state.forgets,
                state.doubles,
            )
        };
        prints(self) == prints(other)
            && self.records == other.records
            && self.history == other.history
            && spent(self) == spent(other)
            && self.broken == other.broken
    }
}

/// The group to explore.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    /// How much may happen.
    pub bounds: Bounds,
    /// A known bug that is put back.
    pub canary: Canary,
    /// The group replicates a guest, which replicas 0 and 1 hold.
    pub guest: bool,
}

impl Model for Group {
    type State = State;
    type Action = Act;

    /// A group at rest whose first replica leads; the same when no replica has heard from another for
    /// longer than the timeout; and that again when one replica lacks what the others have. With a guest
    /// it lacks an input, or that they go on without its guest.
    fn init_states(&self) -> Vec<State> {
        let calm = State::formed(self.canary, self.guest);
        let mut silent = calm.clone();
        silent.sleep();
        let ahead = |of: usize, kind, payload| {
            let mut state = calm.clone();
            state.propose(0, kind, payload);
            state.exchange(|record| record.from != of && record.to != of);
            state.sleep();
            state
        };
        let input = vec![u8::MAX; 8];
        let mut states = vec![calm.clone(), silent];
        if self.guest {
            states.push(ahead(1, EntryKind::App, input));
            let alone = EntryKind::InSync(ReplicaSet(0b001));
            states.push(ahead(1, alone, Vec::new()));
        } else {
            states.push(ahead(2, EntryKind::App, input));
        }
        states
    }

    fn actions(&self, state: &State, acts: &mut Vec<Act>) {
        if state.broken.is_some() || state.steps == self.bounds.depth {
            return;
        }
        let bounds = self.bounds;
        for (place, process) in state.processes.iter().enumerate() {
            if state.proposals < bounds.proposals && process.leads() {
                acts.push(Act::Propose(place));
            }
            if state.timeouts < bounds.timeouts {
                acts.push(Act::TimeOut(place));
            }
            if state.forgets < bounds.forgets {
                acts.push(Act::Forget(place));
            }
        }
        for place in 0..state.records.len() {
            // Of equal records, one is enough.
            if place > 0 && state.records[place] == state.records[place - 1] {
                continue;
            }
            acts.push(Act::Deliver(place));
            if state.doubles < bounds.doubles {
                acts.push(Act::DeliverTwice(place));
            }
        }
    }

    fn next_state(&self, last: &State, act: Act) -> Option<State> {
        let mut state = last.clone();
        state.steps += 1;
        match act {
            Act::Propose(place) => {
                state.proposals += 1;
                state.propose(place, EntryKind::App, vec![state.proposals; 8]);
            }
            Act::TimeOut(place) => {
                state.timeouts += 1;
                state.turn(place, Process::time_out);
            }
            Act::Forget(place) => {
                state.forgets += 1;
                Arc::make_mut(&mut state.processes[place]).forget();
            }
            Act::Deliver(place) => {
                let record = state.records.remove(place);
                state.turn(record.to, |process| {
                    process.receive(record.from, &record.bytes)
                });
            }
            Act::DeliverTwice(place) => {
                state.doubles += 1;
                let record = state.records[place].clone();
                state.turn(record.to, |process| {
                    process.receive(record.from, &record.bytes)
                });
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("logs_agree", |_, state: &State| {
                state.broken != Some(Broken::LogsAgree)
            }),
            Property::always("one_leader_a_view", |_, state: &State| {
                state.broken != Some(Broken::OneLeaderAView)
            }),
            Property::always("committed_not_lost", |_, state: &State| {
                state.broken != Some(Broken::CommittedNotLost)
            }),
            Property::always("no_panic", |_, state: &State| {
                state.broken != Some(Broken::NoPanic)
            }),
            Property::sometimes("a third entry is committed", |_, state: &State| {
                state.history.chosen.len() > 2
            }),
            Property::sometimes("a second view begins", |_, state: &State| {
                state.history.leaders.len() > 1
            }),
            Property::sometimes("a replica recovers its log", |_, state: &State| {
                state.history.recovered
            }),
            Property::sometimes("a replica that forgot elects", |_, state: &State| {
                state.history.elected_by_forgetful
            }),
        ]
    }
}

impl State {
    /// A group that has begun: replica 0 leads, and the others have its first entry. With a guest,
    /// replica 1 is in sync.
    fn formed(canary: Canary, guest: bool) -> Self {
        let fresh = |me| Arc::new(Process::fresh(me, canary, guest));
        let mut state = Self {
            processes: [fresh(0), fresh(1), fresh(2)],
            records: Vec::new(),
            history: Arc::default(),
            proposals: 0,
            timeouts: 0,
            forgets: 0,
            doubles: 0,
            steps: 0,
            broken: None,
        };
        let at_rest = |state: &Self| {
            let rests = |process: &Arc<Process>| {
                let status = process.core.status();
                let known = matches!(status.phase, Phase::Leading | Phase::Following);
                known && status.leader.is_some() && status.commit == Index(1)
            };
            state.processes.iter().all(rests) && state.records.is_empty()
        };
        for _ in 0..100 {
            if at_rest(&state) {
                if guest {
                    state.turn(1, Process::take_guest);
                    state.propose(0, EntryKind::InSync(ReplicaSet(0b011)), Vec::new());
                    state.exchange(|_| true);
                }
                Arc::make_mut(&mut state.history).recovered = false;
                return state;
            }
            for place in 0..REPLICAS {
                state.turn(place, Process::time_out);
                state.turn(place, |process| {
                    process.turn(|core, now, out| core.bootstrap(now, out))
                });
            }
            state.exchange(|_| true);
        }
        panic!("the group does not form: {state:#?}");
    }

    fn propose(&mut self, place: usize, kind: EntryKind, payload: Vec<u8>) {
        self.turn(place, |process| {
            process.turn(|core, now, out| {
                let taken = core.propose(now, kind, payload);
                assert!(taken.is_ok(), "a leader with an empty log takes proposals");
                core.flush(now, out);
            })
        });
    }

    /// Every record that passes arrives, and every answer, until nothing is under way.
    fn exchange(&mut self, passes: impl Fn(&Record) -> bool) {
        while let Some(place) = self.records.iter().position(&passes) {
            let record = self.records.remove(place);
            self.turn(record.to, |process| {
                process.receive(record.from, &record.bytes)
            });
        }
    }

    /// Time passes for longer than the timeout, without a message.
    fn sleep(&mut self) {
        for process in &mut self.processes {
            Arc::make_mut(process).sleep();
        }
    }

    /// A process takes its turn. Its records and deliveries go into the state.
    fn turn(&mut self, place: usize, act: impl FnOnce(&mut Process) -> Effects) {
        let before = self.processes[place].core.status();
        let process = Arc::make_mut(&mut self.processes[place]);
        let Ok(effects) = without_panic(|| act(process)) else {
            self.broken = Some(Broken::NoPanic);
            return;
        };
        let after = process.core.status();
        for (to, bytes) in effects.records {
            self.records.push(Record {
                from: place,
                to,
                bytes: bytes.into(),
            });
        }
        self.records.sort_unstable();
        if effects.leads {
            self.led(place);
        }
        if (before.phase, after.phase) == (Phase::Recovering, Phase::Following) {
            Arc::make_mut(&mut self.history).recovered = true;
        }
        for entry in &effects.deliveries {
            self.delivered(entry, after.view);
        }
    }

    fn led(&mut self, place: usize) {
        let core = &self.processes[place].core;
        let view = core.status().view;
        let forgot = |process: &Arc<Process>| process.core.status().phase == Phase::Recovering;
        let others_forgot = self.processes.iter().any(forgot);
        let history = Arc::make_mut(&mut self.history);
        history.elected_by_forgetful |= others_forgot;
        if history.leaders.insert(view, place).is_some() {
            self.broken = Some(Broken::OneLeaderAView);
        }
        let chosen = history.chosen.iter().zip(1..);
        let mut before = chosen.filter(|((committed, _), _)| *committed < view);
        let held =
            before.all(|((_, name), index)| core.entry(Index(index)).map(name_of) == Some(*name));
        if !held {
            self.broken = Some(Broken::CommittedNotLost);
        }
    }

    fn delivered(&mut self, entry: &Entry, view: View) {
        let history = Arc::make_mut(&mut self.history);
        let place = entry.viewstamp.index.0 as usize - 1;
        match history.chosen.get(place) {
            Some((_, name)) if *name == name_of(entry) => {}
            None if place == history.chosen.len() => history.chosen.push((view, name_of(entry))),
            _ => self.broken = Some(Broken::LogsAgree),
        }
    }
}

/// A name that tells an entry from every other: its viewstamp and its payload.
fn name_of(entry: &Entry) -> u64 {
    let payload = entry.payload.first().copied().unwrap_or_default();
    (entry.viewstamp.view.0 << 16) | (entry.viewstamp.index.0 << 8) | u64::from(payload)
}

//! Replica 2 of three, and messages as a peer may write them.

use crate::group::{self, TIMEOUT};
use apus::{Apus, Command, Config, Durability, DurableState, Entry, EntryKind, Event};
use apus::{Configuration, Members, Start};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp, wire};

/// Clocks start anywhere, but not near zero, where every span since seems long.
pub const START: Micros = Micros::from_ms(1_000_000);
pub const ME: ReplicaId = ReplicaId(2);

// The tags of messages, in the order of their declaration.
pub const APPEND: u8 = 0;
pub const ACK: u8 = 1;
pub const REFUSE: u8 = 3;
pub const PRE_VOTE: u8 = 4;
pub const GRANT: u8 = 5;
pub const PREPARE: u8 = 6;
pub const PROMISE: u8 = 7;
pub const FETCH: u8 = 8;
pub const SUFFIX: u8 = 9;
pub const ASK: u8 = 10;
pub const STAND: u8 = 11;

pub fn view(round: u64, leader: u8) -> View {
    View::new(round, ReplicaId(leader))
}

pub fn vs(view: View, index: u64) -> Viewstamp {
    Viewstamp {
        view,
        index: Index(index),
    }
}

pub fn noop(view: View, index: u64) -> Entry {
    Entry {
        viewstamp: vs(view, index),
        kind: EntryKind::Noop,
        payload: Vec::new(),
    }
}

/// An append of `leader`, in the generation that its first view began.
pub fn append(leader: View, prev: Viewstamp, entries: &[Entry], commit: u64) -> Vec<u8> {
    append_in(view(1, 0), leader, prev, entries, commit)
}

/// A message of a leader whose log begins at `base`.
pub fn append_at_base(leader: View, base: Viewstamp) -> Vec<u8> {
    let configuration = Configuration {
        in_sync: ReplicaSet(0b001),
        members: Members::of(ReplicaSet(0b111)),
        version: 0,
    };
    let snapshot = Some(configuration);
    append_with(view(1, 0), leader, base, (&[], 0, snapshot))
}

/// An append of `leader` in `generation`.
pub fn append_in(
    generation: View,
    leader: View,
    prev: Viewstamp,
    entries: &[Entry],
    commit: u64,
) -> Vec<u8> {
    append_with(generation, leader, prev, (entries, commit, None))
}

pub fn append_with(
    generation: View,
    leader: View,
    prev: Viewstamp,
    (entries, commit, snapshot): (&[Entry], u64, Option<Configuration>),
) -> Vec<u8> {
    let (stamp, span, incarnation, number) = (START, TIMEOUT, 5u64, 0u64);
    let marks = (
        Index(commit),
        Index(0),
        stamp,
        span,
        incarnation,
        number,
        snapshot,
    );
    wire::encode(&(APPEND, leader, generation, prev, marks, entries))
}

/// Replica 2 of three, after a restart.
pub struct Replica {
    pub core: Apus,
    pub now: Micros,
}

impl Replica {
    pub fn restarted(durability: Durability, promised: View, log: Vec<Entry>) -> Self {
        let generation = View::NONE;
        Self::found(durability, (promised, generation), vs(view(1, 0), 0), log)
    }

    /// Storage held `promised`, `generation`, and `log` after `base`.
    pub fn found(
        durability: Durability,
        (promised, generation): (View, View),
        base: Viewstamp,
        log: Vec<Entry>,
    ) -> Self {
        let durable = DurableState {
            promised,
            generation,
            ..DurableState::default()
        };
        Self::start(durability, durable, base, log)
    }

    /// It has a disk, lost its log in `promised`, and has not recovered it.
    pub fn without_its_log(promised: View) -> Self {
        let durable = DurableState {
            promised,
            amnesiac: true,
            ..DurableState::default()
        };
        Self::start(Durability::Disk, durable, Viewstamp::default(), Vec::new())
    }

    fn start(
        durability: Durability,
        durable: DurableState,
        base: Viewstamp,
        log: Vec<Entry>,
    ) -> Self {
        let config = Config {
            seed: 1,
            ..group::plain_config(ME.0, 3, durability)
        };
        let start = Start::Restarted {
            durable,
            log,
            base,
            configuration_at_base: Configuration {
                in_sync: ReplicaSet(0b001),
                members: Members::of(ReplicaSet(0b111)),
                version: 0,
            },
            forgotten: false,
        };
        Self {
            core: Apus::new(config, start, START),
            now: START,
        }
    }

    pub fn apply(&mut self, event: Event<'_>) -> Vec<Command> {
        let mut out = Vec::new();
        self.core.apply(self.now, event, &mut out);
        out
    }

    pub fn hears(&mut self, from: u8, bytes: &[u8]) -> Vec<Command> {
        let from = ReplicaId(from);
        self.apply(Event::Received { from, bytes })
    }

    pub fn read(&mut self, from: u8, bytes: &[u8]) -> Vec<Command> {
        let out = self.hears(from, bytes);
        assert_eq!(
            self.core.status().rejected,
            0,
            "the test speaks the language"
        );
        out
    }

    /// Reads the answer of a leader to the question that this replica has just asked.
    pub fn is_answered(&mut self, question: &[Command], leader: View, last: Viewstamp, skew: u64) {
        let asked = messages(question, ASK);
        let (_, incarnation, round): (u8, u64, u32) = head(&asked[0]);
        // Standing::Leading is the first of its kind.
        let members = Members::of(ReplicaSet(0b111));
        let answer = (
            STAND,
            incarnation ^ skew,
            round,
            leader,
            members,
            (0u8, last),
        );
        let leader = leader.leader().unwrap().0;
        self.read(leader, &wire::encode(&answer));
    }

    pub fn persists(&mut self, view: View) -> Vec<Command> {
        self.apply(Event::StatePersisted(DurableState {
            promised: view,
            ..DurableState::default()
        }))
    }
}

/// The messages with this tag.
pub fn messages(commands: &[Command], tag: u8) -> Vec<Vec<u8>> {
    let written = commands.iter().filter_map(|command| match command {
        Command::Write { bytes, .. } if bytes[1] == tag => Some(bytes.clone()),
        _ => None,
    });
    written.collect()
}

/// Whether the promise of `view` is to be made durable.
pub fn promises(commands: &[Command], view: View) -> bool {
    commands
        .iter()
        .any(|command| matches!(command, Command::PersistState(state) if state.promised == view))
}

/// The first fields of a message.
pub fn head<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    postcard::take_from_bytes(&bytes[1..]).unwrap().0
}

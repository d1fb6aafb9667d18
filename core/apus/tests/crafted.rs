//! One replica and messages written by hand: which messages it must not send, and when.

mod group;

use apus::{Apus, Command, Config, Durability, DurableState, Entry, EntryKind, Event};
use apus::{Configuration, Contradiction, Members, Phase, Start};
use group::TIMEOUT;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp, wire};

/// Clocks start anywhere, but not near zero, where every span since seems long.
const START: Micros = Micros::from_ms(1_000_000);
const ME: ReplicaId = ReplicaId(2);

// The tags of messages, in the order of their declaration.
const APPEND: u8 = 0;
const ACK: u8 = 1;
const PRE_VOTE: u8 = 4;
const GRANT: u8 = 5;
const PREPARE: u8 = 6;
const PROMISE: u8 = 7;
const FETCH: u8 = 8;
const SUFFIX: u8 = 9;
const ASK: u8 = 10;
const STAND: u8 = 11;

fn view(round: u64, leader: u8) -> View {
    View::new(round, ReplicaId(leader))
}

fn vs(view: View, index: u64) -> Viewstamp {
    Viewstamp {
        view,
        index: Index(index),
    }
}

fn noop(view: View, index: u64) -> Entry {
    Entry {
        viewstamp: vs(view, index),
        kind: EntryKind::Noop,
        payload: Vec::new(),
    }
}

/// An append of `leader`, in the generation that its first view began.
fn append(leader: View, prev: Viewstamp, entries: &[Entry], commit: u64) -> Vec<u8> {
    append_in(view(1, 0), leader, prev, entries, commit)
}

/// A message of a leader whose log begins at `base`.
fn append_at_base(leader: View, base: Viewstamp) -> Vec<u8> {
    let configuration = Configuration {
        in_sync: ReplicaSet(0b001),
        members: Members::of(ReplicaSet(0b111)),
        version: 0,
    };
    let snapshot = Some(configuration);
    append_with(view(1, 0), leader, base, (&[], 0, snapshot))
}

/// An append of `leader` in `generation`.
fn append_in(
    generation: View,
    leader: View,
    prev: Viewstamp,
    entries: &[Entry],
    commit: u64,
) -> Vec<u8> {
    append_with(generation, leader, prev, (entries, commit, None))
}

fn append_with(
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
struct Replica {
    core: Apus,
    now: Micros,
}

impl Replica {
    fn restarted(durability: Durability, promised: View, log: Vec<Entry>) -> Self {
        let generation = View::NONE;
        Self::found(durability, (promised, generation), vs(view(1, 0), 0), log)
    }

    /// Storage held `promised`, `generation`, and `log` after `base`.
    fn found(
        durability: Durability,
        (promised, generation): (View, View),
        base: Viewstamp,
        log: Vec<Entry>,
    ) -> Self {
        let config = Config {
            seed: 1,
            ..group::plain_config(ME.0, 3, durability)
        };
        let start = Start::Restarted {
            durable: DurableState {
                promised,
                generation,
                ..DurableState::default()
            },
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

    fn apply(&mut self, event: Event<'_>) -> Vec<Command> {
        let mut out = Vec::new();
        self.core.apply(self.now, event, &mut out);
        out
    }

    fn hears(&mut self, from: u8, bytes: &[u8]) -> Vec<Command> {
        let from = ReplicaId(from);
        self.apply(Event::Received { from, bytes })
    }

    fn read(&mut self, from: u8, bytes: &[u8]) -> Vec<Command> {
        let out = self.hears(from, bytes);
        assert_eq!(
            self.core.status().rejected,
            0,
            "the test speaks the language"
        );
        out
    }

    /// Reads the answer of a leader to the question that this replica has just asked.
    fn is_answered(&mut self, question: &[Command], leader: View, last: Viewstamp, skew: u64) {
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

    fn persists(&mut self, view: View) -> Vec<Command> {
        self.apply(Event::StatePersisted(DurableState {
            promised: view,
            ..DurableState::default()
        }))
    }
}

/// The messages with this tag.
fn messages(commands: &[Command], tag: u8) -> Vec<Vec<u8>> {
    let written = commands.iter().filter_map(|command| match command {
        Command::Write { bytes, .. } if bytes[1] == tag => Some(bytes.clone()),
        _ => None,
    });
    written.collect()
}

/// Whether the promise of `view` is to be made durable.
fn promises(commands: &[Command], view: View) -> bool {
    commands
        .iter()
        .any(|command| matches!(command, Command::PersistState(state) if state.promised == view))
}

/// The first fields of a message.
fn head<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    postcard::take_from_bytes(&bytes[1..]).unwrap().0
}

#[test]
fn nothing_is_promised_before_storage_has_it() {
    let mut replica = Replica::restarted(Durability::Disk, view(3, 0), Vec::new());
    replica.now = START + TIMEOUT;
    let prepare = wire::encode(&(PREPARE, view(4, 1)));
    let out = replica.read(1, &prepare);
    assert!(promises(&out, view(4, 1)));
    assert_eq!(messages(&out, PROMISE).len(), 0);
    assert_eq!(
        messages(&replica.read(1, &prepare), PROMISE).len(),
        0,
        "nor when asked again"
    );
    assert_eq!(messages(&replica.persists(view(4, 1)), PROMISE).len(), 1);
    assert_eq!(
        messages(&replica.read(1, &prepare), PROMISE).len(),
        1,
        "the first may be lost"
    );
}

#[test]
fn a_restarted_voter_waits_for_the_leases_it_may_have_granted() {
    let mut replica = Replica::restarted(Durability::Disk, view(3, 0), Vec::new());
    replica.now = START + TIMEOUT - Micros(1);
    replica.read(1, &wire::encode(&(PREPARE, view(4, 1))));
    assert_eq!(replica.core.status().view, view(3, 0));
    replica.now = replica.now + Micros(1);
    replica.read(1, &wire::encode(&(PREPARE, view(4, 1))));
    assert_eq!(replica.core.status().view, view(4, 1));
}

#[test]
fn a_voter_that_hears_a_leader_promises_nothing() {
    let mut replica = Replica::restarted(Durability::Disk, view(3, 0), Vec::new());
    replica.now = START + TIMEOUT + TIMEOUT;
    replica.read(0, &append(view(3, 0), vs(view(1, 0), 0), &[], 0));
    replica.now = replica.now + TIMEOUT - Micros(1);
    replica.read(1, &wire::encode(&(PREPARE, view(4, 1))));
    assert_eq!(replica.core.status().view, view(3, 0));
}

#[test]
fn nothing_is_acknowledged_in_a_view_that_storage_does_not_know() {
    let mut replica = Replica::restarted(Durability::Disk, view(1, 0), Vec::new());
    let (leader, start) = (view(2, 1), vs(view(1, 0), 0));
    let out = replica.read(1, &append(leader, start, &[noop(leader, 1)], 0));
    assert!(promises(&out, leader));
    let out = replica.apply(Event::EntriesPersisted(vs(leader, 1)));
    assert_eq!(messages(&out, ACK).len(), 0);
    let acks = messages(&replica.persists(leader), ACK);
    let (_, acked_view, _, matched): (u8, View, [Micros; 3], Index) = head(&acks[0]);
    assert_eq!((acked_view, matched), (leader, Index(1)));
}

#[test]
fn an_older_view_is_refused_whatever_it_brings() {
    let mut replica = Replica::restarted(Durability::Disk, view(2, 1), Vec::new());
    let old = view(1, 0);
    let out = replica.read(0, &append(old, vs(old, 0), &[noop(old, 1)], 1));
    assert_eq!(messages(&out, ACK).len(), 0);
    assert_eq!(replica.core.status().last, vs(old, 0));
}

#[test]
fn a_log_shown_to_a_candidate_is_not_shown_after_a_higher_promise() {
    let old = view(1, 0);
    let log = vec![noop(old, 1), noop(old, 2)];
    let mut replica = Replica::restarted(Durability::Disk, old, log);
    replica.now = START + TIMEOUT;
    let fetch = wire::encode(&(FETCH, view(2, 1), vs(old, 0)));
    replica.read(1, &wire::encode(&(PREPARE, view(2, 1))));
    replica.persists(view(2, 1));
    assert_eq!(replica.read(1, &fetch).len(), 1);
    replica.read(0, &wire::encode(&(PREPARE, view(3, 0))));
    replica.persists(view(3, 0));
    assert_eq!(replica.read(1, &fetch).len(), 0);
}

#[test]
fn a_backup_does_not_commit_old_entries_by_the_number_of_their_copies() {
    let (old, leader) = (view(1, 0), view(2, 1));
    let mut replica = Replica::restarted(Durability::Memory, old, Vec::new());
    let question = replica.apply(Event::Tick);
    replica.is_answered(&question, leader, vs(leader, 3), 0);
    replica.persists(leader);
    // Two copies of entries of an older view: another leader might yet replace them.
    replica.read(
        1,
        &append(leader, vs(old, 0), &[noop(old, 1), noop(old, 2)], 0),
    );
    assert_eq!(replica.core.status().commit, Index(0));
    replica.read(1, &append(leader, vs(old, 2), &[noop(leader, 3)], 0));
    assert_eq!(replica.core.status().commit, Index(3));
}

#[test]
fn an_answer_to_the_process_before_a_restart_does_not_end_amnesia() {
    let leader = view(1, 0);
    let mut replica = Replica::restarted(Durability::Memory, leader, Vec::new());
    let question = replica.apply(Event::Tick);
    let first = append(leader, vs(leader, 0), &[noop(leader, 1)], 1);
    // An answer to the process before says that the leader's log ends here. Since then this replica
    // may have acknowledged more.
    replica.is_answered(&question, leader, vs(leader, 1), 1);
    assert_eq!(messages(&replica.read(0, &first), ACK).len(), 0);
    assert_eq!(replica.core.status().phase, Phase::Recovering);
    replica.is_answered(&question, leader, vs(leader, 2), 0);
    replica.read(0, &first);
    assert_eq!(
        replica.core.status().phase,
        Phase::Recovering,
        "half of it is missing"
    );
    replica.now = START + TIMEOUT + TIMEOUT;
    assert_eq!(
        replica.read(1, &wire::encode(&(PREPARE, view(2, 1)))),
        [],
        "so it does not vote"
    );
    replica.read(0, &append(leader, vs(leader, 1), &[noop(leader, 2)], 1));
    assert_eq!(replica.core.status().phase, Phase::Following);
}

/// The indices up to which these commands acknowledge the leader's log.
fn acknowledged(commands: &[Command]) -> Vec<Index> {
    let acks = messages(commands, ACK).into_iter().map(|bytes| {
        let (_, _, _, matched): (u8, View, [Micros; 3], Index) = head(&bytes);
        matched
    });
    acks.collect()
}

/// A replica stored a new generation and died before its disk had that generation's log. It finds
/// `log` after `base`, of the generation before. The new generation's log has to replace it before
/// anything is acknowledged, and none of its entries may be delivered.
fn replaces_the_log_of_the_generation_before(base: Viewstamp, log: Vec<Entry>) {
    let new = view(2, 0);
    let (begins, first) = (vs(new, 0), noop(new, 1));
    let mut replica = Replica::found(Durability::Disk, (new, new), base, log);
    let first = append_in(new, new, begins, &[first], 1);
    let out = replica.read(0, &first);
    assert_eq!(
        acknowledged(&out),
        [Index(0)],
        "its disk does not hold more"
    );
    let persisted = out.iter().filter_map(|command| match command {
        Command::PersistEntries { after, anew, .. } => Some((*after, anew.is_some())),
        _ => None,
    });
    let persisted: Vec<_> = persisted.collect();
    assert_eq!(persisted, [(begins, true), (begins, false)]);
    let delivered = out.iter().filter_map(|command| match command {
        Command::Deliver(entry) => Some(entry.viewstamp),
        _ => None,
    });
    assert_eq!(delivered.collect::<Vec<_>>(), [vs(new, 1)]);
    replica.persists(new);
    let out = replica.apply(Event::EntriesPersisted(vs(new, 1)));
    assert_eq!(acknowledged(&out), [Index(1)]);
    assert_eq!(replica.core.generation(), new);
    assert_eq!(replica.core.status().last, vs(new, 1));
}

#[test]
fn a_crash_at_the_beginning_of_a_generation_does_not_leave_the_log_of_the_one_before() {
    let old = view(1, 0);
    let log = (1..=3).map(|index| noop(old, index));
    replaces_the_log_of_the_generation_before(vs(old, 0), log.collect());
}

#[test]
fn a_crash_there_does_not_leave_a_log_that_was_reclaimed_in_part_either() {
    let old = view(1, 0);
    let log = (11..=13).map(|index| noop(old, index));
    replaces_the_log_of_the_generation_before(vs(old, 10), log.collect());
}

/// If the log reached storage but the number of its generation did not, the log's base tells the
/// generation.
#[test]
fn a_log_that_begins_a_generation_says_which() {
    let (old, new) = (view(1, 0), view(2, 0));
    let replica = Replica::found(Durability::Disk, (new, old), vs(new, 0), vec![noop(new, 1)]);
    assert_eq!(replica.core.generation(), new);
    assert_eq!(replica.core.status().last, vs(new, 1));
}

/// The peers that are refused, and why.
fn refused(commands: &[Command]) -> Vec<(u8, Contradiction)> {
    let refused = commands.iter().filter_map(|command| match command {
        Command::Refuse { peer, why } => Some((peer.0, *why)),
        _ => None,
    });
    refused.collect()
}

impl Replica {
    /// A message that no correct replica sends: the log stays as it was.
    fn is_lied_to(&mut self, from: u8, bytes: &[u8]) -> Vec<Command> {
        let place = |core: &Apus| (core.status().last, core.status().commit);
        let before = place(&self.core);
        let out = self.hears(from, bytes);
        assert_eq!(place(&self.core), before);
        out
    }
}

/// Each of these ended the process.
#[test]
fn a_leader_whose_log_contradicts_is_refused_and_the_next_one_is_followed() {
    let (old, first, liar) = (view(1, 0), view(2, 1), view(3, 0));
    let agreed = |told, held| Contradiction::Agreed { told, held };
    let mut replica = Replica::restarted(Durability::Disk, old, Vec::new());
    let entries = [noop(first, 1), noop(first, 2), noop(first, 3)];
    replica.read(1, &append(first, vs(old, 0), &entries, 1));
    // The leader takes back what is not committed, and calls it committed.
    let other = append(first, vs(old, 0), &[noop(old, 1), noop(old, 2)], 3);
    let out = replica.is_lied_to(1, &other);
    assert_eq!(refused(&out), [(1, agreed(vs(old, 1), vs(first, 1)))]);
    replica.hears(1, &append(first, vs(first, 3), &[], 2));
    assert_eq!(replica.core.status().commit, Index(2));
    // The next leader lacks committed entries.
    let out = replica.is_lied_to(0, &append(liar, vs(old, 0), &[noop(liar, 1)], 0));
    assert_eq!(refused(&out), [(0, agreed(vs(liar, 1), vs(first, 1)))]);
    let out = replica.is_lied_to(0, &append(liar, vs(liar, 2), &[], 0));
    assert_eq!(refused(&out), [(0, agreed(vs(liar, 2), vs(first, 2)))]);
    // Its log begins after them, in an older view.
    let begins = append_at_base(liar, vs(old, 9));
    let why = Contradiction::Begins {
        base: vs(old, 9),
        committed: vs(first, 2),
    };
    assert_eq!(refused(&replica.is_lied_to(0, &begins)), [(0, why)]);
    assert_eq!(
        refused(&replica.is_lied_to(0, &[1, 99])),
        [(0, Contradiction::Malformed)]
    );
    assert_eq!(replica.core.status().rejected, 5);

    let next = view(4, 1);
    let out = replica.hears(1, &append(next, vs(first, 3), &[noop(next, 4)], 4));
    assert_eq!(refused(&out), []);
    assert_eq!(replica.core.status().commit, Index(4));
}

/// A leader that never reclaims anything would fill this replica's memory.
#[test]
fn a_leader_that_sends_entries_without_end_is_refused() {
    let leader = view(1, 0);
    let mut replica = Replica::restarted(Durability::Disk, leader, Vec::new());
    let mut prev = vs(leader, 0);
    let payload = vec![7; 100_000];
    let refusal = (0..10_000).find_map(|_| {
        let entry = Entry {
            viewstamp: vs(leader, prev.index.0 + 1),
            kind: EntryKind::App,
            payload: payload.clone(),
        };
        let before = std::mem::replace(&mut prev, entry.viewstamp);
        let out = replica.hears(0, &append(leader, before, &[entry], 0));
        refused(&out).pop()
    });
    let Some((0, Contradiction::Endless { held })) = refusal else {
        panic!("{refusal:?}");
    };
    assert!(held < 100 << 20, "{held} bytes");
    assert!(replica.core.status().log_bytes <= held);
}

/// The same in an election: the candidate goes on without that vote.
#[test]
fn a_voter_that_sends_entries_without_end_does_not_vote() {
    let (old, mine) = (view(1, 0), view(2, 2));
    let members = Members::of(ReplicaSet(0b111));
    let log = vec![noop(old, 1), noop(old, 2)];
    let mut replica = Replica::found(Durability::Disk, (old, old), vs(old, 0), log);
    let mut asked = Vec::new();
    for _ in 0..10 {
        replica.now = replica.now + TIMEOUT;
        asked.extend(replica.apply(Event::Tick));
    }
    let question = messages(&asked, PRE_VOTE).pop().expect("it asks for votes");
    let (_, nonce): (u8, u64) = head(&question);
    let none = None::<Viewstamp>;
    let grant = (GRANT, nonce, old, vs(old, 2), members, old, none);
    assert!(promises(&replica.read(1, &wire::encode(&grant)), mine));
    replica.persists(mine);
    let promise = |last| {
        let vote = (vs(old, last), vs(old, 2), Index(0), members, none);
        wire::encode(&(PROMISE, mine, vote))
    };
    let fetch = replica.read(1, &promise(1 << 40));
    assert_eq!(messages(&fetch, FETCH).len(), 1);
    let out = (3..10_000).find_map(|index| {
        let entry = Entry {
            viewstamp: vs(old, index),
            kind: EntryKind::App,
            payload: vec![7; 100_000],
        };
        let suffix = (SUFFIX, mine, vs(old, index - 1), false, vec![entry]);
        let out = replica.hears(1, &wire::encode(&suffix));
        (!refused(&out).is_empty()).then_some(out)
    });
    let out = out.expect("it is refused");
    assert!(matches!(
        refused(&out)[0],
        (1, Contradiction::Endless { .. })
    ));
    assert_eq!(
        messages(&out, PREPARE).len(),
        2,
        "the votes are asked for anew"
    );
    let out = replica.hears(0, &promise(2));
    assert!(out.contains(&Command::Lead { view: mine }));
}

//! Messages that no correct replica sends.

use super::replica::*;
use crate::group::TIMEOUT;
use apus::{Apus, Command, Contradiction, Durability, Entry, EntryKind, Event, Members};
use plover_types::{Index, ReplicaSet, Viewstamp, wire};

/// The peers that are refused, and why.
pub fn refused(commands: &[Command]) -> Vec<(u8, Contradiction)> {
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

/// Lets time pass until the replica asks for votes. Returns the number of its question.
pub fn asks_for_votes(replica: &mut Replica) -> u64 {
    let mut asked = Vec::new();
    for _ in 0..10 {
        replica.now = replica.now + TIMEOUT;
        asked.extend(replica.apply(Event::Tick));
    }
    let question = messages(&asked, PRE_VOTE).pop().expect("it asks for votes");
    let (_, nonce): (u8, u64) = head(&question);
    nonce
}

/// The same in an election: the candidate goes on without that vote.
#[test]
fn a_voter_that_sends_entries_without_end_does_not_vote() {
    let (old, mine) = (view(1, 0), view(2, 2));
    let members = Members::of(ReplicaSet(0b111));
    let log = vec![noop(old, 1), noop(old, 2)];
    let mut replica = Replica::found(Durability::Disk, (old, old), vs(old, 0), log);
    let nonce = asks_for_votes(&mut replica);
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

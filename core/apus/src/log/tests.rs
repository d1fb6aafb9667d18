use super::*;
use crate::Members;
use plover_types::{ReplicaId, ReplicaSet, View};

fn vs(view: u64, index: u64) -> Viewstamp {
    Viewstamp {
        view: View(view),
        index: Index(index),
    }
}

fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().map(|id| ReplicaId(*id)))
}

/// The configuration with the in-sync set `ids`, in a group of three.
fn configuration(ids: &[u8]) -> Configuration {
    Configuration {
        in_sync: set(ids),
        members: Members::of(set(&[0, 1, 2])),
        version: 0,
    }
}

/// The log accepts `entries`, encoded as in a leader's message.
fn accept(log: &mut Log, prev: Viewstamp, entries: &[Entry]) -> Accepted {
    let matched = log.commit();
    told(log, prev, entries, matched).expect("they contradict nothing")
}

/// A leader whose log is known to equal this one up to `matched` has sent `entries`.
fn told(
    log: &mut Log,
    prev: Viewstamp,
    entries: &[Entry],
    matched: Index,
) -> Result<Accepted, Contradiction> {
    let bytes = entries.iter().fold(Vec::new(), |bytes, entry| {
        plover_types::wire::encode_part(entry, bytes)
    });
    let batch = Batch::unchecked(entries.len() as u64, &bytes);
    log.accept(prev, batch, matched, &mut Pool::default())
}

/// Three App entries of view 16 at 1..=3 after an empty base.
fn three() -> Log {
    let mut log = Log::new(Viewstamp::default(), configuration(&[0]));
    for index in 1..=3 {
        log.push(entry(16, index, EntryKind::App));
    }
    log
}

#[test]
fn a_late_shorter_message_does_not_take_back_acknowledged_entries() {
    let mut log = three();
    let late = vec![entry(16, 1, EntryKind::App)];
    assert_eq!(accept(&mut log, vs(0, 0), &late), Accepted::Unchanged);
    assert_eq!(log.last(), vs(16, 3));
}

#[test]
fn a_conflict_replaces_the_suffix_and_reverts_its_in_sync_set() {
    let mut log = three();
    log.push(entry(16, 4, EntryKind::InSync(set(&[0, 1]))));
    assert_eq!(log.configuration().in_sync, set(&[0, 1]));
    log.mark_stable(vs(16, 4));
    let new = vec![entry(16, 2, EntryKind::App), entry(33, 3, EntryKind::Noop)];
    assert_eq!(
        accept(&mut log, vs(16, 1), &new),
        Accepted::ChangedAfter(vs(16, 2))
    );
    assert_eq!(log.last(), vs(33, 3));
    assert_eq!(log.configuration().in_sync, set(&[0]));
    assert_eq!(log.stable(), Index(2), "the new entry is not on disk yet");
    assert_eq!(log.bytes(), 6);
    log.mark_stable(vs(16, 3));
    assert_eq!(log.stable(), Index(2), "word of a cut entry is stale");
}

/// They are committed without this replica's copy, which storage need not hold.
#[test]
fn reclaimed_entries_count_and_are_not_confirmed() {
    let mut log = three();
    log.commit_to(Index(3));
    log.mark_stable(vs(16, 1));
    log.trim(Index(3), &mut Pool::default());
    assert_eq!((log.stable(), log.confirmed()), (Index(3), Index(1)));
    log.mark_stable(vs(16, 3));
    assert_eq!(log.confirmed(), Index(3), "the base itself was written");
}

#[test]
fn entries_after_a_gap_are_not_taken() {
    let mut log = three();
    assert_eq!(
        accept(&mut log, vs(16, 4), &[entry(16, 5, EntryKind::Noop)]),
        Accepted::Gap
    );
    assert_eq!(
        accept(&mut log, vs(33, 3), &[entry(33, 4, EntryKind::Noop)]),
        Accepted::Gap
    );
    assert_eq!(log.last(), vs(16, 3));
}

#[test]
fn entries_that_contradict_what_is_known_change_nothing() {
    let agreed = |told, held| Err(Contradiction::Agreed { told, held });
    let mut log = three();
    log.commit_to(Index(2));
    let before = format!("{log:?}");
    let noop = |view, index| entry(view, index, EntryKind::Noop);
    let mut tell = |prev, entries: &[Entry], matched| {
        let accepted = told(&mut log, prev, entries, Index(matched));
        assert_eq!(format!("{log:?}"), before);
        accepted
    };
    // The second entry of two differs: the first must not have been taken either.
    let two = [noop(16, 1), noop(33, 2)];
    assert_eq!(tell(vs(0, 0), &two, 2), agreed(vs(33, 2), vs(16, 2)));
    assert_eq!(tell(vs(33, 2), &[], 2), agreed(vs(33, 2), vs(16, 2)));
    // Not committed, but the same leader has said that it has it.
    let three = [noop(33, 3)];
    assert_eq!(tell(vs(16, 2), &three, 3), agreed(vs(33, 3), vs(16, 3)));

    log.trim(Index(2), &mut Pool::default());
    let base = vs(16, 2);
    let mut tell = |entries: &[Entry]| told(&mut log, vs(0, 0), entries, Index(2));
    let early = Contradiction::Reclaimed {
        told: vs(33, 1),
        base,
    };
    assert_eq!(tell(&[noop(33, 1)]), Err(early));
    let older = [noop(1, 1), noop(1, 2), noop(1, 3)];
    assert_eq!(tell(&older), agreed(vs(1, 2), base));
    assert_eq!(tell(&[noop(1, 1)]), Ok(Accepted::Unchanged));
}

#[test]
fn the_bytes_of_entries_of_any_kind_are_counted() {
    let mut log = three();
    let before = log.held();
    assert_eq!(before, 3 * size_of::<Entry>() + log.bytes());
    log.push(entry(16, 4, EntryKind::InSync(set(&[1]))));
    assert!(log.held() >= before + size_of::<Entry>());
    accept(&mut log, vs(16, 1), &[entry(33, 2, EntryKind::Noop)]);
    log.commit_to(Index(2));
    log.trim(Index(2), &mut Pool::default());
    assert_eq!(log.held(), 0);
}

#[test]
fn trimming_stops_at_commit_and_carries_the_in_sync_set_to_the_base() {
    let mut log = three();
    log.push(entry(16, 4, EntryKind::InSync(set(&[1]))));
    log.push(entry(16, 5, EntryKind::App));
    log.commit_to(Index(4));
    log.trim(Index(9), &mut Pool::default());
    assert_eq!(log.base(), vs(16, 4));
    assert_eq!(log.configuration_at_base().in_sync, set(&[1]));
    assert_eq!(log.bytes(), 3);
    assert_eq!(log.at(Index(3)), None);
    assert_eq!(log.committed(), vs(16, 4));
    // Entries up to the base are committed and therefore the same everywhere.
    let again = vec![entry(16, 4, EntryKind::App), entry(16, 5, EntryKind::App)];
    assert_eq!(accept(&mut log, vs(16, 3), &again), Accepted::Unchanged);
}

#[test]
fn the_group_is_reverted_and_reclaimed_with_its_entry() {
    let mut log = three();
    let four = Members::of(set(&[0, 1, 2, 3]));
    log.push(entry(16, 4, EntryKind::Members(four)));
    assert_eq!(
        (log.configuration().members, log.members_at()),
        (four, Index(4))
    );
    accept(&mut log, vs(16, 3), &[entry(33, 4, EntryKind::Noop)]);
    assert_eq!(log.configuration().members.voters, set(&[0, 1, 2]));
    assert_eq!(log.members_at(), Index(0));
    log.push(entry(33, 5, EntryKind::Members(four)));
    log.commit_to(Index(5));
    log.trim(Index(5), &mut Pool::default());
    assert_eq!(log.configuration_at_base().members, four);
}

//! One replica and messages written by hand: which messages it must not send, and when.

mod lies;
mod replica;
mod rounds;

use crate::group::TIMEOUT;
use apus::{Command, Durability, Entry, Event, Phase};
use plover_types::{Index, Micros, View, Viewstamp, wire};
use replica::*;

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

/// The state goes to storage before a log that is still to be written. A crash between the two would leave a replica
/// that votes without what it has acknowledged.
#[test]
fn a_forgotten_log_is_recovered_once_storage_has_it() {
    let leader = view(1, 0);
    let mut replica = Replica::without_its_log(leader);
    let question = replica.apply(Event::Tick);
    let base = vs(leader, 9);
    replica.is_answered(&question, leader, base, 0);
    let out = replica.read(0, &append_at_base(leader, base));
    let begins_anew = |command: &Command| matches!(command, Command::PersistEntries { after, anew: Some(_), .. } if *after == base);
    assert!(out.iter().any(begins_anew));
    let trusts =
        |command: &Command| matches!(command, Command::PersistState(state) if !state.amnesiac);
    assert!(!out.iter().any(trusts));
    assert_eq!(replica.core.status().phase, Phase::Recovering);
    let out = replica.apply(Event::EntriesPersisted(base));
    assert!(out.iter().any(trusts));
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

//! The steps of a change, and the orders that are refused.

mod telling;

use super::change::{Next, Sight, next};
use super::*;
use crate::api::{Config, Event, Role};
use crate::testing::{LEADER, secondary};
use apus::Start;
use plover_policy::VSMR;
use plover_syncvm::SyncMessage;
use plover_types::{Index, Lane, Micros, View};

fn set(ids: &[u8]) -> ReplicaSet {
    ReplicaSet::of(ids.iter().map(|id| ReplicaId(*id)))
}

fn members(voters: &[u8], learners: &[u8]) -> Members {
    Members {
        voters: set(voters),
        learners: set(learners),
    }
}

const REPLACE: Change = Change {
    add: Some(ReplicaId(3)),
    remove: Some(ReplicaId(1)),
};

/// Replica 0 leads with 2 as its secondary; all answer, and the new host has everything.
fn sight() -> Sight {
    Sight {
        me: ReplicaId(0),
        answer: set(&[0, 1, 2, 3]),
        dead: set(&[]),
        counts: set(&[0, 2]),
        behind: Some(0),
        is_copied: true,
    }
}

fn to(voters: &[u8], learners: &[u8]) -> Next {
    Next::Propose(members(voters, learners))
}

#[test]
fn a_member_that_answers_leaves_after_the_new_one_votes() {
    let learns = members(&[0, 1, 2], &[3]);
    let both = members(&[0, 1, 2, 3], &[]);
    assert_eq!(next(REPLACE, learns, &sight()), to(&[0, 1, 2, 3], &[]));
    assert_eq!(next(REPLACE, both, &sight()), to(&[0, 2, 3], &[]));
    assert_eq!(
        next(REPLACE, members(&[0, 2, 3], &[]), &sight()),
        Next::Done
    );
}

/// Four voters of which one is dead need all others, and two voters need no more than three of which one is dead.
#[test]
fn a_dead_member_leaves_before_the_new_one_votes() {
    let dead = Sight {
        answer: set(&[0, 2, 3]),
        dead: set(&[1]),
        is_copied: false,
        ..sight()
    };
    let learns = members(&[0, 1, 2], &[3]);
    assert_eq!(next(REPLACE, learns, &dead), to(&[0, 2], &[3]));
    assert_eq!(
        next(REPLACE, members(&[0, 2], &[3]), &dead),
        to(&[0, 2, 3], &[])
    );
    // It has died since the new one votes.
    assert_eq!(
        next(REPLACE, members(&[0, 1, 2, 3], &[]), &dead),
        to(&[0, 2, 3], &[])
    );
}

/// A new leader has not heard anybody yet, which does not make a live member a dead one.
#[test]
fn a_member_is_not_dead_because_nobody_has_answered_yet() {
    let new_leader = Sight {
        answer: set(&[0]),
        is_copied: false,
        ..sight()
    };
    let both = members(&[0, 1, 2, 3], &[]);
    let copy = Next::Wait(ChangeStep::Copy(ReplicaId(3)));
    assert_eq!(next(REPLACE, both, &new_leader), copy);
}

#[test]
fn nobody_leaves_before_the_new_host_has_everything() {
    use ChangeStep::{CatchUp, Copy, Reach, Roles};
    let (old, new) = (ReplicaId(1), ReplicaId(3));
    let (learns, both) = (members(&[0, 1, 2], &[3]), members(&[0, 1, 2, 3], &[]));
    let silent = Sight {
        answer: set(&[0, 2]),
        ..sight()
    };
    assert_eq!(next(REPLACE, learns, &silent), Next::Wait(Reach(new)));
    let empty = Sight {
        behind: None,
        ..sight()
    };
    assert_eq!(next(REPLACE, learns, &empty), Next::Wait(Reach(new)));
    let behind = 257;
    let late = Sight {
        behind: Some(behind),
        ..sight()
    };
    assert_eq!(
        next(REPLACE, learns, &late),
        Next::Wait(CatchUp { new, behind })
    );
    let bare = Sight {
        is_copied: false,
        ..sight()
    };
    for now in [learns, both] {
        assert_eq!(next(REPLACE, now, &bare), Next::Wait(Copy(new)));
    }
    // It is in sync, or leads; also when it has just died.
    for (me, dead) in [(0, set(&[])), (0, set(&[1])), (1, set(&[]))] {
        let counts = Sight {
            me: ReplicaId(me),
            dead,
            counts: set(&[0, 1]),
            ..sight()
        };
        assert_eq!(next(REPLACE, both, &counts), Next::Wait(Roles(old)));
    }
}

#[test]
fn a_group_that_has_lost_a_member_gets_one_without_a_copy() {
    let add = Change {
        remove: None,
        ..REPLACE
    };
    let bare = Sight {
        is_copied: false,
        ..sight()
    };
    assert_eq!(
        next(add, members(&[0, 2], &[3]), &bare),
        to(&[0, 2, 3], &[])
    );
    assert_eq!(next(add, members(&[0, 2, 3], &[]), &bare), Next::Done);
}

/// Replica 0 of three, which leads and whose peers all answer.
fn leader() -> Replica {
    leader_of(3)
}

fn leader_of(count: u8) -> Replica {
    let all = ReplicaSet::of((0..count).map(ReplicaId));
    let config = Config::new(ReplicaId(0), all, 16);
    let mut replica = Replica::new(config, Start::Fresh, Micros(1));
    let address = |id: u8| (ReplicaId(id), format!("h:{id}"));
    replica.cx.group.record = GroupRecord::configured((0..count).map(address).collect());
    let leader = crate::leader::Leader::new(&replica.cx.config, Micros(1));
    replica.enter(crate::phase::Phase::Leader(Box::new(leader)));
    for id in 1..count {
        let peer = replica.cx.peers.get_mut(ReplicaId(id)).unwrap();
        (peer.is_linked, peer.is_alive) = (true, true);
    }
    replica.cx.group.in_sync = set(&[0, 2]);
    replica
}

fn replace(old: u8, new: u8, address: &str) -> MemberOrder {
    MemberOrder::Replace {
        old: ReplicaId(old),
        new: ReplicaId(new),
        address: address.into(),
    }
}

#[test]
fn an_order_that_cannot_be_carried_out_is_refused_with_the_way_out() {
    let mut replica = leader();
    replica.cx.group.record.left = set(&[4]);
    let why = |replica: &Replica, order: MemberOrder| {
        let why = replica.why_not_change_members(&order);
        why.map(|why| why.to_string()).unwrap_or_default()
    };
    let refused = |replica: &Replica, order: MemberOrder, word: &str| {
        let why = why(replica, order);
        assert!(why.contains(word), "no '{word}' in '{why}'");
    };
    let remove = |id: u8| MemberOrder::Remove { id: ReplicaId(id) };
    let add = MemberOrder::Add {
        id: ReplicaId(3),
        address: "h:3".into(),
    };
    assert_eq!(why(&replica, replace(1, 3, "h:3")), "");
    refused(
        &replica,
        replace(5, 3, "h:3"),
        "name one of replicas 0, 1, 2",
    );
    refused(&replica, replace(1, 2, "h:3"), "such as 3");
    refused(&replica, replace(1, 4, "h:3"), "has left the group");
    refused(&replica, replace(1, 16, "h:3"), "0 to 15");
    refused(&replica, replace(1, 3, "h:1"), "replica 1 listens at h:1");
    refused(&replica, add.clone(), "plover member replace OLD");
    refused(&replica, remove(0), "plover switchover");
    refused(&replica, remove(1), "plover member replace 1");
    let dies = |replica: &mut Replica, id: u8| {
        let peer = replica.cx.peers.get_mut(ReplicaId(id)).unwrap();
        (peer.is_alive, peer.is_dead) = (false, true);
    };
    dies(&mut replica, 1);
    assert_eq!(why(&replica, remove(1)), "");
    assert_eq!(
        why(&replica, replace(1, 3, "h:1")),
        "",
        "it has that address no more"
    );
    refused(&replica, remove(2), "plover member replace 2");
    dies(&mut replica, 2);
    refused(&replica, remove(1), "replica 2 do not answer");
    // While a change is under way: the same again, another one, and its end.
    let record = &mut replica.cx.group.record;
    record.change = Some(REPLACE);
    record.addresses.insert(ReplicaId(3), "h:3".into());
    assert_eq!(why(&replica, replace(1, 3, "h:3")), "");
    refused(&replica, add, "plover member remove 3");
    assert_eq!(why(&replica, remove(3)), "");
    replica.cx.group.in_sync = set(&[0, 3]);
    refused(&replica, remove(3), "holds the guest by now");
    let mut nine = leader_of(9);
    refused(&nine, replace(1, 9, "h:9"), "stop that one first");
    dies(&mut nine, 1);
    assert_eq!(why(&nine, replace(1, 9, "h:9")), "");
    let witness = crate::testing::witness(VSMR.policy, crate::api::Warm::Off);
    refused(&witness, remove(1), "does not lead");
}

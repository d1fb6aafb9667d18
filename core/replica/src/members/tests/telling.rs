//! Replicas tell each other who the members are, and one that has left ends.

use super::*;

/// The record of a group that this replica has left.
fn left(replica: &Replica) -> GroupRecord {
    let me = replica.cx.config.me;
    let others = replica.members().iter().filter(|id| *id != me);
    GroupRecord {
        generation: View(16),
        index: Index(9),
        members: Members::of(ReplicaSet::of(others)),
        left: ReplicaSet::of([me]),
        ..GroupRecord::default()
    }
}

/// The fear: all hosts die before any has stored the entry, but for the one that has left. The others wait for it.
#[test]
fn a_replica_leaves_when_it_is_told_and_others_tell_what_they_have_stored() {
    let mut replica = secondary(VSMR.policy);
    let record = left(&replica);
    let at = Viewstamp {
        view: View(16),
        index: Index(9),
    };
    replica.on_members(record.members, at, &record.payload());
    assert!(!replica.cx.has_left);
    replica.on_members_told(LEADER, &wire::encode(&record));
    assert!(replica.cx.has_left);

    let mut leader = crate::testing::leader(VSMR.policy, true);
    let record = GroupRecord {
        generation: View(16),
        index: Index(9),
        ..leader.cx.group.record.clone()
    };
    let tells = |leader: &mut Replica| {
        let out = crate::testing::taken(leader);
        let bulk =
            |action: &&Action| matches!(action, Action::Write { lane, .. } if *lane == Lane::Bulk);
        out.iter().filter(bulk).count()
    };
    leader.on_members_told(LEADER, &wire::encode(&record));
    assert_eq!(tells(&mut leader), 0);
    leader.on_members_persisted((View(16), Index(8)));
    assert_eq!(tells(&mut leader), 0);
    leader.on_members_persisted(record.place());
    assert_eq!(tells(&mut leader), 2);
}

/// A secondary that was cut off hears that the others went on without it.
#[test]
fn a_replica_that_has_left_drops_its_guest_and_does_nothing_more() {
    let mut replica = secondary(VSMR.policy);
    let record = left(&replica);
    let message = SyncMessage {
        view: View(7777),
        body: Body::Members {
            record: wire::encode(&record),
        },
    };
    let told = |record: &SyncMessage| Event::Received {
        from: LEADER,
        lane: Lane::Bulk,
        bytes: wire::encode(record),
    };
    let mut out = Vec::new();
    replica.apply(Micros(5), told(&message), &mut out);
    assert_eq!(replica.role(), Role::Witness);
    assert!(out.iter().any(|action| matches!(action, Action::KillGuest)));
    assert!(matches!(out.last(), Some(Action::Leave)));
    let kept = |action: &Action| matches!(action, Action::Regroup(kept) if **kept == record);
    assert!(out.iter().any(kept), "it must know that at its next start");
    out.clear();
    replica.apply(Micros(900_000), Event::Tick, &mut out);
    assert!(out.is_empty(), "{out:?}");
}

/// Only the newest record counts, whoever tells it.
#[test]
fn an_old_record_changes_nothing() {
    let mut replica = secondary(VSMR.policy);
    let record = |index: u64, voters: &[u8]| GroupRecord {
        generation: View(16),
        index: Index(index),
        members: members(voters, &[]),
        ..GroupRecord::default()
    };
    let newer = record(9, &[0, 1, 3]);
    let mut told = |bytes: &[u8]| replica.on_members_told(ReplicaId(2), bytes);
    told(&wire::encode(&newer));
    told(&wire::encode(&record(8, &[0, 1, 2])));
    told(&[1, 2]);
    assert_eq!(replica.members(), set(&[0, 1, 3]));
    assert_eq!(replica.group_record(), &newer);
}

/// It was away while all others were replaced: only its file names members of now.
#[test]
fn a_replica_whose_peers_have_all_left_is_told_by_one_that_its_file_names() {
    let address = |id: u8| (ReplicaId(id), format!("h:{id}"));
    let mut kept = GroupRecord::configured((0..3).map(address).collect());
    kept.generation = View(16);
    let config = Config {
        contacts: set(&[0, 1, 4, 5]),
        record: kept.clone(),
        ..Config::new(ReplicaId(0), set(&[0, 1, 2]), 16)
    };
    let start = Start::PromiseLost { least: View(16) };
    let mut replica = Replica::new(config, start, Micros(1));
    assert_eq!(replica.contacts(), set(&[4, 5]));
    let mut out = Vec::new();
    let (peer, up) = (ReplicaId(4), true);
    replica.apply(Micros(2), Event::Link { peer, up }, &mut out);
    let asked = |action: &Action| matches!(action, Action::Write { to, .. } if *to == ReplicaId(4));
    assert!(out.iter().any(asked), "{out:?}");
    let mut now = kept.clone();
    now.index = Index(9);
    now.members = members(&[0, 4, 6], &[]);
    now.left = set(&[1, 2, 5]);
    replica.on_members_told(ReplicaId(4), &wire::encode(&now));
    assert_eq!(replica.members(), set(&[0, 4, 6]));
    assert_eq!(
        replica.contacts(),
        ReplicaSet::EMPTY,
        "4 is a member, 5 has left"
    );
    assert!(
        replica.cx.peers.is_linked(ReplicaId(4)),
        "it was linked before"
    );
}

/// A host that only the file names is no member, and not linked for ever.
#[test]
fn a_contact_is_dropped_once_a_leader_is_known() {
    let mut replica = secondary(VSMR.policy);
    replica.cx.group.contacts = set(&[4]);
    let mut out = Vec::new();
    replica.apply(Micros(5), Event::Tick, &mut out);
    assert_eq!(replica.contacts(), ReplicaSet::EMPTY);
    let regrouped = |action: &Action| matches!(action, Action::Regroup(_));
    assert!(out.iter().any(regrouped), "{out:?}");
}

/// The message of the last leader may be lost, and its link need not have broken for that.
#[test]
fn without_a_leader_the_members_are_told_again_and_again() {
    let address = |id: u8| (ReplicaId(id), format!("h:{id}"));
    let record = GroupRecord {
        generation: View(16),
        index: Index(9),
        left: set(&[3]),
        ..GroupRecord::configured((0..3).map(address).collect())
    };
    let config = Config {
        record,
        ..Config::new(ReplicaId(0), set(&[0, 1, 2]), 16)
    };
    let start = Start::PromiseLost { least: View(16) };
    let mut replica = Replica::new(config, start, Micros(1));
    let (peer, up) = (ReplicaId(1), true);
    replica.apply(Micros(2), Event::Link { peer, up }, &mut Vec::new());
    let mut told_at = |second_tenths: u64| {
        let mut out = Vec::new();
        replica.apply(Micros(second_tenths * 100_000), Event::Tick, &mut out);
        let to = |action: &Action| match action {
            Action::Write { to, lane, .. } => (*lane == Lane::Bulk).then_some(*to),
            _ => None,
        };
        out.iter().filter_map(to).collect::<Vec<_>>()
    };
    let told = [20, 25, 31, 32, 42].map(&mut told_at);
    let (none, one) = (vec![], vec![ReplicaId(1)]);
    assert_eq!(told, [one.clone(), none.clone(), one.clone(), none, one]);
}

//! The role of a replica after the leader changes, the guest dies, or the in-sync set goes on without it.

use crate::api::{Action, Note, OwnFault, Role};
use crate::follow::tests::{end, gives_up, joining, receiving};
use crate::hypervisor::Order;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::testing::{LEADER, leader, new_secondary, secondary, sent_to_leader, taken};
use plover_policy::VSMR;
use plover_syncvm::message::Body;
use plover_types::{Index, Micros, PageLayout, ReplicaId, ReplicaSet, SyncNo, View, Viewstamp};

fn kills(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::KillGuest))
}

/// A place in the log of an older view.
fn at(index: u64) -> Viewstamp {
    let (view, index) = (View::NONE, Index(index));
    Viewstamp { view, index }
}

/// It may win again, so its guest runs on with its outputs held, until the log says that others go on.
#[test]
fn a_deposed_leader_keeps_its_guest_until_it_is_out() {
    let mut replica = leader(VSMR.policy, true);
    replica.on_follow(View(32), None);
    assert_eq!(replica.role(), Role::Deposed);
    let out = taken(&mut replica);
    assert!(out.iter().any(|a| matches!(a, Action::FaceClients(false))));
    assert!(!kills(&out));
    replica.on_in_sync(ReplicaSet::of([LEADER]), at(9));
    assert_eq!(replica.role(), Role::Witness);
    assert!(kills(&taken(&mut replica)));
}

#[test]
fn a_leader_whose_guest_has_died_is_no_candidate() {
    let mut replica = leader(VSMR.policy, true);
    replica.on_guest_died("killed".to_string());
    assert!(!replica.holds_state());
    replica.on_follow(View(32), None);
    assert_eq!(replica.role(), Role::Witness);
}

/// Nobody else can count these: to the replica that takes over they look like an operator's switchover.
#[test]
fn a_leader_that_hands_over_by_itself_says_for_which_fault() {
    let faults = |replica: &mut Replica| -> Vec<OwnFault> {
        replica.watch_hypervisor();
        replica.watch_uplink();
        let faults = taken(replica).into_iter();
        let faults = faults.filter_map(|action| match action {
            Action::Note(Note::Resigned { why }) => Some(why),
            _ => None,
        });
        faults.collect()
    };
    let mut replica = leader(VSMR.policy, true);
    assert!(faults(&mut replica).is_empty());
    replica.cx.reaches_clients = false;
    assert_eq!(faults(&mut replica), [OwnFault::Uplink]);

    let mut replica = leader(VSMR.policy, true);
    replica.cx.guest.unanswered.ordered(Order::Pause, Micros(1));
    replica.cx.now = Micros(1) + replica.cx.config.hypervisor_timeout;
    assert_eq!(faults(&mut replica), [OwnFault::Hypervisor]);

    let mut solo = leader(VSMR.policy, false);
    solo.cx.reaches_clients = false;
    assert!(faults(&mut solo).is_empty(), "nobody else has the guest");
}

#[test]
fn a_replica_follows_no_leader_while_it_leads_or_knows_none() {
    let mut replica = secondary(VSMR.policy);
    assert_eq!(replica.followed(), Some(LEADER));
    replica.on_follow(View(32), None);
    assert_eq!(replica.followed(), None);
    assert_eq!(leader(VSMR.policy, true).followed(), None);
}

#[test]
fn a_secondary_whose_guest_dies_says_so_and_votes_on() {
    let mut replica = secondary(VSMR.policy);
    replica.on_guest_died("killed".to_string());
    assert_eq!(replica.role(), Role::Witness);
    let sent = sent_to_leader(&replica);
    assert!(matches!(&sent[..], [Body::GuestLost { .. }]), "{sent:?}");
}

/// A leader that has lost the secondary that this one is to replace says first that it is alone.
#[test]
fn a_new_secondary_outlives_sets_before_the_one_that_names_it() {
    let mut replica = new_secondary(VSMR.policy);
    let me = replica.cx.config.me;
    replica.on_in_sync(ReplicaSet::of([LEADER]), at(5));
    assert_eq!(replica.role(), Role::Secondary);
    replica.on_in_sync(ReplicaSet::of([LEADER, me]), at(6));
    replica.on_in_sync(ReplicaSet::of([LEADER]), at(7));
    assert_eq!(replica.role(), Role::Witness);
    assert!(kills(&taken(&mut replica)));
}

/// Its acknowledgement came too late: the leader has given its join up and goes on, with another replica or alone.
#[test]
fn a_new_secondary_goes_when_the_leader_has_gone_on_without_it() {
    let me = new_secondary(VSMR.policy).cx.config.me;
    let other = ReplicaId(7);
    for (set, role) in [
        (vec![LEADER, other], Role::Witness),
        (vec![LEADER], Role::Secondary),
        (vec![LEADER, me], Role::Secondary),
    ] {
        let mut replica = new_secondary(VSMR.policy);
        replica.on_in_sync(ReplicaSet::of(set), at(5));
        assert_eq!(replica.role(), role);
        // The leader's next syncvm.
        replica.cx.group.view = View::NONE;
        replica.on_syncvm_entry(SyncNo(3), at(6), false);
        let is_named = replica.cx.group.in_sync.contains(me);
        assert_eq!(replica.role() == Role::Secondary, is_named);
        assert_eq!(kills(&taken(&mut replica)), !is_named);
    }
}

#[test]
fn every_in_sync_set_is_remembered_on_disk() {
    let mut replica = secondary(VSMR.policy);
    let set = ReplicaSet::of([LEADER, ReplicaId(1)]);
    replica.on_in_sync(set, at(6));
    let recorded = taken(&mut replica).into_iter().find_map(|a| match a {
        Action::PersistGuest(record) => Some((record.in_sync, record.index)),
        _ => None,
    });
    assert_eq!(recorded, Some((set, Index(6))));
}

/// A log that begins anew is another guest's.
#[test]
fn a_new_generation_drops_the_old_guest() {
    let mut replica = secondary(VSMR.policy);
    replica.on_install_snapshot(Index(0), ReplicaSet::of([LEADER]));
    assert_eq!(replica.role(), Role::Witness);
    assert!(kills(&taken(&mut replica)));
}

/// The leader, which may have been silent for a moment only, would wait for this replica's pages for 1.5 s, and then give it up.
#[test]
fn a_leader_that_is_suspected_learns_that_its_syncvm_is_given_up() {
    let mut replica = receiving();
    let view = View::new(1, LEADER);
    replica.cx.group.view = view;
    replica.on_follow(view, None);
    let sent = sent_to_leader(&replica);
    assert!(gives_up(&sent), "{sent:?}");
    taken(&mut replica);
    replica.on_follow(view, Some(LEADER));
    assert_eq!(sent_to_leader(&replica), [], "once");
}

/// The same behind the end mark: it is acknowledged although the leader is suspected.
#[test]
fn a_leader_that_is_suspected_gets_its_acknowledgement() {
    let mut replica = receiving();
    let view = View::new(1, LEADER);
    replica.cx.group.view = view;
    replica.cx.config.layout = PageLayout::new(8, 8);
    end(&mut replica, 0);
    replica.on_follow(view, None);
    assert_eq!(sent_to_leader(&replica), []);
    replica.follow_disks_staged(SyncNo(1));
    assert_eq!(sent_to_leader(&replica), [Body::Ack { sync: SyncNo(1) }]);
}

#[test]
fn a_joiner_that_suspects_its_leader_says_that_it_has_left_and_keeps_its_copy() {
    let mut replica = joining(false);
    let view = View::new(1, LEADER);
    replica.cx.group.view = view;
    replica.on_follow(view, None);
    let sent = sent_to_leader(&replica);
    assert!(
        matches!(&sent[..], [Body::CopyFailed { attempt: 7, .. }]),
        "{sent:?}"
    );
    assert!(matches!(replica.phase, Phase::Witness { copy: Some(_) }));
}

#[test]
fn a_joiner_whose_join_the_leader_gives_up_keeps_its_copy() {
    let mut replica = joining(false);
    replica.on_copy_failed(LEADER, 7, "why");
    assert!(matches!(replica.phase, Phase::Witness { copy: Some(_) }));
    assert!(!kills(&taken(&mut replica)));
}

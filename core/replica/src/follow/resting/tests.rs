//! A secondary's guest that rests, on synthetic events.

use crate::api::{Action, Note, Role};
use crate::guest::Power;
use crate::hash_keys::SyncKeys;
use crate::log_ops::LogOp;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::testing::{secondary, sent_to_leader, taken};
use plover_policy::Preset;
use plover_syncvm::message::Body;
use plover_types::{Frame, Index, PageSet, SyncNo, Unconsumed, Viewstamp};

fn frame(byte: u8) -> Frame {
    Frame(vec![byte])
}

fn input(replica: &mut Replica, index: u64, byte: u8) {
    let op = LogOp::Inputs(vec![frame(byte)]);
    replica.give_to_guest(Index(index), op);
}

/// The entry of a syncvm comes, and the leader's pages: none.
fn cut(replica: &mut Replica, sync: u64, rests: bool) {
    let view = replica.cx.group.view;
    let index = Index(sync * 10);
    replica.on_syncvm_entry(SyncNo(sync), Viewstamp { view, index }, rests);
    replica.cx.guest.activity.is_idle = true;
    replica.tick_follow();
    if replica.cx.guest.power == Power::Pausing {
        replica.cx.guest.power = Power::Paused;
        replica.follow_paused(Unconsumed::default());
    }
    let none = PageSet::new(16);
    replica.follow_scanned(SyncNo(sync), &none);
    replica.follow_dirty(SyncNo(sync), &none.to_runs(), SyncKeys::xxh3([0; 32]));
}

/// The end mark, with a frame that the leader's guest had not consumed.
fn end(replica: &mut Replica, sync: u64) {
    let refeed = Unconsumed {
        frames: vec![frame(100 + sync as u8)],
        ..Unconsumed::default()
    };
    let device = vec![9].into();
    replica.follow_end(SyncNo(sync), 0, device, refeed, (false, Vec::new()));
}

/// A secondary whose guest rests since syncvm 1.
fn resting() -> Replica {
    let mut replica = secondary(Preset::find("hybrid-semi").unwrap().policy);
    replica.cx.memory.ledger.settle();
    cut(&mut replica, 1, true);
    end(&mut replica, 1);
    replica.follow_state_loaded();
    assert!(replica.is_resting());
    let out = taken(&mut replica);
    assert!(!out.iter().any(|a| matches!(a, Action::Resume)), "{out:?}");
    replica
}

/// The frames that the guest was fed, and whether it was resumed once after them.
fn fed(replica: &mut Replica) -> (Vec<u8>, usize) {
    let out = taken(replica);
    let resumes = out.iter().filter(|a| matches!(a, Action::Resume)).count();
    let frames = out.into_iter().filter_map(|action| match action {
        Action::Feed(frames) => Some(frames),
        _ => None,
    });
    (frames.flatten().map(|frame| frame.0[0]).collect(), resumes)
}

/// Nothing acknowledged is lost: what was logged since the last state is executed.
#[test]
fn a_takeover_executes_what_was_logged_since() {
    let mut replica = resting();
    input(&mut replica, 11, 1);
    input(&mut replica, 12, 2);
    assert_eq!(fed(&mut replica), (vec![], 0));
    replica.lead_with_this_guest();
    assert_eq!(replica.role(), Role::Leader);
    let wakes = |a: &Action| matches!(a, Action::Note(Note::Wakes { inputs: 2 }));
    assert!(replica.cx.out.iter().any(wakes));
    assert_eq!(fed(&mut replica), (vec![101, 1, 2], 1));
}

/// The fear: the inputs before a cut are forgotten when it comes, and its syncvm never ends.
#[test]
fn a_takeover_in_a_syncvm_executes_the_inputs_before_its_cut() {
    let mut replica = resting();
    input(&mut replica, 11, 1);
    cut(&mut replica, 2, true);
    input(&mut replica, 21, 2);
    replica.lead_with_this_guest();
    assert_eq!(fed(&mut replica), (vec![101, 1, 2], 1));
}

/// Behind the end mark the state contains them.
#[test]
fn a_takeover_behind_the_end_mark_executes_what_came_after_the_cut() {
    let mut replica = resting();
    input(&mut replica, 11, 1);
    cut(&mut replica, 2, true);
    input(&mut replica, 21, 2);
    end(&mut replica, 2);
    replica.lead_with_this_guest();
    assert_eq!(fed(&mut replica), (vec![], 0), "the state is being loaded");
    replica.follow_state_loaded();
    assert_eq!(fed(&mut replica), (vec![102, 2], 1));
}

#[test]
fn a_syncvm_that_says_so_lets_the_guest_run() {
    let mut replica = resting();
    input(&mut replica, 11, 1);
    cut(&mut replica, 2, false);
    input(&mut replica, 21, 2);
    end(&mut replica, 2);
    replica.follow_state_loaded();
    assert!(!replica.is_resting());
    assert_eq!(fed(&mut replica), (vec![102, 2], 1));
}

/// A link breaks in the midst of a syncvm. The next one begins from the same state.
#[test]
fn a_syncvm_that_is_given_up_leaves_the_guest_resting() {
    let mut replica = resting();
    input(&mut replica, 11, 1);
    cut(&mut replica, 2, true);
    replica.abort_follow("the link to the leader broke");
    assert!(replica.is_resting());
    assert_eq!(fed(&mut replica), (vec![], 0));
    input(&mut replica, 21, 2);
    cut(&mut replica, 3, false);
    input(&mut replica, 31, 3);
    end(&mut replica, 3);
    assert!(sent_to_leader(&replica).contains(&Body::Ack { sync: SyncNo(3) }));
    replica.follow_state_loaded();
    assert_eq!(fed(&mut replica), (vec![103, 3], 1));
}

/// The leader ends its next slot before the state of the last one is loaded.
#[test]
fn a_cut_that_comes_while_a_state_is_loaded_is_not_missed() {
    let mut replica = secondary(Preset::find("hybrid-semi").unwrap().policy);
    replica.cx.memory.ledger.settle();
    cut(&mut replica, 1, true);
    end(&mut replica, 1);
    input(&mut replica, 11, 1);
    cut(&mut replica, 2, true);
    replica.follow_state_loaded();
    assert!(replica.is_resting() && replica.follow.is_some());
    taken(&mut replica);
    replica.follow_scanned(SyncNo(2), &PageSet::new(16));
    let hashes = |a: &Action| matches!(a, Action::Hash { .. });
    assert!(taken(&mut replica).iter().any(hashes));
}

#[test]
fn a_guest_that_rests_is_given_up_with_its_replica() {
    let mut replica = resting();
    replica.on_guest_died("killed".to_string());
    assert!(matches!(replica.phase, Phase::Witness { .. }));
    assert!(!replica.is_resting());
}

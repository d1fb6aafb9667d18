use super::*;
use crate::api::Action;
use crate::log_ops::LogOp;
use crate::replica::Replica;
use crate::testing;
use plover_policy::{Policy, Preset};
use plover_types::{Index, SyncNo};

fn hybrid() -> Policy {
    Preset::find("hybrid").unwrap().policy
}

/// A secondary whose guest runs and is compared.
fn compared() -> Replica {
    let mut replica = testing::secondary(hybrid());
    if let Some((secondary, cx)) = replica.following() {
        secondary.begin_report(cx, SyncNo(1), true);
    }
    replica
}

fn tick(replica: &mut Replica) {
    let is_compared = replica.reports_outputs();
    replica.cx.tick_pace(is_compared);
}

/// A datagram with so many bytes.
fn datagram(bytes: u8) -> Frame {
    let mut frame = vec![0; 42 + usize::from(bytes)];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[17] = 28 + bytes;
    frame[23] = 17;
    frame[39] = 8 + bytes;
    Frame(frame)
}

fn paced(replica: &mut Replica, after: u64, name: u8) {
    let op = LogOp::Paced(after, vec![Frame(vec![name])]);
    replica.give_to_guest(Index(u64::from(name)), op);
    tick(replica);
}

/// The names of what the guest got since this was last asked.
fn fed(replica: &mut Replica) -> Vec<u8> {
    let actions = std::mem::take(&mut replica.cx.out);
    let feeds = actions.into_iter().filter_map(|action| match action {
        Action::Feed(frames) => Some(frames),
        _ => None,
    });
    feeds.flatten().map(|frame| frame.0[0]).collect()
}

#[test]
fn an_input_waits_until_the_guest_is_as_far_as_the_leaders() {
    let mut replica = compared();
    paced(&mut replica, 0, 1);
    paced(&mut replica, 10, 2);
    paced(&mut replica, 15, 3);
    assert_eq!(fed(&mut replica), [1]);
    replica.on_outputs(vec![datagram(4), datagram(6)]);
    tick(&mut replica);
    assert_eq!(fed(&mut replica), [2]);
    let nothing_more = LogOp::Inputs(vec![Frame(vec![4])]);
    replica.give_to_guest(Index(4), nothing_more);
    assert_eq!(fed(&mut replica), [], "inputs keep their order");
    replica.on_outputs(vec![datagram(5)]);
    tick(&mut replica);
    assert_eq!(fed(&mut replica), [3, 4]);
    assert_eq!(replica.cx.pace_deadline(), Micros::NEVER);
}

#[test]
fn a_guest_that_sends_less_is_waited_for_once() {
    let mut replica = compared();
    paced(&mut replica, 10, 1);
    let deadline = replica.cx.pace_deadline();
    assert_eq!(deadline, replica.cx.now + PACE_WAIT_MAX);
    replica.cx.now = deadline;
    tick(&mut replica);
    assert_eq!(fed(&mut replica), [1]);
    assert_eq!(replica.paced_in_vain(), 10);
    paced(&mut replica, 10, 2);
    assert_eq!(fed(&mut replica), [2]);
    paced(&mut replica, 11, 3);
    assert_eq!(fed(&mut replica), []);
}

#[test]
fn no_input_waits_for_longer_than_it_may_because_others_waited_before_it() {
    let mut replica = compared();
    paced(&mut replica, 10, 1);
    paced(&mut replica, 20, 2);
    replica.cx.now = replica.cx.now + PACE_WAIT_MAX;
    tick(&mut replica);
    assert_eq!(fed(&mut replica), [1, 2]);
}

#[test]
fn a_guest_that_is_not_compared_waits_for_nothing() {
    let mut replica = compared();
    paced(&mut replica, 10, 1);
    assert_eq!(fed(&mut replica), []);
    replica.stop_comparing();
    tick(&mut replica);
    assert_eq!(fed(&mut replica), [1]);
    assert_eq!(replica.paced_in_vain(), 0);
}

/// The guest gets all inputs before a cut before it is paused.
#[test]
fn a_cut_does_not_wait() {
    let mut replica = compared();
    paced(&mut replica, 10, 1);
    paced(&mut replica, 20, 2);
    let at = plover_types::Viewstamp::default();
    let sync = SyncNo(2);
    let cut = crate::guest::Input::Cut(crate::guest::Cut {
        sync,
        at,
        rests: false,
    });
    let reached = replica.cx.guest.give(Micros(1), cut, &mut replica.cx.out);
    assert!(reached.is_some());
    assert_eq!(fed(&mut replica), [1, 2]);
}

//! Operators' inputs on synthetic events: when they are fed, and how they are answered.

use super::*;
use crate::api::Event;
use crate::leader::tests::at_the_cut;
use crate::testing::{LEADER as SECONDARY, apply, leader, taken};
use plover_policy::{Policy, Preset};
use plover_types::{Frame, ReplicaSet, Unconsumed, View};

const INTERVAL: Micros = Micros::from_ms(30);

fn remus() -> Policy {
    Preset::find("remus-25").unwrap().policy
}

/// An operator's input with this ticket.
fn given(ticket: u64) -> Event {
    Event::Operator {
        ticket: Ticket(ticket),
        input: OperatorInput::PowerButton,
    }
}

/// The tickets that were answered, and how.
fn answers(out: &[Action]) -> Vec<(u64, Result<(), NotTaken>)> {
    let answers = out.iter().filter_map(|action| match action {
        Action::Answer { ticket, result } => Some((ticket.0, *result)),
        _ => None,
    });
    answers.collect()
}

fn was_operated(out: &[Action]) -> bool {
    out.iter().any(|a| matches!(a, Action::Operate(_)))
}

#[test]
fn an_operators_input_waits_until_the_leader_serves_or_is_refused() {
    let mut replica = leader(remus(), false);
    let me = replica.cx.config.me;
    replica.leading().unwrap().0.serving = false;
    let out = apply(&mut replica, Micros(2), given(1));
    assert!(!was_operated(&out) && answers(&out).is_empty(), "{out:?}");
    replica.leading().unwrap().0.serving = true;
    let out = apply(&mut replica, Micros(3), Event::Tick);
    assert!(was_operated(&out));
    assert_eq!(
        answers(&out),
        [(1, Ok(()))],
        "it is solo: its guest is all there is"
    );

    replica.leading().unwrap().0.serving = false;
    apply(&mut replica, Micros(4), given(2));
    let late = Micros::from_ms(2_000);
    let out = apply(&mut replica, late, Event::Tick);
    assert!(!was_operated(&out));
    assert_eq!(answers(&out), [(2, Err(NotTaken::NotServing(me)))]);
    let out = apply(&mut replica, late, Event::Tick);
    assert!(answers(&out).is_empty(), "once");
}

#[test]
fn an_input_that_is_in_no_log_is_safe_with_the_checkpoint_behind_it() {
    let mut replica = leader(remus(), true);
    let out = apply(&mut replica, Micros(2), given(1));
    assert!(was_operated(&out) && answers(&out).is_empty(), "{out:?}");
    let synced = |replica: &mut Replica, number: u64| {
        let (leader, cx) = replica.leading().unwrap();
        leader.operators_synced(cx, SyncNo(number));
        answers(&taken(replica))
    };
    assert_eq!(synced(&mut replica, 1), [], "it was cut before");
    replica.cx.operators.cut(SyncNo(2));
    apply(&mut replica, Micros(2), given(2));
    assert_eq!(synced(&mut replica, 2), [(1, Ok(()))]);
    assert_eq!(
        synced(&mut replica, 3),
        [],
        "no checkpoint has the second one"
    );
}

/// From the order to pause on the gate is shut: the checkpoint lacks what comes then.
#[test]
fn an_input_that_comes_while_the_guest_is_being_paused_is_safe_with_the_next_checkpoint() {
    let mut replica = leader(remus(), true);
    let outputs = Event::Outputs(vec![Frame(vec![7])]);
    apply(&mut replica, Micros(2), outputs);
    let out = apply(&mut replica, INTERVAL, Event::Tick);
    assert!(out.iter().any(|a| matches!(a, Action::Pause)), "{out:?}");
    let number = replica.cx.group.sync_no;
    let out = apply(&mut replica, INTERVAL, given(1));
    assert!(!was_operated(&out), "{out:?}");
    let paused = Event::GuestPaused {
        outputs: Vec::new(),
        unconsumed: Unconsumed::default(),
    };
    apply(&mut replica, INTERVAL, paused);
    let mut synced = |number: SyncNo| {
        let (leader, cx) = replica.leading().unwrap();
        leader.operators_synced(cx, number);
        let answered = answers(&taken(&mut replica));
        replica.cx.operators.cut(SyncNo(number.0 + 1));
        answered
    };
    assert_eq!(synced(number), []);
    assert_eq!(synced(SyncNo(number.0 + 1)), [(1, Ok(()))]);
}

/// A joiner that acknowledges the checkpoint leads without what came behind its cut.
#[test]
fn an_input_behind_the_cut_of_a_joiner_is_safe_with_the_next_checkpoint_or_if_the_join_fails() {
    let mut replica = at_the_cut();
    let me = replica.cx.config.me;
    replica.cx.group.in_sync = ReplicaSet::of([me]);
    let out = apply(&mut replica, INTERVAL, given(1));
    assert!(answers(&out).is_empty(), "{out:?}");
    let (leader, cx) = replica.leading().unwrap();
    leader.abort_sync(cx, "why");
    let out = apply(&mut replica, INTERVAL, Event::Tick);
    assert_eq!(answers(&out), [(1, Ok(()))]);
}

/// Nothing that an operator was told to be taken is lost with the lead, and nothing is lost without a word.
#[test]
fn an_operator_is_told_that_the_lead_was_lost() {
    let vsmr = Preset::find("vsmr").unwrap().policy;
    let mut replica = leader(vsmr, true);
    let me = replica.cx.config.me;
    // Consensus does not lead here, so the log takes nothing.
    let out = apply(&mut replica, Micros(2), given(1));
    assert!(answers(&out).is_empty(), "it waits for room: {out:?}");
    replica.cx.config.policy = remus();
    apply(&mut replica, Micros(3), given(2));
    replica.leading().unwrap().0.serving = false;
    apply(&mut replica, Micros(4), given(3));
    replica.on_follow(View(99), Some(SECONDARY));
    let out = apply(&mut replica, Micros(5), Event::Tick);
    let unsure = |ticket| (ticket, Err(NotTaken::Unsure(me)));
    let refused = (3, Err(NotTaken::NotLeading(me)));
    assert_eq!(answers(&out), [unsure(1), unsure(2), refused]);
    let out = apply(&mut replica, Micros(6), given(4));
    assert_eq!(answers(&out), [(4, Err(NotTaken::NotLeading(me)))]);
}

//! The secondary's reports of its outputs.

use crate::api::{Action, Note};
use crate::replica::Replica;
use crate::testing::{secondary, sent_to_leader, taken};
use plover_policy::Preset;
use plover_syncvm::message::Body;
use plover_types::{Frame, SyncNo};

fn reporting() -> Replica {
    let mut replica = secondary(Preset::find("hybrid").unwrap().policy);
    let (secondary, cx) = replica.following().unwrap();
    secondary.begin_report(cx, SyncNo(1), true);
    replica
}

fn reported(replica: &Replica) -> Vec<(u64, usize)> {
    let bodies = sent_to_leader(replica).into_iter();
    let said = bodies.filter_map(|body| match body {
        Body::OutputsReported { first, frames, .. } => Some((first, frames.len())),
        _ => None,
    });
    said.collect()
}

/// If the leader dies, what it has not released is this side's to send.
#[test]
fn frames_are_kept_until_clients_have_them() {
    let mut replica = reporting();
    replica.on_outputs(vec![Frame(vec![1]), Frame(vec![2])]);
    assert_eq!(reported(&replica), [(0, 2)]);
    assert_eq!(replica.cx.outputs.guard.len(), 2);
    let (secondary, cx) = replica.following().unwrap();
    secondary.on_released(cx, SyncNo(1), 1);
    assert_eq!(replica.cx.outputs.guard.len(), 1);
}

#[test]
fn a_leader_that_has_released_more_than_was_reported_is_not_believed() {
    let mut replica = reporting();
    replica.on_outputs(vec![Frame(vec![1])]);
    taken(&mut replica);
    let (secondary, cx) = replica.following().unwrap();
    secondary.on_released(cx, SyncNo(1), 2);
    let out = taken(&mut replica);
    assert!(
        matches!(&out[..], [Action::Note(Note::Rejected { .. })]),
        "{out:?}"
    );
    assert_eq!(replica.cx.outputs.guard.len(), 1);
}

#[test]
fn nothing_is_reported_of_a_slot_that_is_not_compared() {
    let mut replica = secondary(Preset::find("hybrid").unwrap().policy);
    replica.on_outputs(vec![Frame(vec![1])]);
    assert_eq!(reported(&replica), []);
}

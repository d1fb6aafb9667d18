//! A secondary's part of a syncvm, on synthetic events.

use crate::api::{Action, Event, Note, Role};
use crate::copy::offer::Offer;
use crate::copy::target::CopyTarget;
use crate::hash_keys::SyncKeys;
use crate::jobs::JobId;
use crate::members::GroupRecord;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::testing::{LEADER, secondary, sent_to_leader, taken};
use plover_policy::{Preset, VSMR};
use plover_syncvm::SyncMessage;
use plover_syncvm::chunk::ChunkWriter;
use plover_syncvm::message::Body;
use plover_types::{
    Frame, HashKey, Index, MachineWords, PAGE_BYTES, PageNo, PageSet, ReplicaId, SyncNo,
    Unconsumed, View, Viewstamp, wire,
};

const KEY: [u8; 32] = [7; 32];

fn cut(replica: &mut Replica, sync: u64) {
    let view = replica.cx.group.view;
    let at = Viewstamp {
        view,
        index: Index(sync),
    };
    replica.on_syncvm_entry(SyncNo(sync), at, false);
}

fn job_of(actions: &[Action]) -> JobId {
    let job = actions.iter().find_map(|action| match action {
        Action::Scan(job) | Action::Hash { job, .. } => Some(*job),
        _ => None,
    });
    job.expect("work was asked for")
}

fn pages(pages: &[u32]) -> PageSet {
    let mut set = PageSet::new(16);
    pages.iter().for_each(|page| set.insert(PageNo(*page)));
    set
}

/// A secondary that has hashed what either side wrote and waits for pages; it has sent a frame itself.
pub(crate) fn receiving() -> Replica {
    let mut replica = secondary(VSMR.policy);
    replica.cx.memory.ledger.settle();
    replica.on_outputs(vec![Frame(vec![1])]);
    cut(&mut replica, 1);
    replica.cx.guest.activity.is_idle = true;
    replica.tick_follow();
    assert!(matches!(taken(&mut replica)[..], [Action::Pause]));
    replica.follow_paused(Unconsumed::default());
    replica.cx.guest.power = crate::guest::Power::Paused;
    let scan = job_of(&taken(&mut replica));
    assert!(replica.cx.jobs.end(scan).is_some());
    replica.follow_scanned(SyncNo(1), &pages(&[2]));
    assert_eq!(
        taken(&mut replica).len(),
        0,
        "the leader's pages are awaited"
    );
    replica.follow_dirty(SyncNo(1), &pages(&[5]).to_runs(), SyncKeys::xxh3(KEY));
    let asked = taken(&mut replica);
    let [
        Action::Hash {
            key: HashKey::Xxh3(KEY),
            pages,
            ..
        },
    ] = &asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!(pages, &[PageNo(2), PageNo(5)], "the union");
    replica
}

pub(crate) fn end(replica: &mut Replica, chunks: u32) {
    let nothing = Unconsumed::default();
    replica.follow_end(
        SyncNo(1),
        chunks,
        vec![9].into(),
        nothing,
        (false, Vec::new()),
    );
}

#[test]
fn the_end_mark_is_acknowledged_and_applied() {
    let mut replica = receiving();
    end(&mut replica, 0);
    assert_eq!(sent_to_leader(&replica), [Body::Ack { sync: SyncNo(1) }]);
    let out = taken(&mut replica);
    let loaded = out
        .iter()
        .any(|a| matches!(a, Action::LoadState(state) if state.bytes == [9]));
    assert!(loaded, "{out:?}");
    assert_eq!(
        replica.cx.outputs.guard.len(),
        1,
        "until the state is there"
    );
    replica.follow_state_loaded();
    assert_eq!(replica.cx.outputs.guard.len(), 0);
    assert!(replica.cx.memory.ledger.owed().is_empty());
    assert_eq!(replica.role(), Role::Secondary);
}

/// Whether it has told the leader that its part of the sync is given up, and nothing else.
pub(crate) fn gives_up(sent: &[Body]) -> bool {
    let sync = SyncNo(1);
    matches!(sent, [Body::GaveUp { sync: given_up, .. }] if *given_up == sync)
}

/// Rule 3: what is not whole is not acknowledged, and the own state goes on.
#[test]
fn an_end_mark_before_all_chunks_have_come_gives_the_sync_up() {
    let mut replica = receiving();
    end(&mut replica, 1);
    let sent = sent_to_leader(&replica);
    assert!(
        gives_up(&sent),
        "the leader need not wait for an acknowledgement: {sent:?}"
    );
    let out = taken(&mut replica);
    let failed = |a: &Action| matches!(a, Action::Note(Note::SyncFailed { .. }));
    assert!(out.iter().any(failed), "{out:?}");
    assert!(out.iter().any(|a| matches!(a, Action::Resume)));
    let owed = replica.cx.memory.ledger.owed();
    assert!(owed.contains(PageNo(2)) && owed.contains(PageNo(5)));
    assert_eq!(replica.cx.outputs.guard.len(), 1, "its outputs are its own");
}

#[test]
fn a_leader_that_is_lost_before_the_end_mark_changes_nothing() {
    let mut replica = receiving();
    replica.abort_follow("the link to the leader broke");
    assert!(replica.follow.is_none());
    let out = taken(&mut replica);
    assert!(out.iter().any(|a| matches!(a, Action::Resume)), "{out:?}");
}

/// After it there is no way back, whatever becomes of the leader.
#[test]
fn a_leader_that_is_lost_after_the_end_mark_changes_nothing_either() {
    let mut replica = receiving();
    end(&mut replica, 0);
    replica.abort_follow("the link to the leader broke");
    assert!(replica.follow.is_some());
    replica.follow_state_loaded();
    let applied = |a: &Action| matches!(a, Action::Note(Note::Applied { sync: SyncNo(1) }));
    assert!(taken(&mut replica).iter().any(applied));
}

/// A joiner that waits for the pages of the syncvm that ends its join.
pub(crate) fn joining(needs_reset: bool) -> Replica {
    let mut replica = receiving();
    replica.cx.config.needs_reset = needs_reset;
    let offer = Offer {
        attempt: 7,
        stream: 70,
        policy: String::new(),
        machine: MachineWords::default(),
        size: (16, 0),
    };
    replica.phase = Phase::Joining {
        copy: CopyTarget::new(LEADER, &offer),
    };
    replica.cx.group.core.set_holds_state(false);
    replica
}

/// The fear: the leader names the joiner in sync and dies, and the joiner, which still loads, drops the only guest.
#[test]
fn a_joiner_that_has_acknowledged_its_last_sync_keeps_its_guest() {
    let mut replica = joining(false);
    let view = replica.cx.group.view;
    end(&mut replica, 0);
    let mut out = Vec::new();
    let link_breaks = Event::Link {
        peer: LEADER,
        up: false,
    };
    replica.apply(replica.cx.now, link_breaks, &mut out);
    assert_eq!(replica.role(), Role::Joining, "{out:?}");
    replica.on_follow(view, None);
    assert_eq!(replica.role(), Role::Joining);
    replica.follow_state_loaded();
    assert_eq!(replica.role(), Role::Secondary);
    out.extend(taken(&mut replica));
    assert!(
        !out.iter().any(|a| matches!(a, Action::KillGuest)),
        "{out:?}"
    );
}

/// Before that, or while devices that were reset once have another sync to come, nobody counts on it.
#[test]
fn a_joiner_before_its_last_acknowledgement_leaves() {
    let mut replica = joining(false);
    let view = replica.cx.group.view;
    replica.on_follow(view, None);
    assert_eq!(replica.role(), Role::Witness);
    let mut replica = joining(true);
    end(&mut replica, 0);
    replica.on_follow(view, None);
    assert_eq!(replica.role(), Role::Witness);
}

/// The bulk lane may be faster than the log.
#[test]
fn the_leaders_pages_may_come_before_the_cut() {
    let mut replica = secondary(VSMR.policy);
    replica.follow_dirty(SyncNo(1), &pages(&[5]).to_runs(), SyncKeys::xxh3(KEY));
    assert_eq!(taken(&mut replica).len(), 0);
    cut(&mut replica, 1);
    replica.cx.guest.activity.is_idle = true;
    replica.tick_follow();
    replica.follow_paused(Unconsumed::default());
    replica.follow_scanned(SyncNo(1), &pages(&[]));
    let hashes = |a: &Action| matches!(a, Action::Hash { .. });
    assert!(taken(&mut replica).iter().any(hashes));
}

/// The leader has given a sync up, and its pages of the next one come before the cut of the first.
#[test]
fn a_sync_that_was_given_up_does_not_cost_the_next_one_its_pages() {
    let mut replica = secondary(VSMR.policy);
    replica.follow_dirty(SyncNo(2), &pages(&[5]).to_runs(), SyncKeys::xxh3(KEY));
    cut(&mut replica, 1);
    cut(&mut replica, 2);
    replica.cx.guest.activity.is_idle = true;
    replica.tick_follow();
    replica.follow_paused(Unconsumed::default());
    replica.follow_scanned(SyncNo(2), &pages(&[]));
    let hashes = |a: &Action| matches!(a, Action::Hash { .. });
    assert!(taken(&mut replica).iter().any(hashes));
}

/// The same while this side still loads the state before them: the gate is shut, and both cuts wait.
#[test]
fn a_sync_that_was_given_up_is_not_begun_when_its_cut_is_reached_late() {
    let mut replica = secondary(VSMR.policy);
    cut(&mut replica, 1);
    let _loading = replica.follow.take();
    cut(&mut replica, 2);
    cut(&mut replica, 3);
    replica.open_gate();
    let begun = replica.follow.as_ref().map(|follow| follow.sync);
    assert_eq!(begun, Some(SyncNo(3)));
}

/// The gate opens when the first one is given up, and the second waits there.
#[test]
fn of_three_syncs_only_the_last_is_begun() {
    let mut replica = secondary(VSMR.policy);
    cut(&mut replica, 1);
    let first = replica.follow.take();
    cut(&mut replica, 2);
    replica.follow = first;
    cut(&mut replica, 3);
    let begun = replica.follow.as_ref().map(|follow| follow.sync);
    assert_eq!(begun, Some(SyncNo(3)));
}

#[test]
fn a_cut_of_another_view_is_ignored() {
    let mut replica = secondary(VSMR.policy);
    let at = Viewstamp {
        view: View(99),
        index: Index(1),
    };
    replica.on_syncvm_entry(SyncNo(1), at, false);
    assert!(replica.follow.is_none());
}

/// A checkpoint replaces the last one; its devices are loaded when this side takes over.
#[test]
fn a_checkpoint_is_kept_and_loaded_at_the_takeover() {
    let remus = Preset::find("remus-25").unwrap().policy;
    let mut replica = secondary(remus);
    replica.cx.guest.power = crate::guest::Power::Paused;
    replica.follow_checkpoint(SyncNo(4));
    let nothing = Unconsumed::default();
    replica.follow_end(SyncNo(4), 0, vec![3].into(), nothing, (false, Vec::new()));
    assert_eq!(sent_to_leader(&replica), [Body::Ack { sync: SyncNo(4) }]);
    let out = taken(&mut replica);
    assert!(!out.iter().any(|a| matches!(a, Action::LoadState(_))));
    let kept = replica.following().and_then(|(s, _)| s.kept.take());
    replica.take_over(kept.expect("a checkpoint is kept"));
    let out = taken(&mut replica);
    assert!(
        matches!(&out[..], [Action::LoadState(state)] if state.bytes == [3]),
        "{out:?}"
    );
}

#[test]
fn a_message_of_the_leader_that_makes_no_sense_is_rejected_and_harms_nothing() {
    let mut replica = receiving();
    replica.follow_pages(SyncNo(1), 3, vec![0; 8]);
    let out = taken(&mut replica);
    let [Action::Note(Note::Rejected { from, .. })] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!(*from, LEADER);
    end(&mut replica, 0);
    assert_eq!(sent_to_leader(&replica), [Body::Ack { sync: SyncNo(1) }]);
    let _ = Event::Tick;
}

/// The peers whose links are cut.
fn cut_off(actions: &[Action]) -> Vec<ReplicaId> {
    let cut = actions.iter().filter_map(|action| match action {
        Action::CutLink { peer, .. } => Some(*peer),
        _ => None,
    });
    cut.collect()
}

fn chunk_of(page: u32) -> Vec<u8> {
    let mut writer = ChunkWriter::new();
    writer.push(PageNo(page), &[1; PAGE_BYTES]);
    writer.finish()
}

/// The fear: pages without end fill the memory. Each page of a syncvm comes once, and only if either side has written it.
#[test]
fn a_leader_that_sends_pages_that_were_not_to_come_is_cut_off_and_the_guest_goes_on() {
    for again in [5, 9] {
        let mut replica = receiving();
        replica.follow_pages(SyncNo(1), 0, chunk_of(5));
        assert_eq!(cut_off(&taken(&mut replica)), []);
        replica.follow_pages(SyncNo(1), 1, chunk_of(again));
        let out = taken(&mut replica);
        assert_eq!(cut_off(&out), [LEADER]);
        assert!(out.iter().any(|a| matches!(a, Action::Resume)), "{out:?}");
        assert!(replica.follow.is_none());
    }
    let mut replica = receiving();
    replica.follow_pages(SyncNo(1), 0, vec![0; 8]);
    assert_eq!(cut_off(&taken(&mut replica)), [LEADER], "no chunk at all");
}

#[test]
fn a_leader_that_asks_for_more_hashes_before_it_has_the_first_is_cut_off() {
    let mut replica = receiving();
    let few = pages(&[2, 5]).to_runs();
    replica.follow_subpages(SyncNo(1), &few, 0);
    assert_eq!(cut_off(&taken(&mut replica)), []);
    replica.follow_subpages(SyncNo(1), &few, 0);
    assert_eq!(cut_off(&taken(&mut replica)), [LEADER]);
    replica.follow_subpages_hashed(SyncNo(1), &[]);
    replica.follow_subpages(SyncNo(1), &few, 0);
    assert_eq!(cut_off(&taken(&mut replica)), []);
}

/// One after it would overflow.
#[test]
fn a_syncvm_whose_number_counting_does_not_reach_is_none() {
    let mut replica = secondary(VSMR.policy);
    cut(&mut replica, u64::MAX);
    assert!(replica.follow.is_none());
    assert_eq!(replica.cx.group.sync_no, SyncNo(0));
    let mut replica = secondary(Preset::find("remus-25").unwrap().policy);
    replica.cx.guest.power = crate::guest::Power::Paused;
    replica.follow_checkpoint(SyncNo(u64::MAX));
    assert_eq!(cut_off(&taken(&mut replica)), [LEADER]);
    assert_eq!(replica.cx.group.sync_no, SyncNo(0));
}

#[test]
fn bytes_that_are_no_message_cost_the_link() {
    let mut replica = secondary(VSMR.policy);
    let other = ReplicaId(2);
    let view = replica.cx.group.view;
    replica.on_bulk(other, &[1, 99]);
    assert_eq!(cut_off(&taken(&mut replica)), [other]);
    let no_group = GroupRecord {
        generation: View(1 << 60),
        ..GroupRecord::default()
    };
    for record in [vec![1, 2], wire::encode(&no_group)] {
        let body = Body::Members { record };
        replica.on_bulk(other, &wire::encode(&SyncMessage { view, body }));
        assert_eq!(cut_off(&taken(&mut replica)), [other]);
    }
    assert_ne!(replica.cx.group.record.generation, no_group.generation);
    // A message that comes late is not wrong.
    let late = SyncMessage {
        view: View(99),
        body: Body::Ack { sync: SyncNo(1) },
    };
    replica.on_bulk(other, &wire::encode(&late));
    assert_eq!(cut_off(&taken(&mut replica)), []);
}

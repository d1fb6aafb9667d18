//! The stages of the secondary's side of a syncvm, each with what exists only in it.

use super::resetting::Aside;
use crate::hash_keys::SyncKeys;
use plover_matching::Translation;
use plover_syncvm::{Staged, Staging};
use plover_types::{Micros, PageNo, PageSet, Runs, SyncNo, Unconsumed, View};

/// The leader's dirty pages, and the keys of its sync.
#[derive(Debug)]
pub(super) struct LeaderDirty {
    pub(super) set: PageSet,
    pub(super) keys: SyncKeys,
}

/// Those that came before the log entry of their syncvm, which takes another lane.
#[derive(Debug)]
pub(crate) struct EarlyDirty {
    pub(super) sync: SyncNo,
    pub(super) view: View,
    pub(super) dirty: LeaderDirty,
}

/// This side's guest stands at the cut.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// How long it was waited for.
    pub(super) wait: Micros,
    /// Inputs that its hypervisor had not consumed.
    pub(super) unconsumed: Unconsumed,
}

/// The leader's whole state, as the end mark completes it.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) staged: Staged,
    /// The leader wants to hear what the guest sends after this.
    pub(super) compare: bool,
    /// The sequence-number translations that come with the state.
    pub(super) translations: Vec<Translation>,
    /// The guest rests in the slot that begins with this state.
    pub(super) rests: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The guest finishes the inputs before the cut.
    Draining {
        since: Micros,
        wait_max: Micros,
        leaders: Option<LeaderDirty>,
    },
    /// It is being paused.
    Pausing {
        wait: Micros,
        leaders: Option<LeaderDirty>,
    },
    /// Its dirty pages are collected; the leader's may be awaited.
    Scanning {
        stopped: Stopped,
        own: Option<Runs>,
        leaders: Option<LeaderDirty>,
    },
    /// Hashes are sent; pages arrive.
    Receiving {
        stopped: Stopped,
        own: Runs,
        keys: SyncKeys,
        /// The divergent pages whose subpage hashes are being made, and the mark of those that the leader
        /// remembers.
        narrowed: (Vec<PageNo>, u64),
        staging: Staging,
    },
    /// The pages that a reset may write are saved aside.
    Saving(Complete, Aside),
    /// The devices are being reset.
    Resetting(Complete, Aside),
    /// Pages that the reset wrote beside those are fetched.
    Fetching(Complete, Aside),
    /// The staged disk blocks are being made durable; with the pages to put back after a reset.
    Durable(Complete, Vec<Vec<u8>>),
    /// The staged state is in memory; devices are being loaded.
    Loading(Complete),
}

/// A syncvm that this replica takes part in.
#[derive(Debug)]
pub(crate) struct FollowSync {
    pub sync: SyncNo,
    /// When the cut reached this side.
    pub(super) since: Micros,
    /// The guest rests in the slot after it.
    pub(super) rests: bool,
    pub(super) stage: Stage,
}

impl FollowSync {
    pub fn is_past_the_end_mark(&self) -> bool {
        matches!(
            self.stage,
            Stage::Saving(..)
                | Stage::Resetting(..)
                | Stage::Fetching(..)
                | Stage::Durable(..)
                | Stage::Loading(_)
        )
    }

    pub fn is_draining(&self) -> bool {
        matches!(self.stage, Stage::Draining { .. })
    }
}

//! The report of a finished sync.

use plover_types::{Micros, SyncNo};
use serde::{Deserialize, Serialize};

/// The phases of a sync, under the same names everywhere: metrics, trace, bench columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No sync is running.
    Idle,
    /// The secondary finishes its inputs; this time lies within [`Phase::Exchange`].
    Wait,
    /// The guest is being stopped.
    Pause,
    /// Dirty pages are collected.
    Scan,
    /// The pages of a checkpoint are copied aside.
    Copy,
    /// The other side's dirty pages and hashes are awaited (the secondary's own wait, pause,
    /// scan and hashing lie in here).
    Exchange,
    /// Pages are hashed.
    Hash,
    /// Hash lists are compared.
    Compare,
    /// Divergent pages and device state travel.
    Transfer,
    /// The secondary's acknowledgement is awaited. The leader's guest already runs again, unless the
    /// machine type needs a device reset. So this time delays the outputs and does not lengthen the
    /// pause.
    Apply,
    /// The guest is being resumed.
    Resume,
    /// Held outputs go out.
    Release,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Self; 12] = [
        Self::Idle,
        Self::Wait,
        Self::Pause,
        Self::Scan,
        Self::Copy,
        Self::Exchange,
        Self::Hash,
        Self::Compare,
        Self::Transfer,
        Self::Apply,
        Self::Resume,
        Self::Release,
    ];
}

/// The costs and findings of one finished sync, as the leader saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// Its number.
    pub sync: SyncNo,
    /// Why the slot ended.
    pub reason: String,
    /// How long the slot ran before the pause.
    pub slot: Micros,
    /// From the order to stop the leader's guest until it ran again.
    pub pause: Micros,
    /// Time spent in each phase, in the order of [`Phase::ALL`].
    pub phases: [Micros; 12],
    /// Dirty pages on the leader.
    pub dirty_leader: u32,
    /// Dirty pages on the secondary.
    pub dirty_secondary: u32,
    /// Dirty pages on either.
    pub union: u32,
    /// Pages of the union that are equal on both sides.
    pub same: u32,
    /// Pages of the union that differ, and are sent.
    pub divergent: u32,
    /// Subpages of divergent pages that were sent, where pages were compared subpage by subpage.
    pub subpages: u32,
    /// Subpages that were compared.
    pub subpages_compared: u32,
    /// Bytes of bitmaps and digests, both directions.
    pub bytes_hashes: u64,
    /// Bytes of page contents.
    pub bytes_pages: u64,
    /// Bytes of device and CPU state.
    pub bytes_device: u64,
    /// Frames released.
    pub outputs: u32,
    /// Frames of the slot that had been released before, because the secondary's guest had sent
    /// the same.
    pub matched: u32,
    /// Frames of the slot that had been released before, because they said only what an acknowledged state says.
    pub clean: u32,
}

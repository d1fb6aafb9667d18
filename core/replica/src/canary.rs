//! Known bugs that the simulator puts back, to prove that it would catch them. They exist only with the
//! feature `canary`, which proofs and tests turn on.

use apus::Canary as ConsensusCanary;

/// A known bug; without the feature `canary` there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Canary {
    /// No bug.
    #[default]
    None,
    /// A restarted replica votes with its empty log.
    #[cfg(feature = "canary")]
    VoteAfterAmnesia,
    /// Outputs go out before the secondary has acknowledged.
    #[cfg(feature = "canary")]
    ReleaseBeforeAck,
    /// A failed sync forgets its dirty pages.
    #[cfg(feature = "canary")]
    DirtyBitsLost,
    /// Of several subpages that differ in a page, one is not sent.
    #[cfg(feature = "canary")]
    SubpageMissed,
    /// The secondary acknowledges before the blocks of its disks are durable.
    #[cfg(feature = "canary")]
    AckBeforeDisks,
    /// Compared outputs go out without a match.
    #[cfg(feature = "canary")]
    ReleaseWithoutMatch,
    /// In disk mode, what both have sent goes out before the inputs behind it are committed.
    #[cfg(feature = "canary")]
    MatchBeforeCommit,
    /// A clean reply goes out before its cut is acknowledged.
    #[cfg(feature = "canary")]
    CleanBeforeAck,
    /// A replica that takes over goes on with connections whose clients may have got other bytes.
    #[cfg(feature = "canary")]
    KeepEarlyStreams,
    /// A match does not ask what the secondary has acknowledged to the client.
    #[cfg(feature = "canary")]
    IgnoreAcks,
    /// A log of the guest's last generation on disk is taken for one of the present generation.
    #[cfg(feature = "canary")]
    TrustOldGeneration,
    /// The pages that a syncvm brings are not sent on to the warm copy.
    #[cfg(feature = "canary")]
    WarmForgetsSyncs,
    /// A secondary that takes over forgets which numbers clients know its connections by.
    #[cfg(feature = "canary")]
    ForgetNumbers,
    /// A secondary of a pair that was stopped for long trusts its guest as before.
    #[cfg(feature = "canary")]
    NeverDoubt,
    /// One of a pair with fencing goes on alone before the other one is known to be off.
    #[cfg(feature = "canary")]
    NeverFence,
    /// One of a pair with fencing takes an old report that the other one is off for news.
    #[cfg(feature = "canary")]
    OldFencing,
    /// A leader of a pair takes its own standstill for the secondary's silence.
    #[cfg(feature = "canary")]
    ClockAlone,
    /// A change of the in-sync set, or the beginning of a view, is not stored.
    #[cfg(feature = "canary")]
    MilestoneNotStored,
    /// A leader whose hypervisor does not answer takes a syncvm that stands still for the secondary's fault.
    #[cfg(feature = "canary")]
    BlameSecondary,
    /// A secondary whose hypervisor does not answer tells the leader nothing.
    #[cfg(feature = "canary")]
    HangInSilence,
    /// A joiner is named in sync before it has reset the queues of its guest.
    #[cfg(feature = "canary")]
    JoinAtOnce,
    /// A leader whose host has lost its way to the clients goes on leading.
    #[cfg(feature = "canary")]
    IgnoreUplink,
    /// A leader whose predecessor stays in step answers clients before that one has acknowledged.
    #[cfg(feature = "canary")]
    ServeAlone,
    /// The outputs of the slot with which a joiner replaces the secondary go out while the secondary may still have
    /// to lead.
    #[cfg(feature = "canary")]
    ReplaceAtOnce,
    /// A member leaves before the one that takes its place has a whole copy of the guest.
    #[cfg(feature = "canary")]
    SwapBeforeCopy,
    /// The hypervisor stops for good when its guest reboots. It is a bug of the node, which the simulator puts into
    /// its own.
    #[cfg(feature = "canary")]
    RebootEndsGuest,
    /// A secondary whose guest rests forgets the inputs before a cut when it comes to it, not with the end mark.
    #[cfg(feature = "canary")]
    ForgetAtCut,
    /// A guest that has rested goes on from its state alone, without what was logged since.
    #[cfg(feature = "canary")]
    WakeWithoutInputs,
    /// The leader tells a new commit index with its next heartbeat.
    #[cfg(feature = "canary")]
    CommitAtHeartbeat,
    /// A leader raises the group's version before all members have it, and sends them what they do not know.
    #[cfg(feature = "canary")]
    DeafToVersions,
}

impl Canary {
    pub(crate) fn of_consensus(self) -> ConsensusCanary {
        match self {
            #[cfg(feature = "canary")]
            Self::VoteAfterAmnesia => ConsensusCanary::VoteAfterAmnesia,
            #[cfg(feature = "canary")]
            Self::TrustOldGeneration => ConsensusCanary::TrustOldGeneration,
            #[cfg(feature = "canary")]
            Self::NeverDoubt => ConsensusCanary::NeverDoubt,
            #[cfg(feature = "canary")]
            Self::NeverFence => ConsensusCanary::NeverFence,
            #[cfg(feature = "canary")]
            Self::OldFencing => ConsensusCanary::OldFencing,
            #[cfg(feature = "canary")]
            Self::ClockAlone => ConsensusCanary::ClockAlone,
            #[cfg(feature = "canary")]
            Self::MilestoneNotStored => ConsensusCanary::MilestoneNotStored,
            #[cfg(feature = "canary")]
            Self::CommitAtHeartbeat => ConsensusCanary::CommitAtHeartbeat,
            #[cfg(feature = "canary")]
            Self::DeafToVersions => ConsensusCanary::DeafToVersions,
            _ => ConsensusCanary::None,
        }
    }
}

/// Whether the bug is put back: `canary!(cx, DirtyBitsLost)`.
#[cfg(feature = "canary")]
macro_rules! canary {
    ($context:expr, $bug:ident) => {
        $context.config.canary == $crate::Canary::$bug
    };
}
#[cfg(not(feature = "canary"))]
macro_rules! canary {
    ($context:expr, $bug:ident) => {
        false
    };
}

pub(crate) use canary;

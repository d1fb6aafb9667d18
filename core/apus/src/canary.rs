//! Known bugs that tests put back, so that a simulator that cannot find them is noticed. They exist
//! only with the feature `canary`, which proofs and tests turn on.

/// A known bug; without the feature `canary` there is none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Canary {
    /// No bug.
    #[default]
    None,
    /// A restarted replica whose memory was its log votes with an empty log instead of
    /// recovering it first.
    #[cfg(feature = "canary")]
    VoteAfterAmnesia,
    /// In disk mode an acceptor acknowledges entries that only its memory holds.
    #[cfg(feature = "canary")]
    AcknowledgeBeforeDisk,
    /// In disk mode a replica that forgot its log has recovered when its memory holds the log, and what its disk lacks
    /// is reclaimed elsewhere.
    #[cfg(feature = "canary")]
    RecoverBeforeDisk,
    /// A milestone is not stored, but counts as if it were.
    #[cfg(feature = "canary")]
    MilestoneNotStored,
    /// A leader of a guest commits what a majority holds, although the secondary does not.
    #[cfg(feature = "canary")]
    CommitWithoutInSync,
    /// Majorities are those of the group's first members, although the log names others.
    #[cfg(feature = "canary")]
    FirstMembersForEver,
    /// A candidate leads with a majority of the members that its own log named, although the merged
    /// log names others.
    #[cfg(feature = "canary")]
    OldMajorityElects,
    /// A leader commits entries of older views by counting their copies.
    #[cfg(feature = "canary")]
    CountOldViews,
    /// A follower stands for election without pre-votes.
    #[cfg(feature = "canary")]
    SkipPreVote,
    /// A report of the death of one process of a replica counts for its next process, too.
    #[cfg(feature = "canary")]
    MournTheLiving,
    /// The host of a process says that it has died while it still runs. It is a bug of the caller,
    /// which the simulators put into theirs.
    #[cfg(feature = "canary")]
    ReportBeforeDeath,
    /// A replica that died as a new generation began takes the old generation's log on its disk for
    /// the new one's.
    #[cfg(feature = "canary")]
    TrustOldGeneration,
    /// A backup of a pair that was stopped for long trusts its guest as before.
    #[cfg(feature = "canary")]
    NeverDoubt,
    /// A leader tells its followers a new commit index with the next heartbeat, and not at once.
    #[cfg(feature = "canary")]
    CommitAtHeartbeat,
    /// A leader counts its lease with the timeout, although it has asked the voters for a shorter span.
    #[cfg(feature = "canary")]
    CountTheTimeout,
    /// A replica does not listen to what others tell of their versions.
    #[cfg(feature = "canary")]
    DeafToVersions,
    /// One of a pair with fencing goes on alone before the other one is known to be off.
    #[cfg(feature = "canary")]
    NeverFence,
    /// One of a pair with fencing takes an old report that the other one is off for news.
    #[cfg(feature = "canary")]
    OldFencing,
    /// A leader of a pair takes its own standstill for the other's silence.
    #[cfg(feature = "canary")]
    ClockAlone,
}

/// Whether the bug is put back: `canary!(config, CountOldViews)`.
#[cfg(feature = "canary")]
macro_rules! canary {
    ($config:expr, $bug:ident) => {
        $config.canary == $crate::Canary::$bug
    };
}
#[cfg(not(feature = "canary"))]
macro_rules! canary {
    ($config:expr, $bug:ident) => {
        false
    };
}

pub(crate) use canary;

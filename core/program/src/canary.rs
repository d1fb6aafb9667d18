//! Known bugs that tests put back, so that a simulator that cannot find them is noticed. They exist
//! only with the feature `canary`, which proofs turn on.

/// A known bug; without the feature `canary` there is none.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Canary {
    /// No bug.
    #[default]
    None,
    /// A leader's program gets inputs that are not committed, so clients get replies to them.
    #[cfg(feature = "canary")]
    ReplyBeforeCommit,
    /// The entry behind a checkpoint is not given to the restored program.
    #[cfg(feature = "canary")]
    SkipEntry,
    /// A replica whose program has diverged stands for election, and leads.
    #[cfg(feature = "canary")]
    LeadDiverged,
    /// A program that was found to have diverged starts from its own checkpoint, since the log does not say so yet.
    #[cfg(feature = "canary")]
    StartWrong,
    /// A program gets input on one connection before it has read that of another.
    #[cfg(feature = "canary")]
    FeedTogether,
    /// A new leader does not close the connections of the leader before it.
    #[cfg(feature = "canary")]
    KeepConnections,
    /// A deposed leader goes on, and stands for election, although its program has executed what is lost.
    #[cfg(feature = "canary")]
    StandAhead,
    /// A leader proposes the cut of a checkpoint while its program still reads its clients.
    #[cfg(feature = "canary")]
    CutUnquiet,
    /// A checkpoint is taken while a request is not answered, and its connection goes on.
    #[cfg(feature = "canary")]
    TakeUnanswered,
    /// A program is told of the end of a connection while it executes a request of it.
    #[cfg(feature = "canary")]
    EndUnanswered,
    /// A leader trims the log behind a checkpoint that no other replica holds yet.
    #[cfg(feature = "canary")]
    TrimEarly,
}

/// Whether the bug is put back: `canary!(config, SkipEntry)`.
#[cfg(feature = "canary")]
macro_rules! canary {
    ($config:expr, $bug:ident) => {
        $config.canary == crate::Canary::$bug
    };
}

#[cfg(not(feature = "canary"))]
macro_rules! canary {
    ($config:expr, $bug:ident) => {{
        let _ = &$config;
        false
    }};
}

pub(crate) use canary;

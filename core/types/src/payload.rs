//! Kinds of records between two replicas.

/// The kind of a record, by which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// Consensus: entries, acknowledgements, heartbeats.
    Log,
    /// Dirty pages and their digests.
    Digests,
    /// The hashes of divergent pages' subpages.
    SubpageHashes,
    /// Contents of pages, of a syncvm or a checkpoint.
    Pages,
    /// Device and CPU state.
    Device,
    /// A copy of a whole guest: for a new secondary, or to keep a witness warm.
    Copy,
    /// What the secondary's guest has sent.
    Outputs,
    /// Questions and orders of operators to another host's replica, and its answers.
    Relayed,
    /// Everything else: acknowledgements, small messages.
    Other,
}

impl Payload {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Log,
        Self::Digests,
        Self::SubpageHashes,
        Self::Pages,
        Self::Device,
        Self::Copy,
        Self::Outputs,
        Self::Relayed,
        Self::Other,
    ];

    /// Its name in the status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Digests => "digests",
            Self::SubpageHashes => "subpage_hashes",
            Self::Pages => "pages",
            Self::Device => "device",
            Self::Copy => "copy",
            Self::Outputs => "outputs",
            Self::Relayed => "relayed",
            Self::Other => "other",
        }
    }

    /// Whether compression can pay. Digests are noise. Hashes repeat, but a paused guest waits for them; for
    /// outputs their clients wait. A copy is limited by one CPU that reads and writes pages, or by its configured rate. What is
    /// relayed has a mark of its own in place of the compression's.
    pub const fn may_shrink(self) -> bool {
        !matches!(
            self,
            Self::Digests | Self::SubpageHashes | Self::Copy | Self::Outputs | Self::Relayed
        )
    }
}

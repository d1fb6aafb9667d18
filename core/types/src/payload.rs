//! What a record between two replicas is for.

/// The kinds of records, as their bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// Consensus: entries, acknowledgements, heartbeats.
    Log,
    /// Dirty pages and their digests.
    Digests,
    /// The hashes of divergent pages' blocks.
    BlockHashes,
    /// Contents of pages, of a syncvm or a checkpoint.
    Pages,
    /// Device and CPU state.
    Device,
    /// A copy of a whole guest: for a new secondary, or to keep a witness warm.
    Copy,
    /// What is left: acknowledgements and what guests have sent.
    Other,
}

impl Payload {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Log,
        Self::Digests,
        Self::BlockHashes,
        Self::Pages,
        Self::Device,
        Self::Copy,
        Self::Other,
    ];

    /// Its name in a status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Digests => "digests",
            Self::BlockHashes => "block_hashes",
            Self::Pages => "pages",
            Self::Device => "device",
            Self::Copy => "copy",
            Self::Other => "other",
        }
    }

    /// Whether compressing it can be worth its time. Digests and hashes are noise, of which
    /// hashes repeat, but are awaited by a guest that stands; a copy is as fast as one CPU reads and
    /// writes pages, or as slow as it is told to be.
    pub const fn may_shrink(self) -> bool {
        !matches!(self, Self::Digests | Self::BlockHashes | Self::Copy)
    }
}

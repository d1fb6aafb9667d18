//! The two rings between a pair of replicas.

/// Each pair of replicas has two rings in each direction, so that bulk data never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Consensus: small, urgent.
    Log,
    /// syncvm: pages, hashes, device state.
    Bulk,
}

impl Lane {
    /// Both lanes, the urgent one first.
    pub const ALL: [Self; 2] = [Self::Log, Self::Bulk];

    /// The place in [`Lane::ALL`], which is also the number on the wire.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Log => "log",
            Self::Bulk => "bulk",
        })
    }
}

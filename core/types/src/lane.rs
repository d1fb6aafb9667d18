//! The two rings between a pair of replicas.

/// Each pair of replicas has two rings in each direction, so that bulk data never delays a
/// heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Consensus: small, urgent.
    Log,
    /// syncvm: pages, hashes, device state.
    Bulk,
}

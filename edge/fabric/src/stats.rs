//! The counters of a fabric.

use crate::Lane;

/// Bytes of records on one lane, without framing, summed over all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Taken by `write`.
    pub bytes_out: u64,
    /// Delivered by `progress`.
    pub bytes_in: u64,
}

/// Counters of a fabric since it was made. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// [`Lane::Log`].
    pub log: LaneStats,
    /// [`Lane::Bulk`].
    pub bulk: LaneStats,
    /// Handshakes refused by either side: wrong group, version, id or ring size, or no
    /// handshake at all. One that keeps rising means a wrong configuration.
    pub rejected: u64,
    /// Links dropped because a peer did what no correct peer does.
    pub damaged: u64,
    /// Links dropped because the peer's host stopped acknowledging.
    pub silent: u64,
}

impl FabricStats {
    pub(crate) fn lane_mut(&mut self, lane: Lane) -> &mut LaneStats {
        match lane {
            Lane::Log => &mut self.log,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

impl std::ops::Add for FabricStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let lane = |a: LaneStats, b: LaneStats| LaneStats {
            bytes_out: a.bytes_out + b.bytes_out,
            bytes_in: a.bytes_in + b.bytes_in,
        };
        Self {
            log: lane(self.log, other.log),
            bulk: lane(self.bulk, other.bulk),
            rejected: self.rejected + other.rejected,
            damaged: self.damaged + other.damaged,
            silent: self.silent + other.silent,
        }
    }
}

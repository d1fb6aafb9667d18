//! What a fabric counts.

use crate::Lane;

/// Counters of one lane, summed over all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Records taken by `write`.
    pub records_out: u64,
    /// Their bytes, without framing.
    pub bytes_out: u64,
    /// Records delivered by `progress`.
    pub records_in: u64,
    /// Their bytes, without framing.
    pub bytes_in: u64,
    /// Writes refused because the peer's ring was full.
    pub full: u64,
}

/// Counters of a fabric since it was made. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// [`Lane::Log`].
    pub log: LaneStats,
    /// [`Lane::Bulk`].
    pub bulk: LaneStats,
    /// Links that came up, first connects and reconnects.
    pub ups: u64,
    /// Links that went down.
    pub downs: u64,
    /// Handshakes refused by either side: wrong group, version, id or ring size, or no
    /// handshake at all. One that keeps rising means a wrong configuration.
    pub rejected: u64,
    /// Links dropped because what came over them was not what a correct peer writes.
    pub damaged: u64,
    /// Links dropped because the peer's host stopped acknowledging.
    pub silent: u64,
}

impl FabricStats {
    /// The counters of one lane.
    pub fn lane(&self, lane: Lane) -> &LaneStats {
        match lane {
            Lane::Log => &self.log,
            Lane::Bulk => &self.bulk,
        }
    }

    /// The sum of two fabrics' counters.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let lane = |a: &LaneStats, b: &LaneStats| LaneStats {
            records_out: a.records_out + b.records_out,
            bytes_out: a.bytes_out + b.bytes_out,
            records_in: a.records_in + b.records_in,
            bytes_in: a.bytes_in + b.bytes_in,
            full: a.full + b.full,
        };
        Self {
            log: lane(&self.log, &other.log),
            bulk: lane(&self.bulk, &other.bulk),
            ups: self.ups + other.ups,
            downs: self.downs + other.downs,
            rejected: self.rejected + other.rejected,
            damaged: self.damaged + other.damaged,
            silent: self.silent + other.silent,
        }
    }

    pub(crate) fn lane_mut(&mut self, lane: Lane) -> &mut LaneStats {
        match lane {
            Lane::Log => &mut self.log,
            Lane::Bulk => &mut self.bulk,
        }
    }
}

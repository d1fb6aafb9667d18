//! One host: a clock, a disk, and the process that runs on it from time to time.

use super::disk::Disk;
use apus::{Apus, Configuration};
use plover_sim::rng::Rng;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};
use std::collections::BTreeMap;

/// A clock with its own zero, and a crystal that runs a little fast or slow. The lease allows
/// for an eighth of drift; ours stay within four hundredths.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: u64,
    /// Gained in a thousand microseconds.
    drift: i64,
}

impl Clock {
    /// Any clock.
    pub fn draw(chance: &mut Rng) -> Self {
        Self {
            zero: chance.range(0, 1 << 40),
            drift: chance.range(0, 80) as i64 - 40,
        }
    }

    /// The time that it shows at the world's time `now`.
    pub fn local(self, now: Micros) -> Micros {
        Micros(self.zero + now.0 * (1000 + self.drift) as u64 / 1000)
    }

    /// The world's time at which it shows at least `local`.
    pub fn global(self, local: Micros) -> Micros {
        let span = local.0.saturating_sub(self.zero).min(1 << 50);
        // The extra microsecond makes up for the rounding in `local`.
        Micros((span * 1000).div_ceil((1000 + self.drift) as u64) + 1)
    }
}

/// A host with what runs on it.
#[derive(Debug)]
pub struct Host {
    /// The consensus core, while a process runs.
    pub core: Option<Apus>,
    /// Counts the processes that were started here.
    pub process: u64,
    /// Its stable storage, which outlives the processes.
    pub disk: Disk,
    /// Its clock.
    pub clock: Clock,
    /// The last entry delivered by this process in this generation of the guest.
    pub cursor: Index,
    /// The guest runs here, and explains what clients have seen.
    pub holds_guest: bool,
    /// The in-sync set that it last delivered.
    pub in_sync: ReplicaSet,
    /// It boots a guest, and will lead.
    pub boots: bool,
    /// Liveness of peers, as the core told it as leader.
    pub alive: BTreeMap<ReplicaId, bool>,
    /// The number of its process's incarnation.
    pub incarnation: u64,
    /// Stopped until then. The events of the meantime are applied when it goes on.
    pub paused_until: Micros,
    /// Records that lie in its rings while it sleeps, with their writers. It is not woken for these.
    pub unseen: Vec<(usize, Vec<u8>)>,
    /// Its core has been asked something in this step, so it is awake.
    pub awake: bool,
    /// When its next tick is planned.
    pub tick_at: Option<Micros>,
    /// An election ran somewhere while this process had not recovered.
    pub saw_election: bool,
    /// The voters that its configuration names.
    pub told: ReplicaSet,
    /// A process belongs here: it is started again after a crash.
    pub enlisted: bool,
}

impl Host {
    /// A host that has never run.
    pub fn new(configuration: Configuration, chance: &mut Rng) -> Self {
        Self {
            core: None,
            process: 0,
            disk: Disk::new(configuration),
            clock: Clock::draw(chance),
            cursor: Index(0),
            holds_guest: false,
            in_sync: configuration.in_sync,
            boots: false,
            alive: BTreeMap::new(),
            incarnation: 0,
            paused_until: Micros::ZERO,
            unseen: Vec::new(),
            awake: false,
            tick_at: None,
            saw_election: false,
            told: configuration.members.voters,
            enlisted: false,
        }
    }

    /// Whether its lease is valid at the world's time `now`.
    pub fn lease_is_valid(&self, now: Micros) -> bool {
        let core = self.core.as_ref();
        core.is_some_and(|core| core.lease_until() > self.clock.local(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_waited_for_too_briefly() {
        for drift in [-40, -1, 0, 7, 40] {
            let clock = Clock { zero: 77, drift };
            for span in [0, 1, 999, 100_000, 60_000_000] {
                let due = Micros(77 + span);
                let woken = clock.local(clock.global(due));
                assert!(woken >= due, "drift {drift}, span {span}");
                assert!(woken.since(due).0 <= 4, "drift {drift}, span {span}");
            }
        }
    }
}

//! The scenario of a seed: the constants of its world.

use super::faults::FaultPoint;
use super::net::Weather;
use apus::{Canary, Configuration, Durability, Members};
use plover_sim::rng::Rng;
use plover_types::{Micros, ReplicaId, ReplicaSet};

/// The heartbeat period of every group.
pub const HEARTBEAT: Micros = Micros::from_ms(20);
/// The timeout of every group (APUS: 100 ms).
pub const TIMEOUT: Micros = Micros::from_ms(100);
/// The shortest silence for which a leader is suspected.
pub const TIMEOUT_MIN: Micros = Micros::from_ms(60);
/// How long a leader is listened to before that is learned.
pub const KNOWN_AFTER: Micros = Micros::from_ms(200);
/// Largest message, bytes: small, so that a few entries already take several.
pub const MESSAGE_BYTES_MAX: usize = 700;

/// How many replicas are replaced at most.
pub const NEWCOMERS_MAX: usize = 5;

/// A world's constants.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Replicas at the beginning.
    pub replicas: usize,
    /// Whether acknowledgements wait for the disk.
    pub durability: Durability,
    /// The group protects a guest: only those that hold it may lead. Otherwise the log is all
    /// there is, and every voter may.
    pub guest: bool,
    /// Faults never take more than a minority at a time, so the group must serve in the end.
    pub bounded: bool,
    /// An operator lets an empty group boot anew.
    pub operator: bool,
    /// Replicas are replaced while faults go on.
    pub replaces: bool,
    /// The network.
    pub weather: Weather,
    /// The capacity of a ring, bytes.
    pub ring_bytes: usize,
    /// The capacity of a log, bytes.
    pub log_bytes_max: usize,
    /// The time between two faults.
    pub fault_gap: (u64, u64),
    /// How long faults come.
    pub faults_for: Micros,
    /// A fault that is injected at a point of the protocol.
    pub fault_point: Option<FaultPoint>,
    /// The time between two turns of the clients.
    pub work_gap: (u64, u64),
    /// How eagerly the log is trimmed, in thousandths of those turns.
    pub trims: u64,
    /// A known bug that is put back.
    pub canary: Canary,
}

impl Scenario {
    /// The configuration before the first entry.
    pub fn first_configuration(&self) -> Configuration {
        let voters = ReplicaSet::of((0..self.replicas as u8).map(ReplicaId));
        Configuration {
            in_sync: ReplicaSet::of([ReplicaId(0)]),
            members: Members::of(voters),
            version: 0,
        }
    }

    /// How many hosts there are, those that may be needed as newcomers included.
    pub fn hosts(&self) -> usize {
        self.replicas + if self.replaces { NEWCOMERS_MAX } else { 0 }
    }

    /// The scenario of a seed.
    pub fn draw(chance: &mut Rng, replicas: Option<usize>, canary: Canary) -> Self {
        let drawn = chance.pick(&[3, 3, 5, 5, 5, 5, 5, 7, 9]);
        let harsh = chance.often(750);
        let mut part = |most: u64| if harsh { chance.range(0, most) } else { 0 };
        let weather = Weather {
            lost: part(60),
            doubled: part(60),
            late: part(30),
        };
        Self {
            replicas: replicas.unwrap_or(drawn),
            durability: chance.pick(&[Durability::Memory, Durability::Disk]),
            guest: chance.often(350),
            bounded: chance.often(750),
            operator: chance.often(750),
            replaces: chance.often(500),
            weather,
            ring_bytes: chance.pick(&[8_000, 20_000, 1 << 20]),
            log_bytes_max: chance.pick(&[4_000, 1 << 20, 1 << 20]),
            fault_gap: chance.pick(&[(5_000, 60_000), (20_000, 200_000), (80_000, 700_000)]),
            faults_for: chance.micros((800_000, 3_000_000)),
            fault_point: chance.often(600).then(|| FaultPoint::draw(chance)),
            work_gap: chance.pick(&[(500, 8_000), (3_000, 20_000), (10_000, 60_000)]),
            trims: chance.pick(&[0, 20, 100]),
            canary,
        }
    }
}

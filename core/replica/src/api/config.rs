//! How a replica is set up.

use crate::canary::Canary;
use crate::members::GroupRecord;
use apus::Durability;
use plover_policy::{DEFAULT, MatchConfig, Policy, SlotConfig, UnprotectedOutput};
use plover_types::wire::WIRE_VERSION;
use plover_types::{Micros, PageLayout, ReplicaId, ReplicaSet};
use serde::{Deserialize, Serialize};

/// How a replica is set up. All replicas of a group must agree on the guest and its layout, on durability, the timeouts of
/// consensus, and what the policy promises; the rest is each one's own.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The group. One replica alone is the unreplicated baseline. A new host names itself, too, and waits until it is
    /// added.
    pub members: ReplicaSet,
    /// Whether this is a group of two, which has no third replica that decides (docs/decisions/0018).
    pub pair: bool,
    /// Neither of a pair goes on alone before the other one is known to be off ([`apus::Config::fencing`]).
    pub fencing: bool,
    /// The members by the log, if this replica has heard of any, with `members` as voters; otherwise those by the
    /// configuration file.
    pub record: GroupRecord,
    /// Replicas that the configuration file names and `record` does not know. While no leader is known they are asked
    /// as well: all whom `record` knows may have been replaced while this replica was away.
    pub contacts: ReplicaSet,
    /// The replica that boots the guest when the group starts for the first time.
    pub first_leader: ReplicaId,
    /// The leader's heartbeat period.
    pub heartbeat: Micros,
    /// Silence after which a replica is suspected (paper: 100 ms); a leader sooner, where its messages
    /// come steadily.
    pub timeout: Micros,
    /// Silence after which a leader is suspected at the earliest. At most `timeout`.
    pub timeout_min: Micros,
    /// How long a leader is listened to before its silences say how long the next one may be.
    pub known_after: Micros,
    /// The newest version of the wire forms that this replica speaks.
    pub newest_version: u8,
    /// How long this side's hypervisor may leave an order unanswered. A leader whose hypervisor takes longer
    /// gives up leading, if another replica holds the guest.
    pub hypervisor_timeout: Micros,
    /// When a log entry counts as acknowledged.
    pub durability: Durability,
    /// Payload bytes the log may hold.
    pub log_bytes_max: usize,
    /// Largest message on the log lane, bytes.
    pub message_bytes_max: usize,
    /// How the guest is protected. Must be one that [`Policy::check`] takes.
    pub policy: Policy,
    /// The slot's bounds.
    pub slot: SlotConfig,
    /// The bounds of a slot whose outputs are compared.
    pub matching: MatchConfig,
    /// Whether outputs go out while the leader is solo.
    pub unprotected_output: UnprotectedOutput,
    /// The guest's pages: its RAM, and the blocks of its disks.
    pub layout: PageLayout,
    /// Whether this machine type's devices must be reset before a state is loaded.
    pub needs_reset: bool,
    /// The part of the guest that this replica keeps ready as a witness, for the day it becomes
    /// secondary. As a secondary it keeps a witness warm unless this is [`Warm::Off`].
    pub warm: Warm,
    /// Bytes a second that a secondary sends to keep a witness warm, at most.
    pub warm_bytes_per_s: u64,
    /// Whether only the differing subpages of divergent pages are sent, not whole pages.
    pub subpages: bool,
    /// Held output bytes that force a sync.
    pub guard_bytes_max: usize,
    /// Bytes of frames that may wait to be fed, like a NIC's receive queue; more are dropped on arrival.
    pub input_bytes_max: usize,
    /// This process's secret for page hashes, from the system's random source.
    pub hash_key: [u8; 32],
    /// Seed of timeouts.
    pub seed: u64,
    /// An operator has drained this replica, and it was restarted since ([`crate::Event::Drain`]).
    pub drained: bool,
    /// A known bug to put back, for the simulator's proof that it can fail.
    #[doc(hidden)]
    pub canary: Canary,
}

impl Config {
    /// The policy, and with what it may be broken, in words: the same on all replicas.
    pub(crate) fn promises(&self) -> String {
        match self.fencing {
            true => format!("{}, fencing", self.policy),
            false => self.policy.to_string(),
        }
    }

    /// The default policy with its default bounds, for a guest with so many pages of RAM and no disks. The
    /// hash key and the seed are fixed: a replica that is to run in earnest draws them.
    pub fn new(me: ReplicaId, members: ReplicaSet, ram_pages: u32) -> Self {
        Self {
            me,
            members,
            pair: members.len() == 2,
            fencing: false,
            record: GroupRecord::configured(members.iter().map(|id| (id, String::new())).collect()),
            contacts: ReplicaSet::EMPTY,
            first_leader: me,
            heartbeat: Micros::from_ms(25),
            timeout: Micros::from_ms(100),
            timeout_min: Micros::from_ms(75),
            known_after: Micros::from_ms(2500),
            newest_version: WIRE_VERSION,
            hypervisor_timeout: Micros::from_ms(600),
            durability: Durability::Memory,
            log_bytes_max: 1 << 20,
            message_bytes_max: 1 << 16,
            policy: DEFAULT.policy,
            slot: SlotConfig::default(),
            matching: MatchConfig::of(&DEFAULT.policy),
            unprotected_output: UnprotectedOutput::Release,
            layout: PageLayout::new(ram_pages, 0),
            needs_reset: false,
            warm: Warm::Full,
            warm_bytes_per_s: 1 << 20,
            subpages: true,
            guard_bytes_max: 1 << 20,
            input_bytes_max: 1 << 20,
            hash_key: [0; 32],
            seed: 1,
            drained: false,
            canary: Canary::None,
        }
    }
}

/// The part of the guest that a witness keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warm {
    /// Nothing.
    Off,
    /// Its disks.
    Disk,
    /// Its disks and its memory.
    #[default]
    Full,
}

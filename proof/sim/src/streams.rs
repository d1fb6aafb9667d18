//! The streams of random decisions that come from the seed itself.
//!
//! A part of the world that was added later draws from a stream of its own, so that the other decisions of a seed stay
//! what they were without it: documents cite seeds.

use crate::rng::{Rng, mix};

/// A stream, with the number that tells its draws from those of the others. Two streams with one number do not compile.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// The policy, if none is given.
    Policy = 10,
    /// Generations of the guest that are short.
    Lives = 14,
    /// The areas of COLO's figure 4 in which leaders die.
    Areas = 15,
    /// Reports of processes that have died.
    Deaths = 31,
    /// The clocks that stop.
    Clocks = 32,
    /// Guests that end by themselves.
    Life = 33,
    /// Faults that strike alone.
    Alone = 34,
    /// Planned work.
    Planned = 35,
    /// An operator's orders about the guest's power.
    Orders = 36,
    /// Hosts that are replaced.
    Replace = 37,
    /// Replicas that are upgraded.
    Upgrade = 38,
    /// Clean replies.
    Clean = 39,
    /// Fencing.
    Fencing = 40,
    /// Whether the policy is one whose secondary's guest rests.
    Rest = 41,
    /// Whether replicas tell their versions.
    Tells = 42,
    /// The part of the guest that a witness keeps.
    Warm = 43,
}

impl Stream {
    /// The stream of this seed.
    pub(crate) fn of(self, seed: u64) -> Rng {
        Rng::new(mix(seed, self as u64))
    }
}

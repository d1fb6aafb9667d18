//! Random decisions from a seed.
//!
//! Every part of the simulated world draws from a stream of its own, so that one more draw in
//! one part (a client's pause, say) does not shift what another part (the network) does. That
//! keeps a failing seed failing while its cause is looked for.

use plover_types::{Micros, SplitMix64};

/// A stream of random decisions.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// A stream that repeats itself for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A stream of its own for the part of the world that `tag` names.
    pub fn fork(&mut self, tag: u64) -> Self {
        let seed = self.word();
        Self::new(mix(seed, tag))
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        self.0.range(low, high)
    }

    /// A span in `low..=high` microseconds.
    pub fn micros(&mut self, (low, high): (u64, u64)) -> Micros {
        Micros(self.range(low, high))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // A double holds 53 bits exactly.
        ((self.word() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// True with a probability of `thousandths` in a thousand.
    pub fn often(&mut self, thousandths: u64) -> bool {
        self.range(0, 999) < thousandths
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.range(0, choices.len() as u64 - 1) as usize]
    }
}

/// Mixes two words into one, so that every bit of the result depends on every bit of both.
pub fn mix(a: u64, b: u64) -> u64 {
    SplitMix64::new(a.rotate_left(23) ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93)).next_u64()
}

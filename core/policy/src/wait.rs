//! How long the paused leader waits for the secondary to finish its inputs (PLOVER §4.4: the secondary
//! pauses "when its programs become idle").
//!
//! Waiting makes the two memories more alike and the pause longer. Whether it pays depends on the
//! machine. Where both sides run at one speed, the secondary is done a moment after the leader. Under
//! emulation the secondary translates its code anew after every sync and takes many times as long; then
//! it is cheaper to send the divergent pages. So the rule waits about as long as the secondary has lately
//! needed, halves the wait each time the secondary was not done, and now and then tries a longer wait.
//!
//! A secondary that is always done in time may still need milliseconds, and then it is cheaper to send
//! the divergent pages. So whole syncs are measured, from the cut to the end mark, with and without a
//! wait, and the slower kind is only tried once in 64 syncs (docs/decisions/0020). A try is compared with
//! the syncs right before it, because syncs become longer and shorter with their slots.

use plover_types::Micros;

/// Syncs between two longer tries. A try costs at most 2.4 ms, so this adds less than 20 µs to
/// the mean pause.
const TRY_EVERY: u32 = 128;

/// The numbers of the syncs, of each `TRY_EVERY`, that are tries. The first is for rules that usually do
/// not wait: it is a sync that measures. The second is for rules that usually wait: it is one that does
/// not measure.
const TRIES: [u32; 2] = [0, MEASURE_EVERY / 2];

/// The shortest bound of a try. A secondary at the leader's speed is done within a few hundred
/// microseconds. Waiting for one that needs more than this does not pay: a whole slot's pages (some 150
/// in a Redis guest) travel in half of it.
const TRY_MIN: Micros = Micros(2400);

/// A try may wait this many times as long as usual.
const TRY_FACTOR: u64 = 4;

/// Once in this many syncs the kind that usually takes longer is measured anew. Where a wait takes 4 ms,
/// this adds 60 µs to the mean pause.
const MEASURE_EVERY: u32 = 64;

/// Learns how long to wait for the secondary.
#[derive(Clone, Debug)]
pub struct WaitRule {
    max: Micros,
    bound: Micros,
    syncs: u32,
    /// Whether this sync waits.
    waits: bool,
    /// Smoothed time from the cut to the end mark, of syncs of the usual kind.
    usual: Option<Micros>,
    /// Smoothed: how much longer a sync takes with a wait than without, in 1/1024 of the usual time;
    /// negative if it is shorter.
    longer: Option<i64>,
}

impl WaitRule {
    /// A rule that never waits longer than `max`; it starts in the middle.
    pub fn new(max: Micros) -> Self {
        Self {
            max,
            bound: Micros(max.0 / 2),
            syncs: 0,
            waits: true,
            usual: None,
            longer: None,
        }
    }

    /// Another longest wait from now on. What was learnt stays, as far as it fits.
    pub fn set_max(&mut self, max: Micros) {
        self.max = max;
        self.bound = self.bound.min(max);
    }

    /// Whether syncs usually wait.
    fn usually_waits(&self) -> bool {
        self.longer.is_none_or(|longer| longer <= 0)
    }

    /// Whether the sync that begins now waits.
    fn chooses_to_wait(&self) -> bool {
        let tries_the_other = match self.longer {
            Some(_) => self.syncs % MEASURE_EVERY == 0,
            None => self.usual.is_some(),
        };
        self.usually_waits() != tries_the_other
    }

    /// How long to wait in the sync that begins now.
    pub fn begin(&mut self) -> Micros {
        self.syncs = self.syncs.wrapping_add(1);
        self.waits = self.chooses_to_wait();
        if !self.waits {
            return Micros::ZERO;
        }
        let bound = if TRIES.contains(&(self.syncs % TRY_EVERY)) {
            Micros(self.bound.0 * TRY_FACTOR).max(TRY_MIN)
        } else {
            self.bound
        };
        bound.min(self.max)
    }

    /// Learns from the sync: how long the leader waited, and whether the secondary had finished.
    pub fn learn(&mut self, waited: Micros, finished: bool) {
        if !self.waits {
            return;
        }
        self.bound = if finished {
            // Twice the needed time. The bound falls slowly, so that one quick sync does not cut off the
            // usual ones.
            let needed = Micros(waited.0 * 2);
            if needed > self.bound {
                needed
            } else {
                Micros((self.bound.0 * 7 + needed.0) / 8)
            }
        } else {
            Micros(self.bound.0 / 2)
        }
        .min(self.max);
    }

    /// The sync that was begun last has reached its end mark, this long after its cut.
    pub fn ended(&mut self, took: Micros) {
        let usually = self.usually_waits();
        let Some(usual) = self.usual.filter(|_| self.waits != usually) else {
            let smooth = |old: Micros| Micros((old.0 * 7 + took.0) / 8);
            self.usual = Some(self.usual.map_or(took, smooth));
            return;
        };
        // A sync that something else held up counts at most as twice the usual time.
        let ratio = took.0.saturating_mul(1024) / usual.0.max(1);
        let by = ratio.min(2048) as i64 - 1024;
        let by = if self.waits { by } else { -by };
        self.longer = Some(self.longer.map_or(by, |old| (old * 3 + by) / 4));
        if self.usually_waits() != usually {
            self.usual = Some(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Micros = Micros::from_ms(20);

    /// Figures of the second half of a run.
    #[derive(Debug)]
    struct Outcome {
        /// Syncs that waited.
        waits: u64,
        /// Those whose secondary had finished.
        finished: u64,
        /// The mean wait of all, µs.
        mean: u64,
    }

    /// Runs `syncs` syncs. The secondary is done after `needs`; a sync in which it is not done takes
    /// `diverges` longer.
    fn run(rule: &mut WaitRule, syncs: u64, needs: Micros, diverges: Micros) -> Outcome {
        let (mut waits, mut finished, mut waited) = (0, 0, 0);
        for sync in 0..syncs {
            let bound = rule.begin();
            let is_done = needs <= bound;
            let wait = needs.min(bound);
            rule.learn(wait, is_done);
            let rest = if is_done { Micros::ZERO } else { diverges };
            rule.ended(wait + rest + Micros(500));
            if sync >= syncs / 2 {
                waits += u64::from(bound > Micros::ZERO);
                finished += u64::from(is_done);
                waited += wait.0;
            }
        }
        Outcome {
            waits,
            finished,
            mean: waited / (syncs / 2),
        }
    }

    const DEAR: Micros = Micros(3000);
    const CHEAP: Micros = Micros(200);

    #[test]
    fn a_wait_that_saves_less_than_it_takes_is_left_out() {
        let mut rule = WaitRule::new(MAX);
        let outcome = run(&mut rule, 2000, Micros(900), DEAR);
        assert!(outcome.finished > 950, "{outcome:?}");
        let mut rule = WaitRule::new(MAX);
        let outcome = run(&mut rule, 2000, Micros(900), CHEAP);
        assert!(outcome.waits < 50, "{outcome:?}");
    }

    /// Seen under emulation: the secondary is done in time each time, and waiting does not pay.
    #[test]
    fn a_secondary_that_is_done_late_each_time_is_not_waited_for() {
        let mut rule = WaitRule::new(MAX);
        let outcome = run(&mut rule, 2000, Micros::from_ms(4), CHEAP);
        assert!(outcome.mean < 100, "{outcome:?}");
    }

    /// Seen under `hybrid`: the sync of a slot of one second takes three times as long, and was taken for
    /// a sync without a wait.
    #[test]
    fn long_syncs_do_not_count_against_short_ones() {
        let mut rule = WaitRule::new(MAX);
        let long = |rule: &mut WaitRule, syncs| {
            for _ in 0..syncs {
                let bound = rule.begin();
                rule.learn(bound.min(Micros(900)), bound >= Micros(900));
                rule.ended(Micros(6000));
            }
        };
        long(&mut rule, 700);
        let outcome = run(&mut rule, 400, Micros(900), CHEAP);
        assert!(outcome.waits < 20, "{outcome:?}");
    }

    #[test]
    fn a_secondary_that_is_far_behind_is_not_waited_for() {
        let mut rule = WaitRule::new(MAX);
        let outcome = run(&mut rule, 2000, Micros::from_ms(50), DEAR);
        assert!(outcome.mean <= 60, "waits for nothing: {outcome:?}");
    }

    #[test]
    fn a_few_slow_syncs_are_forgotten() {
        let mut rule = WaitRule::new(MAX);
        run(&mut rule, 2000, Micros(900), DEAR);
        run(&mut rule, 10, Micros::from_ms(50), DEAR);
        let outcome = run(&mut rule, 4000, Micros(900), DEAR);
        assert!(outcome.finished > 1900, "{outcome:?}");
    }

    #[test]
    fn a_secondary_that_becomes_faster_is_found_out() {
        let mut rule = WaitRule::new(MAX);
        run(&mut rule, 2000, Micros::from_ms(50), DEAR);
        let outcome = run(&mut rule, 4000, Micros(900), DEAR);
        assert!(outcome.finished > 1900, "{outcome:?}");
    }
}

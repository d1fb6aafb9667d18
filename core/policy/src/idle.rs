//! When the guest has finished its work (PLOVER §4.3, §5.1).
//!
//! The paper's monitor thread reads the CPU clock of the hypervisor and calls the guest idle
//! when the clock rises no faster than a vacant VM's for 100 µs. We read the clocks of the
//! vCPU threads from outside, and add one condition: the NIC's input queue is empty, since on a
//! busy host a vCPU thread with work may simply not have been scheduled yet.
//!
//! The time that a guest must look idle is learnt, too. A guest that sends something after its slot has
//! ended, although nothing was fed to it since, was not done: it had paused between two steps (a disk, a
//! lock, a timer), and the two guests are then compared at different points of their work. So the
//! threshold grows by half each time that happens, and shrinks by a sixty-fourth each time it does not.
//! The two balance where one slot in 26 is cut short.

use plover_types::Micros;

/// Busy if the vCPUs used more than this share of the time between two samples, in 1/1024.
/// A vacant Linux guest's timer tick costs about 2% of one CPU under TCG; 1/4 leaves room for
/// it and is still far from the 100% of a vCPU that computes.
const BUSY_SHARE_1024: u64 = 256;

/// The threshold shrinks by this part of itself.
const PART: u64 = 64;

/// Judges samples of the vCPU clocks.
#[derive(Clone, Debug)]
pub struct IdleDetector {
    /// The configured threshold. The learnt one stays between half of it and eight times it.
    usual: Micros,
    threshold: Micros,
    last: Option<(Micros, Micros)>,
    idle_since: Option<Micros>,
}

impl IdleDetector {
    /// Idle after `threshold` without work (paper: 100 µs), to begin with.
    pub fn new(threshold: Micros) -> Self {
        Self {
            usual: threshold,
            threshold,
            last: None,
            idle_since: None,
        }
    }

    /// Another threshold from now on, from which learning begins anew.
    pub fn set(&mut self, threshold: Micros) {
        if threshold != self.usual {
            self.usual = threshold;
            self.threshold = threshold;
        }
    }

    /// Takes a sample at `now`: the vCPUs have used `cpu` in all, or `None` where the guest
    /// plainly has work: a frame in its NIC's queue, a thread that runs or waits for a CPU. Returns
    /// whether the guest is idle.
    pub fn sample(&mut self, now: Micros, cpu: Option<Micros>) -> bool {
        let Some(cpu) = cpu else {
            self.disturb();
            return false;
        };
        let Some((then, cpu_then)) = self.last else {
            self.last = Some((now, cpu));
            return false;
        };
        let span = now.since(then);
        if span < Micros(20) {
            // Too short to tell: clock reads themselves take microseconds.
            return self.is_idle(now);
        }
        self.last = Some((now, cpu));
        if cpu.since(cpu_then).0 * 1024 > span.0 * BUSY_SHARE_1024 {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(then);
        }
        self.is_idle(now)
    }

    /// The time until the next sample: shorter once the guest looks idle.
    pub fn period(&self) -> Micros {
        let period = if self.last.is_some() {
            self.threshold.0 / 2
        } else {
            self.threshold.0
        };
        Micros(period.max(50))
    }

    /// Something was fed to the guest: it is not idle until samples say so again.
    pub fn disturb(&mut self) {
        self.idle_since = None;
        self.last = None;
    }

    /// How long the guest must look idle at present.
    pub fn threshold(&self) -> Micros {
        self.threshold
    }

    /// The guest that was called idle went on by itself.
    pub fn was_early(&mut self) {
        let longest = Micros(self.usual.0.saturating_mul(8));
        let more = (self.threshold.0 / 2).max(1);
        let more = self.threshold.0.saturating_add(more);
        self.threshold = Micros(more).min(longest);
    }

    /// The guest that was called idle did nothing more until it was fed.
    pub fn was_timely(&mut self) {
        let shortest = Micros((self.usual.0 / 2).max(1));
        let less = (self.threshold.0 / PART).max(1);
        self.threshold = Micros(self.threshold.0.saturating_sub(less)).max(shortest);
    }

    fn is_idle(&self, now: Micros) -> bool {
        self.idle_since
            .is_some_and(|since| now.since(since) >= self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_needs_the_threshold_and_an_empty_queue() {
        let mut idle = IdleDetector::new(Micros(100));
        let used = |micros| Some(Micros(micros));
        assert!(!idle.sample(Micros(0), used(0)));
        assert!(!idle.sample(Micros(50), used(1)));
        assert!(idle.sample(Micros(100), used(2)));
        assert!(!idle.sample(Micros(150), None), "a frame waits");
        assert!(!idle.sample(Micros(200), used(40)), "nothing to compare");
        assert!(!idle.sample(Micros(250), used(70)), "the vCPU worked");
        assert!(!idle.sample(Micros(300), used(71)));
        assert!(idle.sample(Micros(350), used(72)));
        idle.disturb();
        assert!(!idle.sample(Micros(360), used(72)));
    }

    #[test]
    fn a_guest_that_goes_on_by_itself_is_given_longer() {
        let mut idle = IdleDetector::new(Micros(100));
        for _ in 0..20 {
            idle.was_early();
        }
        assert_eq!(idle.threshold(), Micros(800), "bounded");
        assert!(!idle.sample(Micros(0), Some(Micros(0))));
        assert!(!idle.sample(Micros(400), Some(Micros(1))));
        assert!(idle.sample(Micros(800), Some(Micros(2))));
        for _ in 0..1000 {
            idle.was_timely();
        }
        assert_eq!(idle.threshold(), Micros(50), "bounded");
    }

    #[test]
    fn a_guest_that_looks_idle_is_looked_at_more_often() {
        let mut idle = IdleDetector::new(Micros(200));
        idle.sample(Micros(0), None);
        assert_eq!(idle.period(), Micros(200));
        idle.sample(Micros(200), Some(Micros(150)));
        assert_eq!(idle.period(), Micros(100));
    }

    /// For any configured value, after any number of right and wrong verdicts.
    #[test]
    fn no_threshold_is_out_of_bounds() {
        for usual in [1, 2, 100, u64::MAX] {
            let mut idle = IdleDetector::new(Micros(usual));
            (0..999).for_each(|_| idle.was_timely());
            assert_eq!(idle.threshold(), Micros((usual / 2).max(1)));
            (0..99).for_each(|_| idle.was_early());
            assert_eq!(idle.threshold(), Micros(usual.saturating_mul(8)));
        }
    }
}

//! When the guest has finished its work (PLOVER §4.3, §5.1).
//!
//! The paper's monitor thread reads the CPU clock of the hypervisor and calls the guest idle
//! when the clock rises no faster than a vacant VM's for 100 µs. We read the clocks of the
//! vCPU threads from outside, and add one condition: the NIC's input queue is empty, since on a
//! busy host a vCPU thread with work may simply not have been scheduled yet.

use plover_types::Micros;

/// Busy if the vCPUs used more than this share of the time between two samples, in 1/1024.
/// A vacant Linux guest's timer tick costs about 2% of one CPU under TCG; 1/4 leaves room for
/// it and is still far from the 100% of a vCPU that computes.
const BUSY_SHARE_1024: u64 = 256;

/// Judges samples of the vCPU clocks.
#[derive(Clone, Debug)]
pub struct IdleDetector {
    threshold: Micros,
    last: Option<(Micros, Micros)>,
    idle_since: Option<Micros>,
}

impl IdleDetector {
    /// Idle after `threshold` without work (paper: 100 µs).
    pub fn new(threshold: Micros) -> Self {
        Self {
            threshold,
            last: None,
            idle_since: None,
        }
    }

    /// Takes a sample: at `now` the vCPUs have used `cpu` in all, and `consumed` says whether
    /// the guest's NIC has taken every frame fed to it. Returns whether the guest is idle.
    pub fn sample(&mut self, now: Micros, cpu: Micros, consumed: bool) -> bool {
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
        if !consumed || cpu.since(cpu_then).0 * 1024 > span.0 * BUSY_SHARE_1024 {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(then);
        }
        self.is_idle(now)
    }

    /// Something was fed to the guest: it is not idle until samples say so again.
    pub fn disturb(&mut self) {
        self.idle_since = None;
        self.last = None;
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
        assert!(!idle.sample(Micros(0), Micros(0), true));
        assert!(!idle.sample(Micros(50), Micros(1), true));
        assert!(idle.sample(Micros(100), Micros(2), true));
        assert!(!idle.sample(Micros(150), Micros(2), false), "a frame waits");
        assert!(
            !idle.sample(Micros(200), Micros(50), true),
            "the vCPU worked"
        );
        assert!(!idle.sample(Micros(250), Micros(51), true));
        assert!(idle.sample(Micros(300), Micros(52), true));
        idle.disturb();
        assert!(!idle.sample(Micros(310), Micros(52), true));
    }
}

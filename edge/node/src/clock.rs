//! The clock of the node: CLOCK_BOOTTIME in microseconds. All processes of one machine share it, so that traces of
//! several replicas can be laid side by side. It goes on while the host is suspended, so a leader that wakes up knows that
//! its lease is over.
//!
//! A host that is itself a virtual machine does not notice that it was paused. Its leader may still send outputs then. The
//! state of the other replicas explains them, which `proof/sim` checks: it stops a host together with its clock.

use plover_types::Micros;
use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> Micros {
    read(ClockId::Boottime)
}

/// A moment of this clock on CLOCK_MONOTONIC, which stands still while the host is suspended: the clock of QEMU.
pub(crate) fn on_monotonic(moment: Micros) -> Micros {
    let suspended = now().since(read(ClockId::Monotonic));
    moment.since(suspended)
}

fn read(clock: ClockId) -> Micros {
    let time = clock_gettime(clock);
    Micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_on_both_clocks() {
        let before = read(ClockId::Monotonic);
        let moment = on_monotonic(now());
        let after = read(ClockId::Monotonic);
        // Each reading is cut to whole microseconds.
        let rounded = Micros(2);
        assert!(before <= moment + rounded && moment <= after + rounded);
    }
}

//! The clock of the node: CLOCK_MONOTONIC in microseconds, which all processes of one machine
//! share, so that traces of several replicas can be laid side by side.

use plover_types::Micros;
use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> Micros {
    let time = clock_gettime(ClockId::Monotonic);
    Micros(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
}

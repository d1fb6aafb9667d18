//! After a tick at its deadline, a core's next deadline lies in the future. Otherwise a caller that
//! sleeps until the deadline would never sleep.

use super::{Check, demand};
use plover_types::Micros;

/// `host` was ticked at `now`, and asks for the next at `deadline`.
pub fn ticked(host: usize, now: Micros, deadline: Micros) -> Check {
    demand(deadline > now, "nothing_spins", "STYLE 3", || {
        format!("r{host} asks at {now} for a tick at {deadline}")
    })
}

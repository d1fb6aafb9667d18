//! Crashes at a chosen moment, at the replica's own fault injection points.

use anyhow::{Result, ensure};
use plover_lab::control::ControlError;
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_syncvm::Phase;
use serde_json::json;
use std::time::{Duration, Instant};

/// Under load a syncvm comes every few milliseconds, without load every half a second.
const CRASH_WITHIN: Duration = Duration::from_secs(60);

/// The moment at which a replica is to crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// As soon as a syncvm enters this phase: the leader, or in `Apply` the secondary.
    Phase(Phase),
    /// The leader, in an area of COLO's figure 4 (`a`, `b`, `c` or `d`): a stage in the life of an
    /// output that is released on a match.
    Area(&'static str),
}

/// Asks replica `id` to crash at a moment, and waits until nothing runs on its host any more.
///
/// # Errors
/// The replica refused, or the moment did not come.
pub fn crash_at(lab: &Lab, id: u8, moment: &Moment, progress: &Progress) -> Result<()> {
    let request = match moment {
        Moment::Phase(phase) => json!({"op": "crash_in_phase", "phase": phase}),
        Moment::Area(area) => json!({"op": "crash_in_area", "area": area}),
    };
    match lab.control(id).request(&request) {
        // It may crash before it has answered.
        Ok(_) | Err(ControlError::Silent { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let deadline = Instant::now() + CRASH_WITHIN;
    while lab.check_daemon(id).is_ok() {
        ensure!(
            Instant::now() < deadline,
            "replica {id} has not come to {moment:?}"
        );
        progress.sleep(Duration::from_millis(10))?;
    }
    // If its hypervisor has ended with it, there is nothing to kill.
    let _ = lab.fault(Fault::Kill, id);
    progress.say(format!("replica {id}: crashed in {moment:?}"));
    Ok(())
}

//! Crashes and stops at a chosen moment, at the replica's own fault injection points.

use anyhow::{Result, ensure};
use plover_lab::control::ControlError;
use plover_lab::progress::Progress;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Lab};
use plover_syncvm::Phase;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Under load a syncvm comes every few milliseconds, without load every half a second.
const WITHIN: Duration = Duration::from_secs(60);

/// A replica that answers at all does so within a turn of its loop.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

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
    ask(lab, id, &request)?;
    wait(progress, &format!("replica {id}: {moment:?}"), || {
        lab.check_daemon(id).is_err()
    })?;
    // If its hypervisor has ended with it, there is nothing to kill.
    let _ = lab.fault(Fault::Kill, id);
    progress.say(format!("replica {id}: crashed in {moment:?}"));
    Ok(())
}

/// Has the host of leader `id` stand still right before a frame that the leader was about to send to clients. Returns a
/// moment before.
///
/// # Errors
/// The replica refused, or sent nothing.
pub fn stop_in_release(lab: &Lab, id: u8, progress: &Progress) -> Result<u64> {
    let before_us = now_us();
    ask(lab, id, &json!({"op": "stop_in_release"}))?;
    wait(progress, &format!("replica {id}: a release"), || {
        let status = lab.status();
        status
            .replica(id)
            .is_some_and(|replica| replica.role == "stopped")
    })?;
    // The rest of its host.
    lab.fault(Fault::Stop, id)?;
    progress.say(format!("replica {id}: stopped in a release"));
    Ok(before_us)
}

fn ask(lab: &Lab, id: u8, request: &Value) -> Result<()> {
    match lab.control(id).within(ANSWER_WITHIN).request(request) {
        // The moment may come before it has answered.
        Ok(_) | Err(ControlError::Silent { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn wait(progress: &Progress, moment: &str, has_come: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    while !has_come() {
        ensure!(Instant::now() < deadline, "{moment} has not come");
        progress.sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

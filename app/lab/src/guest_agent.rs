//! Requests to the agent in the guest (QEMU's guest agent). Whichever replica leads gives them to its guest.

use crate::control::{Control, ControlError};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

/// A little longer than the replica that leads waits for the agent, and the replica that was asked for the leader.
const ANSWERED_WITHIN: Duration = Duration::from_secs(25);

/// How often it is looked whether a program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How soon a request is given again that came while another one was open.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The words of a replica that refuses a request while another one is open.
const IS_BUSY: &str = "has not answered another request yet";

/// The words of QEMU's agent that refuses a command while file systems are frozen.
const IS_FROZEN: &str = "has been disabled";

/// Its words that follow where the guest's configuration forbids the command.
const IS_FORBIDDEN: &str = "not allowed";

/// The agent's answer to `order`. One request is open at a time, and this one waits for its turn.
fn ask(control: &Control, order: &Value) -> Result<Value> {
    let request = json!({"op": "guest", "order": order});
    let control = control.clone().within(ANSWERED_WITHIN);
    let begun = Instant::now();
    loop {
        match control.request(&request) {
            Err(error)
                if refusal(&error).contains(IS_BUSY) && begun.elapsed() < ANSWERED_WITHIN =>
            {
                std::thread::sleep(AGAIN_AFTER);
            }
            answered => return Ok(answered?["return"].take()),
        }
    }
}

/// The reason of a refusal; nothing for another error.
fn refusal(error: &ControlError) -> &str {
    match error {
        ControlError::Refused(why) => why,
        _ => "",
    }
}

fn count(returned: &Value) -> Result<u64> {
    let count = returned.as_u64();
    count.with_context(|| format!("the guest's agent returns {returned}, and no number"))
}

/// Asks the agent whether it is there.
///
/// # Errors
/// It does not answer, and why.
pub fn ping(control: &Control) -> Result<()> {
    ask(control, &json!("ping")).map(drop)
}

/// Freezes the guest's file systems, for `for_s` seconds at most, and returns how many there are.
///
/// # Errors
/// They are not frozen, or were for a moment.
pub fn freeze(control: &Control, for_s: u64) -> Result<u64> {
    count(&ask(control, &json!({"freeze": {"for_s": for_s}}))?)
}

/// Thaws them, and returns how many were frozen.
///
/// # Errors
/// Whether they are thawed is not known. The replica that leads tries it again if it knows that they are frozen.
pub fn thaw(control: &Control) -> Result<u64> {
    count(&ask(control, &json!("thaw"))?)
}

/// A guest whose file systems are frozen. Dropping it thaws them; if nothing of this process is left to do that, the replica
/// that leads does it when the time is over.
#[derive(Debug)]
pub struct Frozen<'a> {
    control: &'a Control,
    is_thawed: bool,
}

impl<'a> Frozen<'a> {
    /// Freezes the guest's file systems, for `for_s` seconds at most.
    ///
    /// # Errors
    /// There is no agent, it refuses, or the guest has no file system that can be frozen.
    pub fn begin(control: &'a Control, for_s: u64) -> Result<Self> {
        let mut frozen = Self {
            control,
            is_thawed: false,
        };
        let count = freeze(control, for_s).inspect_err(|error| {
            // An order that was not refused may still be carried out.
            let refused = error.downcast_ref::<ControlError>();
            frozen.is_thawed = matches!(refused, Some(ControlError::Refused(_)));
        });
        let count = count.context("cannot freeze the guest's file systems")?;
        ensure!(
            count > 0,
            "the guest has no file system on a disk that could be frozen: leave --quiesce out"
        );
        Ok(frozen)
    }

    /// Thaws them, and makes sure that they were frozen until now.
    ///
    /// # Errors
    /// They were not, or that is not known.
    pub fn thaw(mut self) -> Result<()> {
        let was_frozen = thaw(self.control).context("cannot thaw the guest's file systems")?;
        self.is_thawed = true;
        ensure!(
            was_frozen > 0,
            "the guest's file systems were thawed too early, as a new leader does, or after a time: try again"
        );
        Ok(())
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.is_thawed {
            return;
        }
        if let Err(error) = thaw(self.control) {
            let _ = writeln!(
                io::stderr(),
                "the guest's file systems are thawed when the time is over: {error:#}"
            );
        }
    }
}

/// How a program in the guest has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status, or the number of the signal that has ended it and 128, as a shell has it.
    pub code: i64,
    /// Its standard output.
    pub output: Vec<u8>,
    /// Its error output.
    pub errors: Vec<u8>,
}

/// Runs a program in the guest, and waits for its end.
///
/// # Errors
/// It cannot be run, or has not ended within that time; then it runs on.
pub fn exec(control: &Control, path: &str, args: &[String], within: Duration) -> Result<Ended> {
    let order = json!({"exec": {"path": path, "args": args}});
    let asked_at = Instant::now();
    let begun = loop {
        match ask(control, &order) {
            Err(error) if is_frozen(&error) && asked_at.elapsed() < ANSWERED_WITHIN => {
                std::thread::sleep(LOOK_EVERY);
            }
            begun => break begun?,
        }
    };
    let Some(pid) = begun["pid"].as_i64() else {
        bail!(
            "the guest's agent returns {begun}, and no process: look in the guest whether {path} runs"
        );
    };
    let deadline = Instant::now() + within;
    loop {
        let state = match ask(control, &json!({"exec_status": {"pid": pid}})) {
            // A backup has frozen the guest's file systems for a moment.
            Err(error) if is_frozen(&error) && Instant::now() < deadline => Value::Null,
            state => state.with_context(|| {
                format!("what has become of {path}, process {pid} of the guest, is not known")
            })?,
        };
        if state["exited"] == true {
            return ended(&state);
        }
        ensure!(
            Instant::now() < deadline,
            "{path} has not ended within {} s, and runs on as process {pid} of the guest: wait longer with --wait",
            within.as_secs()
        );
        std::thread::sleep(LOOK_EVERY);
    }
}

fn is_frozen(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ControlError>();
    let refused = error.map(refusal).unwrap_or_default();
    refused.contains(IS_FROZEN) && !refused.contains(IS_FORBIDDEN)
}

fn ended(state: &Value) -> Result<Ended> {
    let code = state["exitcode"].as_i64();
    let signal = state["signal"].as_i64().map(|signal| 128 + signal);
    let bytes = |key: &str| -> Result<Vec<u8>> {
        match state[key].as_str() {
            Some(text) => BASE64_STANDARD
                .decode(text)
                .with_context(|| format!("the agent's {key} is damaged")),
            None => Ok(Vec::new()),
        }
    };
    Ok(Ended {
        code: code
            .or(signal)
            .context("the agent does not say how the program has ended")?,
        output: bytes("out-data")?,
        errors: bytes("err-data")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_program_is_read() {
        let state = json!({"exited": true, "exitcode": 3, "out-data": "aGk="});
        let expected = Ended {
            code: 3,
            output: b"hi".to_vec(),
            errors: Vec::new(),
        };
        assert_eq!(ended(&state).unwrap(), expected);
        let killed = json!({"exited": true, "signal": 9});
        assert_eq!(ended(&killed).unwrap().code, 137);
        for bad in [
            json!({"exited": true}),
            json!({"exited": true, "exitcode": 0, "err-data": "?"}),
        ] {
            assert!(ended(&bad).is_err(), "{bad}");
        }
    }
}

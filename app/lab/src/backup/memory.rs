//! The copy of the guest's memory, before the backup begins.

use super::{Limits, STANDS_STILL, TOLD_EVERY, say_percent};
use crate::control::{Control, ControlError};
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use plover_types::PAGE_BYTES;
use serde::Deserialize;
use serde_json::json;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The pause between two questions about the copy's progress.
const COPIED_EVERY: Duration = Duration::from_millis(200);

/// The progress of the copy of the memory.
#[derive(Deserialize)]
struct Copied {
    owed_pages: u64,
    is_close: bool,
}

/// Has the replica copy the guest's memory until little of it is left. The copy lasts as long as the connection.
pub(super) fn copy(control: &Control, limits: Limits, progress: &Progress) -> Result<UnixStream> {
    let request = json!({"op": "copy_memory", "mib_per_s": limits.mib_per_s});
    let (mut stream, mut answer) = control.open(&request)?;
    let (mut all, mut told) = (0, 0);
    loop {
        let copied: Copied = serde_json::from_value(answer)
            .context("the replica's answer is not understood: it is of another release")?;
        all = all.max(copied.owed_pages);
        let percent = ((all - copied.owed_pages) * 100 / all.max(1)) as u8;
        if percent >= told + TOLD_EVERY {
            told = percent;
            say_percent(
                progress,
                "memory: copied",
                percent - percent % TOLD_EVERY,
                &format!("{} MiB", (all * PAGE_BYTES as u64) >> 20),
            );
        }
        if copied.is_close {
            return Ok(stream);
        }
        std::thread::sleep(COPIED_EVERY);
        progress.check()?;
        answer = match control.ask_again(&mut stream, &json!({})) {
            Ok(answer) => answer,
            Err(ControlError::Refused(why)) => {
                bail!("the copy of the guest's memory has ended: {why}")
            }
            Err(error) => bail!("{STANDS_STILL} ({error})"),
        };
    }
}

//! The guest's shell carries out what is typed, and its disk takes writes: clients that are answered from memory show
//! neither.

use anyhow::{Context, Result, bail};
use plover_lab::control::Control;
use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

/// Where the line writes: behind what the disk's load overwrites, in blocks of 4 KiB.
const BLOCK: u32 = 1024;

/// How long one read of the console waits.
const READ_WITHIN: Duration = Duration::from_millis(200);

/// Types a line that writes to the guest's disk and then prints a number, and waits for the number.
///
/// # Errors
/// It is not printed within `within`. The error says whether the shell at least answers without the disk.
pub(super) fn ask(leader: &Control, number: u64, within: Duration) -> Result<()> {
    let mut console = leader.console().context("attaching to the console")?;
    console.set_read_timeout(Some(READ_WITHIN))?;
    let write = format!(
        "dd if=/dev/urandom of=/dev/vda bs=4k count=1 seek={BLOCK} oflag=direct 2>/dev/null && "
    );
    let mut shown = String::new();
    if prints(leader, &mut console, &write, number, within, &mut shown)? {
        return Ok(());
    }
    let what = match prints(
        leader,
        &mut console,
        "",
        number + 1,
        READ_WITHIN * 25,
        &mut shown,
    )? {
        true => "the guest's disk has not taken a write, and its shell answers",
        false => "the guest has not carried out a line that was typed and said to be safe",
    };
    bail!(
        "{what}, for {} s; the console shows {shown:?}",
        within.as_secs()
    )
}

/// Types the line and waits for its output. The number is summed up by the shell, so that the line's echo does not have
/// it.
fn prints(
    leader: &Control,
    console: &mut impl Read,
    before: &str,
    number: u64,
    within: Duration,
    shown: &mut String,
) -> Result<bool> {
    let line = format!("{before}echo said $((1000000 + {number}))\n");
    leader.type_text(&line).context("typing a line")?;
    let awaited = format!("said {}", 1_000_000 + number);
    let deadline = Instant::now() + within;
    let mut part = [0; 4096];
    while Instant::now() < deadline {
        match console.read(&mut part) {
            Ok(0) => bail!("the leader has closed its console; it has shown {shown:?}"),
            Ok(bytes) => shown.push_str(&String::from_utf8_lossy(&part[..bytes])),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error).context("reading the console"),
        }
        if shown.contains(&awaited) {
            return Ok(true);
        }
    }
    Ok(false)
}

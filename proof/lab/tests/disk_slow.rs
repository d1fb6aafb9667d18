//! A disk that takes 0.4 ms longer for each block: copies and syncs take long, and no replica falls
//! silent because of them.

use anyhow::{Result, ensure};
use plover_lab::options::Options;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{ask_guest, overlay, prove};
use std::time::Duration;

/// All timeouts have their defaults. To hash the blocks of a syncvm takes longer than the timeout on
/// either side, and so does reading them, and writing them.
const OVERLAY: &str = "
[debug]
disk_delay_us = 400
";

/// Writes 2.4 MiB that differ on both sides.
const WRITE: &str = "dd if=/dev/urandom of=/dev/vda bs=4k count=600 conv=notrunc,fsync 2>/dev/null; \
    echo all wr\\itten\n";

fn nobody_falls_silent(lab: &mut Experiment) -> Result<()> {
    lab.wait_until_protected()?;
    for _ in 0..3 {
        ask_guest(lab.lab(), WRITE, "all written")?;
    }
    // Time for the syncs of these writes.
    lab.progress().sleep(Duration::from_secs(10))?;
    lab.wait_for_answers(now_us())?;
    let silent = lab.find_event("suspected", 0).is_some();
    ensure!(!silent, "a leader was silent for longer than the timeout");
    let lost = lab
        .events()
        .iter()
        .find(|event| event.what == "sync_failed");
    ensure!(lost.is_none(), "a syncvm failed: {lost:?}");
    Ok(())
}

#[test]
fn a_slow_disk_silences_nobody() {
    let (scratch, overlay) = (tempfile::tempdir().expect("a directory"), overlay(OVERLAY));
    let image = scratch.path().join("disk.raw");
    std::fs::write(&image, vec![7; 8 << 20]).expect("a file is written");
    let options = Options {
        disks: vec![image.into()],
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove("t-slow", options, nobody_falls_silent);
}

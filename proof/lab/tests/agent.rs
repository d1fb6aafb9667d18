//! The agent in the guest: file systems that are frozen for a backup, and are never left frozen.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::backup::{self, Backup, Limits};
use plover_lab::guest_agent::{exec, freeze, ping};
use plover_lab::guests::Guest;
use plover_lab::options::{DiskImage, Options};
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_lab_proof::filesystem;
use plover_lab_proof::storm::writers::Storm;
use plover_lab_proof::{overlay, prove_on, role, wait_for};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Acknowledged writes to wait for, and connections that write.
const ENOUGH: u64 = 100;
const WRITERS: u64 = 4;

/// Longer than the test.
const LONG_S: u64 = 600;

/// Whether the journal of the ext4 file system in an image is to be replayed at the next mount: of one that is mounted and
/// not frozen, it is.
fn needs_recovery(image: &Path) -> Result<bool> {
    // `s_feature_incompat` of the superblock, which begins at byte 1024.
    let mut features = [0; 4];
    File::open(image)?.read_exact_at(&mut features, 1024 + 0x60)?;
    Ok(u32::from_le_bytes(features) & 4 != 0)
}

/// The replica with a role in a group that is protected.
fn find(lab: &Lab, name: &str, progress: &Progress) -> Result<u8> {
    wait_for(progress, &format!("a replica is {name}"), || {
        Ok(lab.find(&role(name)).is_ok())
    })?;
    lab.find(&role(name))
}

/// A backup while the storm goes on. Returns whether its file system is to be recovered.
fn back_up(lab: &Lab, dir: &Path, progress: &Progress, quiesce: bool) -> Result<bool> {
    let limits = Limits {
        keep_mib: 64,
        mib_per_s: 1024,
        incremental: false,
        quiesce,
        memory: false,
    };
    let control = lab.control(find(lab, "secondary", progress)?);
    // Folders are named by the second.
    let to = dir.join(format!("quiesce-{quiesce}"));
    std::fs::create_dir(&to)?;
    let (folder, manifest) = backup::take(&control, &to, limits, progress)?;
    ensure!(manifest.quiesced == quiesce, "the manifest says otherwise");
    let image = to.join("restored.raw");
    Backup::open(&folder, progress)?.restore(std::slice::from_ref(&image), None, progress)?;
    let needs = needs_recovery(&image)?;
    filesystem::check(&image, 0, &to)?;
    Ok(needs)
}

/// Waits until more is acknowledged, which takes thawed file systems.
fn goes_on(storm: Storm) -> Result<Storm> {
    storm.wait_for(storm.durable() + ENOUGH);
    if storm.has_failed() {
        storm.finish()?;
        bail!("a writer ended");
    }
    Ok(storm)
}

fn freeze_and_thaw(lab: &mut Lab, dir: &Path, progress: &Progress) -> Result<()> {
    let anywhere = lab.control(find(lab, "witness", progress)?);
    let storm = Storm::in_lab(lab, WRITERS, &dir.join("record"))?;
    storm.wait_for(ENOUGH);
    ping(&anywhere)?;
    let words = ["-c", "echo out; echo err >&2; exit 7"].map(String::from);
    let ended = exec(&anywhere, "/bin/sh", &words, Duration::from_secs(30))?;
    ensure!(
        (ended.code, &ended.output[..], &ended.errors[..]) == (7, b"out\n", b"err\n"),
        "{ended:?}"
    );

    ensure!(back_up(lab, dir, progress, false)?, "it was frozen");
    ensure!(!back_up(lab, dir, progress, true)?, "it was not frozen");
    let storm = goes_on(storm)?;

    // Whoever has asked for it is gone.
    ensure!(freeze(&anywhere, 1)? == 1, "another file system");
    let storm = goes_on(storm)?;

    // And now the leader, too.
    ensure!(freeze(&anywhere, LONG_S)? == 1, "another file system");
    let again = freeze(&anywhere, LONG_S).err().context("frozen twice")?;
    ensure!(format!("{again:#}").contains("frozen already"), "{again:#}");
    find(lab, "secondary", progress)?;
    lab.fault(Fault::Kill, lab.find(&role("leader"))?)?;
    let storm = goes_on(storm)?;
    storm.settle(lab)
}

#[test]
fn no_guest_stays_frozen() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let disk = dir.path().join("disk.raw");
    let made = Command::new("/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(&disk)
        .arg("128M")
        .status();
    assert!(made.is_ok_and(|status| status.success()), "mke2fs failed");
    let overlay = overlay("[guest]\nagent = true\n");
    let options = Options {
        guest: Guest::Agent,
        disks: vec![DiskImage::from(disk)],
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_on("t-agent", options, |lab, progress| {
        freeze_and_thaw(lab, dir.path(), progress)
    });
}

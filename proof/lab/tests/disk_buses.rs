//! A guest with several disks, on every bus there is, one of them read-only. They are disks of one
//! machine, so all of them follow the same syncvms, and all are there after a lost leader.

use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use plover_lab::guests::Guest;
use plover_lab::options::{DiskImage, Options};
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::trace::{Tail, TraceEvent};
use plover_lab_proof::storm::writers::Storm;
use plover_lab_proof::{ask_guest, equal_syncs, kill_leader, overlay, prove_on, role, wait_for};
use std::io::{Read, Write};
use std::path::Path;

/// As for `racey`: memory and disks are hashed whole at every sync.
const OVERLAY: &str = "
[debug]
checksum_each_sync = true
[group]
timeout_ms = 3000
";

/// The disks, by their sizes, which differ, so that the guest can tell them apart.
const VIRTIO_MIB: u64 = 16;
const SCSI_MIB: u64 = 8;
const IDE_MIB: u64 = 6;
const READ_ONLY_MIB: u64 = 4;

/// Slots to compare before the leader is killed, and after it.
const SLOTS: usize = 15;

/// Connections that write to the first disk, and acknowledged writes to wait for.
const WRITERS: u64 = 2;
const ENOUGH: u64 = 100;

/// Writes to all disks but the first, which the storm has, each time with a flush.
const LOAD: &str = "i=0; while :; do i=$((i+1)); for d in sda sdb sdc; do \
    dd if=/dev/urandom of=/dev/$d bs=4k count=$((i%8+1)) seek=$((i*37%1000)) \
    conv=notrunc,fsync; done; done >/dev/null 2>&1 &\n";

/// Prints each disk's size and whether it is read-only, and a checksum of the read-only one.
const TELL: &str = "for d in vda sda sdb sdc; do cd /sys/block/$d; \
    echo disk $(($(cat size)/2048)) $(cat ro); \
    if [ $(cat ro) = 1 ]; then md5sum /dev/$d; fi; done; cd /; echo to''ld";

fn noise(path: &Path, mib: u64) -> Result<()> {
    let mut file = std::fs::File::create(path)?;
    let mut noise = std::fs::File::open("/dev/urandom")?.take(mib << 20);
    std::io::copy(&mut noise, &mut file).context("making a disk")?;
    Ok(())
}

fn images(dir: &Path) -> Result<Vec<DiskImage>> {
    let disks = [
        (VIRTIO_MIB, "bus=virtio"),
        (SCSI_MIB, "bus=scsi"),
        (IDE_MIB, "bus=ide"),
        (READ_ONLY_MIB, "bus=scsi,readonly"),
    ];
    let make = |(mib, how)| {
        let path = dir.join(format!("{mib}.raw"));
        noise(&path, mib)?;
        let disk = format!("{},{how}", path.display());
        disk.parse().map_err(anyhow::Error::msg)
    };
    disks.into_iter().map(make).collect()
}

/// Checks that the guest has each disk in its size, and reads the content of the read-only one.
fn all_are_there(lab: &Lab, read_only: &Path) -> Result<()> {
    let told = ask_guest(lab, TELL, "told")?;
    for (mib, ro) in [
        (VIRTIO_MIB, 0),
        (SCSI_MIB, 0),
        (IDE_MIB, 0),
        (READ_ONLY_MIB, 1),
    ] {
        let line = format!("disk {mib} {ro}");
        ensure!(told.contains(&line), "no '{line}' in {told:?}");
    }
    let sum = std::process::Command::new("md5sum")
        .arg(read_only)
        .output()?;
    let sum = String::from_utf8_lossy(&sum.stdout);
    let sum = sum
        .split_whitespace()
        .next()
        .context("md5sum says nothing")?;
    ensure!(
        told.contains(sum),
        "the guest reads something else: {told:?}"
    );
    Ok(())
}

fn equal_slots(traces: &mut Tail, events: &mut Vec<TraceEvent>, progress: &Progress) -> Result<()> {
    let before = equal_syncs(events)?;
    wait_for(progress, "slots are over", || {
        events.extend(traces.take());
        Ok(equal_syncs(events)? >= before + SLOTS)
    })
}

fn under_load(lab: &Lab, disks: &[DiskImage], progress: &Progress) -> Result<()> {
    all_are_there(lab, &disks[3].path)?;
    let dir = tempfile::tempdir()?;
    let storm = Storm::in_lab(lab, WRITERS, &dir.path().join("record"))?;
    let mut console = lab.control(lab.find(&role("leader"))?).console()?;
    console.write_all(LOAD.as_bytes())?;
    let (mut traces, mut events) = (lab.traces(), Vec::new());
    storm.wait_for(storm.durable() + ENOUGH);
    equal_slots(&mut traces, &mut events, progress)?;
    kill_leader(lab, progress)?;
    storm.wait_for(storm.durable() + ENOUGH);
    equal_slots(&mut traces, &mut events, progress)?;
    all_are_there(lab, &disks[3].path)?;
    storm.settle(lab)?;
    were_written(lab, disks)
}

/// Checks that the test has shown something: the leader's copy of each disk differs from its image by
/// now, except that of the read-only disk.
fn were_written(lab: &Lab, disks: &[DiskImage]) -> Result<()> {
    let (leader, dir) = (lab.find(&role("leader"))?, LabDir::of(lab.name()));
    for (i, disk) in disks.iter().enumerate() {
        let copy = dir.disk(leader, i);
        let same = std::fs::read(&copy)? == std::fs::read(&disk.path)?;
        ensure!(
            same == disk.read_only,
            "disk {i}: same as its image: {same}"
        );
    }
    Ok(())
}

#[test]
fn disks_of_every_bus_survive_their_leader() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let disks = images(scratch.path()).expect("images are made");
    let overlay = overlay(OVERLAY);
    let options = Options {
        guest: Guest::Storm,
        // q35's IDE disks are SATA disks, which the kernel of these guests does not know.
        machine: Some("pc".into()),
        // Less to hash.
        mem_mib: Some(128),
        disks: disks.clone(),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_on("t-buses", options, |lab, progress| {
        under_load(lab, &disks, progress)
    });
}

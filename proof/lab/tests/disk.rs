//! A guest with a disk, under load on both. Every replica has a copy of its own, and each syncvm leaves
//! the leader's and the secondary's copies equal, whichever replica dies.

use anyhow::{Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::options::{DiskImage, Options};
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_lab_proof::crash::{Moment, crash_at};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::script::{equal_slots, the_witness_is_warm};
use plover_lab_proof::storm::record::State;
use plover_lab_proof::storm::writers::{Storm, read_back};
use plover_lab_proof::{kill_leader, overlay, prove, prove_on, role, wait_for};
use plover_syncvm::Phase;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Writes of a storm to wait for, and connections that write.
const ENOUGH: u64 = 300;
const WRITERS: u64 = 4;

/// Slots to compare before a fault and after it.
const SLOTS: usize = 15;

/// As for `racey`: memory and disk are hashed whole at every sync.
const OVERLAY: &str = "
[debug]
checksum_each_sync = true
[group]
timeout_ms = 3000
";

/// Writes at many places of the disk, each time with a flush, and reads.
const LOAD: &str = "i=0; while :; do i=$((i+1)); \
    dd if=/dev/urandom of=/dev/vda bs=4k count=$((i%16+1)) seek=$((i*37%3900)) conv=notrunc,fsync; \
    dd if=/dev/vda of=/dev/null bs=64k count=8 skip=$((i%200)); done >/dev/null 2>&1 &\n";

/// Whether the last witness that was made secondary went on from a warm copy of its new leader.
fn joined_warm(lab: &Experiment, since_us: u64) -> Option<bool> {
    lab.find_event("join_opened", since_us)?.more["warm"].as_bool()
}

fn disks_under_load(lab: &mut Experiment) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    console.write_all(LOAD.as_bytes())?;
    equal_slots(lab, SLOTS)?;
    the_witness_is_warm(lab, 0)?;
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    // The witness has memory and disk, except for the last writes.
    lab.wait_until_protected_again(at)?;
    ensure!(joined_warm(lab, at) == Some(true), "it was copied anew");
    equal_slots(lab, SLOTS)?;
    // The first leader's copy of the disk is old now. It becomes warm from there.
    lab.restart(leader)?;
    the_witness_is_warm(lab, at)?;
    let (secondary, at) = lab.crash_at(&role("secondary"), &Moment::Phase(Phase::Apply))?;
    lab.wait_for_answers(at)?;
    // The witness has a copy of the dead secondary's state, not of the leader's: they are compared.
    lab.wait_until_protected_again(at)?;
    ensure!(joined_warm(lab, at) == Some(false), "nothing was compared");
    equal_slots(lab, SLOTS)?;
    lab.restart(secondary)?;
    lab.wait_until_protected()
}

/// Clients write through the guest to its disk. First the secondary dies while it applies a sync. Then
/// the leader dies, so that its copy is old. Then all die in the middle of the load. The guest boots
/// from a newer copy, which has every acknowledged write.
fn lose_all(lab: &mut Lab, progress: &Progress) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let record = dir.path().join("record");
    let storm = Storm::in_lab(lab, WRITERS, &record)?;
    storm.wait_for(ENOUGH);
    let secondary = lab.find(&role("secondary"))?;
    crash_at(lab, secondary, &Moment::Phase(Phase::Apply), progress)?;
    lab.restart(secondary, progress)?;
    storm.wait_for(storm.durable() + ENOUGH);
    let first = lab.find(&role("leader"))?;
    kill_leader(lab, progress)?;
    storm.wait_for(storm.durable() + ENOUGH);
    ensure!(!storm.has_failed(), "a writer failed with the leader");
    let all: Vec<u8> = lab.ids().collect();
    for id in all.iter().filter(|id| **id != first) {
        lab.fault(Fault::Kill, *id)?;
    }
    storm.abandon();
    for id in all {
        lab.restart(id, progress)?;
    }
    // All are back and have reported what they remember, so no operator is needed.
    ensure!(
        lab.boot_after_a_loss(progress)?,
        "the newest disks are known"
    );
    ensure!(
        lab.find(&role("leader"))? != first,
        "it booted from the old disk"
    );
    wait_for(progress, "the guest answers", || {
        Ok(lab.guest_answers(Duration::from_secs(1)))
    })?;
    read_back(lab, &State::load(&record)?)
}

/// A write is acknowledged when both guests have sent the answer, each after a flush to its own disk.
/// There may be no syncvm in between.
#[test]
fn the_newest_disk_is_booted_after_all_hosts_were_lost() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let options = Options {
        guest: Guest::Storm,
        disks: vec![image(scratch.path())],
        ..Options::default()
    };
    prove_on("t-lost", options, lose_all);
}

/// Not empty, so that the copies that start empty have to get something.
fn image(dir: &Path) -> DiskImage {
    let path = dir.join("disk.raw");
    std::fs::write(&path, vec![7; 16 << 20]).expect("a file is written");
    path.into()
}

#[test]
fn disks_survive_their_hosts() {
    let (scratch, overlay) = (tempfile::tempdir().expect("a directory"), overlay(OVERLAY));
    let options = Options {
        // Less to hash.
        mem_mib: Some(128),
        disks: vec![image(scratch.path())],
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove("t-disk", options, disks_under_load);
}

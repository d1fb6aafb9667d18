//! Disks that fail under a guest. A replica whose disk fails leaves, reports why and what to do, and
//! does not slow the others down. The guest goes on where a good copy is. A replica whose disk is mended
//! gets a copy again by itself.

use anyhow::{Context, Result, ensure};
use plover_lab::guests::Guest;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::{Fault, Lab, Target};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::freezer::Freezer;
use plover_lab_proof::script::the_leader_dies;
use plover_lab_proof::small::SmallDisk;
use plover_lab_proof::storm::writers::Storm;
use plover_lab_proof::{
    kill_leader, overlay, prove, prove_on, recover, restart_as_witness, role, wait_for,
};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const DISK_BYTES: u64 = 24 << 20;

/// In a replica's state directory.
const JOURNAL: &str = "disks";
const LOG: &str = "consensus";

/// Fills the guest's disk. With `oflag=direct` the guest does not keep the data in its memory.
const FILL: &str = "dd if=/dev/urandom of=/dev/vda bs=64k oflag=direct >/dev/null 2>&1 &\n";

/// Puts the disk of a replica that is down on another file system.
fn hold(file_system: &Path, image: &Path) -> Result<()> {
    let name = image.file_name().context("an image has a name")?;
    let here = file_system.join(name);
    std::fs::remove_file(image)?;
    std::fs::File::create(&here)?.set_len(DISK_BYTES)?;
    std::os::unix::fs::symlink(here, image)?;
    Ok(())
}

fn image_of(lab: &Lab, id: u8) -> PathBuf {
    LabDir::of(lab.name()).disk(id, 0)
}

fn type_at_leader(lab: &Experiment, line: &str) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    Ok(console.write_all(line.as_bytes())?)
}

/// Waits until the trouble that replica `id` reports contains these words.
fn wait_for_trouble(lab: &mut Experiment, id: u8, words: &str) -> Result<()> {
    let words = words.to_owned();
    lab.wait(&format!("replica {id} says '{words}'"), |lab| {
        let status = lab.lab().status();
        let said = status.replica(id).and_then(|it| it.trouble.as_deref());
        Ok(said.is_some_and(|said| said.contains(&words)))
    })
}

fn fill_one_disk(lab: &mut Experiment, small: &SmallDisk) -> Result<()> {
    // One replica's disk is on a small file system. So far it holds nothing.
    let (leader, other) = (
        lab.lab().find(&role("leader"))?,
        lab.lab().find(&role("witness"))?,
    );
    let (tight, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_until_protected_again(at)?;
    hold(small.path(), &image_of(lab.lab(), tight))?;
    lab.restart(tight)?;
    lab.wait_for_part(tight)?;
    // There is no other replica, so the leader must try this one again and again.
    let (_, at) = lab.strike(Fault::Kill, &Target::Replica(other))?;
    lab.wait_until_protected_again(at)?;

    // The secondary's disk is full.
    type_at_leader(lab, FILL)?;
    wait_for_trouble(lab, tight, "make room")?;
    lab.wait_for_answers(plover_lab::trace::now_us())?;
    ensure!(
        lab.lab().find(&role("leader"))? == leader,
        "the leader's disk was not full"
    );
    // The copy fails as well, and is tried again more rarely.
    wait_for_trouble(lab, leader, "tried again later")?;
    lab.wait_for_answers(plover_lab::trace::now_us())?;
    small.resize(64)?;
    lab.wait_until_protected()?;
    let status = lab.lab().status();
    let said = status.replica(tight).and_then(|it| it.trouble.clone());
    ensure!(said.is_none(), "it is mended and says {said:?}");
    lab.restart(other)?;
    lab.wait_for_part(other)
}

/// The leader's own disk fails: the other guest goes on.
fn lose_the_leaders_disk(lab: &mut Experiment) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    // The end of the file is gone, as under bad sectors. Reading there gives an error.
    let file = std::fs::File::options()
        .write(true)
        .open(image_of(lab.lab(), leader))?;
    let at = plover_lab::trace::now_us();
    file.set_len(DISK_BYTES / 2)?;
    type_at_leader(
        lab,
        "dd if=/dev/vda of=/dev/null bs=64k skip=300 iflag=direct >/dev/null 2>&1 &\n",
    )?;
    lab.wait_for_failover(leader, at)?;
    wait_for_trouble(lab, leader, "cannot read the disk image")?;
    lab.wait_until_protected_again(at)?;
    // It has a vote, although its disk is bad.
    let (killed, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    wait_for_trouble(lab, leader, "of the same size")?;
    file.set_len(DISK_BYTES)?;
    lab.wait_until_protected_again(at)?;
    lab.restart(killed)?;
    lab.wait_for_part(killed)
}

/// The leader's disk hangs under a write: the other guest goes on. A replica whose disk hangs says so, and
/// has a vote.
fn hang_the_leaders_disk(lab: &mut Experiment, freezer: &Freezer) -> Result<u8> {
    let (hung, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_until_protected_again(at)?;
    hold(freezer.path(), &image_of(lab.lab(), hung))?;
    recover(lab, hung)?;
    while lab.lab().find(&role("leader"))? != hung {
        the_leader_dies(lab)?;
    }
    freezer.freeze()?;
    let at = plover_lab::trace::now_us();
    type_at_leader(lab, FILL)?;
    lab.wait_for_failover(hung, at)?;
    lab.wait_until_protected_again(at)?;
    wait_for_trouble(lab, hung, "has not answered")?;
    // Nobody else is left to vote with the leader.
    let (killed, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    freezer.thaw()?;
    lab.wait_until_protected_again(at)?;
    recover(lab, killed)?;
    Ok(hung)
}

/// The disk hangs that holds the journal of a replica to which the guest is to be copied. It says so, and votes. Nothing of
/// another replica is on that disk.
fn hang_a_joiners_journal(lab: &mut Experiment, freezer: &Freezer, hung: u8) -> Result<()> {
    lab.strike(Fault::Kill, &Target::Replica(hung))?;
    lab.wait("the two others hold the guest", |lab| {
        let status = lab.lab().status();
        let others = status.replicas.iter().filter(|it| it.id != hung);
        let roles: Vec<&str> = others.map(|it| it.role.as_str()).collect();
        Ok(status.protected && roles.contains(&"leader") && roles.contains(&"secondary"))
    })?;
    let leader = lab.lab().find(&role("leader"))?;
    let state_dir = LabDir::of(lab.lab().name()).replica(hung).state_dir();
    let (journal, here) = (
        state_dir.join(JOURNAL),
        freezer.path().join(format!("{hung}-{JOURNAL}")),
    );
    std::fs::copy(&journal, &here)?;
    std::fs::remove_file(&journal)?;
    std::os::unix::fs::symlink(here, &journal)?;
    freezer.freeze()?;
    lab.restart(hung)?;
    // The journal, or the image: a syncvm that its death has interrupted is completed there first.
    wait_for_trouble(lab, hung, "not answered for")?;
    // Nobody else is left to vote with the leader.
    let (killed, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    ensure!(
        lab.lab().find(&role("leader"))? == leader,
        "the leader lost its majority"
    );
    freezer.thaw()?;
    lab.wait_until_protected_again(at)?;
    recover(lab, killed)
}

/// An empty disk, as qcow2, the most common format, if there is a tool to make one.
fn image(dir: &Path) -> PathBuf {
    let (qcow2, raw) = (dir.join("disk.qcow2"), dir.join("disk.raw"));
    let mut tool = Command::new("qemu-img");
    tool.args(["create", "-q", "-f", "qcow2"]).arg(&qcow2);
    if tool
        .arg(DISK_BYTES.to_string())
        .status()
        .is_ok_and(|done| done.success())
    {
        return qcow2;
    }
    let file = std::fs::File::create(&raw).expect("a file is made");
    file.set_len(DISK_BYTES).expect("it has a size");
    raw
}

fn with_a_disk(scratch: &Path) -> Options {
    Options {
        disks: vec![image(scratch).into()],
        ..Options::default()
    }
}

#[test]
fn a_replica_whose_disk_fails_or_hangs_leaves_and_comes_back_when_it_is_mended() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let small = SmallDisk::new(scratch.path().join("small"), 8).expect("a file system is mounted");
    let freezer = Freezer::new(scratch.path().join("freezer"), 64).expect("a file system is made");
    prove("t-faulty", with_a_disk(scratch.path()), |lab| {
        fill_one_disk(lab, &small)?;
        lose_the_leaders_disk(lab)?;
        let hung = hang_the_leaders_disk(lab, &freezer)?;
        hang_a_joiners_journal(lab, &freezer, hung)
    });
}

/// The disk hangs on which the leader keeps its log. The others commit without it, and the lead goes to one whose disk answers.
fn hang_the_leaders_log(lab: &mut Experiment, freezer: &Freezer) -> Result<()> {
    let (hung, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_until_protected_again(at)?;
    let state_dir = LabDir::of(lab.lab().name()).replica(hung).state_dir();
    let (log, here) = (state_dir.join(LOG), freezer.path().join(LOG));
    let copied = Command::new("cp").arg("-a").arg(&log).arg(&here).status()?;
    ensure!(copied.success(), "cp: {copied}");
    std::fs::remove_dir_all(&log)?;
    std::os::unix::fs::symlink(here, &log)?;
    recover(lab, hung)?;
    while lab.lab().find(&role("leader"))? != hung {
        the_leader_dies(lab)?;
    }
    // To freeze a busy file system takes seconds, and what is written meanwhile waits already.
    let at = plover_lab::trace::now_us();
    freezer.freeze()?;
    lab.wait_for_failover(hung, at)?;
    ensure!(
        lab.find_event("resigned", at).is_some(),
        "replica {hung} was deposed, and did not hand over"
    );
    lab.wait_for_answers(plover_lab::trace::now_us())?;
    freezer.thaw()?;
    lab.wait_until_protected_again(at)
}

#[test]
fn a_leader_whose_log_hangs_hands_over() {
    let (scratch, overlay) = (
        tempfile::tempdir().expect("a directory is made"),
        overlay("[group]\ndurability = \"disk\"\n"),
    );
    let freezer = Freezer::new(scratch.path().join("freezer"), 64).expect("a file system is made");
    let options = Options {
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove("t-log", options, |lab| hang_the_leaders_log(lab, &freezer));
}

/// Connections that write, and acknowledged writes to wait for.
const WRITERS: u64 = 2;
const ENOUGH: u64 = 200;

/// A storm of writes fills the leader's disk, which is smaller than the others'.
fn fill_the_leaders_disk(lab: &mut Lab, small: &SmallDisk, progress: &Progress) -> Result<()> {
    // So far there is nothing on the disks. The replica with the small one is made leader.
    let tight = kill_leader(lab, progress)?;
    hold(small.path(), &image_of(lab, tight))?;
    restart_as_witness(lab, tight, progress)?;
    while lab.find(&role("leader"))? != tight {
        let killed = kill_leader(lab, progress)?;
        restart_as_witness(lab, killed, progress)?;
    }
    let dir = tempfile::tempdir()?;
    let storm = Storm::in_lab(lab, WRITERS, &dir.path().join("record"))?;
    wait_for(progress, "the leader's disk is full", || {
        let said = lab.status().to_string();
        let full = |line: &str| {
            line.starts_with(&format!("Replica {tight}: cannot write the disk image"))
                && line.contains("make room")
        };
        Ok(said.lines().any(full))
    })?;
    let enough = storm.durable() + ENOUGH;
    wait_for(progress, "writes are acknowledged again", || {
        ensure!(!storm.has_failed(), "a writer has lost its connection");
        Ok(storm.durable() >= enough)
    })?;
    ensure!(
        lab.find(&role("leader"))? != tight,
        "its guest went on with a full disk"
    );
    wait_for(progress, "protected without it", || {
        Ok(lab.status().protected)
    })?;
    // No other replica is left to copy the guest to, so this one gets a copy as soon as there is room.
    small.resize(64)?;
    lab.fault(Fault::Kill, lab.find(&role("secondary"))?)?;
    wait_for(progress, "protected by the one that was mended", || {
        let status = lab.status();
        let mended = status.replica(tight).is_some_and(|it| it.trouble.is_none());
        Ok(status.protected && mended)
    })?;
    storm.settle(lab)
}

#[test]
fn the_other_copy_goes_on_when_the_leaders_disk_is_full() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let small = SmallDisk::new(scratch.path().join("small"), 8).expect("a file system is mounted");
    let options = Options {
        guest: Guest::Storm,
        ..with_a_disk(scratch.path())
    };
    prove_on("t-full", options, |lab, progress| {
        fill_the_leaders_disk(lab, &small, progress)
    });
}

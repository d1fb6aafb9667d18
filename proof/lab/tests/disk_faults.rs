//! Disks that fail under a guest: who has one leaves, says why and what to do, and is no burden to
//! the others; the guest goes on where a good copy is; who is mended gets a copy again by itself.

use anyhow::{Context, Result, ensure};
use plover_lab::experiment::Experiment;
use plover_lab::options::Options;
use plover_lab::state::LabDir;
use plover_lab::{Fault, Target};
use plover_lab_proof::{prove, role};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const DISK_BYTES: u64 = 24 << 20;

/// Fills the guest's disk. `oflag=direct`: the guest is not to keep it in its memory.
const FILL: &str = "dd if=/dev/urandom of=/dev/vda bs=64k oflag=direct >/dev/null 2>&1 &\n";

/// A file system in memory that is as large as the test says.
struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    fn new(at: PathBuf, mib: u32) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let this = Self { at };
        this.mount(&format!("size={mib}m"))?;
        Ok(this)
    }

    fn resize(&self, mib: u32) -> Result<()> {
        self.mount(&format!("remount,size={mib}m"))
    }

    fn mount(&self, options: &str) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]);
        let done = command.arg(&self.at).status()?;
        ensure!(done.success(), "mount -o {options} failed");
        Ok(())
    }

    /// Puts the disk of a replica that is down there.
    fn hold(&self, image: &Path) -> Result<()> {
        let name = image.file_name().context("an image has a name")?;
        let here = self.at.join(name);
        std::fs::remove_file(image)?;
        let file = std::fs::File::create(&here)?;
        file.set_len(DISK_BYTES)?;
        std::os::unix::fs::symlink(here, image)?;
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a replica may still have its disk there.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = std::fs::remove_dir(&self.at);
    }
}

fn image_of(lab: &Experiment, id: u8) -> PathBuf {
    let disks = LabDir::of(lab.lab().name()).disks();
    disks.join(format!("replica-{id}-disk-0.raw"))
}

fn type_at_leader(lab: &Experiment, line: &str) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    Ok(console.write_all(line.as_bytes())?)
}

/// Waits until replica `id` says what is wrong with it in these words.
fn wait_for_trouble(lab: &mut Experiment, id: u8, words: &str) -> Result<()> {
    let words = words.to_owned();
    lab.wait(&format!("replica {id} says '{words}'"), |lab| {
        let status = lab.lab().status();
        let said = status.replica(id).and_then(|it| it.trouble.as_deref());
        Ok(said.is_some_and(|said| said.contains(&words)))
    })
}

fn fill_one_disk(lab: &mut Experiment, small: &SmallDisk) -> Result<()> {
    // One replica's disk lies where there is little room; so far nothing is on it.
    let (leader, other) = (
        lab.lab().find(&role("leader"))?,
        lab.lab().find(&role("witness"))?,
    );
    let (tight, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_until_protected_again(at)?;
    small.hold(&image_of(lab, tight))?;
    lab.restart(tight)?;
    lab.wait_for_part(tight)?;
    // Nobody else is there, so that the leader must try this one again and again.
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
    // The copy fails as well; it is tried again more rarely.
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
    // Its end is gone, as under bad sectors; who reads there gets an error.
    let file = std::fs::File::options()
        .write(true)
        .open(image_of(lab, leader))?;
    let at = plover_lab::trace::now_us();
    file.set_len(DISK_BYTES / 2)?;
    type_at_leader(
        lab,
        "dd if=/dev/vda of=/dev/null bs=64k skip=300 iflag=direct >/dev/null 2>&1 &\n",
    )?;
    lab.wait_for_failover(leader, at)?;
    wait_for_trouble(lab, leader, "cannot read the disk image")?;
    lab.wait_until_protected_again(at)?;
    // Whatever is wrong with its disk, it has a vote.
    let (killed, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    wait_for_trouble(lab, leader, "of the same size")?;
    file.set_len(DISK_BYTES)?;
    lab.wait_until_protected_again(at)?;
    lab.restart(killed)?;
    lab.wait_for_part(killed)
}

/// An empty disk, in the format that most people have where there is a tool to make one.
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

#[test]
fn a_replica_whose_disk_fails_leaves_and_comes_back_when_it_is_mended() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let image = image(scratch.path());
    let small = SmallDisk::new(scratch.path().join("small"), 8).expect("a file system is mounted");
    let options = Options {
        disks: vec![image],
        ..Options::default()
    };
    prove("t-faulty", options, |lab| {
        fill_one_disk(lab, &small)?;
        lose_the_leaders_disk(lab)
    });
}

//! The configuration and the disks of a group change under load: a wrong file changes nothing, a right one takes effect,
//! and a disk grows while the leader is killed. Every acknowledged write is there in the end, and no connection was reset
//! (`prove`).

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::grow::grow_disk;
use plover_lab::options::{DiskImage, Options};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{converse, overlay, prove, recover, role};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const DISK_BYTES: u64 = 16 << 20;
const GROWN_BYTES: u64 = 48 << 20;
const MAX_MIB: u64 = 64;

/// How long a disk may take to grow, with a failover in between.
const GROWN_WITHIN: Duration = Duration::from_secs(60);

fn reload(lab: &Experiment, id: u8, dry_run: bool) -> Result<Value> {
    let order = json!({"op": "reload", "dry_run": dry_run});
    Ok(lab.lab().control(id).request(&order)?)
}

/// What becomes of each changed key.
fn effects(answer: &Value) -> Vec<(&str, &str)> {
    let changes = answer["changes"].as_array().into_iter().flatten();
    changes
        .filter_map(|it| Some((it["key"].as_str()?, it["effect"].as_str()?)))
        .collect()
}

/// After how many µs without work the replica takes its guest for idle.
fn idle_threshold_us(lab: &Experiment, id: u8) -> Option<u64> {
    let status = lab.lab().status();
    status.replica(id)?.more.get("idle_threshold_us")?.as_u64()
}

/// Sends SIGHUP to a replica's supervisor, which systemd knows as the service.
fn hang_up(replica: u32) -> Result<()> {
    let stat = std::fs::read_to_string(format!("/proc/{replica}/stat"))?;
    let (_, behind_name) = stat.rsplit_once(") ").context("a process has a name")?;
    let supervisor = behind_name.split(' ').nth(1).context("and a parent")?;
    let supervisor = Pid::from_raw(supervisor.parse()?).context("that lives")?;
    Ok(kill_process(supervisor, Signal::HUP)?)
}

fn the_file_is_read_again(lab: &mut Experiment) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let path = lab.lab().files(leader).config();
    let before = std::fs::read_to_string(&path)?;
    let was = idle_threshold_us(lab, leader);

    let wrong = format!("{before}\n[debug]\ntrace_synks = true\n");
    std::fs::write(&path, &wrong)?;
    let said = format!(
        "{:#}",
        reload(lab, leader, false).err().context("it is refused")?
    );
    let line = wrong.lines().count();
    for words in [
        format!("line {line}"),
        "trace_synks".into(),
        "nothing has changed".into(),
    ] {
        ensure!(said.contains(&words), "'{said}' does not say '{words}'");
    }
    ensure!(
        idle_threshold_us(lab, leader) == was,
        "a wrong file has changed something"
    );

    // In a table of its own in front: the generated file has `[policy]` already.
    let right = before
        .replace("[policy]\n", "[policy]\nidle_threshold_us = 5000\n")
        .replace("[guest]\n", "[guest]\ncpu_features = [\"-pcid\"]\n")
        .replace("[group]\n", "[group]\nwarm_witness = \"disk\"\n");
    std::fs::write(&path, right)?;
    let told = [
        ("policy.idle_threshold_us", "now"),
        ("group.warm_witness", "restart"),
        ("guest.cpu_features", "group"),
    ];
    let answer = reload(lab, leader, true)?;
    ensure!(effects(&answer) == told, "{answer}");
    ensure!(
        idle_threshold_us(lab, leader) == was,
        "a dry run has changed something"
    );
    let answer = reload(lab, leader, false)?;
    ensure!(effects(&answer) == told, "{answer}");
    // Learning makes it up to twice as short.
    let now = idle_threshold_us(lab, leader);
    ensure!(now.is_some_and(|now| now >= 2500), "{now:?} after {was:?}");
    let answer = reload(lab, leader, false)?;
    ensure!(effects(&answer) == told[1..], "{answer}");

    // By a signal, as to any daemon: a wrong file changes nothing, and the right one of before is taken.
    let process = lab.lab().control(leader).status()?.plover_pid;
    std::fs::write(&path, &wrong)?;
    hang_up(process)?;
    lab.wait("the log says that the wrong file is refused", |lab| {
        let order = json!({"op": "logs", "last": 50});
        let said = lab.lab().control(leader).request(&order)?;
        Ok(said.to_string().contains("trace_synks"))
    })?;
    std::fs::write(&path, before)?;
    hang_up(process)?;
    lab.wait("the file is read again", |lab| {
        Ok(reload(lab, leader, true)?["changes"] == json!([]))
    })
}

/// The size of the first disk as the guest sees it.
fn seen_bytes(lab: &Experiment) -> Result<u64> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    let said = converse(
        &mut console,
        "echo sec''tors $(cat /sys/block/vda/size) e''nd",
        " end",
    )?;
    let words = said.rsplit("sectors ").next().context("it says a size")?;
    let sectors: u64 = words.split_whitespace().next().context("a size")?.parse()?;
    Ok(sectors * 512)
}

/// Writes to the end of the disk, and reads it back past the guest's memory.
const USE_THE_ROOM: &str = "dd if=/dev/urandom of=/tmp/r bs=4k count=64 2>/dev/null; \
    dd if=/tmp/r of=/dev/vda bs=4k seek=12000 oflag=direct 2>/dev/null; \
    dd if=/dev/vda of=/tmp/s bs=4k skip=12000 count=64 iflag=direct 2>/dev/null; \
    cmp /tmp/r /tmp/s && echo ro''om is used";

fn a_disk_grows(lab: &mut Experiment) -> Result<()> {
    ensure!(seen_bytes(lab)? == DISK_BYTES);
    let witness = lab.lab().find(&role("witness"))?;
    let control = lab.lab().control(witness);
    let refused = |bytes: u64, words: &str| -> Result<()> {
        let result = grow_disk(&control, 0, bytes, GROWN_WITHIN, |_| {});
        let said = format!("{:#}", result.err().context("it is refused")?);
        ensure!(said.contains(words), "'{said}' does not say '{words}'");
        Ok(())
    };
    refused(DISK_BYTES / 2, "no disk is made smaller")?;
    refused((MAX_MIB + 1) << 20, "disk.max_size_mib")?;

    // The leader dies in the middle: as soon as its own image has grown.
    let leader = lab.lab().find(&role("leader"))?;
    let order = json!({"op": "disk_grow", "disk": 0, "bytes": GROWN_BYTES});
    control.request(&order)?;
    let (_, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    ensure!(
        seen_bytes(lab)? == DISK_BYTES,
        "the guest knows of room that it was not told of"
    );
    // It comes back with an image of the new size, or of the old one.
    recover(lab, leader)?;

    let mut said = Vec::new();
    grow_disk(&control, 0, GROWN_BYTES, GROWN_WITHIN, |words| {
        said.push(words.to_owned())
    })?;
    ensure!(
        said.last()
            .is_some_and(|last| last.contains("tells the guest")),
        "{said:?}"
    );
    ensure!(seen_bytes(lab)? == GROWN_BYTES);
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    converse(&mut console, USE_THE_ROOM, "room is used")?;
    drop(console);

    // The next leader's guest has it, too.
    let (_, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    ensure!(seen_bytes(lab)? == GROWN_BYTES);
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    let compare = "dd if=/dev/vda of=/tmp/s bs=4k skip=12000 count=64 iflag=direct 2>/dev/null; \
        cmp /tmp/r /tmp/s && echo st''ill there";
    converse(&mut console, compare, "still there")?;
    Ok(())
}

fn image(dir: &Path) -> DiskImage {
    let path = dir.join("disk.raw");
    std::fs::write(&path, vec![7; DISK_BYTES as usize]).expect("a file is written");
    DiskImage {
        max_size_mib: Some(MAX_MIB),
        ..path.into()
    }
}

#[test]
fn the_configuration_changes_and_a_disk_grows() {
    let (scratch, overlay) = (
        tempfile::tempdir().expect("a directory"),
        overlay("[group]\ntimeout_ms = 500\n"),
    );
    let options = Options {
        mem_mib: Some(128),
        disks: vec![image(scratch.path())],
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove("t-change", options, |lab| {
        lab.wait_until_protected()?;
        the_file_is_read_again(lab)?;
        a_disk_grows(lab)
    });
}

//! The disk under a leader's own state fills up. The leader can promise nothing any more, so it ends
//! with a sentence that says why. Another replica takes over, and the first comes back when there is
//! room.

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::load::Pressure;
use plover_lab_proof::small::SmallDisk;
use plover_lab_proof::{overlay, prove_under, role};
use std::process::{Child, Command, Stdio};

/// The log is on disk, in segments of 16 MiB.
const OVERLAY: &str = "
[group]
durability = \"disk\"
timeout_ms = 1000
";

/// Room for the first segment but not for the next, and room for as many as a replica needs.
const ONE_SEGMENT_MIB: u32 = 24;
const ENOUGH_MIB: u32 = 128;

/// The usual load fills the first segment in a minute, on a slow machine before the replica leads. This
/// load takes a quarter of an hour.
const PRESSURE: Pressure = Pressure {
    connections: 10,
    writes_per_second: 5,
};

/// Fills the log, which holds the guest's inputs.
struct Traffic(Child);

impl Traffic {
    fn start(lab: &Experiment) -> Result<Self> {
        let mut command = Command::new("redis-benchmark");
        let address = lab.lab().service().ip().to_string();
        command.args(["-h", &address, "-q", "-t", "set", "-c", "4"]);
        command.args(["-d", "16384", "-n", "10000000"]);
        let mut command = lab.lab().topology().client().exec_in(command)?;
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Self(child.context("cannot run redis-benchmark")?))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn next_leader(lab: &mut Experiment) -> Result<u8> {
    let (killed, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(killed, at)?;
    lab.wait_until_protected_again(at)?;
    Ok(killed)
}

fn fill_the_leaders_state(lab: &mut Experiment, small: &SmallDisk) -> Result<()> {
    // A replica that has lost its state gets what it needs from the others.
    let tight = next_leader(lab)?;
    let state_dir = lab.lab().files(tight).state_dir();
    std::fs::remove_dir_all(&state_dir)?;
    std::os::unix::fs::symlink(small.path(), &state_dir)?;
    lab.restart(tight)?;
    while lab.lab().find(&role("leader"))? != tight {
        let killed = next_leader(lab)?;
        lab.restart(killed)?;
    }
    lab.wait_until_protected()?;

    let (traffic, at) = (Traffic::start(lab)?, now_us());
    lab.wait("the leader has ended", |lab| {
        let status = lab.lab().status();
        Ok(status.replica(tight).is_some_and(|it| it.role == "down"))
    })?;
    lab.wait_for_failover(tight, at)?;
    drop(traffic);
    let status = lab.lab().status();
    let said = status.replica(tight).and_then(|it| it.trouble.clone());
    let said = said.context("the status does not say why it ended")?;
    lab.progress().say(said.clone());
    for words in [
        state_dir.to_str().context("the path is text")?,
        "No space left on device",
        "KiB are left",
        "free space, then restart the replica",
    ] {
        ensure!(said.contains(words), "no '{words}' in: {said}");
    }

    small.resize(ENOUGH_MIB)?;
    lab.restart(tight)?;
    lab.wait_until_protected()?;
    // It counts for a majority again: without it there would be none now.
    next_leader(lab).map(|_| ())
}

#[test]
fn a_leader_whose_state_has_no_room_gives_way() {
    let scratch = tempfile::tempdir().expect("a directory is made");
    let at = scratch.path().join("small");
    let small = SmallDisk::new(at, ONE_SEGMENT_MIB).expect("a file system is mounted");
    let overlay = overlay(OVERLAY);
    let options = Options {
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove_under(PRESSURE, "t-state", options, |lab| {
        fill_the_leaders_state(lab, &small)
    });
}

//! Tests on real replicas: the distribution's QEMU, a Linux guest with a service, three daemons in
//! network namespaces, and faults. They need root and what a lab needs.
//!
//! Three clients judge from outside which writes a guest has acknowledged: the lab's own for Redis
//! ([`Experiment`]), a storm of writes for disks ([`storm`]), and `pgbench` ([`pgbench`]).
//!
//! A real lab keeps every processor busy, so there is one at a time ([`Turn`]), however the tests are
//! run. No test asserts a time. A test waits for what must happen, and fails if it does not happen at
//! all.
//!
//! ```text
//!   prove: wait for the turn ─▶ lab up, load, capture ─▶ script of faults ─▶ lab down
//!                                                                               │
//!   every acknowledged write is there, no connection was reset, one sender  ◀───┘
//! ```
//!
//! A test is a script of faults under [`prove`], which is compiled here but not run:
//!
//! ```
//! use plover_lab::options::Options;
//! use plover_lab_proof::{prove, script};
//!
//! fn the_witness_and_then_the_leader_die() {
//!     prove("t-example", Options::default(), |lab| {
//!         script::the_witness_dies(lab)?;
//!         script::the_leader_dies(lab)
//!     });
//! }
//! ```
//!
//! One of the judges, [`senders`], on a capture made by hand. Replica 0 sends once more after replica 1 has
//! begun to serve:
//!
//! ```
//! use plover_lab::trace::TraceEvent;
//! use plover_lab_proof::capture::Captured;
//! use plover_lab_proof::senders::Senders;
//!
//! let captured = Captured { senders: vec![0, 0, 1, 0], lost: 0 };
//! let began = |replica| TraceEvent {
//!     mono_us: 0,
//!     replica,
//!     what: "serving".into(),
//!     more: Default::default(),
//! };
//! let judged = Senders::judge(&captured, &[began(0), began(1)]);
//! assert_eq!(judged.out_of_turn, 1);
//! assert!(!judged.is_proof());
//! ```

pub mod beside;
pub mod capture;
pub mod chaos;
pub mod cluster;
pub mod crash;
pub mod crowd;
pub mod demo;
pub mod drill;
pub mod experiment;
pub mod filesystem;
pub mod freezer;
pub mod load;
pub mod pgbench;
pub mod programs;
pub mod redis;
pub mod script;
pub mod senders;
pub mod served;
pub mod small;
pub mod storm;

use crate::experiment::{Experiment, Verdict};
use crate::load::Pressure;
use anyhow::{Context, Result, bail, ensure};
use plover_lab::options::Options;
use plover_lab::prerequisites::Missing;
use plover_lab::progress::{Progress, interruption};
use plover_lab::trace::{TraceEvent, now_us};
use plover_lab::up::is_interruption;
use plover_lab::{Fault, Lab, Target};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Output};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// One lab at a time on this machine: held while a test, a bench or the demo runs one. The names of labs are the
/// machine's, so the file that it locks is the machine's, too. The lock is the kernel's, so it holds between processes
/// and ends with them.
#[derive(Debug)]
pub struct Turn {
    _file: File,
}

/// The file of [`Turn`]. Only root, who runs the labs, can lock it.
const TURN: &str = "/run/plover-turn.lock";

impl Turn {
    /// Waits for the lock. Another user than root runs no lab, and locks a file of this source tree.
    pub fn wait() -> Self {
        Self::take(|| ())
    }

    /// The same, and tells a person that it waits.
    pub fn wait_aloud() -> Self {
        Self::take(|| {
            let _ = writeln!(
                std::io::stderr(),
                "a test, a bench or a demo runs its lab on this machine: waiting until it ends"
            );
        })
    }

    fn take(waits: impl FnOnce()) -> Self {
        let path = match rustix::process::geteuid().is_root() {
            true => TURN,
            false => concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(path == TURN).create(path == TURN);
        let file = options.truncate(false).mode(0o600).open(path);
        let file = file.unwrap_or_else(|error| panic!("cannot open {path}: {error}"));
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            waits();
            flock(&file, FlockOperation::LockExclusive).expect("a file can be locked");
        }
        Self { _file: file }
    }
}

/// Waits for the end of a process. One that has not ended within `limit` is killed.
///
/// # Errors
/// It was killed, or cannot be waited for.
pub fn wait_within(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!(
                "process {} did not end within {} s and was killed",
                child.id(),
                limit.as_secs()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The exit code of a program whose run ended so; `Ok(false)` is a failure that was reported. An error is printed,
/// after the program's name.
pub fn exit_code(name: &str, ended: anyhow::Result<bool>) -> ExitCode {
    let error = match ended {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::FAILURE,
        Err(error) => error,
    };
    let _ = writeln!(std::io::stderr(), "{name}: {error:#}");
    if is_interruption(&error) {
        ExitCode::from(130)
    } else if error.is::<Missing>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// The `plover` program under test: `$PLOVER_BIN`, or the one that this workspace builds now.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(given) = std::env::var_os("PLOVER_BIN") {
            return given.into();
        }
        // Cargo builds a package's program for that package's own tests only.
        let release = if cfg!(debug_assertions) {
            &[][..]
        } else {
            &["--release"]
        };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "plover"])
            .args(release)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "plover does not build"
        );
        // A program runs as target/PROFILE/NAME, a test as target/PROFILE/deps/NAME-HASH.
        let me = std::env::current_exe().expect("a running program has a path");
        let folder = me.parent().expect("a program lies in a folder");
        match folder.parent() {
            Some(profile) if folder.ends_with("deps") => profile.join("plover"),
            _ => folder.join("plover"),
        }
    })
}

/// Runs the `plover` command and returns its output.
pub fn plover(arguments: &[&str]) -> Output {
    Command::new(program())
        .args(arguments)
        .output()
        .expect("plover starts")
}

/// How long replicas may take to settle after a fault, on a busy machine. A full copy of a large guest
/// takes minutes.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// How much of each replica's log a failed test prints.
const LAST_LINES: usize = 30;

/// How often a wait checks its condition.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The progress of a test, on the error output, which a passing test hides. Ctrl-C ends all tests of this program that wait
/// for something, so that their labs are taken down.
pub fn progress() -> Progress {
    static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let interrupted = INTERRUPTED.get_or_init(|| interruption().expect("signals can be watched"));
    Progress::spoken_by(|line| eprintln!("{line}"), Arc::clone(interrupted))
}

/// Prepares a lab: gives it its name and program, and removes an older one.
fn ready(name: &str, options: Options) -> Result<(Options, Progress)> {
    let progress = progress();
    progress.check()?;
    let options = Options {
        name: name.parse().map_err(anyhow::Error::msg)?,
        program: Some(program().to_owned()),
        ..options
    };
    // A test that was killed may have left a lab.
    plover_lab::down::down(&options.name)?;
    Ok((options, progress))
}

/// A lab under load.
fn experiment(pressure: Pressure, name: &str, options: Options) -> Result<Experiment> {
    let (options, progress) = ready(name, options)?;
    Experiment::begin(&options, pressure, &progress)
}

/// The replica that has this role.
pub fn role(name: &str) -> Target {
    Target::Role(name.into())
}

/// Starts a replica again, and waits until it takes part, two replicas hold the guest, and every client
/// is served by these two.
pub fn recover(lab: &mut Experiment, id: u8) -> Result<()> {
    lab.restart(id)?;
    lab.wait_until_protected()?;
    lab.wait_for_answers(now_us())
}

/// Runs `work` on a new lab while no other test has one, and takes the lab down.
pub fn with_lab<T>(
    name: &str,
    options: Options,
    work: impl FnOnce(&mut Lab, &Progress) -> Result<T>,
) -> Result<T> {
    let _turn = Turn::wait();
    let (options, progress) = ready(name, options)?;
    let mut lab = Lab::up(&options, &progress)?;
    let result = work(&mut lab, &progress);
    if result.is_err() {
        // The lab, with its logs, is taken down next.
        for id in lab.ids() {
            progress.say(lab.last_log(id, "is taken down", LAST_LINES));
        }
    }
    lab.down()?;
    result
}

/// As [`with_lab`], and asserts that the work succeeds.
pub fn prove_on(
    name: &str,
    options: Options,
    work: impl FnOnce(&mut Lab, &Progress) -> Result<()>,
) {
    with_lab(name, options, work).unwrap_or_else(|error| panic!("{error:#}"));
}

/// A file of keys for every replica's configuration (`Options::overlay`).
pub fn overlay(keys: &str) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().expect("a file is made");
    file.write_all(keys.as_bytes()).expect("a file is written");
    file.into_temp_path()
}

/// Kills the leader of a lab that is protected, and waits until the guest is protected under another
/// leader. Returns the id of the dead one.
pub fn kill_leader(lab: &Lab, progress: &Progress) -> Result<u8> {
    let mut traces = lab.traces();
    traces.take();
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    let leader = lab.find(&role("leader"))?;
    lab.fault(Fault::Kill, leader)?;
    progress.say(format!("replica {leader}: killed"));
    lab.wait_until_settled(&mut traces, progress, PATIENCE)?;
    let now = lab.find(&role("leader"))?;
    ensure!(now != leader, "replica {leader} still leads");
    Ok(leader)
}

/// Starts a replica again, and waits until it is witness and has its vote: without it, the next loss
/// would be one too many.
pub fn restart_as_witness(lab: &mut Lab, id: u8, progress: &Progress) -> Result<()> {
    lab.restart(id, progress)?;
    progress.say(format!("replica {id}: started again"));
    wait_for(progress, &format!("replica {id} is witness"), || {
        let status = lab.status();
        Ok(status.replica(id).is_some_and(|it| it.role == "witness"))
    })
}

/// Types a line on the console of the leader's guest, where a shell listens, and returns the output up
/// to `end`. The console echoes the line first, so the line must not contain `end`.
pub fn ask_guest(lab: &Lab, line: &str, end: &str) -> Result<String> {
    let mut console = lab.control(lab.find(&role("leader"))?).console()?;
    converse(&mut console, line, end)
}

/// The same on an open console.
pub fn converse(console: &mut UnixStream, line: &str, end: &str) -> Result<String> {
    console.set_read_timeout(Some(PATIENCE))?;
    console.write_all(format!("{line}\n").as_bytes())?;
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.contains(end) {
        let count = console
            .read(&mut buffer)
            .with_context(|| format!("the console is silent after {text:?}"))?;
        ensure!(count > 0, "the console has ended after {text:?}");
        text += &String::from_utf8_lossy(&buffer[..count]);
    }
    Ok(text)
}

/// Waits until something holds.
pub fn wait_for(
    progress: &Progress,
    what: &str,
    mut holds: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure!(
            Instant::now() < deadline,
            "after {} s still not: {what}",
            PATIENCE.as_secs()
        );
        progress.sleep(LOOK_EVERY)?;
    }
    Ok(())
}

/// Runs a script of faults on a lab of its own, and asserts what must hold after any faults: no
/// acknowledged write lost, no connection reset, never two replicas sending as the guest.
pub fn prove(name: &str, options: Options, script: impl FnOnce(&mut Experiment) -> Result<()>) {
    prove_under(Pressure::default(), name, options, script);
}

/// As [`prove`], under another load.
pub fn prove_under(
    pressure: Pressure,
    name: &str,
    options: Options,
    script: impl FnOnce(&mut Experiment) -> Result<()>,
) {
    let _turn = Turn::wait();
    let run = || -> Result<Verdict> {
        let mut experiment = experiment(pressure, name, options)?;
        script(&mut experiment).inspect_err(|_| {
            experiment.keep_evidence();
        })?;
        experiment.finish()
    };
    match run() {
        Ok(verdict) => assert!(
            verdict.is_good(),
            "{:#?}\n{:#?}",
            verdict.audit,
            verdict.senders
        ),
        Err(error) => panic!("{error:#}"),
    }
}

/// Checks that every syncvm which both sides hashed left memory and disks equal. Returns how many these
/// are.
///
/// # Errors
/// Those that did not.
pub fn equal_syncs(events: &[TraceEvent]) -> Result<usize> {
    let mut syncs = checksums(events);
    let count = syncs.len();
    syncs.retain(|_, sides| sides.values().min() != sides.values().max());
    ensure!(
        syncs.is_empty(),
        "of {count} syncs, these left a difference: {syncs:?}"
    );
    Ok(count)
}

/// Memory and disks at each syncvm that both sides hashed (`debug.checksum_each_sync`), by number.
fn checksums(events: &[TraceEvent]) -> BTreeMap<u64, BTreeMap<u8, String>> {
    let mut found: BTreeMap<u64, BTreeMap<u8, String>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.what == "checksum") {
        if let (Some(sync), Some(memory)) = (event.number("sync"), event.text("memory")) {
            found
                .entry(sync)
                .or_default()
                .insert(event.replica, memory.into());
        }
    }
    found.retain(|_, sides| sides.len() == 2);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_end_is_killed() {
        let start = |words: &str| {
            let child = Command::new("sh").args(["-c", words]).spawn();
            child.expect("sh starts")
        };
        let ended = wait_within(&mut start("exit 3"), PATIENCE).expect("it ends by itself");
        assert_eq!(ended.code(), Some(3));
        let mut goes_on = start("exec sleep 600");
        let error = wait_within(&mut goes_on, Duration::ZERO).expect_err("it goes on");
        assert!(error.to_string().contains("was killed"), "{error}");
        assert!(goes_on.try_wait().expect("it is known").is_some());
    }
}

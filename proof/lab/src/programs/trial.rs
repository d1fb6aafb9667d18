//! Faults under load, one after the other, and then the audit.
//!
//! ```text
//!   up ─► clients write ─► fault ─► another replica serves ─► mended, back in step ─► next fault … ─► audit ─► down
//! ```

use super::group::{Group, LISTEN, REPLICAS, WITHIN};
use super::load::{Shared, Written, read_all, register};
use super::report::{Gap, Report};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use plover_lab::progress::Progress;
use plover_register_proof::check::Judge;
use plover_register_proof::history::Key;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const WRITERS: usize = 4;
const REGISTER_CLIENTS: usize = 3;

/// The silence that a fault causes begins so soon after it.
const GAP_WITHIN: Duration = Duration::from_millis(500);
/// How long an answer may take in the audit.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the group runs undisturbed between two faults.
const CALM: Duration = Duration::from_secs(2);
/// How long a fault lasts after another replica serves, or after it was done to a follower.
const BROKEN_FOR: Duration = Duration::from_secs(2);

/// A fault of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All processes on its host are killed, and nothing leaves it: its kernel, which lives on here, would tell clients.
    KillHost,
    /// The process of the replica is killed.
    KillProcess,
    /// The program is killed.
    KillProgram,
    /// All processes on its host are stopped, and go on later.
    Stop,
    /// Its host's cables are pulled, and plugged in later.
    Cut,
}

/// The replica that it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that serves clients.
    Leader,
    /// Another one.
    Follower,
}

/// The faults of a trial, in their order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The faults.
    pub faults: Vec<(Fault, Role)>,
    /// Lines that are added to `[group]`.
    pub keys: String,
    /// Lines that are added to `[program]`.
    pub program_keys: String,
}

impl Plan {
    /// The demonstration: a leader's host dies, and the next leader's process.
    pub fn demo() -> Self {
        Self::of(vec![
            (Fault::KillHost, Role::Leader),
            (Fault::KillProcess, Role::Leader),
        ])
    }

    /// Every fault of leaders and followers.
    pub fn faults() -> Self {
        let faults = [
            Fault::KillHost,
            Fault::KillProcess,
            Fault::KillProgram,
            Fault::Stop,
            Fault::Cut,
        ];
        let roles = [Role::Leader, Role::Follower];
        Self::of(
            faults
                .into_iter()
                .flat_map(|fault| roles.map(|role| (fault, role)))
                .collect(),
        )
    }

    /// So many leaders are killed: hosts and processes in turn.
    pub fn kills(count: usize) -> Self {
        let fault = |number| [Fault::KillHost, Fault::KillProcess][number % 2];
        Self::of(
            (0..count)
                .map(|number| (fault(number), Role::Leader))
                .collect(),
        )
    }

    /// These faults.
    pub fn of(faults: Vec<(Fault, Role)>) -> Self {
        Self {
            faults,
            keys: String::new(),
            program_keys: String::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillHost => "its host is dead",
            Self::KillProcess => "its process is dead",
            Self::KillProgram => "its program is dead",
            Self::Stop => "its host stands still",
            Self::Cut => "its host is cut off",
        })
    }
}

/// Runs `subject` under `plan`.
///
/// # Errors
/// The group does not come up, does not recover from a fault, or leaves something behind.
pub fn run(
    name: &str,
    program: &Path,
    subject: &'static dyn Subject,
    plan: &Plan,
    progress: &Progress,
) -> Result<Report> {
    let mut group = Group::up(name, REPLICAS, program, subject, plan)?;
    progress.say(format!(
        "three hosts run {} under plover run",
        subject.name()
    ));
    let report = undergo(&mut group, plan, progress);
    let report = report.with_context(|| group.last_words())?;
    group.down()?;
    progress.say("all replicas have ended, and left nothing");
    Ok(report)
}

/// The load, the faults and the audit.
fn undergo(group: &mut Group, plan: &Plan, progress: &Progress) -> Result<Report> {
    let subject = group.subject();
    group.wait_for("all programs run", progress, Group::is_whole)?;
    say_who_serves(group, progress)?;
    let shared = Shared::new(subject, group.files());
    let mut done = Vec::new();
    let written = std::thread::scope(|threads| -> Result<Vec<Written>> {
        let (client, shared) = (group.topology().client(), &shared);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let client = client.clone();
                threads.spawn(move || client.run(|| Ok(shared.write(writer))))
            })
            .collect();
        let registers = if subject.replaces() {
            REGISTER_CLIENTS
        } else {
            0
        };
        for _ in 0..registers {
            let client = client.clone();
            threads.spawn(move || client.run(|| shared.use_register()));
        }
        let result = faults(group, plan, progress, &mut done);
        shared.stop.store(true, Ordering::SeqCst);
        let written: Result<Vec<Written>> = writers
            .into_iter()
            .map(|it| it.join().expect("a writer"))
            .collect();
        result.and(written)
    })?;
    audit(group, shared, &written, &done, progress)
}

fn say_who_serves(group: &Group, progress: &Progress) -> Result<usize> {
    let leader = leader(group, progress)?;
    progress.say(format!("replica {leader} serves clients at {LISTEN}"));
    Ok(leader)
}

/// The replica that serves, once there is one: a busy host may lose its lead at any time.
fn leader(group: &Group, progress: &Progress) -> Result<usize> {
    loop {
        group.wait_for("a replica serves", progress, |group| {
            group.leader().is_some()
        })?;
        if let Some(leader) = group.leader() {
            return Ok(leader);
        }
    }
}

/// All faults, one after the other.
fn faults(
    group: &mut Group,
    plan: &Plan,
    progress: &Progress,
    done: &mut Vec<(String, Instant)>,
) -> Result<()> {
    for (fault, role) in &plan.faults {
        progress.sleep(CALM)?;
        let leader = leader(group, progress)?;
        let id = match role {
            Role::Leader => leader,
            Role::Follower => (leader + 1 + done.len() % (REPLICAS - 1)) % REPLICAS,
        };
        let text = format!("replica {id}, {role:?}: {fault}").to_lowercase();
        done.push((text.clone(), Instant::now()));
        break_it(group, id, *fault)?;
        progress.say(text);
        // A program that dies is started again at once, and its replica may lead again.
        if *role == Role::Leader && *fault != Fault::KillProgram {
            group.wait_for("another replica serves", progress, |group| {
                (0..REPLICAS).any(|other| {
                    other != id && group.status(other).is_some_and(|it| it["serves"] == true)
                })
            })?;
        }
        progress.sleep(BROKEN_FOR)?;
        mend(group, id, *fault)?;
        group.wait_for("the replica follows again", progress, |group| {
            group
                .status(id)
                .is_some_and(|it| matches!(it["phase"].as_str(), Some("following" | "leading")))
        })?;
        group.wait_for("one replica serves", progress, |group| {
            (0..REPLICAS)
                .filter(|id| group.status(*id).is_some_and(|it| it["serves"] == true))
                .count()
                == 1
        })?;
        say_who_serves(group, progress)?;
    }
    progress.sleep(CALM)?;
    Ok(())
}

fn break_it(group: &mut Group, id: usize, fault: Fault) -> Result<()> {
    match fault {
        Fault::KillHost => {
            group.cables(id, "down")?;
            group.kill(id)
        }
        Fault::KillProcess => group.crash(id),
        Fault::KillProgram => {
            // It may have been ended for a checkpoint just now.
            let deadline = Instant::now() + WITHIN;
            loop {
                let status = group.status(id).context("it has no status")?;
                let pid = status["program_pid"].as_u64();
                let processes = group.processes(id);
                let program = processes.iter().find(|it| Some(it.pid.into()) == pid);
                if program.is_some_and(|it| it.signal(Signal::KILL)) {
                    return Ok(());
                }
                ensure!(Instant::now() < deadline, "no program runs: {status}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Fault::Stop => {
            group.signal(id, Signal::STOP);
            Ok(())
        }
        Fault::Cut => group.cables(id, "down"),
    }
}

fn mend(group: &mut Group, id: usize, fault: Fault) -> Result<()> {
    match fault {
        Fault::KillHost => {
            group.cables(id, "up")?;
            group.start(id)
        }
        Fault::KillProcess => group.start(id),
        Fault::KillProgram => Ok(()),
        Fault::Stop => {
            group.signal(id, Signal::CONT);
            Ok(())
        }
        Fault::Cut => group.cables(id, "up"),
    }
}

fn audit(
    group: &Group,
    shared: Shared,
    written: &[Written],
    done: &[(String, Instant)],
    progress: &Progress,
) -> Result<Report> {
    group.wait_for("all programs are up to date", progress, Group::is_whole)?;
    let subject = group.subject();
    let (keys, values): (Vec<String>, Vec<String>) = written
        .iter()
        .flat_map(|it| it.acknowledged.iter().cloned())
        .unzip();
    let open = || subject.open(group.files(), LISTEN, PATIENCE);
    let read = group.as_client(|| read_all(open, &keys, subject.keys_at_once()))?;
    let same = |(read, value): &(&Option<String>, &String)| read.as_ref() == Some(*value);
    let lost = values.len() - read.iter().zip(&values).filter(same).count();
    let history = shared
        .history
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let mut wrong: Vec<String> = written.iter().flat_map(|it| it.wrong.clone()).collect();
    let of_registers = shared.wrong.into_inner();
    wrong.extend(of_registers.unwrap_or_else(PoisonError::into_inner));
    let registers: BTreeSet<Key> = history.iter().map(|it| it.key).collect();
    let mut all: Vec<String> = keys;
    all.extend(written.iter().flat_map(|it| it.open.iter().cloned()));
    all.extend(registers.iter().map(|key| register(*key)));
    let differing = differing(group, &all, progress)?;
    let judged = Judge::whole(&history);
    let mut answered: Vec<Instant> = written.iter().flat_map(|it| it.answered.clone()).collect();
    answered.sort_unstable();
    let mut notes = BTreeSet::new();
    for id in 0..REPLICAS {
        let status = group.status(id).unwrap_or_default();
        let texts = status["notes"].as_array().cloned().unwrap_or_default();
        notes.extend(
            texts
                .iter()
                .filter_map(|it| Some(format!("replica {id}: {}", it.as_str()?))),
        );
    }
    Ok(Report {
        program: subject.name(),
        acknowledged: values.len(),
        lost,
        wrong,
        connections: written.iter().map(|it| it.connections).sum(),
        gaps: done
            .iter()
            .map(|(fault, at)| Gap {
                fault: fault.clone(),
                ms: gap(&answered, *at),
            })
            .collect(),
        operations: subject
            .replaces()
            .then(|| history.iter().filter(|it| it.answer.is_some()).count()),
        violation: judged.err().map(|it| it.to_string()),
        differing,
        notes: notes.into_iter().collect(),
    })
}

/// The longest silence around an instant: some answers were on their way when a leader died.
fn gap(answered: &[Instant], at: Instant) -> u64 {
    let around = answered
        .windows(2)
        .filter(|pair| pair[1] > at && pair[0] < at + GAP_WITHIN);
    let longest = around.map(|pair| pair[1] - pair[0]).max().unwrap_or(WITHIN);
    longest.as_millis() as u64
}

/// The keys whose values differ between the programs, each asked on its own host and not through the log.
fn differing(group: &Group, keys: &[String], progress: &Progress) -> Result<Vec<String>> {
    group.wait_for("all programs are up to date", progress, Group::is_whole)?;
    let mut all = Vec::new();
    for id in 0..REPLICAS {
        let own = SocketAddrV4::new(group.subject().address(id), group.subject().port());
        let open = || group.subject().open(group.files(), own, PATIENCE);
        let host = group.topology().replica(id);
        all.push(host.run(|| read_all(open, keys, group.subject().keys_at_once()))?);
    }
    let differs = |at: &usize| all.iter().any(|values| values[*at] != all[0][*at]);
    Ok((0..keys.len())
        .filter(differs)
        .map(|at| keys[at].clone())
        .collect())
}

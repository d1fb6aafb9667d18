//! An unmodified Redis under `plover run` on three hosts: clients write, leaders die, and every acknowledged write
//! is read back.
//!
//! Clients connect to one address, and again when their connection is lost. A write whose answer did not come may
//! have been executed or not, and proves nothing; its key is never used again.

use crate::redis::Connection;
use anyhow::{Context, Result, bail, ensure};
use plover_lab::net::{GUEST_IP, PREFIX, Topology, replica_ip};
use plover_lab::process::{self, Process};
use plover_lab::progress::Progress;
use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const REPLICAS: usize = 3;
/// Where clients connect, and where each program listens on its host.
const LISTEN: SocketAddrV4 = SocketAddrV4::new(GUEST_IP, 6379);
const PORT: u16 = 6380;
const WRITERS: usize = 4;

/// A client that waits longer for an answer connects anew.
const PATIENCE: Duration = Duration::from_millis(1000);
/// The silence that a death causes begins so soon after it.
const GAP_WITHIN: Duration = Duration::from_millis(500);
/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(120);

/// Three hosts with a replica each.
#[derive(Debug)]
pub struct Group {
    topology: Topology,
    dir: tempfile::TempDir,
    program: PathBuf,
    replicas: Vec<Option<Child>>,
}

impl Group {
    /// Makes the hosts, and starts a replica on each. `keys` are added to `[program]`.
    pub fn up(name: &str, program: &Path, keys: &str) -> Result<Self> {
        Topology::remove(name)?;
        let topology = Topology::create(name, REPLICAS)?;
        let mut group = Self {
            topology,
            dir: tempfile::tempdir()?,
            program: program.into(),
            replicas: (0..REPLICAS).map(|_| None).collect(),
        };
        for id in 0..REPLICAS {
            let own = Ipv4Addr::new(10, 77, 0, 10 + id as u8);
            let address = format!("{own}/{PREFIX}");
            let added = group.on(id, "ip", &["addr", "add", &address, "dev", "br0"])?;
            ensure!(added.status.success(), "{added:?}");
            std::fs::write(group.config(id), group.configuration(id, keys))?;
            group.start(id)?;
        }
        Ok(group)
    }

    fn config(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("group-{id}.toml"))
    }

    fn run_dir(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("run-{id}"))
    }

    fn configuration(&self, id: usize, keys: &str) -> String {
        let replica = |id| format!("{{ id = {id}, address = \"{}:7700\" }}", replica_ip(id));
        let replicas: Vec<String> = (0..REPLICAS).map(replica).collect();
        format!(
            "[group]\nname = \"redis\"\nme = {id}\nlog_mib = 2\nheartbeat_ms = 50\ntimeout_ms = 500\nreplica = [{}]\n\
             [program]\nlisten = \"{LISTEN}\"\ndevice = \"br0\"\nport = {PORT}\n{keys}\n\
             [paths]\nstate_dir = \"{}\"\nrun_dir = \"{}\"\n",
            replicas.join(", "),
            self.dir.path().join(format!("state-{id}")).display(),
            self.run_dir(id).display(),
        )
    }

    /// Runs a command on a replica's host.
    pub fn on(&self, id: usize, name: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::null());
        let mut command = self.topology.replica(id).exec_in(command)?;
        command
            .output()
            .with_context(|| format!("cannot run {name}"))
    }

    /// Starts a replica.
    pub fn start(&mut self, id: usize) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log(id))?;
        let mut command = Command::new(&self.program);
        command
            .args(["run", "--config"])
            .arg(self.config(id))
            .arg("--");
        command.args(["redis-server", "--port", &PORT.to_string(), "--save", ""]);
        // A preloaded Redis sees that its clients are on other hosts.
        command.args(["--protected-mode", "no"]);
        command.args(["--enable-debug-command", "local", "--loglevel", "warning"]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = self.topology.replica(id).exec_in(command)?.spawn();
        self.replicas[id] = Some(child.context("cannot start plover")?);
        Ok(())
    }

    fn log(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("log-{id}"))
    }

    /// What a replica says of itself, if it runs.
    pub fn status(&self, id: usize) -> Option<Value> {
        let run_dir = self.run_dir(id);
        let mut command = Command::new(&self.program);
        command
            .args(["run", "status", "--json", "--run-dir"])
            .arg(run_dir);
        let output = command.output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The replica that serves clients.
    pub fn leader(&self) -> Option<usize> {
        (0..REPLICAS).find(|id| self.status(*id).is_some_and(|it| it["serves"] == true))
    }

    /// The processes on a host: the replica's and its program's.
    pub fn processes(&self, id: usize) -> Vec<Process> {
        process::in_namespace(&self.topology.replica(id).path())
    }

    /// Kills everything on a host.
    pub fn kill(&mut self, id: usize) -> Result<()> {
        for process in self.processes(id) {
            process.signal(Signal::KILL);
        }
        self.reap(id)
    }

    /// Kills the replica's process alone. The kernel kills its program.
    pub fn crash(&mut self, id: usize) -> Result<()> {
        if let Some(child) = &mut self.replicas[id] {
            child.kill()?;
        }
        self.reap(id)
    }

    fn reap(&mut self, id: usize) -> Result<()> {
        if let Some(mut child) = self.replicas[id].take() {
            child.wait()?;
        }
        let deadline = Instant::now() + WITHIN;
        while !self.processes(id).is_empty() {
            ensure!(
                Instant::now() < deadline,
                "replica {id} has left processes: {:?}",
                self.processes(id)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until something holds.
    pub fn wait_for(
        &self,
        what: &str,
        progress: &Progress,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        while !holds(self) {
            if Instant::now() >= deadline {
                bail!(
                    "after {} s still not: {what}\n{}",
                    WITHIN.as_secs(),
                    self.last_words()
                );
            }
            progress.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// The last lines of the replicas' logs.
    pub fn last_words(&self) -> String {
        let last = |id| {
            let log = std::fs::read_to_string(self.log(id)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(8).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!(
                "replica {id}: {:?}\n{}\n",
                self.status(id).map(|it| it.to_string()),
                lines.join("\n")
            )
        };
        (0..REPLICAS).map(last).collect()
    }

    /// Whether all programs run, have executed all that is committed, and follow one leader.
    pub fn is_whole(&self) -> bool {
        let all: Vec<Value> = (0..REPLICAS).filter_map(|id| self.status(id)).collect();
        let executes = |it: &Value| it["phase"] == "following" || it["phase"] == "leading";
        all.len() == REPLICAS
            && all
                .iter()
                .all(|it| executes(it) && it["executed"] == it["committed"])
            && all.iter().all(|it| it["committed"] == all[0]["committed"])
            && self.leader().is_some()
    }

    /// Runs `work` on the clients' host.
    pub fn as_client<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.topology.client().run(work)
    }

    /// The digest of each program's data, as Redis computes it.
    pub fn digests(&self) -> Result<Vec<String>> {
        let digest = |id| {
            let port = PORT.to_string();
            let output = self.on(id, "redis-cli", &["-p", &port, "debug", "digest"])?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        (0..REPLICAS).map(digest).collect()
    }

    /// Ends all replicas, and checks that they leave nothing.
    pub fn down(mut self) -> Result<()> {
        for child in self.replicas.iter_mut().flatten() {
            let process = Process::now(child.id()).context("a replica has ended by itself")?;
            process.signal(Signal::TERM);
        }
        for id in 0..REPLICAS {
            self.reap(id)?;
            let left = self.on(
                id,
                "ip",
                &["-o", "addr", "show", "to", &GUEST_IP.to_string()],
            )?;
            ensure!(
                left.stdout.is_empty(),
                "host {id} still has the clients' address"
            );
            ensure!(
                !self.run_dir(id).join("run.sock").exists(),
                "replica {id} has left its socket"
            );
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for id in 0..REPLICAS {
            let _ = self.kill(id);
        }
        let _ = self.topology.clone().destroy();
    }
}

/// The clients' side: what was acknowledged, and how long it took at the longest.
#[derive(Clone, Debug, Default)]
pub struct Written {
    acknowledged: Vec<(String, String)>,
    connections: usize,
    /// The times of the answers.
    answered: Vec<Instant>,
}

/// One client that writes until it is told to stop.
fn write(name: usize, stop: &AtomicBool) -> Written {
    let mut written = Written::default();
    let mut number = 0_u64;
    let mut connection = None;
    while !stop.load(Ordering::SeqCst) {
        let Some(open) = &mut connection else {
            connection = Connection::open(LISTEN, PATIENCE).ok();
            written.connections += usize::from(connection.is_some());
            if connection.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            continue;
        };
        number += 1;
        let (key, value) = (format!("w{name}:{number}"), format!("{number}"));
        match open.set(&key, &value) {
            Ok(()) => {
                written.acknowledged.push((key, value));
                written.answered.push(Instant::now());
            }
            Err(_) => connection = None,
        }
    }
    written
}

/// Reads everything back. Returns how many writes are lost.
fn audit(written: &[Written]) -> Result<usize> {
    let mut connection = Connection::open(LISTEN, WITHIN)?;
    let mut lost = 0;
    for (keys, values) in written
        .iter()
        .flat_map(|it| it.acknowledged.chunks(100))
        .map(|chunk| {
            let (keys, values): (Vec<_>, Vec<_>) = chunk.iter().cloned().unzip();
            (keys, values)
        })
    {
        let read = connection.get_many(&keys)?;
        let same =
            |(read, value): &(&Option<Vec<u8>>, &String)| read.as_deref() == Some(value.as_bytes());
        lost += values.len() - read.iter().zip(&values).filter(same).count();
    }
    Ok(lost)
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Acknowledged writes, and how many of them are lost.
    pub acknowledged: usize,
    /// See [`Self::acknowledged`].
    pub lost: usize,
    /// How often clients connected.
    pub connections: usize,
    /// How long clients had no answer after each kill, in ms.
    pub gaps_ms: Vec<u64>,
    /// All programs hold the same data in the end.
    pub same_data: bool,
}

impl Report {
    /// Whether everything is as promised.
    pub fn is_good(&self) -> bool {
        self.acknowledged > 0 && self.lost == 0 && self.same_data
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "audit")?;
        writeln!(
            f,
            "  {} acknowledged writes read back: {} lost",
            self.acknowledged, self.lost
        )?;
        writeln!(
            f,
            "  clients connected {} times; without an answer after each kill: {:?} ms",
            self.connections, self.gaps_ms
        )?;
        let same = if self.same_data {
            "the same"
        } else {
            "NOT the same"
        };
        write!(f, "  all three programs hold {same} data")
    }
}

/// Runs the demonstration: a leader's host dies, its replica comes back, and the next leader's process dies. `keys`
/// are added to `[program]`.
pub fn demo(name: &str, program: &Path, keys: &str, progress: &Progress) -> Result<Report> {
    let keys = format!("snapshot_cmd = \"redis-cli -p {PORT} save\"\n{keys}");
    let mut group = Group::up(name, program, &keys)?;
    progress.say("three hosts run redis-server under plover run");
    group.wait_for("all programs run", progress, Group::is_whole)?;
    progress.say(format!(
        "replica {} serves clients at {LISTEN}",
        group.leader().context("no leader")?
    ));
    let stop = AtomicBool::new(false);
    let mut kills = Vec::new();
    let (written, told) = std::thread::scope(|threads| -> Result<_> {
        let client = group.topology.client();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (client, stop) = (client.clone(), &stop);
                threads.spawn(move || client.run(|| Ok(write(writer, stop))))
            })
            .collect();
        let told = deaths(&mut group, progress, &mut kills);
        stop.store(true, Ordering::SeqCst);
        let written: Result<Vec<Written>> = writers
            .into_iter()
            .map(|it| it.join().expect("a writer"))
            .collect();
        Ok((written?, told))
    })?;
    told?;
    group.wait_for("all programs are up to date", progress, Group::is_whole)?;
    let lost = group.as_client(|| audit(&written))?;
    group.wait_for("all programs are up to date", progress, Group::is_whole)?;
    let digests = group.digests()?;
    let mut answered: Vec<Instant> = written.iter().flat_map(|it| it.answered.clone()).collect();
    answered.sort_unstable();
    let gap = |kill: &Instant| {
        // Some answers were on their way when the leader died: the longest silence around its death counts.
        let around = answered
            .windows(2)
            .filter(|pair| pair[1] > *kill && pair[0] < *kill + GAP_WITHIN);
        let longest = around.map(|pair| pair[1] - pair[0]).max().unwrap_or(WITHIN);
        longest.as_millis() as u64
    };
    let report = Report {
        acknowledged: written.iter().map(|it| it.acknowledged.len()).sum(),
        lost,
        connections: written.iter().map(|it| it.connections).sum(),
        gaps_ms: kills.iter().map(gap).collect(),
        same_data: digests[0].len() == 40 && digests.iter().all(|it| *it == digests[0]),
    };
    group.down()?;
    progress.say("all replicas have ended, and left nothing");
    Ok(report)
}

/// The faults of the demonstration.
fn deaths(group: &mut Group, progress: &Progress, kills: &mut Vec<Instant>) -> Result<()> {
    for how in ["host", "process"] {
        progress.sleep(Duration::from_secs(2))?;
        let leader = group.leader().context("no leader")?;
        kills.push(Instant::now());
        match how {
            "host" => group.kill(leader)?,
            _ => group.crash(leader)?,
        }
        progress.say(format!("replica {leader}: its {how} is dead"));
        group.wait_for("another replica serves", progress, |group| {
            group.leader().is_some_and(|id| id != leader)
        })?;
        progress.say(format!(
            "replica {} serves clients",
            group.leader().context("no leader")?
        ));
        progress.sleep(Duration::from_secs(1))?;
        group.start(leader)?;
        group.wait_for("the dead one is back", progress, |group| {
            group
                .status(leader)
                .is_some_and(|it| it["phase"] == "following")
        })?;
        progress.say(format!("replica {leader} is back, and follows"));
    }
    Ok(())
}

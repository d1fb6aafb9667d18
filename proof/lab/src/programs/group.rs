//! Hosts with a replica of a program on each.

use super::subject::Subject;
use super::trial::Plan;
use crate::wait_within;
use anyhow::{Context, Result, bail, ensure};
use plover_lab::net::{GUEST_IP, PREFIX, Topology, edge_port, replica_ip};
use plover_lab::process::{self, Process};
use plover_lab::progress::Progress;
use plover_lab::state::LabName;
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(super) const REPLICAS: usize = 3;
/// Where clients connect.
pub const LISTEN: SocketAddrV4 = SocketAddrV4::new(GUEST_IP, 6379);

/// How long anything may take.
pub(super) const WITHIN: Duration = Duration::from_secs(120);

/// Hosts with a replica each.
#[derive(Debug)]
pub struct Group {
    topology: Topology,
    dir: tempfile::TempDir,
    program: PathBuf,
    subject: &'static dyn Subject,
    replicas: Vec<Option<Child>>,
}

impl Group {
    /// Makes so many hosts, and starts a replica on each, with the keys of `plan`.
    ///
    /// # Errors
    /// The hosts cannot be made, or a replica not be started.
    pub fn up(
        name: &str,
        hosts: usize,
        program: &Path,
        subject: &'static dyn Subject,
        plan: &Plan,
    ) -> Result<Self> {
        // One that was killed may have left processes, which would go on in hosts without a name.
        let lab: LabName = name.parse().map_err(anyhow::Error::msg)?;
        plover_lab::down::down(&lab)?;
        let topology = Topology::create(name, hosts)?;
        let mut group = Self {
            topology,
            dir: tempfile::tempdir()?,
            program: program.into(),
            subject,
            replicas: (0..hosts).map(|_| None).collect(),
        };
        subject.set_up(group.files())?;
        let keys: Vec<_> = (0..hosts).map(|id| group.key(id)).collect();
        plover_fabric::keys::make_all(&keys, &group.trusted())?;
        for id in 0..hosts {
            let own = Ipv4Addr::new(10, 77, 0, 10 + id as u8);
            let address = format!("{own}/{PREFIX}");
            let added = group.on(id, "ip", &["addr", "add", &address, "dev", "br0"])?;
            ensure!(added.status.success(), "{added:?}");
            std::fs::write(group.config(id), group.configuration(id, plan))?;
            group.start(id)?;
        }
        Ok(group)
    }

    /// Where the program's configuration is.
    pub fn files(&self) -> &Path {
        self.dir.path()
    }

    /// The program.
    pub fn subject(&self) -> &'static dyn Subject {
        self.subject
    }

    /// The network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn ids(&self) -> std::ops::Range<usize> {
        0..self.replicas.len()
    }

    fn config(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("group-{id}.toml"))
    }

    fn key(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("{id}.key"))
    }

    fn trusted(&self) -> PathBuf {
        self.dir.path().join("trusted")
    }

    fn run_dir(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("run-{id}"))
    }

    fn configuration(&self, id: usize, plan: &Plan) -> String {
        let Plan {
            keys, program_keys, ..
        } = plan;
        let replica = |id| format!("{{ id = {id}, address = \"{}:7700\" }}", replica_ip(id));
        let replicas: Vec<String> = self.ids().map(replica).collect();
        format!(
            "[group]\nname = \"{}\"\nme = {id}\nheartbeat_ms = 50\ntimeout_ms = 500\nlog_mib = {}\n\
             key_file = \"{}\"\ntrust_file = \"{}\"\n{keys}\nreplica = [{}]\n\
             [program]\n{program_keys}\nlisten = \"{LISTEN}\"\ndevice = \"br0\"\naddress = \"{}\"\nport = {}\n{}\n\
             [paths]\nstate_dir = \"{}\"\nrun_dir = \"{}\"\n",
            self.subject.name(),
            self.subject.log_mib(),
            self.key(id).display(),
            self.trusted().display(),
            replicas.join(", "),
            self.subject.address(id),
            self.subject.port(),
            self.subject.keys(),
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
        command.args(self.subject.command(self.files()));
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

    /// A replica's own status, if it runs.
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
        self.ids()
            .find(|id| self.status(*id).is_some_and(|it| it["serves"] == true))
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
            wait_within(&mut child, WITHIN).with_context(|| format!("replica {id}"))?;
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
                bail!("after {} s still not: {what}", WITHIN.as_secs());
            }
            progress.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// The last lines of the replicas' logs.
    pub fn last_words(&self) -> String {
        let last = |id| {
            let log = std::fs::read_to_string(self.log(id)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().rev().take(40).collect();
            let lines: Vec<&str> = lines.into_iter().rev().collect();
            format!(
                "replica {id}: {:?}\n{}\n",
                self.status(id).map(|it| it.to_string()),
                lines.join("\n")
            )
        };
        self.ids().map(last).collect()
    }

    /// Whether all programs run, have executed all that is committed, and follow one leader.
    pub fn is_whole(&self) -> bool {
        let all: Vec<Value> = self.ids().filter_map(|id| self.status(id)).collect();
        let executes = |it: &Value| it["phase"] == "following" || it["phase"] == "leading";
        all.len() == self.replicas.len()
            && all
                .iter()
                .all(|it| executes(it) && it["executed"] == it["committed"])
            && all.iter().all(|it| it["committed"] == all[0]["committed"])
            && self.leader().is_some()
    }

    /// Stops all processes on a host, or lets them go on.
    pub fn signal(&self, id: usize, signal: Signal) {
        for process in self.processes(id) {
            process.signal(signal);
        }
    }

    /// Stops the process of a replica, and not its program, or lets it go on.
    pub fn signal_replica(&self, id: usize, signal: Signal) -> Result<()> {
        let child = self.replicas[id].as_ref().context("it has ended")?;
        let process = Process::now(child.id()).context("it has ended")?;
        ensure!(process.signal(signal), "it has ended");
        Ok(())
    }

    /// Sets both cables of a host, at the switch: `up` or `down`.
    pub fn cables(&self, id: usize, state: &str) -> Result<()> {
        for port in [edge_port(id), format!("r{id}-repl")] {
            let mut command = Command::new("ip");
            command.args(["link", "set", &port, state]);
            let output = self.topology.switch().exec_in(command)?.output()?;
            if !output.status.success() {
                bail!("{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        Ok(())
    }

    /// Runs `work` on the clients' host.
    pub fn as_client<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.topology.client().run(work)
    }

    /// Ends all replicas, and checks that they leave nothing.
    pub fn down(mut self) -> Result<()> {
        for child in self.replicas.iter_mut().flatten() {
            let process = Process::now(child.id()).context("a replica has ended by itself")?;
            process.signal(Signal::TERM);
        }
        for id in self.ids() {
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
        for id in self.ids() {
            let _ = self.kill(id);
        }
        let _ = self.topology.clone().destroy();
    }
}

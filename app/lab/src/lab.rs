//! A lab that exists: who is in it, how to reach them, what may be done to them.

use crate::control::Control;
use crate::net::{GUEST_IP, Namespace, Topology};
use crate::process::{self, Life, Process};
use crate::progress::Progress;
use crate::redis::Connection;
use crate::state::{LabDir, LabName, LabState, ReplicaDir};
use crate::status::LabStatus;
use crate::trace::{Tail, now_us};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::json;
use std::net::SocketAddrV4;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon that has not opened its control socket by then is not going to.
const DAEMON_OPENS_WITHIN: Duration = Duration::from_secs(20);

/// A killed process is gone within milliseconds, but a gigabyte of guest memory takes longer
/// to give back.
const DEATH_WITHIN: Duration = Duration::from_secs(10);

/// How long a new guest may take to be protected: a copy takes seconds, on a busy machine tens
/// of seconds.
const BOOTSTRAPPED_WITHIN: Duration = Duration::from_secs(90);

/// Whom an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The replica with this id.
    Replica(u8),
    /// The replica that has this role now: `leader`, `secondary`, `witness`.
    Role(String),
}

/// What can be done to a replica: to its whole host, that is, to everything that runs in its
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host dies.
    Kill,
    /// The host stands still.
    Stop,
    /// It goes on.
    Continue,
    /// The replication network no longer carries anything between it and the others (or one of
    /// them). Clients still reach it.
    Cut {
        /// Only this peer.
        from: Option<u8>,
    },
    /// It is connected again.
    Heal,
}

/// What was done, after "replica N: ".
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kill => f.write_str("killed"),
            Self::Stop => f.write_str("stopped"),
            Self::Continue => f.write_str("goes on"),
            Self::Cut { from: None } => f.write_str("cut off from the other replicas"),
            Self::Cut { from: Some(peer) } => write!(f, "cut off from replica {peer}"),
            Self::Heal => f.write_str("connected again"),
        }
    }
}

/// A lab that is up, or was.
#[derive(Debug)]
pub struct Lab {
    pub(crate) dir: LabDir,
    pub(crate) state: LabState,
    pub(crate) topology: Topology,
}

impl Lab {
    /// The lab `name`.
    pub fn open(name: &LabName) -> Result<Self> {
        let dir = LabDir::of(name);
        let state = dir.load()?;
        let topology = Topology::open(name.as_str())?.with_context(|| {
            format!(
                "the lab '{name}' has lost its network; `plover lab down --name {name}` removes \
                 what is left of it"
            )
        })?;
        Ok(Self {
            dir,
            state,
            topology,
        })
    }

    /// Its name.
    pub fn name(&self) -> &LabName {
        self.dir.name()
    }

    /// The ids of its replicas.
    pub fn ids(&self) -> impl Iterator<Item = u8> + '_ {
        self.state.replicas.iter().map(|replica| replica.id)
    }

    /// Its network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Where the guest's service answers, for who asks from the client's namespace.
    pub fn service(&self) -> SocketAddrV4 {
        SocketAddrV4::new(GUEST_IP, self.state.guest_port)
    }

    /// The program that runs its daemons.
    pub fn program(&self) -> &std::path::Path {
        &self.state.program
    }

    /// Where everyone stands.
    pub fn status(&self) -> LabStatus {
        LabStatus::gather(&self.dir, &self.state)
    }

    /// The files of one replica.
    pub fn files(&self, id: u8) -> ReplicaDir {
        self.dir.replica(id)
    }

    /// A reader of all traces.
    pub fn traces(&self) -> Tail {
        Tail::new(self.ids().map(|id| self.files(id).trace()))
    }

    /// The control socket of one replica.
    pub fn control(&self, id: u8) -> Control {
        Control::at(self.files(id).control_socket())
    }

    /// The id of whom `target` means.
    pub fn find(&self, target: &Target) -> Result<u8> {
        match target {
            Target::Replica(id) => Ok(self.state.replica(*id)?.id),
            Target::Role(role) => {
                let status = self.status();
                let found = status.with_role(role).map(|replica| replica.id);
                found.with_context(|| {
                    let roles: Vec<_> = status
                        .replicas
                        .iter()
                        .map(|r| format!("{} {}", r.id, r.role))
                        .collect();
                    format!("no replica is {role} now ({})", roles.join(", "))
                })
            }
        }
    }

    /// Does it, and returns when it is done, with the moment at which it began on the clock of
    /// the traces.
    pub fn fault(&self, fault: Fault, id: u8) -> Result<u64> {
        self.state.replica(id)?;
        let began_us;
        match fault {
            Fault::Kill => {
                began_us = self.signal(id, Signal::KILL)?;
                self.wait_until_empty(id)?;
            }
            Fault::Stop => began_us = self.signal(id, Signal::STOP)?,
            Fault::Continue => began_us = self.signal(id, Signal::CONT)?,
            Fault::Cut { from: Some(peer) } => {
                self.state.replica(peer)?;
                if peer == id {
                    bail!("replica {id} cannot be cut from itself");
                }
                began_us = now_us();
                self.topology.cut(id.into(), &[peer.into()])?;
            }
            Fault::Cut { from: None } => {
                began_us = now_us();
                let peers: Vec<usize> = self
                    .ids()
                    .filter(|peer| *peer != id)
                    .map(usize::from)
                    .collect();
                self.topology.cut(id.into(), &peers)?;
            }
            Fault::Heal => {
                began_us = now_us();
                self.topology.heal(id.into())?;
            }
        }
        Ok(began_us)
    }

    /// Signals everything on a replica's host.
    fn signal(&self, id: u8, signal: Signal) -> Result<u64> {
        let host = self.host(id);
        let processes = process::in_namespace(&host.path());
        let began_us = now_us();
        let reached = processes
            .iter()
            .filter(|process| process.signal(signal))
            .count();
        if reached == 0 {
            bail!("replica {id} is down: nothing runs there");
        }
        Ok(began_us)
    }

    fn wait_until_empty(&self, id: u8) -> Result<()> {
        wait_until_gone(|| process::in_namespace(&self.host(id).path()))
    }

    pub(crate) fn host(&self, id: u8) -> Namespace {
        self.topology.replica(id.into())
    }

    /// Starts the daemon of a replica that is down, and waits until it can be asked.
    pub fn restart(&mut self, id: u8, progress: &Progress) -> Result<Process> {
        let lock = self.dir.lock(DAEMON_OPENS_WITHIN)?;
        // Another command may have restarted it since this one read the record.
        self.state = self.dir.load()?;
        if self
            .state
            .replica(id)?
            .daemon
            .is_some_and(Process::is_alive)
        {
            bail!("replica {id} is running; `plover lab fault kill --replica {id}` ends it");
        }
        // Whatever a dead daemon left on its host.
        for process in process::in_namespace(&self.host(id).path()) {
            process.signal(Signal::KILL);
        }
        self.wait_until_empty(id)?;
        let daemon = self.start_daemon(id)?;
        self.dir.save(&self.state)?;
        drop(lock);
        self.wait_for_daemon(id, progress)?;
        Ok(daemon)
    }

    /// Starts a daemon in its namespace, to outlive this process.
    pub(crate) fn start_daemon(&mut self, id: u8) -> Result<Process> {
        use std::os::unix::process::CommandExt;
        let files = self.files(id);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(files.log())
            .with_context(|| format!("cannot write {}", files.log().display()))?;
        let mut command = Command::new(&self.state.program);
        command
            .args(["replica", "--config"])
            .arg(files.config())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Out of reach of the Ctrl-C that is meant for the command that starts it.
            .process_group(0);
        let mut child = self
            .host(id)
            .exec_in(command)?
            .spawn()
            .with_context(|| format!("cannot start {}", self.state.program.display()))?;
        let daemon = Process::now(child.id());
        // Somebody must wait for a child or its number stays taken; this thread does so if the
        // daemon ends before this process, and costs nothing otherwise.
        std::thread::spawn(move || child.wait());
        let daemon = daemon.with_context(|| self.last_words(id, "ended at once"))?;
        if let Some(replica) = self
            .state
            .replicas
            .iter_mut()
            .find(|replica| replica.id == id)
        {
            replica.daemon = Some(daemon);
        }
        Ok(daemon)
    }

    /// Waits until a daemon can be asked.
    pub(crate) fn wait_for_daemon(&self, id: u8, progress: &Progress) -> Result<()> {
        let deadline = Instant::now() + DAEMON_OPENS_WITHIN;
        while self.control(id).status().is_err() {
            self.check_daemon(id)?;
            if Instant::now() > deadline {
                bail!(self.last_words(id, "does not answer on its control socket"));
            }
            progress.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Fails if a daemon that was started has ended.
    pub(crate) fn check_daemon(&self, id: u8) -> Result<()> {
        match self.state.replica(id)?.daemon.map(Process::life) {
            Some(Life::Gone) => bail!(self.last_words(id, "has ended")),
            _ => Ok(()),
        }
    }

    /// What a daemon wrote last, for an error about it.
    pub(crate) fn last_words(&self, id: u8, what: &str) -> String {
        const LINES: usize = 12;
        let path = self.files(id).log();
        let log = std::fs::read(&path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES)..].join("\n    ");
        let last = if last.is_empty() { "(nothing)" } else { &last };
        format!("replica {id} {what}; the end of its log:\n    {last}")
    }

    /// Whether the guest's service answers a client.
    pub fn guest_answers(&self, patience: Duration) -> bool {
        let service = self.service();
        let ask = || Ok(Connection::open(service, patience)?.ping()?);
        self.topology.client().run(ask).is_ok()
    }

    /// Waits until the guest is protected (under `none`: served), saying what happens.
    pub fn wait_until_settled(
        &self,
        traces: &mut Tail,
        progress: &Progress,
        patience: Duration,
    ) -> Result<LabStatus> {
        let deadline = Instant::now() + patience;
        loop {
            for words in traces
                .take()
                .iter()
                .filter_map(crate::trace::TraceEvent::in_words)
            {
                progress.say(words);
            }
            let status = self.status();
            if status.is_settled() {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("not protected after {} s:\n{status}", patience.as_secs());
            }
            progress.sleep(Duration::from_millis(100))?;
        }
    }

    /// Copies every replica's configuration, log and trace to a directory.
    pub fn copy_evidence(&self, to: &std::path::Path) -> Result<()> {
        for id in self.ids() {
            let (files, to) = (self.files(id), to.join(format!("replica-{id}")));
            std::fs::create_dir_all(&to)
                .with_context(|| format!("cannot create {}", to.display()))?;
            let run = files.run_dir();
            for file in [
                files.config(),
                files.log(),
                files.trace(),
                run.join("console.log"),
            ] {
                // One that was never written is evidence as well.
                if let (true, Some(name)) = (file.exists(), file.file_name()) {
                    std::fs::copy(&file, to.join(name))
                        .with_context(|| format!("cannot copy {}", file.display()))?;
                }
            }
        }
        Ok(())
    }

    /// The operator's word that a new guest may be booted, after all replicas have lost the old
    /// one's state. Waits until it is protected.
    pub fn bootstrap(&self, progress: &Progress) -> Result<()> {
        let status = self.status();
        if let Some(holder) = status.replicas.iter().find(|replica| replica.holds_state()) {
            bail!(
                "replica {} holds the guest's state: nothing is lost",
                holder.id
            );
        }
        for id in self.ids() {
            self.control(id)
                .request(&json!({"op": "bootstrap"}))
                .context("all replicas must be up to say that none holds the guest's state")?;
        }
        let mut traces = self.traces();
        traces.take();
        self.wait_until_settled(&mut traces, progress, BOOTSTRAPPED_WITHIN)?;
        Ok(())
    }

    /// Replaces this process by a program in the client's namespace. Returns only on failure.
    pub fn exec(&self, command: Command) -> anyhow::Error {
        use std::os::unix::process::CommandExt;
        let program = command.get_program().to_string_lossy().into_owned();
        match self.topology.client().exec_in(command) {
            Ok(mut command) => anyhow::Error::new(command.exec())
                .context(format!("cannot run '{program}' in the client's namespace")),
            Err(error) => error,
        }
    }
}

/// Waits until a search for processes finds none.
pub(crate) fn wait_until_gone(mut find: impl FnMut() -> Vec<Process>) -> Result<()> {
    let deadline = Instant::now() + DEATH_WITHIN;
    loop {
        let left = find();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let pids: Vec<_> = left.iter().map(|process| process.pid.to_string()).collect();
            bail!(
                "processes {} do not end though they were killed",
                pids.join(", ")
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

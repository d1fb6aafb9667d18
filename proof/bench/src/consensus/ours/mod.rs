//! Our log: a process a replica, and the proposers in the leader's.
//!
//! APUS intercepts `recv()`: the server's own threads, in the leader's process, hand their bytes to
//! consensus and go on once they are committed (APUS §4). So a *connection* here is a proposer in
//! the leader's process with one entry outstanding. Rows with clients on TCP connections, as etcd
//! and ZooKeeper have them, are apart (`clients`).
//!
//! ```text
//!   benchmark ──one line of JSON a load──► replica 0: proposers, leader ══fabric══► replica 1
//!             ◄──one line of figures──────                              ══fabric══► replica 2
//! ```

mod fabrics;
mod node;
pub(crate) mod replica;

use super::children::Process;
use super::load::Spans;
use super::measured::{CpuMeter, Measured};
use super::peers::free_addresses;
use super::plan::{FabricKind, Load, Medium, Setup};
use super::subject::Subject;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};

/// What the leader is asked for, a line each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Order {
    load: Load,
    warm_up_ms: u64,
    span_ms: u64,
}

/// What it answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Answer {
    measured: Measured,
    /// The warm-up's entries too.
    entries_in_all: u64,
}

/// It says this once, when it leads and every backup can be reached.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ready {
    leads: bool,
}

/// A running group.
pub(crate) struct Group {
    replicas: Vec<Process>,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Group {
    /// Starts all replicas, files in `folder`, and waits until the first one leads.
    pub fn start(setup: Setup, fabric: FabricKind, folder: &Path) -> Result<Self> {
        let addresses = free_addresses(setup.replicas)?;
        let mut replicas = Vec::new();
        for me in 0..setup.replicas {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(["consensus-replica", "--me", &me.to_string()])
                .args(["--fabric", &fabric.to_string()])
                .args(["--medium", &setup.medium.to_string()])
                .arg("--folder")
                .arg(folder);
            for address in &addresses {
                command.args(["--replica", &address.to_string()]);
            }
            let log = folder.join(format!("replica{me}.log"));
            replicas.push(Process::start(&mut command, &log, true)?);
        }
        let leader = replicas[0].child();
        let orders = leader.stdin.take().context("the leader has no input")?;
        let answers = leader.stdout.take().context("the leader has no output")?;
        let mut group = Self {
            replicas,
            orders,
            answers: BufReader::new(answers),
        };
        let ready: Ready = group.answer()?;
        if !ready.leads {
            bail!("the first replica does not lead");
        }
        Ok(group)
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            replica
                .check()
                .with_context(|| format!("replica {number}"))?;
        }
        if line.is_empty() {
            bail!("the leader has ended: {}", self.replicas[0].last_words());
        }
        serde_json::from_str(&line).with_context(|| format!("the leader says: {line}"))
    }
}

impl Subject for Group {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        let cpu = CpuMeter::start(self.replicas.iter().map(Process::id).collect())?;
        let order = Order {
            load,
            warm_up_ms: spans.warm_up.as_millis() as u64,
            span_ms: spans.span.as_millis() as u64,
        };
        writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
        let answer: Answer = self.answer()?;
        Ok(Measured {
            cpu_us: Some(cpu.per_entry(answer.entries_in_all)?),
            ..answer.measured
        })
    }
}

/// How a replica of the benchmark is started; not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplicaOptions {
    #[arg(long)]
    me: u8,
    /// Where each replica listens, in the order of their ids.
    #[arg(long = "replica", required = true)]
    replicas: Vec<std::net::SocketAddr>,
    #[arg(long)]
    fabric: FabricKind,
    #[arg(long)]
    medium: Medium,
    /// For files and sockets.
    #[arg(long)]
    folder: std::path::PathBuf,
}

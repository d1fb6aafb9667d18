//! Our log: one process for each replica, with the proposers in the leader's.
//!
//! APUS intercepts `recv()`: the server's own threads, in the leader's process, hand their bytes to
//! consensus and go on once they are committed (APUS §4). So a *connection* here is a proposer in the
//! leader's process with one entry outstanding. Other rows have clients on TCP connections, as etcd and
//! ZooKeeper do (`clients`).
//!
//! ```text
//!   benchmark ──one line of JSON a load──► replica 0: proposers, leader ══fabric══► replica 1
//!             ◄──one line of figures──────                              ══fabric══► replica 2
//! ```

pub(crate) mod clients;
mod fabrics;
mod node;
pub(crate) mod replica;

use super::load::Spans;
use super::measured::{CpuMeter, Measured};
use super::peers::free_addresses;
use super::plan::{FabricKind, Load, Medium, Setup};
use super::subject::Subject;
use crate::children::Process;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};

/// How long a replica may take for an answer: far longer than any load.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// The benchmark's requests to a replica, a line each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Order {
    /// To the leader: fill the log with such entries, until all that was in it is reclaimed. Only then
    /// does the steady state begin.
    Fill(Load),
    /// To the leader: put itself under load.
    Measure {
        load: Load,
        warm_up_ms: u64,
        span_ms: u64,
    },
    /// To all: report how often it has asked for memory so far.
    Allocations,
}

/// The replica's answers, a line each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Answer {
    /// Sent once, unasked, when it leads and can reach every backup.
    Leads,
    /// Whether the log was filled in time.
    Filled(bool),
    Measured {
        measured: Measured,
        /// All entries, also the warm-up's.
        entries_in_all: u64,
    },
    Allocations(u64),
}

/// A running group.
pub(crate) struct Group(Vec<Replica>);

struct Replica {
    process: Process,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Group {
    /// Starts all replicas, files in `folder`, and waits until the first one leads.
    pub fn start(setup: Setup, fabric: FabricKind, folder: &Path) -> Result<Self> {
        Self::start_with(setup, fabric, folder, None)
    }

    /// As [`start`](Self::start); the leader lets clients in at `clients`.
    fn start_with(
        setup: Setup,
        fabric: FabricKind,
        folder: &Path,
        clients: Option<SocketAddr>,
    ) -> Result<Self> {
        let addresses = free_addresses(setup.replicas)?;
        if fabric == FabricKind::OfiSealed {
            fabrics::make_keys(folder, setup.replicas)?;
        }
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
            if let Some(address) = clients {
                command.args(["--clients", &address.to_string()]);
            }
            let log = folder.join(format!("replica{me}.log"));
            replicas.push(Replica::start(&mut command, &log)?);
        }
        match replicas[0].answer()? {
            Answer::Leads => Ok(Self(replicas)),
            other => bail!("the first replica does not lead but says {other:?}"),
        }
    }

    /// How often all replicas have asked for memory so far.
    fn allocations(&mut self) -> Result<u64> {
        let mut sum = 0;
        for replica in &mut self.0 {
            match replica.ask(Order::Allocations)? {
                Answer::Allocations(count) => sum += count,
                other => bail!("a replica says {other:?}"),
            }
        }
        Ok(sum)
    }

    fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|replica| replica.process.id()).collect()
    }

    fn check(&mut self) -> Result<()> {
        for (number, replica) in self.0.iter_mut().enumerate() {
            let alive = replica.process.check();
            alive.with_context(|| format!("replica {number}"))?;
        }
        Ok(())
    }
}

impl Replica {
    fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let mut process = Process::logged(command, log, true)?;
        let orders = process.child().stdin.take();
        let answers = process.child().stdout.take();
        Ok(Self {
            process,
            orders: orders.context("a replica has no input")?,
            answers: BufReader::new(answers.context("a replica has no output")?),
        })
    }

    fn ask(&mut self, order: Order) -> Result<Answer> {
        // If the replica is gone, waiting for the answer shows why.
        let _ = writeln!(self.orders, "{}", serde_json::to_string(&order)?);
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        if self.answers.buffer().is_empty() {
            let mut fds = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
            if poll(&mut fds, Some(&PATIENCE)).context("cannot wait for a replica")? == 0 {
                bail!("a replica gives no answer within {} s", PATIENCE.tv_sec);
            }
        }
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            // A replica closes its output a moment before it ends.
            let _ = self.process.child().wait();
            self.process.check()?;
        }
        serde_json::from_str(&line).with_context(|| format!("a replica says: {line}"))
    }
}

impl Subject for Group {
    fn measure(&mut self, load: Load, spans: Spans) -> Result<Measured> {
        let is_full = match self.0[0].ask(Order::Fill(load)) {
            Ok(Answer::Filled(is_full)) => is_full,
            other => {
                self.check()?;
                bail!("the leader does not fill its log: {other:?}");
            }
        };
        let cpu = CpuMeter::start(self.pids())?;
        let before = self.allocations()?;
        let order = Order::Measure {
            load,
            warm_up_ms: spans.warm_up.as_millis() as u64,
            span_ms: spans.span.as_millis() as u64,
        };
        let answer = self.0[0].ask(order);
        // The error of a backup that has ended says more than that of the leader.
        self.check()?;
        let Answer::Measured {
            measured,
            entries_in_all,
        } = answer?
        else {
            bail!("the leader gives no figures");
        };
        let cpu_us = cpu.per_entry(entries_in_all)?;
        let allocated = self.allocations()? - before;
        Ok(Measured {
            cpu_us: Some(cpu_us),
            allocations: is_full.then_some(allocated as f64 / entries_in_all as f64),
            ..measured
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
    replicas: Vec<SocketAddr>,
    /// Where the first one lets clients in.
    #[arg(long)]
    clients: Option<SocketAddr>,
    #[arg(long)]
    fabric: FabricKind,
    #[arg(long)]
    medium: Medium,
    /// For files and sockets.
    #[arg(long)]
    folder: std::path::PathBuf,
}

//! The bench's lab, taken down when dropped. Under the name of a policy that `plover` does not have, a
//! pair of QEMUs that protects a guest without `plover`.

use crate::children::{self, Process, check};
use crate::stock_colo::{self, StockColo};
use anyhow::{Context, Result, bail};
use clap::Parser;
use plover_lab::net::Namespace;
use plover_lab::options::Options;
use plover_lab::state::LabName;
use plover_lab_proof::Turn;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running lab.
#[derive(Debug)]
pub(crate) enum Lab {
    Plover(plover_lab::Lab),
    Colo(StockColo),
}

/// Further options of `plover lab up`, as a user gives them to the bench.
#[derive(Debug, Parser)]
#[command(name = "--", no_binary_name = true)]
struct Further {
    #[command(flatten)]
    options: Options,
}

impl Lab {
    /// Brings a lab up with these further options of `plover lab up`.
    pub fn up(policy: &str, options: &[String]) -> Result<Self> {
        if policy == stock_colo::NAME {
            return Ok(Self::Colo(StockColo::up(name().as_str(), options)?));
        }
        let options = Options {
            name: name(),
            policy: policy.parse().map_err(anyhow::Error::msg)?,
            program: Some(plover()),
            ..Further::try_parse_from(options)?.options
        };
        let lab = plover_lab::Lab::up(&options, &children::progress())?;
        Ok(Self::Plover(lab))
    }

    /// Runs a command on the client's host. See [`exec_within`].
    pub fn exec_within(&self, limit_s: u64, command: &[&str]) -> Result<String> {
        exec_within(&self.client()?, limit_s, command)
    }

    /// A command that runs on the client's host.
    pub fn on_client<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<Command> {
        let (program, arguments) = command.split_first().context("no command")?;
        let mut command = Command::new(program);
        command.args(arguments);
        self.client()?.exec_in(command)
    }

    fn client(&self) -> Result<Namespace> {
        match self {
            Self::Plover(lab) => Ok(lab.topology().client()),
            Self::Colo(colo) => colo.client(),
        }
    }

    /// The lab's status, as `plover lab status --json` prints it.
    pub fn status(&self) -> Result<Value> {
        let status = match self {
            Self::Plover(lab) => serde_json::to_value(lab.status())?,
            Self::Colo(colo) => colo.status()?,
        };
        check()?;
        Ok(status)
    }

    /// The status of the replica that leads.
    pub fn leader(&self) -> Result<Value> {
        let status = self.status()?;
        status["replicas"]
            .as_array()
            .and_then(|all| all.iter().find(|r| r["role"] == "leader"))
            .cloned()
            .context("nobody leads the lab")
    }

    /// The guest's address.
    pub fn guest_ip(&self) -> Result<String> {
        let status = self.status()?;
        status["guest_ip"]
            .as_str()
            .map(Into::into)
            .context("the lab names no guest address")
    }
}

/// Runs a command on the clients' host and returns what it printed. An error after `limit_s` seconds: a client
/// waits for ever for a guest that does not answer any more.
pub(crate) fn exec_within(client: &Namespace, limit_s: u64, command: &[&str]) -> Result<String> {
    /// The exit code of `timeout` when it has ended the command.
    const TIMED_OUT: i32 = 124;
    let mut limited = Command::new("timeout");
    limited
        .arg(limit_s.to_string())
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = Process::start(&mut client.exec_in(limited)?)?.output()?;
    let words = command.join(" ");
    if output.status.code() == Some(TIMED_OUT) {
        bail!("`{words}` on the client has no answer to all it asked after {limit_s} s");
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{words}` on the client failed ({}): {}",
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The name of the bench's lab, whatever runs in it.
pub(crate) fn name() -> LabName {
    "bench".parse().expect("a good name")
}

/// Waits until no other bench, no test and no demo has a lab, and takes down what a killed bench has left.
pub(crate) fn turn() -> Result<Turn> {
    let turn = Turn::wait_aloud();
    plover_lab::down::down(&name())?;
    Ok(turn)
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Self::Plover(lab) = self {
            if let Err(error) = plover_lab::down::down(lab.name()) {
                eprintln!("the lab was not taken down: {error:#}");
            }
        }
    }
}

/// The `plover` beside this program, or on the path.
pub(crate) fn plover() -> PathBuf {
    std::env::current_exe()
        .ok()
        .map(|me| me.with_file_name("plover"))
        .filter(|p| p.exists())
        .unwrap_or_else(|| "plover".into())
}

//! A lab, driven through the `plover` command and taken down when dropped. Under the name of a policy
//! that `plover` does not have, a pair of QEMUs that protects a guest without `plover`.

use crate::interrupt::{Task, check};
use crate::stock_colo::{self, StockColo};
use anyhow::{Context, Result, bail};
use plover_lab::progress::Progress;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A running lab of its own name.
#[derive(Debug)]
pub(crate) struct Lab {
    name: String,
    /// The pair of QEMUs, if there is one in the place of a lab.
    colo: Option<StockColo>,
}

impl Lab {
    /// Brings a lab up with these further options of `plover lab up`. The error holds that command's
    /// error output.
    pub fn up(policy: &str, options: &[String]) -> Result<Self> {
        let mut lab = Self {
            name: own_name(),
            colo: None,
        };
        if policy == stock_colo::NAME {
            lab.colo = Some(StockColo::up(&lab.name, options)?);
            return Ok(lab);
        }
        let mut up = lab.plover(&["up", "--quiet", "--policy", policy]);
        up.args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let output = Task::start(&mut up)?.output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
            match lines.is_empty() {
                true => bail!("the lab did not come up ({})", output.status),
                false => bail!("{}", lines.join("; ")),
            }
        }
        Ok(lab)
    }

    /// Runs a command on the client's host and returns what it printed.
    pub fn exec<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<String> {
        printed(command, self.output_of(command)?)
    }

    /// As [`exec`](Self::exec), for a command that waits for ever without an answer. An error after
    /// `limit_s` seconds.
    pub fn exec_within(&self, limit_s: u32, command: &[&str]) -> Result<String> {
        /// The exit code of `timeout` when it has ended the command.
        const TIMED_OUT: i32 = 124;
        let limit = limit_s.to_string();
        let output = self.output_of(&[&["timeout", &limit], command].concat())?;
        if output.status.code() == Some(TIMED_OUT) {
            let command = in_words(command);
            bail!("`{command}` on the client has no answer to all it asked after {limit_s} s");
        }
        printed(command, output)
    }

    fn output_of<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<Output> {
        let mut exec = self.on_client(command)?;
        exec.stdout(Stdio::piped()).stderr(Stdio::piped());
        Task::start(&mut exec)?.output()
    }

    /// A command that runs on the client's host.
    pub fn on_client<S: AsRef<OsStr>>(&self, command: &[S]) -> Result<Command> {
        if let Some(colo) = &self.colo {
            return colo.on_client(command);
        }
        let mut exec = self.plover(&["exec", "--"]);
        exec.args(command);
        Ok(exec)
    }

    /// The lab's status.
    pub fn status(&self) -> Result<Value> {
        if let Some(colo) = &self.colo {
            return colo.status();
        }
        let output = self.plover(&["status", "--json"]).output()?;
        check()?;
        serde_json::from_slice(&output.stdout).context("the lab's status is no JSON")
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

    fn plover(&self, arguments: &[&str]) -> Command {
        plover_lab(&self.name, arguments)
    }
}

/// The output of a command on the client's host, if it succeeded.
fn printed<S: AsRef<OsStr>>(command: &[S], output: Output) -> Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{}` on the client failed ({}): {}",
            in_words(command),
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn in_words<S: AsRef<OsStr>>(command: &[S]) -> String {
    let words: Vec<_> = command
        .iter()
        .map(|word| word.as_ref().to_string_lossy())
        .collect();
    words.join(" ")
}

/// The name of this process's lab.
pub(crate) fn own_name() -> String {
    format!("bench{}", std::process::id())
}

/// For labs of this process: prints progress, and ends waits on Ctrl-C.
pub(crate) fn progress() -> Result<Progress> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(Progress::spoken_by(
        |line| eprintln!("  {line}"),
        interrupted,
    ))
}

fn plover_lab(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(plover());
    let (verb, rest) = arguments
        .split_first()
        .map_or(("", arguments), |(v, r)| (*v, r));
    command.arg("lab").arg(verb).args(["--name", name]);
    command.args(rest);
    command
}

/// Takes down a lab, also one of another process.
pub(crate) fn down(name: &str) {
    // In a group of its own: a second Ctrl-C does not stop it halfway.
    let _ = plover_lab(name, &["down"])
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.colo.take().is_none() {
            down(&self.name);
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

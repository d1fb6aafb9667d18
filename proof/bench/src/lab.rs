//! A lab, driven through the `plover` command; taken down when dropped.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running lab of its own name.
#[derive(Debug)]
pub(crate) struct Lab {
    name: String,
}

impl Lab {
    /// Brings a lab up with these further options of `plover lab up`.
    pub fn up(policy: &str, options: &[String]) -> Result<Self> {
        let lab = Self {
            name: format!("bench{}", std::process::id()),
        };
        let status = lab
            .plover(&["up", "--quiet", "--policy", policy])
            .args(options)
            .stdout(Stdio::null())
            .status()
            .context("cannot run plover; build it with ./x")?;
        if !status.success() {
            bail!("the lab with policy {policy} did not come up ({status})");
        }
        Ok(lab)
    }

    /// Runs a command on the client's host and returns what it printed.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        let output = self
            .plover(&["exec", "--"])
            .args(command)
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            bail!("{command:?} on the client failed ({})", output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The lab's status.
    pub fn status(&self) -> Result<Value> {
        let output = self.plover(&["status", "--json"]).output()?;
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
        let mut command = Command::new(plover());
        let (verb, rest) = arguments
            .split_first()
            .map_or(("", arguments), |(v, r)| (*v, r));
        command
            .arg("lab")
            .arg(verb)
            .args(["--name", &self.name])
            .args(rest);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self
            .plover(&["down"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
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

//! Running `ip` and `bridge`, many commands at a time.

use super::Namespace;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Runs `ip` commands, in `namespace` or in the caller's.
pub(super) fn ip(namespace: Option<&Namespace>, lines: &[String]) -> Result<()> {
    batch("ip", namespace, lines)
}

/// Runs each of the `ip` commands, also after one has failed. The error is the first one's.
pub(super) fn ip_all(namespace: &Namespace, lines: impl IntoIterator<Item = String>) -> Result<()> {
    let mut first = Ok(());
    for line in lines {
        let done = ip(Some(namespace), &[line]);
        first = first.and(done);
    }
    first
}

/// Runs `bridge` commands.
pub(super) fn bridge(namespace: &Namespace, lines: &[String]) -> Result<()> {
    batch("bridge", Some(namespace), lines)
}

/// The devices that are plugged into `bridge`.
pub(super) fn ports_of(namespace: &Namespace, bridge: &str) -> Result<Vec<String>> {
    let output = Command::new("ip")
        .args([
            "-n",
            namespace.name(),
            "-o",
            "link",
            "show",
            "master",
            bridge,
        ])
        .output()
        .context("cannot run 'ip' (package iproute2)")?;
    // "4: r0-edge@if2: <BROADCAST,…"
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned()))
        .collect())
}

/// `ip -batch` stops at the first command that fails and names its line.
fn batch(tool: &str, namespace: Option<&Namespace>, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(tool);
    if let Some(namespace) = namespace {
        command.args(["-n", namespace.name()]);
    }
    // Ctrl-C does not reach it: what was made is to be known, and is taken down by the same tools.
    let mut child = command
        .process_group(0)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run '{tool}' (package iproute2)"))?;
    // The input is dropped at once: its end is the end of the batch. A tool that died early breaks the
    // pipe; its own error output, below, says why.
    let _ = child
        .stdin
        .take()
        .expect("it is piped")
        .write_all((lines.join("\n") + "\n").as_bytes());
    let output = child
        .wait_with_output()
        .with_context(|| format!("cannot wait for '{tool}'"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // "Command failed -:3" means the third line.
    let line = said
        .lines()
        .find_map(|line| {
            line.strip_prefix("Command failed -:")?
                .trim()
                .parse::<usize>()
                .ok()
        })
        .and_then(|number| lines.get(number.checked_sub(1)?));
    let reason = said
        .lines()
        .find(|line| !line.starts_with("Command failed"))
        .unwrap_or("failed");
    let place = namespace
        .map(|n| format!(" -n {}", n.name()))
        .unwrap_or_default();
    bail!("`{tool}{place} {}`: {reason}", line.unwrap_or(&lines[0]));
}

//! `plover replica` and `plover status`.

use crate::output;
use anyhow::{Context, Result, anyhow, bail, ensure};
use plover_lab::control::{Control, DaemonStatus};
use plover_lab::prerequisites;
use plover_node::newest::DiskCopy;
use plover_node::{ReplicaConfig, SPLIT_WARNING, Side};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs one replica until it is told to end.
pub fn run(config: &Path) -> Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .init();
    let config = ReplicaConfig::load(config)?;
    prerequisites::check_hypervisor(&config.qemu())?;
    let process = match plover_node::supervise(&config).map_err(|error| anyhow!(error))? {
        Side::Replica(process) => process,
        Side::Supervisor(code) => return Ok(code),
    };
    // Before the replica starts: a signal with its default action would end the process and leave the
    // hypervisor running.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    plover_node::run(config, process, move |stop| {
        std::thread::spawn(move || {
            for _ in &mut signals {
                stop.stop();
            }
        });
    })
    .map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells the replica that the operator allows booting a new guest. `others` hold what `plover status
/// --json` printed for the other replicas.
pub fn bootstrap(run_dir: &Path, others: &[PathBuf]) -> Result<ExitCode> {
    let control = Control::in_run_dir(run_dir);
    let status = control.status()?;
    let others = others
        .iter()
        .map(|file| read_status(file))
        .collect::<Result<Vec<_>>>()?;
    for status in others.iter().chain([&status]) {
        ensure!(
            !status.holds_state(),
            "replica {} holds the guest's state: nothing is lost",
            status.id
        );
    }
    let copies: Vec<DiskCopy> = others.iter().filter_map(DaemonStatus::disk_copy).collect();
    let answer = control.request(&json!({"op": "bootstrap", "others": copies}))?;
    if let Some(why) = answer["in_vain"].as_str() {
        bail!("no new guest is booted: {why}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches a guest on that is off.
pub fn start(run_dir: &Path) -> Result<ExitCode> {
    Control::in_run_dir(run_dir).request(&json!({"op": "start"}))?;
    Ok(ExitCode::SUCCESS)
}

fn read_status(file: &Path) -> Result<DaemonStatus> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the status {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no status: write it with `plover status --json`",
            file.display()
        )
    })
}

/// Prints what a replica says of itself.
pub fn status(run_dir: &Path, as_json: bool) -> Result<ExitCode> {
    let control = Control::in_run_dir(run_dir);
    if as_json {
        output::line(control.request(&json!({"op": "status"}))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let status = control.status()?;
    let isr: Vec<String> = status.isr.iter().map(|id| format!("r{id}")).collect();
    let protected = if status.protected {
        "protected"
    } else {
        "not known to be protected here"
    };
    let off = if status.guest_is_off() {
        "off until 'plover start'; "
    } else {
        ""
    };
    let qemu = status
        .qemu_pid
        .map_or_else(|| "none".into(), |pid| pid.to_string());
    output::print(format_args!(
        "replica   {}, {} in view {}\nin sync   {}\nguest     {off}{protected}\nprocesses plover {}, \
         qemu {qemu}\n",
        status.id,
        status.role,
        status.view,
        isr.join(" "),
        status.plover_pid,
    ))?;
    for refusal in status.refused() {
        output::print(format_args!("refused   {refusal}\n"))?;
    }
    if status.can_split() {
        output::print(format_args!("warning   {SPLIT_WARNING}\n"))?;
    }
    if status.sync.count > 0 {
        let sync = &status.sync;
        output::print(format_args!(
            "syncs     {}; medians: slot {} µs, pause {} µs, {} dirty pages of which {} same and \
             {} divergent, {} bytes\n",
            sync.count,
            sync.slot_us_p50,
            sync.pause_us_p50,
            sync.dirty,
            sync.same,
            sync.divergent,
            sync.bytes
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

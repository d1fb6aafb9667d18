//! `plover replica` and `plover bootstrap`.

use crate::logging::{self, LogForm};
use anyhow::{Context, Result, anyhow, bail, ensure};
use plover_lab::control::{Control, DaemonStatus};
use plover_lab::prerequisites;
use plover_node::newest::DiskCopy;
use plover_node::{ConfigFile, Side};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs one replica until it is told to end.
pub fn run(config: &Path, form: LogForm) -> Result<ExitCode> {
    let file = ConfigFile::load(config)?;
    let config = &file.config;
    let (log, output) = logging::of_replica(form, config);
    prerequisites::check_hypervisor(&config.qemu())?;
    let process = match plover_node::supervise(config).map_err(|error| anyhow!(error))? {
        Side::Replica(process) => process,
        Side::Supervisor(code) => return Ok(code),
    };
    let _log_thread = output.in_background();
    // Before the replica starts: a signal with its default action would end the process and leave the
    // hypervisor running.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    plover_node::run(file, process, log, move |stop| {
        std::thread::spawn(move || {
            for signal in &mut signals {
                match signal {
                    // The first one: it hands over, and ends then.
                    SIGTERM => stop.hand_over_and_stop(),
                    _ => stop.stop(),
                }
            }
        });
    })
    .map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells the replica that the operator allows booting a new guest. `others` hold what `plover status
/// --here --json` printed for the other replicas.
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

fn read_status(file: &Path) -> Result<DaemonStatus> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the status {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is no status: write it with `plover status --here --json`",
            file.display()
        )
    })
}

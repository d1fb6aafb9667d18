//! `plover replica` and `plover bootstrap`.

use crate::logging::{self, LogForm};
use crate::output;
use anyhow::{Context, Result, anyhow, bail, ensure};
use plover_lab::control::{Control, ControlError, DaemonStatus};
use plover_lab::prerequisites;
use plover_lab::status::GroupStatus;
use plover_node::{ConfigFile, Side};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Runs one replica until it is told to end.
pub fn run(path: &Path, form: LogForm) -> Result<ExitCode> {
    let file = ConfigFile::load(path)?;
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
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    let path = path.to_owned();
    plover_node::run(file, process, log, &ends, move |stop| {
        std::thread::spawn(move || {
            for signal in &mut signals {
                match signal {
                    // The first one: it hands over, and ends then.
                    SIGTERM => stop.hand_over_and_stop(),
                    SIGHUP => stop.reload(&path),
                    _ => stop.stop(),
                }
            }
        });
    })
    .map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells the replica that the operator allows booting a new guest: from its disks, if no other replica has a newer copy.
pub fn bootstrap(run_dir: &Path) -> Result<ExitCode> {
    let control = Control::in_run_dir(run_dir);
    let (asked, replicas) = control.group()?;
    let newest = GroupStatus::of_answers(asked, &replicas).newest_disks();
    let mut others = Vec::new();
    for said in replicas {
        if let Some(why) = said["silent"].as_str() {
            bail!(
                "replica {} does not say what it holds ({why}), and it may be the guest or the newest copy of its disks: \
                 start it, and try again in a moment",
                said["id"]
            );
        }
        let status: DaemonStatus =
            serde_json::from_value(said).context("a replica's status is not understood")?;
        ensure!(
            !status.holds_state(),
            "replica {} holds the guest's state: nothing is lost",
            status.id
        );
        if u64::from(status.id) != asked {
            others.extend(status.disk_copy());
        }
    }
    let answer = match control.request(&json!({"op": "bootstrap", "others": others})) {
        Err(ControlError::Refused(why)) => bail!("{why}{}", where_to_boot(newest, asked)),
        answer => answer?,
    };
    if let Some(why) = answer["in_vain"].as_str() {
        bail!(
            "no new guest is booted: {why}{}",
            where_to_boot(newest, asked)
        );
    }
    output::line("the guest boots; `plover status` says when it is protected")?;
    Ok(ExitCode::SUCCESS)
}

/// Names the replica that has the newest disks, if it is another one than the one that was asked.
fn where_to_boot(newest: Option<u8>, asked: u64) -> String {
    match newest.filter(|newest| u64::from(*newest) != asked) {
        Some(newest) => format!(
            ". Replica {newest} has the newest whole copy of the disks: set group.first_leader = {newest} in the files of all \
             hosts, start their services again, and run this on its host"
        ),
        None => String::new(),
    }
}

//! `plover run`: one replica of an unmodified program.

use crate::cli::{RunCommand, RunOptions};
use crate::{logging, output};
use anyhow::{Context, Result, anyhow, bail};
use plover_run::RunConfig;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::process::ExitCode;

pub fn run(options: RunOptions) -> Result<ExitCode> {
    match options.command {
        Some(RunCommand::Status { json, run_dir }) => return status(&run_dir, json),
        Some(RunCommand::Begin { run_dir }) => return begin(&run_dir),
        None => {}
    }
    let config = options.config.context(
        "plover run needs --config FILE, and the program after `--`: plover run --config group.toml -- \
         redis-server --port 6380",
    )?;
    if options.program.is_empty() {
        bail!("plover run needs the program after `--`, such as: -- redis-server --port 6380");
    }
    let _log_thread = logging::to_error_output().in_background();
    let config = RunConfig::load(&config)?;
    // Before the program starts: a signal with its default action would leave files behind.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    plover_run::run(config, options.program, move |stop| {
        std::thread::spawn(move || {
            for _ in &mut signals {
                stop.stop();
            }
        });
    })
    .map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Begins a new, empty log after all replicas have lost theirs.
fn begin(run_dir: &Path) -> Result<ExitCode> {
    let answer = plover_run::ask(run_dir, "begin")?;
    if let Some(why) = answer["error"].as_str() {
        bail!("{why}");
    }
    Ok(ExitCode::SUCCESS)
}

fn status(run_dir: &Path, as_json: bool) -> Result<ExitCode> {
    let status = plover_run::ask(run_dir, "status")?;
    if as_json {
        output::line(&status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |key: &str| {
        status[key]
            .as_u64()
            .map_or_else(|| "none".into(), |it| it.to_string())
    };
    let text = |key: &str| status[key].as_str().unwrap_or("?").to_owned();
    let leader = match status["leader"].as_u64() {
        Some(leader) => format!("replica {leader} leads"),
        None => "no leader is known".into(),
    };
    output::print(format_args!(
        "replica     {} of {}, {}; {leader}\nlog         {} committed, {} executed, begins behind {}, {} bytes\n\
         checkpoint  {} here, {} in the group\nprogram     pid {}, {} connections\n",
        number("id"),
        text("group"),
        text("phase"),
        number("committed"),
        number("executed"),
        number("log_begins"),
        number("log_bytes"),
        number("checkpoint"),
        number("newest_checkpoint"),
        number("program_pid"),
        number("connections"),
    ))?;
    if status["serves"] == true {
        output::print(format_args!(
            "clients     {} at {}\n",
            number("clients"),
            text("listen")
        ))?;
    }
    let is = |key: &str| status[key].as_bool() == Some(true);
    let is_behind = text("phase") == "following" && text("progress") == "behind";
    let states = [
        (
            is("stalled"),
            "stalled     the program leaves its input unread",
        ),
        (
            is_behind,
            "behind      the program has not caught up with the log: this replica leaves elections to others",
        ),
        (
            is("waits_for_followers"),
            "waits       clients wait for a moment, while programs of followers catch up",
        ),
        (
            is("too_few_in_step"),
            "too few     programs of followers are in step: if this leader fails now, clients wait until one has \
             caught up",
        ),
        (
            is("full"),
            "full        the log holds log_mib of input: clients wait until a checkpoint lets it be trimmed",
        ),
        (
            is("lost"),
            "lost        every replica has lost the log: `plover run begin` on the replica with the lowest id begins \
             a new one, and the program with no state",
        ),
    ];
    for (_, line) in states.iter().filter(|(is_so, _)| *is_so) {
        output::line(line)?;
    }
    if let Some(why) = status["stopped_because"].as_str() {
        output::print(format_args!("stopped     {why}\n"))?;
    }
    for note in status["notes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        output::print(format_args!("note        {note}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

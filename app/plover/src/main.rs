//! The `plover` command: the daemon of a replica, and the tools around it.
//!
//! ```text
//!  plover init                      the configurations of a new group
//!  plover import DOMAIN.XML         the same for a guest that libvirt has; plover export gives it back
//!  plover check --config FILE       whether a host has what its replica needs
//!  plover key                       the keys by which replicas know each other
//!  plover tap --config FILE         its TAP devices, which root makes
//!  plover replica --config FILE     one replica, until SIGTERM
//!  plover status                    where the group stands
//!  plover metrics, plover dash      the same for Prometheus, and on a page
//!  plover switchover                moves the lead
//!  plover drain, undrain            clears a host of its roles
//!  plover reload                    a changed configuration file, while its replica runs
//!  plover console, shutdown, start  the guest, wherever it is
//!  plover guest                     the agent in the guest: freeze, thaw, run a program
//!  plover disk grow                 more room on the guest's disks, while it runs
//!  plover backup, restore           the guest's disks, into a folder and from there
//!  plover bootstrap                 the operator's word after a total loss
//!  plover run --config FILE -- …     one replica of an unmodified program
//!  plover log …                     a replicated log by hand
//!  plover bench consensus           what an entry of such a log costs
//!  plover policy list               the ways to protect a guest
//!  plover lab …                     three replicas on one machine, to try and to break
//! ```
//!
//! Exit codes: 0 done, 1 failed, 2 this machine lacks something (one sentence says what to do) or an import would lose something,
//! 130 interrupted, 141 nobody reads the output any more. `plover lab exec` and `plover guest exec` exit with the code of what it ran.

#[macro_use]
mod output;

mod at;
mod backup;
mod bench;
mod capacity;
mod check;
mod cli;
mod dash;
mod disk;
mod display;
mod export;
mod fleet;
mod guest;
mod http;
mod import;
mod init;
mod key;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
#[path = "packaged_lab.rs"]
mod lab;
mod log;
mod logging;
mod metrics;
mod ocf;
mod operate;
mod overview;
#[cfg(feature = "pages")]
mod pages;
mod policy;
mod reload;
mod replica;
mod run;
mod tap;
mod target;
#[cfg(test)]
mod testing;
mod tool;

use clap::Parser;
use plover_lab::backup::Limits;
use plover_lab::operate::Drained;
use plover_lab::prerequisites::Missing;
use plover_lab::up::is_interruption;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "ofi")]
    plover_fabric::ofi::forget_signal_handlers();
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version come this way too. A mistake in the arguments is an ordinary
            // failure: code 2, which clap would use, is for what a machine lacks.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(arguments) {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

fn run(arguments: cli::Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        cli::Command::Init(options) => init::run(&options),
        cli::Command::Import(options) => import::run(&options),
        cli::Command::Export(options) => export::run(&options),
        cli::Command::Check {
            config,
            processors: Some(files),
            ..
        } => check::processors(config.as_deref(), &files),
        cli::Command::Check {
            config,
            guest: Some(image),
            syncs,
            ..
        } => check::guest(&image, config.as_deref(), syncs),
        cli::Command::Check {
            config: Some(config),
            together,
            ..
        } => check::run(&config, together),
        // clap asks for one of them.
        cli::Command::Check { .. } => Ok(ExitCode::from(2)),
        cli::Command::Key { command } => key::run(command),
        cli::Command::Replica { config, log } => replica::run(&config, log),
        cli::Command::Tap {
            config,
            user,
            remove,
        } => tap::run(&config, user.as_deref(), remove),
        cli::Command::Status {
            show,
            all: true,
            at,
            ..
        } => operate::status_of_all(at.root(), &show),
        cli::Command::Status { show, here, at, .. } => operate::status(&at.control()?, &show, here),
        cli::Command::Metrics { list: true, .. } => metrics::list(),
        cli::Command::Metrics {
            configs, listen, ..
        } => {
            allow_many_descriptors();
            metrics::run(&configs, listen)
        }
        cli::Command::Dash {
            configs,
            fleet,
            listen,
        } => {
            allow_many_descriptors();
            dash::run(&configs, fleet, listen)
        }
        cli::Command::Switchover { to, at } => operate::switch_over(&at.control()?, to),
        cli::Command::Drain {
            wait,
            until_restart,
            at,
        } => {
            let lasts = match until_restart {
                true => Drained::UntilRestarted,
                false => Drained::UntilUndrained,
            };
            operate::drain(&at.control()?, lasts, wait)
        }
        cli::Command::ConfirmOff { id, at } => operate::confirm_off(&at.control()?, id),
        cli::Command::Undrain { until_restart, at } => {
            operate::undrain(&at.control()?, until_restart)
        }
        cli::Command::Reload { dry_run, json, at } => reload::run(&at.control()?, dry_run, json),
        cli::Command::Disk { command } => match command {
            cli::DiskCommand::Grow { disk, to, wait, at } => {
                operate::grow_disk(&at.control()?, disk, to, wait)
            }
            cli::DiskCommand::Import(import) => disk::import(&import),
        },
        cli::Command::Member { command } => operate::change_members(&command),
        cli::Command::Fleet { command } => fleet::run(command),
        cli::Command::Ocf { action } => ocf::run(&action),
        cli::Command::Backup {
            to,
            keep_mib,
            mib_per_s,
            incremental,
            quiesce,
            memory,
            json,
            at,
        } => {
            let limits = Limits {
                keep_mib,
                mib_per_s,
                incremental,
                quiesce,
                memory,
            };
            backup::take(&at.control()?, &to, limits, json)
        }
        cli::Command::Restore { from, config, boot } => backup::restore(&from, &config, boot),
        cli::Command::Guest { command } => guest::run(command),
        cli::Command::Console { at } => operate::console(&at.control()?),
        cli::Command::Display { listen, at } => display::serve(listen, &at.control()?),
        cli::Command::Shutdown { at } => operate::shut_down(&at.control()?),
        cli::Command::Start { at } => operate::start(&at.control()?),
        cli::Command::Reboot { wait, at } => operate::reboot(&at.control()?, wait),
        cli::Command::Reset { at } => operate::reset(&at.control()?),
        cli::Command::Pause { at } => operate::pause(&at.control()?),
        cli::Command::Unpause { at } => operate::unpause(&at.control()?),
        cli::Command::Logs {
            replica,
            follow,
            lines,
            at,
        } => operate::logs(&at.control()?, replica, follow, lines),
        cli::Command::Bootstrap { at } => replica::bootstrap(&at.run_dir()?),
        cli::Command::Run(options) => {
            allow_many_descriptors();
            run::run(*options)
        }
        cli::Command::Log { command } => {
            allow_many_descriptors();
            log::run(command)
        }
        cli::Command::Bench { command } => match command {
            cli::BenchCommand::Consensus(options) => bench::consensus(&options),
        },
        cli::Command::Policy { command } => policy::run(command),
        #[cfg(feature = "lab")]
        cli::Command::Lab { name, command } => lab::run(name, command),
        #[cfg(not(feature = "lab"))]
        cli::Command::Lab { words } => lab::run(&words),
        #[cfg(feature = "pages")]
        cli::Command::Pages { folder } => pages::run(&folder),
    }
}

/// Lets this process have as many descriptors as it may: a client takes one or two, a scrape one more for each replica, and a usual
/// limit is 1,024. A program that is started gets the same.
fn allow_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // With the old limit it takes fewer clients.
    let _ = setrlimit(Resource::Nofile, all);
}

/// The exit code of a backup that is another host's business.
const NOT_HERE: u8 = 3;

/// The exit code that a shell shows for a program that the kernel ends because nobody reads its output.
const BY_SIGPIPE: u8 = 141;

/// Prints what went wrong, in sentences, and returns the exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe && output::is_closed() {
        // The reader of our output has seen enough, as in `plover lab logs | head`. The work may be half done all the same.
        return ExitCode::from(BY_SIGPIPE);
    }
    let mut stderr = std::io::stderr();
    if is_interruption(error) {
        // Something may have been left, as by a lab that could not be taken down.
        let _ = writeln!(stderr, "plover: {}", in_words(error));
        return ExitCode::from(130);
    }
    if let Some(Missing(sentences)) = error.downcast_ref::<Missing>() {
        for sentence in sentences {
            let _ = writeln!(stderr, "plover: {sentence}");
        }
        return ExitCode::from(2);
    }
    let _ = writeln!(stderr, "plover: {}", in_words(error));
    match error.downcast_ref::<backup::NotHere>() {
        Some(_) => ExitCode::from(NOT_HERE),
        None => ExitCode::FAILURE,
    }
}

/// An error and its causes. Some errors name their cause themselves, so each is said once.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text += &format!("{colon}{cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_told_once() {
        let full = || anyhow::anyhow!("no space");
        assert_eq!(
            in_words(&full().context("cannot write")),
            "cannot write: no space"
        );
        let said = full().context("cannot write: no space (make room)");
        assert_eq!(in_words(&said), "cannot write: no space (make room)");
    }
}

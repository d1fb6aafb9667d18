//! One entry point for every task of the repository: the program behind `./x`.
//!
//! A subcommand makes sure that its needs are met (Debian packages, the guest image), and then *becomes*
//! the program that does the work: the last step replaces this process, so that signals, the terminal
//! and the exit code are that program's own, and Ctrl-C leaves nothing behind.
//!
//! Exit codes: those of the program that was run; 2 when it did not come to that, since this machine lacks something or a
//! step before it failed, with a sentence that says why.

mod failures;
mod fuzz;
mod guest;
mod lab;
mod package;
mod packages;
mod run;
mod test;
mod tool;
mod verify;

use clap::{Parser, Subcommand};
use packages::{
    BENCH, CONSENSUS, DISK, FSCK, GUEST, IMAGES, LAB, MORE_PROGRAMS, NEWER_QEMU, OFI, PROGRAMS, WEB,
};
use run::{Cargo, Result};
use std::ffi::OsString;
use std::process::ExitCode;

/// Plover's tasks.
#[derive(Parser)]
#[command(name = "x", bin_name = "./x", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show a failover: leaders die under load, and clients keep their connections.
    #[command(disable_help_flag = true)]
    Demo(Rest),
    /// Run every test, or with `-p PACKAGE` those of one package. Arguments go to `cargo test`.
    #[command(disable_help_flag = true)]
    Test(Rest),
    /// Check format, lints, the dependency rule, tidiness, licences and the guide; change no file.
    Verify,
    /// Simulate more runs. Arguments go to `plover-sim`; after `--group` or `--model`, to the
    /// proof of consensus alone, after `--programs` to that of replicated programs.
    #[command(disable_help_flag = true)]
    Sim(Rest),
    /// Break a lab at random, under load, and check what its clients saw. Arguments go to `plover-chaos`.
    #[command(disable_help_flag = true)]
    Chaos(Rest),
    /// Do planned work on a lab under load, one thing after another, and kill two leaders. Arguments go to `plover-drill`.
    #[command(disable_help_flag = true)]
    Drill(Rest),
    /// Make, use and break a lab of three replicas on this machine. Arguments go to `plover lab`.
    #[command(disable_help_flag = true)]
    Lab(Rest),
    /// Replicate unmodified programs, and kill, stop and cut off their hosts under load. Arguments go to
    /// `plover-programs`.
    #[command(disable_help_flag = true)]
    Programs(Rest),
    /// Run benchmarks. Arguments go to `plover-bench`.
    #[command(disable_help_flag = true)]
    Bench(Rest),
    /// Fuzz every decoder of bytes from outside, or one, guided by coverage.
    Fuzz {
        /// The target, by its file in `proof/fuzz/corpus`; all in turn if none is named.
        target: Option<String>,
        /// How long, for each target.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        minutes: u32,
        /// Keep the smallest inputs that reach as much as all that were found.
        #[arg(long)]
        keep: bool,
    },
    /// Build the packages `plover` and `plover-lab`, .deb and .rpm, below `target`.
    Package,
    /// Format, and apply what the lints suggest.
    Fix,
    /// Build guest images, if they are missing or stale: those named, or all that run from
    /// memory.
    Guests {
        /// The images, by their folders in `guests/`; `debian` is a disk image.
        names: Vec<String>,
    },
}

/// The option of cargo for all that is built over libfabric, whose package not every system has.
pub(crate) const OFI_FEATURES: &str = "--features=plover/ofi,plover-bench/ofi";

/// Arguments that are passed on as they are.
#[derive(clap::Args)]
struct Rest {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Not clap's code 2, which here means that the machine lacks something.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run(arguments.task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("x: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Demo(rest) => {
            packages::ensure(&[LAB, GUEST])?;
            guest::build(guest::DEFAULT)?;
            run::become_proof("plover-demo", &rest.arguments)
        }
        Task::Chaos(rest) => {
            packages::ensure(&[LAB, GUEST, FSCK])?;
            guest::build(guest::DEFAULT)?;
            run::become_proof("plover-chaos", &rest.arguments)
        }
        Task::Drill(rest) => {
            packages::ensure(&[LAB, GUEST, IMAGES])?;
            guest::build(guest::DEFAULT)?;
            run::become_proof("plover-drill", &newer_qemu(rest.arguments)?)
        }
        Task::Programs(rest) => {
            packages::ensure(&[LAB, PROGRAMS])?;
            if needs_more_programs(&rest.arguments) {
                packages::ensure(&[MORE_PROGRAMS])?;
            }
            run::become_proof("plover-programs", &rest.arguments)
        }
        Task::Lab(rest) => lab::run(&rest.arguments),
        // Consensus alone needs no lab and no guest, only the systems it is compared with.
        Task::Bench(rest)
            if rest
                .arguments
                .first()
                .is_some_and(|word| word == "consensus") =>
        {
            if let Err(error) = packages::ensure(&[CONSENSUS]) {
                eprintln!("x: {error:#}; the benchmark goes on without what is missing");
            }
            let ofi = packages::ensure(&[OFI]).is_ok();
            Cargo::new("run")
                .args(["-p", "plover-bench"])
                .args(ofi.then_some("--features=ofi"))
                .args(["--"])
                .args(rest.arguments)
                .become_it()
        }
        // The benchmark of hashing needs none of these either.
        Task::Bench(rest) if rest.arguments.first().is_some_and(|word| word == "hash") => {
            Cargo::bench("plover-vm", "hash")
                .args(&rest.arguments[1..])
                .become_it()
        }
        Task::Bench(rest) => {
            packages::ensure(&[LAB, GUEST, BENCH, FSCK])?;
            if let Err(error) = packages::ensure(&[WEB]) {
                eprintln!("x: {error:#}; the benchmark goes on without what is missing");
            }
            guest::build(guest::DEFAULT)?;
            Cargo::run("plover-bench").args(rest.arguments).become_it()
        }
        // `--group`: consensus alone, simulated; `--model`: its states, explored; `--programs`: programs.
        Task::Sim(mut rest) => match rest.arguments.first().and_then(|word| word.to_str()) {
            Some(word @ ("--group" | "--model")) => {
                let what = if word == "--group" { "sim" } else { "model" };
                Cargo::run("plover-consensus-proof")
                    .args([what])
                    .args(rest.arguments.split_off(1))
                    .become_it()
            }
            Some("--programs") => Cargo::run("plover-programs-proof")
                .args(rest.arguments.split_off(1))
                .become_it(),
            _ => Cargo::run("plover-sim").args(rest.arguments).become_it(),
        },
        Task::Test(rest) => test::run(rest.arguments),
        Task::Verify => verify::all(),
        Task::Fuzz {
            target,
            minutes,
            keep,
        } => fuzz::run(target.as_deref(), minutes, keep),
        Task::Package => package::build(),
        Task::Fix => {
            run::plain(&["fmt", "--all"])?;
            Cargo::new("clippy")
                .args([
                    "--workspace",
                    "--all-targets",
                    "--fix",
                    "--allow-dirty",
                    "--allow-staged",
                ])
                .become_it()
        }
        Task::Guests { names } => {
            packages::ensure(&[GUEST])?;
            let names = if names.is_empty() {
                guest::recipes()?
            } else {
                names
            };
            for name in names {
                if name == guest::DISK {
                    packages::ensure(&[DISK])?;
                    guest::build_disk()?;
                } else {
                    guest::build(&name)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Arguments of `./x drill`, with the path of Debian 13's QEMU behind a `--newer-qemu` that names no file.
fn newer_qemu(mut arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let at = arguments.iter().position(|word| word == "--newer-qemu");
    let Some(at) = at else {
        return Ok(arguments);
    };
    let next = arguments.get(at + 1).and_then(|word| word.to_str());
    if next.is_none_or(|word| word.starts_with('-')) {
        packages::ensure(&[NEWER_QEMU])?;
        arguments.insert(at + 1, guest::newer_qemu()?.into());
    }
    Ok(arguments)
}

/// Whether arguments of `./x programs` name another program than Redis, or mean all of them.
fn needs_more_programs(arguments: &[OsString]) -> bool {
    let words: Vec<_> = arguments.iter().filter_map(|it| it.to_str()).collect();
    let named = words.iter().enumerate().find_map(|(at, word)| {
        let value = word.strip_prefix("--program=");
        value.or_else(|| words.get(at + 1).copied().filter(|_| *word == "--program"))
    });
    match named {
        Some(name) => name != "redis",
        None => words.contains(&"faults"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn everything_after_the_task_is_passed_on() {
        for words in [
            vec!["lab", "exec", "--", "redis-cli", "-h", "10.77.0.100"],
            vec!["lab", "up", "--machine", "q35", "--help"],
            vec!["demo", "--json"],
        ] {
            let parsed = Arguments::try_parse_from(std::iter::once("x").chain(words.clone()));
            let (Task::Lab(rest) | Task::Demo(rest)) = parsed.unwrap().task else {
                panic!("{words:?} is another task");
            };
            assert_eq!(rest.arguments, words[1..], "{words:?}");
        }
    }

    #[test]
    fn packages_are_those_of_the_program_that_is_named() {
        for (words, needs) in [
            ("demo", false),
            ("faults", true),
            ("faults --program redis", false),
            ("demo --program=mariadb --json", true),
        ] {
            let words: Vec<OsString> = words.split(' ').map(Into::into).collect();
            assert_eq!(needs_more_programs(&words), needs, "{words:?}");
        }
    }

    /// `x` prints its help without a toolchain, so the list is written there by hand.
    #[test]
    fn the_launcher_lists_every_task() {
        let launcher = std::fs::read_to_string(run::root().join("x")).unwrap();
        for task in Arguments::command().get_subcommands() {
            let line = format!("#   ./x {}", task.get_name());
            assert!(launcher.contains(&line), "x does not say `{line}`");
        }
    }
}

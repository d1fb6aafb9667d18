//! `./x programs`: unmodified server programs on three hosts, and replicas that fail under load.

use clap::{Parser, Subcommand};
use plover_lab::prerequisites;
use plover_lab::progress::Progress;
use plover_lab_proof::programs::{self, Plan, Subject};
use plover_lab_proof::{Turn, exit_code, program};
use std::process::ExitCode;

/// Clients write to a replicated, unmodified program, replicas fail under them, and everything is read back.
#[derive(Debug, Parser)]
#[command(name = "./x programs")]
struct Arguments {
    #[command(subcommand)]
    what: What,
    /// The program: redis, memcached, mariadb, openldap, clamav, gerbera or nginx. Without it: redis, and for `faults`
    /// all of them, one after the other.
    #[arg(long, global = true)]
    program: Option<String>,
    /// The result as one JSON object a line.
    #[arg(long, global = true)]
    json: bool,
    /// Entries are on stable storage before they count (`durability = "disk"`).
    #[arg(long, global = true)]
    disk: bool,
    /// The program reads its clients itself (`via = "preload"`).
    #[arg(long, global = true)]
    preload: bool,
    /// The program's time of day is the log's (`clock = "log"`).
    #[arg(long, global = true, requires = "preload")]
    log_clock: bool,
    /// Clients' connections outlive checkpoints: what the program remembers of them, stateless or login (`sessions`).
    #[arg(long, global = true)]
    sessions: Option<String>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum What {
    /// Kill two leaders under load, and read back what was acknowledged.
    Demo,
    /// Kill, stop and cut off leaders and followers.
    Faults,
    /// Kill leaders, one after the other.
    Kills {
        /// How many.
        #[arg(long, default_value_t = 10)]
        count: usize,
    },
}

fn main() -> ExitCode {
    exit_code("programs", run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    prerequisites::check_root()?;
    let subjects: Vec<&'static dyn Subject> = match (&arguments.program, arguments.what) {
        (Some(name), _) => vec![programs::named(name)?],
        (None, What::Faults) => programs::ALL.into(),
        (None, _) => vec![programs::named("redis")?],
    };
    let mut plan = match arguments.what {
        What::Demo => Plan::demo(),
        What::Faults => Plan::faults(),
        What::Kills { count } => Plan::kills(count),
    };
    if arguments.disk {
        plan.keys += "\ndurability = \"disk\"";
    }
    if arguments.preload {
        plan.program_keys += "via = \"preload\"";
    }
    if arguments.log_clock {
        plan.program_keys += "\nclock = \"log\"";
    }
    if let Some(sessions) = &arguments.sessions {
        plan.program_keys += &format!("\nsessions = \"{sessions}\"");
    }
    let _turn = Turn::wait_aloud();
    let progress = Progress::interruptible(false)?;
    let mut is_good = true;
    for subject in subjects {
        let report = programs::run("programs", program(), subject, &plan, &progress)?;
        if arguments.json {
            eprintln!("{report}");
            println!("{}", serde_json::to_string(&report)?);
        } else {
            println!("{report}");
        }
        is_good &= report.is_good();
    }
    Ok(is_good)
}

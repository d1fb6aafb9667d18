//! A write storm from the command line: see `plover_lab_proof::storm`.
//!
//! ```text
//! plover lab up --guest storm
//! plover lab exec -- plover-storm run --record /tmp/record 10.77.0.100:7788
//! plover lab exec -- plover-storm audit --record /tmp/record 10.77.0.100:7788
//! ```
//!
//! Exit codes: 0 clean; 1 something is lost or torn, or a connection was lost.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use plover_lab_proof::storm::audit::{Disk, ImageFile, audit};
use plover_lab_proof::storm::record::State;
use plover_lab_proof::storm::writers::{Link, Storm};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Random writes with flushes to a guest's disk, and whether an acknowledged one is lost or torn.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write for some time, then read everything back.
    Run {
        /// The guest's `plover-storm-server`.
        address: SocketAddrV4,
        /// Where to note what was acknowledged. One that is there is gone on with.
        #[arg(long, value_name = "FILE")]
        record: PathBuf,
        /// How long.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Connections, each with a part of the disk of its own.
        #[arg(long, default_value_t = 4)]
        connections: u64,
        /// Decides what is written where.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Only read everything back.
    Audit {
        /// The guest's `plover-storm-server`.
        #[arg(required_unless_present = "image")]
        address: Option<SocketAddrV4>,
        /// A raw disk image instead, of a guest that does not run.
        #[arg(long, value_name = "FILE", conflicts_with = "address")]
        image: Option<PathBuf>,
        /// What was noted.
        #[arg(long, value_name = "FILE")]
        record: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("plover-storm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<bool> {
    match task {
        Task::Run {
            address,
            record,
            seconds,
            connections,
            seed,
        } => {
            let storm = Storm::start(Link::open_many(address, connections)?, &record, seed)?;
            let end = Instant::now() + Duration::from_secs(seconds);
            while Instant::now() < end && !storm.has_failed() {
                std::thread::sleep(Duration::from_millis(100));
            }
            storm.finish()?;
            judge(&record, &mut Link::open(address)?)
        }
        Task::Audit {
            image: Some(image),
            record,
            ..
        } => judge(&record, &mut ImageFile::open(&image)?),
        Task::Audit {
            address, record, ..
        } => {
            let address = address.context("name the server or --image")?;
            judge(&record, &mut Link::open(address)?)
        }
    }
}

fn judge(record: &Path, disk: &mut dyn Disk) -> Result<bool> {
    let audit = audit(&State::load(record)?, disk)?;
    println!("{audit}");
    Ok(audit.is_clean())
}

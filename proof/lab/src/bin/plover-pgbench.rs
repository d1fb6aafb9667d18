//! TPC-B against a guest's PostgreSQL, and whether what it acknowledged is there: see
//! `plover_lab_proof::pgbench`.
//!
//! ```text
//! plover lab up --guest postgres
//! plover lab exec -- plover-pgbench --programs .cache/guests/postgres/client 10.77.0.100
//! ```
//!
//! Exit codes: 0 clean; 1 something is lost, or a connection was.

use anyhow::{Context, Result};
use clap::Parser;
use plover_lab_proof::pgbench::Clients;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs TPC-B and compares the log of its commits with the tables.
#[derive(Parser)]
struct Arguments {
    /// The server.
    address: Ipv4Addr,
    /// The folder with `pgbench`, `psql` and `pg_amcheck`.
    #[arg(long, value_name = "DIR")]
    programs: PathBuf,
    /// Connections.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// How long.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Of the tables, which are made anew: 100,000 accounts each.
    #[arg(long, default_value_t = 1)]
    scale: u32,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("plover-pgbench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<bool> {
    let clients = Clients {
        // Programs are started from another directory.
        programs: std::path::absolute(&arguments.programs)?,
        server: arguments.address,
        namespace: None,
    };
    let dir = std::env::temp_dir().join(format!("plover-pgbench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let result = (|| {
        clients.fill(arguments.scale)?;
        let load = clients.start(&dir, arguments.clients, arguments.seconds)?;
        let commits = load.finish()?;
        print!("{}", commits.report);
        let audit = clients.audit(&commits)?;
        println!("{audit}");
        clients.amcheck()?;
        Ok(audit.is_clean())
    })();
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    result
}

//! `plover fleet`: many guests on a cluster of hosts that Pacemaker runs.
//!
//! ```text
//!   DIR/*.toml ──▶ guests.rs ──▶ render.rs ──▶ cib.rs ──▶ Pacemaker ──▶ `plover ocf`, on each host
//!   one a guest     their hosts   resources     what would change         └─▶ attributes ──▶ status.rs
//! ```
//!
//! Pacemaker keeps its configuration (the CIB) on all hosts alike. All here goes through its own programs, so it works on any
//! host of the cluster.

mod cib;
mod guests;
mod render;
mod status;
#[cfg(test)]
mod tests;
mod upgrade;

pub use cib::guests_of;
pub use status::FleetStatus;

use crate::cli::Show;
use crate::operate;
use crate::output;
use crate::tool;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use guests::{Hosts, NodeOf};
use plover_lab::progress::Progress;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// A program of the cluster that does not answer for so long hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Have Pacemaker run the guests whose configuration files are in a folder.
    ///
    /// Writes a resource for each guest and where it may run, as its file names its hosts. Shows first what would change,
    /// and what Pacemaker would do. A guest that the cluster has and the folder has not stays as it is, and so does what
    /// an operator has added to a resource.
    #[command(
        after_help = "Example:\n  plover fleet apply guests --dry-run\n  plover fleet apply guests --node 192.0.2.10=alpha"
    )]
    Apply {
        /// The folder with one file a guest, NAME.toml: that of any of its hosts. Each host has its own as
        /// /etc/plover/NAME.toml.
        dir: PathBuf,
        /// Only show what would change.
        #[arg(long)]
        dry_run: bool,
        /// The node at an address of [[group.replica]] or [[group.spare]], if corosync uses other addresses than the replicas.
        /// Once for each.
        #[arg(long = "node", value_name = "ADDRESS=NODE")]
        nodes: Vec<NodeOf>,
    },
    /// Show all guests of the cluster, one a line, on any of its hosts.
    ///
    /// A guest that has a replica on this host is asked itself. Of others the line says what their hosts have written into the
    /// cluster, which is up to 10 s old.
    #[command(after_help = "Example:\n  plover fleet status --watch")]
    Status {
        #[command(flatten)]
        show: Show,
        /// Where the run directories of this host's replicas are.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
    },
    /// Upgrade the hosts of the cluster, one after the other, while the guests run.
    ///
    /// For each host: its replicas hand over and end (standby), COMMAND runs, they start again, and all guests are as well
    /// protected as before. Begins only when all are well. Stops at the first host where COMMAND fails or something is worse
    /// than before, with that host's replicas running again if they can, and touches no other one. So does Ctrl-C.
    #[command(
        after_help = "Example:\n  plover fleet upgrade -- sh -c 'scp plover.deb {host}:/tmp && ssh {host} apt-get install -y /tmp/plover.deb'\n  plover fleet upgrade --host gamma -- ssh {host} reboot-and-wait"
    )]
    Upgrade {
        /// A host, by the name that the cluster has for it, once for each, in this order. Without it: all that have replicas
        /// at present.
        #[arg(long = "host", value_name = "NODE")]
        hosts: Vec<String>,
        /// How many seconds the replicas of a host may take to end, and later all guests until they are as before.
        #[arg(long, value_name = "S", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=604_800))]
        within_s: u64,
        /// Begin although not all guests are well. Those that are well must stay so.
        #[arg(long)]
        anyway: bool,
        /// Where the run directories of this host's replicas are.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
        /// The command that upgrades a host. {host} stands for the host's name.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

pub fn run(command: FleetCommand) -> Result<ExitCode> {
    match command {
        FleetCommand::Apply {
            dir,
            dry_run,
            nodes,
        } => apply(&dir, dry_run, &nodes),
        FleetCommand::Status { show, run_dir } => {
            let look = || FleetStatus::ask(&run_dir);
            operate::show(&show, look, FleetStatus::to_json)?;
            Ok(ExitCode::SUCCESS)
        }
        FleetCommand::Upgrade {
            hosts,
            within_s,
            anyway,
            run_dir,
            command,
        } => {
            let cluster = upgrade::Cluster {
                run_dir: &run_dir,
                command: &command,
            };
            let progress = Progress::interruptible(false)?;
            let patience = upgrade::Patience {
                well: upgrade::WELL,
                within: Duration::from_secs(within_s),
                settled: upgrade::SETTLED,
            };
            upgrade::run(&cluster, &hosts, anyway, patience, &progress)?;
            output::line("done: all hosts are upgraded, and all guests are as before")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn apply(dir: &Path, dry_run: bool, nodes: &[NodeOf]) -> Result<ExitCode> {
    // What Pacemaker is asked about lies in a folder meanwhile, which an interruption is not to leave.
    let progress = Progress::interruptible(true)?;
    let guests = guests::read(dir)?;
    let members = ask("corosync-cmapctl", &[]);
    progress.check()?;
    let hosts = Hosts::new(&members?, nodes);
    let wanted = render::all(&guests, &hosts)?;
    let live = cibadmin();
    progress.check()?;
    let live = cib::Cib::parse(live?);
    let plan = live.plan(&wanted, &guests)?;
    output::print(&plan)?;
    let ended = ExitCode::from(u8::from(!plan.is_up_to_date()));
    if plan.is_empty() {
        return Ok(ended);
    }
    let change = plan.rehearse(&live);
    progress.check()?;
    let change = change?;
    output::print(&change.shown)?;
    if dry_run {
        output::line("nothing is changed: this was a dry run")?;
    } else {
        change.make()?;
        output::line("done: `plover fleet status` shows the guests")?;
    }
    Ok(ended)
}

/// The state of the cluster, as XML.
fn crm_mon() -> Result<String> {
    ask("crm_mon", &["--one-shot", "--inactive", "--output-as=xml"])
}

/// The configuration of the cluster, as XML.
fn cibadmin() -> Result<String> {
    ask("cibadmin", &["--query"])
}

/// The output of a program of the cluster.
///
/// # Errors
/// It is not there, or fails.
fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    run_tool(Command::new(program).args(arguments), 0)
}

/// Runs a program of the cluster that ends well with 0 or with `code`, and returns its output.
fn run_tool(command: &mut Command, code: i32) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ended = tool::run(command, None, ANSWER_WITHIN).with_context(|| {
        format!("cannot run {program}: install the packages pacemaker and corosync, and run this on a host of the cluster")
    })?;
    let Some(ended) = ended else {
        bail!(
            "{program} has not answered within {} s: look at the cluster's daemons (`systemctl status pacemaker corosync`)",
            ANSWER_WITHIN.as_secs()
        );
    };
    if !ended.status.success() && ended.status.code() != Some(code) {
        bail!(
            "{program} failed: {} (does the cluster run on this host? `crm_mon -1` says)",
            ended.err.trim()
        );
    }
    Ok(ended.out)
}

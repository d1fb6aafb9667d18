//! The command line: commands, options, and their help texts.

#[cfg(feature = "lab")]
mod lab;

use crate::bench::ConsensusOptions;
use crate::init::InitOptions;
use crate::log::LogCommand;
use clap::{Args, Parser, Subcommand};
#[cfg(feature = "lab")]
pub use lab::LabCommand;
use plover_lab::options::PolicyName;
#[cfg(feature = "lab")]
use plover_lab::state::LabName;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Keeps a virtual machine alive when the host under it dies.
#[derive(Debug, Parser)]
#[command(
    name = "plover",
    bin_name = "plover",
    version,
    arg_required_else_help = true
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write the configurations of a new group, one a host.
    ///
    /// Asks for what is missing, on a terminal. Example:
    /// plover init --name shop --hosts 192.0.2.10,192.0.2.11,192.0.2.12 --disk /var/lib/plover/shop.raw --disk-mib 20480
    Init(Box<InitOptions>),
    /// Look whether this host has what its replica needs; changes nothing.
    ///
    /// Exits with 0 if it has, with 2 if something is missing. Example:
    /// plover check --config /etc/plover/shop.toml
    Check {
        /// The replica's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Run one replica until SIGTERM or Ctrl-C; its log goes to the error output.
    Replica {
        /// The replica's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Show the state of the whole group, asked of the replica that runs on this host.
    ///
    /// A replica that does not answer within a second is shown as silent.
    #[command(after_help = "Example:\n  plover status --run-dir /run/plover/shop-db --watch")]
    Status {
        #[command(flatten)]
        show: Show,
        /// Only the replica of this host: with --json everything that it says of itself.
        #[arg(long, conflicts_with = "watch")]
        here: bool,
        #[command(flatten)]
        at: At,
    },
    /// Tell Prometheus what the replicas on this host do: OpenMetrics over HTTP, at /metrics.
    ///
    /// Runs until it is ended, beside the replicas, and asks them anew at each request. A replica that does not
    /// answer within a second is shown with `plover_up 0`.
    #[command(after_help = "Example:\n  plover metrics --config /etc/plover/shop-db.toml")]
    Metrics {
        /// The configurations of this host's replicas.
        #[arg(long = "config", value_name = "FILE", num_args = 1.., required_unless_present = "list")]
        configs: Vec<PathBuf>,
        /// Where to listen. Anybody who reaches this address can read the metrics.
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9777")]
        listen: SocketAddr,
        /// Print the metrics as rows of a table, and end.
        #[arg(long, conflicts_with = "configs")]
        list: bool,
    },
    /// Move the lead to another replica; clients keep their connections.
    ///
    /// The guest is protected all the time: the replica that led stays in step. Works on any host of the group.
    #[command(after_help = "Example:\n  plover switchover --run-dir /run/plover/shop-db")]
    Switchover {
        /// The replica that is to lead; by default the one that is in sync.
        #[arg(long, value_name = "ID")]
        to: Option<u8>,
        #[command(flatten)]
        at: At,
    },
    /// Clear this host of every role that matters, until `plover undrain`.
    ///
    /// Its replica hands over the lead, and its place in sync goes to the third replica, while the guest stays
    /// protected. It votes on. It stays drained when its process or its host is started again.
    #[command(
        after_help = "Example:\n  plover drain --run-dir /run/plover/shop-db && systemctl stop plover@shop-db"
    )]
    Drain {
        /// Wait for so many seconds until no role is left.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        wait: u64,
        #[command(flatten)]
        at: At,
    },
    /// Let this host have roles again after `plover drain`.
    #[command(after_help = "Example:\n  plover undrain --run-dir /run/plover/shop-db")]
    Undrain {
        #[command(flatten)]
        at: At,
    },
    /// Open the guest's serial console; Ctrl-] leaves it. Works on any host of the group.
    #[command(after_help = "Example:\n  plover console --run-dir /run/plover/shop-db")]
    Console {
        #[command(flatten)]
        at: At,
    },
    /// Press the guest's power button. Works on any host of the group.
    #[command(after_help = "Example:\n  plover shutdown --run-dir /run/plover/shop-db")]
    Shutdown {
        #[command(flatten)]
        at: At,
    },
    /// Boot a new guest after all replicas of a group have lost the old guest's state.
    ///
    /// Run it on each replica's host. The group's first leader boots the guest. It refuses if its copy of
    /// the guest's disks is not the newest.
    #[command(
        after_help = "Example:\n  plover bootstrap --run-dir /run/plover/shop-db --other b.json --other c.json"
    )]
    Bootstrap {
        /// The output of `plover status --here --json` on another host; once for each other host. With it the
        /// guest boots from the newest of all copies, not only from the newest that this replica knows.
        #[arg(long = "other", value_name = "FILE")]
        others: Vec<PathBuf>,
        #[command(flatten)]
        at: At,
    },
    /// Switch a guest on that has powered off. Works on any host of the group.
    #[command(after_help = "Example:\n  plover start --run-dir /run/plover/shop-db")]
    Start {
        #[command(flatten)]
        at: At,
    },
    /// Run one replica of an unmodified program until SIGTERM or Ctrl-C.
    ///
    /// Everything that clients send goes through consensus, and each replica's program gets it in the same order:
    /// plover run --config group.toml -- redis-server --port 6380
    Run(Box<RunOptions>),
    /// Run and use a replicated log: consensus without a guest.
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Measure what something costs on this machine.
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Show the policies: the ways to protect a guest.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Make, use and break a lab: replicas, a switch and a client on this one machine.
    #[cfg(feature = "lab")]
    Lab {
        /// The lab's name. Several labs can exist at the same time.
        #[arg(long, global = true, default_value = "default")]
        name: LabName,
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Make, use and break a lab: replicas, a switch and a client on this one machine (package plover-lab).
    #[cfg(not(feature = "lab"))]
    #[command(disable_help_flag = true)]
    Lab {
        /// What the lab is to do; `plover lab --help` lists it.
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        words: Vec<OsString>,
    },
    /// Write the manual pages and the completions of shells into a folder, for a package.
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Pages {
        /// The folder; made if it is not there.
        folder: PathBuf,
    },
}

/// The replica that is asked.
#[derive(Debug, Args)]
pub struct At {
    /// The directory of the replica's control socket: `paths.run_dir` in its configuration.
    #[arg(long, value_name = "DIR", default_value = "/run/plover")]
    pub run_dir: PathBuf,
}

/// How a status is shown.
#[derive(Debug, Args)]
pub struct Show {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Show it again every second, until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunOptions {
    #[command(subcommand)]
    pub command: Option<RunCommand>,
    /// The replica's configuration.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The program and its arguments, after `--`.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// Show the state of the replica that runs on this host.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// The directory of the replica's control socket: `paths.run_dir` in its configuration.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
    },
    /// Begin a new, empty log after all replicas have lost theirs. The program starts with no state.
    Begin {
        /// The directory of the replica's control socket: `paths.run_dir` in its configuration.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure how long an entry of a replicated log takes, as its clients see it.
    Consensus(ConsensusOptions),
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List all policies.
    List {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show one policy.
    Show {
        /// The policy's name.
        name: PolicyName,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_of_an_operator_has_an_example() {
        use clap::CommandFactory;
        let mut all = Arguments::command();
        for name in [
            "status",
            "metrics",
            "switchover",
            "drain",
            "undrain",
            "console",
            "shutdown",
            "start",
            "bootstrap",
        ] {
            let command = all.find_subcommand_mut(name).expect(name);
            let help = command.render_long_help().to_string();
            assert!(
                help.contains(&format!("Example:\n  plover {name} ")),
                "{help}"
            );
        }
    }
}

//! The command line: commands, options, and their help texts.

use crate::bench::ConsensusOptions;
use crate::init::InitOptions;
use crate::log::LogCommand;
use clap::{Args, Parser, Subcommand, ValueEnum};
use plover_lab::options::{Options, PolicyName};
use plover_lab::state::LabName;
use plover_lab::{Fault, Target};
use std::ffi::OsString;
use std::path::PathBuf;

/// Keeps a virtual machine alive when the host under it dies.
#[derive(Debug, Parser)]
#[command(name = "plover", version, arg_required_else_help = true)]
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
    #[command(after_help = "Example:\n  plover replica --config /etc/plover/shop-db.toml")]
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
    /// Restart the guest in an orderly way: press its power button, and let it boot again when it has powered off.
    ///
    /// Waits until the guest has powered off. It boots again also when `guest.on_poweroff` is "destroy", and when the
    /// lead moves meanwhile. A guest that does not listen to its power button (ACPI) goes on running: restart that one from
    /// inside, or with `plover reset`. Linux on the machine `microvm` listens only if its kernel has ACPI and its button
    /// driver. Works on any host of the group.
    #[command(after_help = "Example:\n  plover reboot --run-dir /run/plover/shop-db")]
    Reboot {
        /// Wait for so many seconds until the guest has powered off.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        wait: u64,
        #[command(flatten)]
        at: At,
    },
    /// Reset the guest's machine, as its reset button would. Works on any host of the group.
    ///
    /// The guest gets no chance to write what it holds in memory to its disks, and its clients' connections end. It
    /// stays protected. A guest that is paused stays paused.
    #[command(after_help = "Example:\n  plover reset --run-dir /run/plover/shop-db")]
    Reset {
        #[command(flatten)]
        at: At,
    },
    /// Let the guest stand still until `plover unpause`. Works on any host of the group.
    ///
    /// It stands still on whichever replica leads, also after a failover, and stays protected. Its clients wait. Its
    /// clock is right again when it goes on.
    #[command(after_help = "Example:\n  plover pause --run-dir /run/plover/shop-db")]
    Pause {
        #[command(flatten)]
        at: At,
    },
    /// Let a guest go on that `plover pause` has paused. Works on any host of the group.
    #[command(after_help = "Example:\n  plover unpause --run-dir /run/plover/shop-db")]
    Unpause {
        #[command(flatten)]
        at: At,
    },
    /// Print the logs of all replicas, merged by time. Works on any host of the group.
    ///
    /// Each replica keeps the last lines of its log in memory, up to 1 MiB since its process started, and the replica
    /// of this host asks the others for theirs. The times are those of the hosts' clocks. Older lines are in each
    /// host's journal.
    #[command(
        after_help = "Example:\n  plover logs --run-dir /run/plover/shop-db --lines 50 --follow"
    )]
    Logs {
        /// Only the log of the replica with this id.
        #[arg(long, value_name = "ID")]
        replica: Option<u8>,
        /// Keep printing new lines.
        #[arg(short, long)]
        follow: bool,
        /// At first print so many lines, the last ones of all.
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 200)]
        lines: usize,
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
    Lab {
        /// The lab's name. Several labs can exist at the same time.
        #[arg(long, global = true, default_value = "default")]
        name: LabName,
        #[command(subcommand)]
        command: LabCommand,
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
    #[command(after_help = "Example:\n  plover policy list")]
    List {
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show one policy.
    #[command(after_help = "Example:\n  plover policy show hybrid")]
    Show {
        /// The policy's name.
        name: PolicyName,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Make a lab; return when the guest answers and is protected.
    #[command(after_help = "Example:\n  plover lab up --policy remus-25")]
    Up(Box<UpOptions>),
    /// Show the state of all replicas.
    #[command(after_help = "Example:\n  plover lab status --watch")]
    Status {
        #[command(flatten)]
        show: Show,
    },
    /// Move the lead to another replica, as `plover switchover` does.
    #[command(after_help = "Example:\n  plover lab switchover --to 1")]
    Switchover {
        /// The replica that is to lead; by default the one that is in sync.
        #[arg(long, value_name = "ID")]
        to: Option<u8>,
    },
    /// Clear a replica's host of every role that matters, as `plover drain` does there.
    #[command(after_help = "Example:\n  plover lab drain --replica 0")]
    Drain {
        /// The replica's id.
        #[arg(long, value_name = "ID")]
        replica: u8,
    },
    /// Let a drained host have roles again.
    #[command(after_help = "Example:\n  plover lab undrain --replica 0")]
    Undrain {
        /// The replica's id.
        #[arg(long, value_name = "ID")]
        replica: u8,
    },
    /// Switch a guest on that has powered off.
    #[command(after_help = "Example:\n  plover lab start")]
    Start,
    /// Press the guest's power button.
    #[command(after_help = "Example:\n  plover lab shutdown")]
    Shutdown,
    /// Press the guest's power button, and let it boot again when it has powered off.
    #[command(after_help = "Example:\n  plover lab reboot --wait 30")]
    Reboot {
        /// Wait for so many seconds until the guest has powered off.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        wait: u64,
    },
    /// Reset the guest's machine.
    #[command(after_help = "Example:\n  plover lab reset")]
    Reset,
    /// Let the guest stand still until `plover lab unpause`.
    #[command(after_help = "Example:\n  plover lab pause")]
    Pause,
    /// Let a paused guest go on.
    #[command(after_help = "Example:\n  plover lab unpause")]
    Unpause,
    /// Run a command on the client's host.
    #[command(
        after_help = "Example:\n  plover lab exec -- redis-benchmark -h 10.77.0.100 -n 10000 -t set,get"
    )]
    Exec {
        /// The command and its arguments, after `--`.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Stop, kill or cut off a replica, or undo it.
    #[command(
        arg_required_else_help = true,
        after_help = "Example:\n  plover lab fault kill --role leader"
    )]
    Fault(FaultOptions),
    /// Start a replica again that is down.
    #[command(after_help = "Example:\n  plover lab restart --replica 0")]
    Restart {
        /// The replica's id.
        #[arg(long, value_name = "ID")]
        replica: u8,
    },
    /// Boot a new guest after all replicas have lost the old guest's state.
    #[command(after_help = "Example:\n  plover lab bootstrap")]
    Bootstrap,
    /// Open the guest's serial console; Ctrl-] leaves it.
    #[command(after_help = "Example:\n  plover lab console")]
    Console,
    /// Print the replicas' logs, merged by time.
    #[command(after_help = "Example:\n  plover lab logs --lines 20 --follow")]
    Logs {
        /// Only the log of the replica with this id.
        #[arg(long, value_name = "ID")]
        replica: Option<u8>,
        /// Keep printing new lines.
        #[arg(short, long)]
        follow: bool,
        /// At first print so many lines, the last ones of all; by default all.
        #[arg(short = 'n', long, value_name = "COUNT")]
        lines: Option<usize>,
    },
    /// Remove the lab, whatever state it is in.
    #[command(after_help = "Example:\n  plover lab down")]
    Down {
        /// Remove all labs of this machine.
        #[arg(long)]
        all: bool,
    },
}

#[derive(Debug, Args)]
pub struct UpOptions {
    #[command(flatten)]
    pub options: Options,
    /// Print the lab's status as one JSON object when it is up.
    #[arg(long)]
    pub json: bool,
    /// Print no progress lines.
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct FaultOptions {
    /// The fault.
    #[arg(value_enum)]
    fault: FaultArgument,
    #[command(flatten)]
    target: TargetArgument,
    /// With `cut`: cut the replica off from this one only.
    #[arg(long, value_name = "ID")]
    from: Option<u8>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TargetArgument {
    /// The replica that has this role now.
    #[arg(long, value_enum)]
    role: Option<RoleArgument>,
    /// The replica with this id.
    #[arg(long, value_name = "ID")]
    replica: Option<u8>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArgument {
    Leader,
    Secondary,
    Witness,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FaultArgument {
    /// The replica's host dies: SIGKILL to plover and QEMU.
    Kill,
    /// The replica's process dies and its host lives: SIGKILL to that process.
    Crash,
    /// The replica's host stands still: SIGSTOP to plover and QEMU.
    Stop,
    /// The replica's QEMU alone stands still, as on a disk that hangs: SIGSTOP to QEMU.
    Hang,
    /// Undo `stop` and `hang`: SIGCONT to plover and QEMU.
    Cont,
    /// The replica no longer reaches the other replicas. Clients still reach it.
    Cut,
    /// The guest's TAP goes down: clients are not reached from there any more.
    Unplug,
    /// Undo `cut` and `unplug`.
    Heal,
}

impl FaultOptions {
    pub fn parts(self) -> Result<(Fault, Target), &'static str> {
        let fault = match self.fault {
            FaultArgument::Cut => Fault::Cut { from: self.from },
            _ if self.from.is_some() => return Err("--from goes with `cut` only"),
            FaultArgument::Kill => Fault::Kill,
            FaultArgument::Crash => Fault::Crash,
            FaultArgument::Stop => Fault::Stop,
            FaultArgument::Hang => Fault::Hang,
            FaultArgument::Cont => Fault::Continue,
            FaultArgument::Unplug => Fault::Unplug,
            FaultArgument::Heal => Fault::Heal,
        };
        let role = self.target.role.map(|role| match role {
            RoleArgument::Leader => "leader",
            RoleArgument::Secondary => "secondary",
            RoleArgument::Witness => "witness",
        });
        match (role, self.target.replica) {
            (Some(role), _) => Ok((fault, Target::Role(role.into()))),
            (None, Some(id)) => Ok((fault, Target::Replica(id))),
            (None, None) => Err("name the replica: --role or --replica"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_fault_names_its_kind_and_one_replica() {
        let fault = |line: &str| match parse(line).unwrap().command {
            Command::Lab {
                command: LabCommand::Fault(options),
                ..
            } => options.parts(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            fault("plover lab fault kill --role leader"),
            Ok((Fault::Kill, Target::Role("leader".into())))
        );
        assert_eq!(
            fault("plover lab fault cut --replica 0 --from 2 --name x"),
            Ok((Fault::Cut { from: Some(2) }, Target::Replica(0)))
        );
        assert!(
            fault("plover lab fault kill --replica 0 --from 2")
                .unwrap_err()
                .contains("cut")
        );
        assert!(parse("plover lab fault kill").is_err());
        assert!(parse("plover lab fault kill --role leader --replica 1").is_err());
        assert!(parse("plover lab fault maim --replica 1").is_err());
    }

    #[test]
    fn every_command_of_an_operator_has_an_example() {
        use clap::CommandFactory;
        // `init`, `check` and `run` have theirs in the text.
        let others = ["init", "check", "run", "log", "bench", "help"];
        let mut all = Arguments::command();
        for command in all.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            if others.contains(&name.as_str()) {
                continue;
            }
            if command.has_subcommands() {
                for part in command.get_subcommands_mut() {
                    let name = format!("{name} {}", part.get_name());
                    has_an_example(part, &name);
                }
            } else {
                has_an_example(command, &name);
            }
        }
    }

    fn has_an_example(command: &mut clap::Command, name: &str) {
        let help = command.render_long_help().to_string();
        let example = format!("Example:\n  plover {name}");
        assert!(help.contains(&example), "{name}: {help}");
    }

    #[test]
    fn a_command_for_the_client_keeps_its_own_options() {
        let Command::Lab {
            command: LabCommand::Exec { command },
            ..
        } = parse("plover lab exec -- redis-benchmark -h 1 --name z")
            .unwrap()
            .command
        else {
            panic!("not exec");
        };
        assert_eq!(command, ["redis-benchmark", "-h", "1", "--name", "z"]);
        assert!(
            parse("plover lab up --policy paxos")
                .unwrap_err()
                .contains("vsmr")
        );
        assert!(
            parse("plover lab --name a/b up")
                .unwrap_err()
                .contains("no name")
        );
    }
}

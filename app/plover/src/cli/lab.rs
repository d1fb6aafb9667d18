//! The command line of `plover lab`.

use super::Show;
use clap::{Args, Subcommand, ValueEnum};
use plover_lab::options::Options;
use plover_lab::{Fault, Target};
use std::ffi::OsString;

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
    use crate::cli::{Arguments, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
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

//! The command line: commands, options, and their help texts.

#[cfg(feature = "lab")]
mod lab;
mod orders;

use crate::bench::ConsensusOptions;
use crate::check;
use crate::export::ExportOptions;
use crate::fleet::FleetCommand;
use crate::import::ImportOptions;
use crate::init::InitOptions;
use crate::key::KeyCommand;
use crate::log::LogCommand;
use crate::logging::LogForm;
use clap::{Args, Parser, Subcommand};
#[cfg(feature = "lab")]
pub use lab::LabCommand;
pub use orders::{
    DiskCommand, DiskImport, GuestCommand, MemberCommand, RunCommand, RunOptions, Size,
};
use plover_lab::options::PolicyName;
#[cfg(feature = "lab")]
use plover_lab::state::LabName;
#[cfg(not(feature = "lab"))]
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
    /// Write the configurations of a group for a guest that libvirt has, with an account of each element of its XML.
    ///
    /// The account says of each element and attribute whether it is kept, changed, ignored by the guest, or refused, and
    /// why. If the guest would miss something that is refused, nothing is written and the exit code is 2, unless --without
    /// accepts the loss. The original, the account and a hook for libvirt are written beside the configurations. The domain
    /// itself and its disks are not touched: the steps that are printed do that.
    #[command(
        after_help = "Example:\n  plover import --domain shop-db --account\n  plover import shop-db.xml --hosts \
                      192.0.2.10,192.0.2.11,192.0.2.12 --uplink eth0 --without sound --without tpm"
    )]
    Import(Box<ImportOptions>),
    /// Give a guest back to libvirt that was imported: with the disks of this host, which leads.
    ///
    /// The guest must be off. Prints the original XML with new paths of the disks, or defines it and removes the hook of this
    /// host; and prints what is left to do.
    #[command(
        after_help = "Example:\n  plover export --config /etc/plover/shop-db.toml > shop-db.xml\n  plover export --config \
                      /etc/plover/shop-db.toml --define"
    )]
    Export(ExportOptions),
    /// Look whether this host has what its replica needs; changes nothing.
    ///
    /// Exits with 0 if it has, with 2 if something is missing.
    #[command(
        after_help = "Example:\n  plover check --config /etc/plover/shop.toml\n\nHosts of different processors, and what \
                      all of them can run:\n  plover check --processors > a.json     # on each host, to a file of its \
                      own\n  plover check --processors a.json b.json c.json\n\nWhether this host's kernel, KVM and QEMU \
                      keep two guests equal, before there is a configuration:\n  plover check --guest"
    )]
    Check {
        /// The replica's configuration.
        #[arg(long, value_name = "FILE", required_unless_present_any = ["processors", "guest"])]
        config: Option<PathBuf>,
        /// Measure latency and bandwidth to the other hosts, and compare clocks and versions: give the command on all hosts at
        /// once, before the replicas run.
        #[arg(long, requires = "config", conflicts_with_all = ["processors", "guest"])]
        together: bool,
        /// Print which processors this host's QEMU can give a guest, for programs; of the hosts whose answers are in FILES, the
        /// best processor that all of them can.
        #[arg(long, value_name = "FILES", num_args = 0..)]
        processors: Option<Vec<PathBuf>>,
        /// Boot a small guest twice on this host, and make the two equal again and again while both write; with --config by
        /// the QEMU, accelerator and processor of that configuration. IMAGE is the guest; the package has one.
        #[arg(long, value_name = "IMAGE", num_args = 0..=1, default_missing_value = check::IMAGE, conflicts_with = "processors")]
        guest: Option<PathBuf>,
        /// How often the two guests of --guest are made equal.
        #[arg(long, value_name = "COUNT", default_value_t = 200, requires = "guest")]
        syncs: u32,
    },
    /// Make, show and trust the keys by which the replicas of a group know each other.
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Run one replica until SIGTERM or Ctrl-C; its log goes to the error output.
    #[command(after_help = "Example:\n  plover replica --config /etc/plover/shop-db.toml")]
    Replica {
        /// The replica's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The form of the log.
        #[arg(long, value_enum, default_value_t)]
        log: LogForm,
    },
    /// Make the TAP devices of a replica whose bridges its configuration names (`net.bridge`), as ports of these.
    ///
    /// The service does it before each start; without the service, root does. A device that it has not made is left as it is.
    #[command(
        after_help = "Example:\n  plover tap --config /etc/plover/shop-db.toml --user plover"
    )]
    Tap {
        /// The replica's configuration.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The user that the replica runs as, if that is not root.
        #[arg(long)]
        user: Option<String>,
        /// Remove those that it has made.
        #[arg(long)]
        remove: bool,
    },
    /// Show the state of the whole group, asked of the replica that runs on this host.
    ///
    /// A replica that does not answer within a second is shown as silent.
    #[command(
        after_help = "Example:\n  plover status --watch\n  plover status --run-dir /run/plover/shop-db --json\n  plover status --all"
    )]
    Status {
        #[command(flatten)]
        show: Show,
        /// Only the replica of this host: with --json everything that it says of itself.
        #[arg(long, conflicts_with = "watch")]
        here: bool,
        /// All guests that have a replica on this host, one a line. Fails if a replica of this host does not answer.
        #[arg(long, conflicts_with = "here")]
        all: bool,
        #[command(flatten)]
        at: At,
    },
    /// Tell Prometheus what the replicas on this host do: OpenMetrics over HTTP, at /metrics.
    ///
    /// Runs until it is ended, beside the replicas, and asks them anew at each request. A replica that does not
    /// answer within a second is shown with `plover_up 0`.
    #[command(
        after_help = "Example:\n  plover metrics\n  plover metrics --config /etc/plover/shop-db.toml"
    )]
    Metrics {
        /// The configurations of this host's replicas. If none is named: those in /etc/plover, looked for at each request, of
        /// replicas that have ever been started on this host.
        #[arg(long = "config", value_name = "FILE", num_args = 1..)]
        configs: Vec<PathBuf>,
        /// Where to listen. Anybody who reaches this address can read the metrics.
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9777")]
        listen: SocketAddr,
        /// Print the metrics as rows of a table, and end.
        #[arg(long, conflicts_with = "configs")]
        list: bool,
    },
    /// Show the groups of this host live, on a page for a browser that only reads.
    ///
    /// Runs until it is ended, and asks the replicas once a second. The page shows who leads, whether the guest is
    /// protected and why not, failovers with their parts, and the last quarter of an hour. A replica that hangs, and a
    /// group that does not answer, are shown as such.
    #[command(
        after_help = "Example:\n  plover dash --config /etc/plover/shop-db.toml\n  plover dash --fleet"
    )]
    Dash {
        /// The configurations of this host's replicas: one for each guest.
        #[arg(long = "config", value_name = "FILE", num_args = 1.., required_unless_present = "fleet")]
        configs: Vec<PathBuf>,
        /// Also show all guests of the cluster, as `plover fleet status` does.
        #[arg(long)]
        fleet: bool,
        /// The address to listen at. Anybody who reaches it can see the page.
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9778")]
        listen: SocketAddr,
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
    /// protected. It votes on, and where the group cannot do without its vote, the command waits, and fails in the end. It
    /// stays drained when its process or its host is started again.
    #[command(
        after_help = "Example:\n  plover drain --run-dir /run/plover/shop-db && systemctl stop plover@shop-db"
    )]
    Drain {
        /// Wait for so many seconds until no role is left.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        wait: u64,
        /// Let the replica have roles again when it is started again, without `plover undrain`.
        #[arg(long)]
        until_restart: bool,
        #[command(flatten)]
        at: At,
    },
    /// Let this host have roles again after `plover drain`.
    #[command(after_help = "Example:\n  plover undrain --run-dir /run/plover/shop-db")]
    Undrain {
        /// Take back only a drain with `--until-restart`; a longer one holds.
        #[arg(long)]
        until_restart: bool,
        #[command(flatten)]
        at: At,
    },
    /// Say that the host of the other one of two replicas is off, so that this one goes on alone (`group.fencing`).
    ///
    /// Pacemaker says it by itself where it fences. Say it on one of the two hosts only, after you have made sure that the
    /// other one has no power, or that no process of its replica runs. A replica that still runs keeps an old guest, and goes
    /// on with it when it is told later that this host is off.
    #[command(after_help = "Example:\n  plover confirm-off 1 --run-dir /run/plover/shop-db")]
    ConfirmOff {
        /// The replica that is off.
        id: u8,
        #[command(flatten)]
        at: At,
    },
    /// Read the configuration file of this host's replica again, while it runs.
    ///
    /// Says of each key that has changed when it takes effect: at once, when this host's service is started again, or when
    /// all hosts are stopped and started. A file that is wrong changes nothing: the command says where it is wrong, and the
    /// replica goes on as it is. Every host has a file of its own: run it on each host whose file has changed.
    #[command(
        after_help = "Example:\n  plover reload --run-dir /run/plover/shop-db --dry-run\n  systemctl reload plover@shop-db"
    )]
    Reload {
        /// Only say what would take effect.
        #[arg(long)]
        dry_run: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Make a guest's disk of an image, and give it more room while the guest runs.
    Disk {
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Replace a host while the guest runs, or take a dead one out of the group.
    ///
    /// The change goes through the group's log, and goes on when the lead moves. `plover status` shows it. Works on any
    /// host of the group.
    Member {
        #[command(subcommand)]
        command: MemberCommand,
    },
    /// Many guests on a cluster of hosts: have Pacemaker run them, and show them.
    Fleet {
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// Act as the resource agent ocf:plover:guest, which Pacemaker calls.
    ///
    /// The parameters come in the environment, as the Open Cluster Framework says.
    #[command(after_help = "Example:\n  plover ocf meta-data")]
    Ocf {
        /// start, stop, monitor, reload-agent, validate-all or meta-data.
        action: String,
    },
    /// Back up the guest's disks while it runs; on the host of the secondary.
    ///
    /// The disks are as of one sync: everything that clients were told before the command began is in them, as after a
    /// power loss at that moment. Nothing is stopped for it. The backup is a new folder below DIR, named after the group and
    /// the time, with a qcow2 image for each disk that the guest writes, their checksums, and what they are of. It appears
    /// when it is whole. Disks that the guest only reads are not in it, nor its memory without --memory. Needs the package
    /// qemu-utils.
    #[command(
        after_help = "Example:\n  plover backup --run-dir /run/plover/shop-db --to /srv/backup"
    )]
    Backup {
        /// The folder for backups. Not on the disk that holds the guest's.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Keep so many MiB of old content at most, of blocks that the guest writes meanwhile, in `paths.state_dir`. If it
        /// writes more, the backup ends, and the guest goes on.
        #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
        keep_mib: u64,
        /// Read so many MiB a second at most.
        #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..1 << 40))]
        mib_per_s: u64,
        /// Hold only what was written since the last backup of this replica's disks, which has to be in DIR and to stay
        /// there. If it is not, or the replica does not know what was written since, the backup is a whole one, and says so.
        #[arg(long)]
        incremental: bool,
        /// Freeze the guest's file systems for the moment that the backup is of, which takes its agent (`plover guest ping`).
        #[arg(long)]
        quiesce: bool,
        /// Hold the guest's memory, too: the guest of a group that is made from this backup does not boot, but goes on from
        /// that moment. A copy of the memory takes as much room in `paths.state_dir` meanwhile.
        #[arg(long)]
        memory: bool,
        /// Print one JSON object when it is done: the folder, the sync, the bytes.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Make the disks of a new group from a backup; on the host of its first leader.
    ///
    /// Verifies the backup's checksums, and writes raw images where the configuration wants them. Overwrites nothing. The
    /// group's first start boots from them, or goes on from the guest's memory if the backup has that, and the other replicas
    /// are filled by copy.
    #[command(
        after_help = "Example:\n  plover restore --from /srv/backup/shop-db-20261124T170000Z --config /etc/plover/shop-db.toml"
    )]
    Restore {
        /// The backup: a folder that `plover backup` has made.
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// The configuration of the new group's first leader, as `plover init` writes it.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Let the guest boot from the disks, also if the backup has its memory.
        #[arg(long)]
        boot: bool,
    },
    /// Ask the agent in the guest, which takes `guest.agent = true` and the package qemu-guest-agent. Works on any host.
    Guest {
        #[command(subcommand)]
        command: GuestCommand,
    },
    /// Open the guest's serial console; Ctrl-] leaves it. Works on any host of the group.
    #[command(after_help = "Example:\n  plover console --run-dir /run/plover/shop-db")]
    Console {
        #[command(flatten)]
        at: At,
    },
    /// Show the guest's display, which takes `guest.display = true`, to viewers that speak VNC. Works on any host of the group.
    ///
    /// It runs until it is ended. A viewer's connection closes when the guest's leader changes, and the next one shows the
    /// guest where it runs then. Viewers need no password, so only programs of this host are let in: to look from
    /// elsewhere, forward the port by ssh.
    #[command(
        after_help = "Example:\n  plover display --run-dir /run/plover/shop-db\n  ssh -L 5900:127.0.0.1:5900 HOST    # on the machine with the screen, and then its viewer: 127.0.0.1:5900"
    )]
    Display {
        /// The address that viewers connect to; a loopback address.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5900")]
        listen: SocketAddr,
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
    /// Run it on the host of the group's first leader (`group.first_leader`), while the replicas of all hosts run. It
    /// boots the guest there, and refuses if another replica has a newer copy of the guest's disks.
    #[command(after_help = "Example:\n  plover bootstrap --run-dir /run/plover/shop-db")]
    Bootstrap {
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
    /// The replica's `paths.run_dir`, where its control socket is. It can be left out if this host has one replica, in
    /// a directory of /run/plover.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
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

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure how long an entry of a replicated log takes, as its clients see it.
    #[command(after_help = "Example:\n  plover bench consensus --replicas 3 --connections 4")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        use clap::CommandFactory;
        let mut all = Arguments::command();
        all.build();
        examples_of(&mut all);
    }

    fn examples_of(command: &mut clap::Command) {
        // Its name is the whole line by now, such as `plover member add`.
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        let hidden = ["plover pages", "plover help"];
        if hidden.contains(&name.as_str()) || name.contains(" help") {
            return;
        }
        if command.has_subcommands() {
            return command.get_subcommands_mut().for_each(examples_of);
        }
        let help = command.render_long_help().to_string();
        let example = help.split_once("Example:").map(|(_, example)| example);
        assert!(
            example.is_some_and(|it| it.contains(&name)),
            "{name}: {help}"
        );
    }
}

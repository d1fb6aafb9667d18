//! The command lines of `plover member`, `plover guest`, `plover disk` and `plover run`.

use super::At;
use clap::{Args, Subcommand};
use plover_disk::import::Format;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Put a new host in the place of a member, dead or alive.
    ///
    /// The new host needs its configuration file, with an id that no host of the group has had (group.me), and its replica
    /// running (`systemctl start plover@NAME`). It gets disks and memory by copy. A member that answers leaves when the new
    /// one has all of that; if it leads, it hands over first. The replica that has left ends, and never starts again with
    /// its old files.
    #[command(
        after_help = "Example:\n  plover member replace 1 3@192.0.2.13:7700 --run-dir /run/plover/shop-db"
    )]
    Replace {
        /// The id of the member that leaves.
        old: u8,
        /// The id of the new replica, and where it listens: as in its file's [[group.replica]].
        new: NewHost,
        #[command(flatten)]
        how: Wait,
    },
    /// Add a host to a group that lacks one, since `plover member remove`.
    #[command(
        after_help = "Example:\n  plover member add 3@192.0.2.13:7700 --run-dir /run/plover/shop-db"
    )]
    Add {
        /// The id of the new replica, and where it listens: as in its file's [[group.replica]].
        new: NewHost,
        #[command(flatten)]
        how: Wait,
    },
    /// Take a dead host out of the group; or end a change, by removing the new host.
    ///
    /// The two that are left both have to be up from then on. A host that answers is replaced, not removed.
    #[command(after_help = "Example:\n  plover member remove 1 --run-dir /run/plover/shop-db")]
    Remove {
        /// Its id.
        id: u8,
        #[command(flatten)]
        how: Wait,
    },
}

#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    /// Look whether the agent answers.
    #[command(after_help = "Example:\n  plover guest ping --run-dir /run/plover/shop-db")]
    Ping {
        #[command(flatten)]
        at: At,
    },
    /// Write all that the guest's page cache has to its disks, and freeze its file systems: programs that write stand still.
    ///
    /// They are thawed by `plover guest fsthaw`, when the time is over, or by the next leader.
    #[command(
        after_help = "Example:\n  plover guest fsfreeze --max 30 --run-dir /run/plover/shop-db"
    )]
    Fsfreeze {
        /// For so many seconds at most.
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
        max: u64,
        #[command(flatten)]
        at: At,
    },
    /// Thaw the guest's file systems.
    #[command(after_help = "Example:\n  plover guest fsthaw --run-dir /run/plover/shop-db")]
    Fsthaw {
        #[command(flatten)]
        at: At,
    },
    /// Run a program in the guest, and exit as it has. It gets no input, and its output is shown when it has ended.
    ///
    /// If the leader dies meanwhile, the program runs on under the next one, or has not begun: look in the guest.
    #[command(
        after_help = "Example:\n  plover guest exec --run-dir /run/plover/shop-db -- /bin/uname -a"
    )]
    Exec {
        /// Wait for so many seconds until it has ended. It is not ended for it.
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        wait: u64,
        #[command(flatten)]
        at: At,
        /// Its path in the guest, and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Grow a disk, up to its `disk.max_size_mib`, while the guest runs. Works on any host of the group.
    ///
    /// Every host must have room for it. First the image grows on each of them. The guest is told when all that hold it have
    /// the room, and enlarges its partition and file system itself (growpart, resize2fs). A command that was ended, or that
    /// a failover has interrupted, is given again. No disk is made smaller.
    #[command(after_help = "Example:\n  plover disk grow 0 --to 40G --run-dir /run/plover/shop-db")]
    Grow {
        /// The number of its `[[disk]]` in the configuration, counted from 0.
        disk: usize,
        /// Its new size: MiB, or a number with M, G or T.
        #[arg(long, value_name = "SIZE")]
        to: Size,
        /// Wait for so many seconds until all have it.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        wait: u64,
        #[command(flatten)]
        at: At,
    },
    /// Make a guest's disk of an image: on the host of its first leader, before the first start.
    ///
    /// DISK becomes a raw file with the content of IMAGE and of the images that this one holds the changes to. It belongs to
    /// the owner of its folder, appears when it is whole, and overwrites nothing. IMAGE may come from a stranger: what it
    /// names outside of its folder is not read. Needs the package qemu-utils.
    #[command(
        after_help = "Example:\n  plover disk import debian-13.qcow2 /var/lib/plover/shop-db.raw --size 20G"
    )]
    Import(DiskImport),
}

/// What `plover disk import` makes of what.
#[derive(Debug, Args)]
pub struct DiskImport {
    /// The image, which is only read.
    pub image: PathBuf,
    /// The disk's file: `disk.path` of the configuration.
    pub disk: PathBuf,
    /// The format of IMAGE: raw, qcow2, vmdk or vdi. By default what its name ends in says, and raw if that says nothing.
    #[arg(long, value_parser = format_named)]
    pub format: Option<Format>,
    /// The disk's size: MiB, or a number with M, G or T. By default as much as IMAGE has.
    #[arg(long)]
    pub size: Option<Size>,
    /// Another folder with images that IMAGE holds the changes to.
    #[arg(long = "backing-folder", value_name = "FOLDER")]
    pub backing_folders: Vec<PathBuf>,
}

fn format_named(name: &str) -> Result<Format, String> {
    let format = Format::named(name);
    format.ok_or_else(|| "the formats are raw, qcow2, vmdk and vdi".into())
}

/// A size, in MiB: `40960`, `40960M`, `40G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub mib: u64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = match text[unit.len()..].to_ascii_uppercase().as_str() {
            "" | "M" => 1,
            "G" => 1 << 10,
            "T" => 1 << 20,
            other => {
                return Err(format!(
                    "'{other}' is no unit: give MiB, or a number with M, G or T"
                ));
            }
        };
        let number: u64 = unit
            .parse()
            .map_err(|_| format!("'{unit}' is no number of MiB"))?;
        let mib = number.checked_mul(factor).filter(|mib| *mib < 1 << 43);
        Ok(Self {
            mib: mib.ok_or("that is more than any disk has")?,
        })
    }
}

/// How long a command waits, and for whom.
#[derive(Debug, Args)]
pub struct Wait {
    /// Wait for so many seconds until it is done. It goes on all the same.
    #[arg(long = "wait", value_name = "SECONDS", default_value_t = 3600)]
    pub seconds: u64,
    #[command(flatten)]
    pub at: At,
}

/// A new host: `ID@ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHost {
    pub id: u8,
    pub address: SocketAddr,
}

impl FromStr for NewHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "give an id and an address with its port, such as 3@192.0.2.13:7700";
        let (id, address) = text.split_once('@').ok_or_else(form)?;
        let id = id.parse().map_err(|_| form())?;
        let address = address.parse().map_err(|_| form())?;
        Ok(Self { id, address })
    }
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
    #[command(after_help = "Example:\n  plover run status --run-dir /run/plover/shop")]
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// The directory of the replica's control socket: `paths.run_dir` in its configuration.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
    },
    /// Begin a new, empty log after all replicas have lost theirs. The program starts with no state.
    #[command(after_help = "Example:\n  plover run begin --run-dir /run/plover/shop")]
    Begin {
        /// The directory of the replica's control socket: `paths.run_dir` in its configuration.
        #[arg(long, value_name = "DIR", default_value = "/run/plover")]
        run_dir: PathBuf,
    },
}

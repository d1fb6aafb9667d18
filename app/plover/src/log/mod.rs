//! `plover log`: a replicated log by hand.
//!
//! ```text
//!  plover log serve    one replica, until SIGTERM or Ctrl-C
//!  plover log append   puts an entry into the log, once
//!  plover log tail     prints the entries
//!  plover log status   shows the state of one replica
//!  plover log check    tells whether the replicas give the same answers (APUS §3)
//!  plover log member   adds a replica, or removes one
//!  plover log begin    begins a new log after all replicas have lost the old one
//! ```

mod client;
mod digest;
mod serve;

use clap::{Args, Subcommand, ValueEnum};
use plover_fabric::{Keys, Spin};
use plover_log::Address;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Run one replica of a log until SIGTERM or Ctrl-C; its log goes to the error output.
    #[command(
        after_help = "Example:\n  plover log serve --id 0 --peer 0=192.0.2.10:7000 --peer 1=192.0.2.11:7000 \
                      --peer 2=192.0.2.12:7000 --client-listen 192.0.2.10:7100 --key /etc/plover/log.key \
                      --trust /etc/plover/log.trust"
    )]
    Serve(ServeOptions),
    /// Append an entry, or with `-` each line of the standard input; print the index of each.
    #[command(after_help = "Example:\n  plover log append --to 192.0.2.10:7100 hello")]
    Append {
        #[command(flatten)]
        to: Targets,
        /// The entry; `-` for the lines of the standard input.
        #[arg(allow_hyphen_values = true)]
        text: String,
    },
    /// Print the entries of the log, as one replica knows them.
    #[command(after_help = "Example:\n  plover log tail --from 192.0.2.10:7100 --follow")]
    Tail {
        /// The address at which that replica serves clients.
        #[arg(long = "from", value_name = "ADDRESS")]
        address: Address,
        #[command(flatten)]
        keys: ClientKeys,
        /// Only entries after this index.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        since: u64,
        /// Keep printing new entries.
        #[arg(short, long)]
        follow: bool,
        /// Print the entries alone, without their indexes.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Show the state of one replica.
    #[command(after_help = "Example:\n  plover log status --to 192.0.2.10:7100")]
    Status {
        /// The address at which the replica serves clients.
        #[arg(long = "to", value_name = "ADDRESS")]
        address: Address,
        #[command(flatten)]
        keys: ClientKeys,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Check that the replicas give the same answers, per stream; exit with 1 if they do not, or if nothing was compared.
    #[command(after_help = "Example:\n  plover log check --to 192.0.2.10:7100")]
    Check {
        /// The address at which one of the replicas serves clients.
        #[arg(long = "to", value_name = "ADDRESS")]
        address: Address,
        #[command(flatten)]
        keys: ClientKeys,
    },
    /// Add a replica to the group, or remove one.
    Member {
        #[command(subcommand)]
        change: MemberCommand,
    },
    /// Begin a new, empty log after every replica has lost the old one.
    #[command(after_help = "Example:\n  plover log begin --to 192.0.2.10:7100")]
    Begin {
        /// The address at which the replica with the lowest id serves clients.
        #[arg(long = "to", value_name = "ADDRESS")]
        address: Address,
        #[command(flatten)]
        keys: ClientKeys,
    },
}

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Add a replica that was started with `--join`: it catches up, then votes.
    #[command(
        after_help = "Example:\n  plover log member add --to 192.0.2.10:7100 3=192.0.2.13:7000"
    )]
    Add {
        #[command(flatten)]
        to: Targets,
        /// The new replica's id, and the address at which the others reach it; over `shm` the ID is enough.
        #[arg(value_name = "ID=ADDRESS")]
        member: Member,
    },
    /// Remove a replica.
    #[command(after_help = "Example:\n  plover log member remove --to 192.0.2.10:7100 0")]
    Remove {
        #[command(flatten)]
        to: Targets,
        /// The replica's id.
        id: u8,
    },
}

#[derive(Debug, Args)]
pub struct Targets {
    /// The address at which some replica serves clients; the leader is found from there. May be repeated.
    #[arg(long = "to", value_name = "ADDRESS", required = true)]
    addresses: Vec<Address>,
    /// Give up after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
    #[command(flatten)]
    keys: ClientKeys,
}

/// The keys of a client, for replicas that were started with `--key`.
#[derive(Debug, Args)]
pub struct ClientKeys {
    /// The file with this client's private key (`plover key new`): the replicas trust it as `client` or `admin`.
    #[arg(long, value_name = "FILE", requires = "trust")]
    key: Option<PathBuf>,
    /// The file with the public keys of the replicas (`plover key trust`).
    #[arg(long, value_name = "FILE", requires = "key")]
    trust: Option<PathBuf>,
}

impl ClientKeys {
    fn load(&self) -> anyhow::Result<Option<Arc<Keys>>> {
        let (Some(key), Some(trust)) = (&self.key, &self.trust) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Keys::load_of_client(key, trust)?)))
    }
}

/// One replica that is asked.
pub struct One {
    address: Address,
    keys: ClientKeys,
}

#[derive(Debug, Args)]
pub struct ServeOptions {
    /// This replica's id, 0 to 15.
    #[arg(long, value_name = "ID")]
    id: u8,
    /// A replica of the group, and the address at which the others reach it; over `shm` the ID is enough.
    /// Give it once for every replica, this one included.
    #[arg(long = "peer", value_name = "ID=ADDRESS", required = true)]
    peers: Vec<Member>,
    /// The address at which to serve clients: HOST:PORT, or the path of a unix socket. Clients of other hosts find the
    /// leader only if they reach this address.
    #[arg(long, value_name = "ADDRESS")]
    client_listen: Option<Address>,
    /// Clients have no keys, though this replica has, or they come from other hosts: their connections are neither
    /// encrypted nor authenticated, and every client may append, read, and change the members.
    #[arg(long, requires = "client_listen")]
    client_plaintext: bool,
    /// The directory for the promise and the log. Without it, nothing outlives the process.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The place where a replica stores an entry before it acknowledges it; `disk` needs --dir.
    #[arg(long, value_enum, default_value = "memory")]
    durability: DurabilityArgument,
    /// The transport between replicas, the same on all: `shm` is for replicas on one host, `ofi` for RDMA
    /// (if this program was built with it).
    #[arg(long, value_enum, default_value = "tcp")]
    fabric: FabricArgument,
    /// libfabric's provider for `--fabric ofi`, the same on all replicas: `verbs;ofi_rxm` or `efa` on
    /// RDMA hardware, `tcp` anywhere.
    #[arg(long, value_name = "NAME")]
    ofi_provider: Option<String>,
    /// Whether a replica on `shm` or `ofi` looks for messages for a while before it sleeps: `never`,
    /// `adaptive` (while that pays) or `always` (a core for each replica).
    #[arg(long, value_name = "HOW", default_value = "never")]
    spin: Spin,
    /// The group's name, the same on all its replicas.
    #[arg(long, value_name = "NAME", default_value = "log")]
    group: String,
    /// Another leader may be elected after the leader was silent for this many milliseconds; for half as
    /// many where its messages come steadily.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    timeout_ms: u64,
    /// The size in MiB of the newest entries to keep; older entries are trimmed.
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    retain_mib: usize,
    /// The file with this replica's private key (`plover key new`): links between replicas and connections of clients over
    /// TCP are under TLS then.
    #[arg(long, value_name = "FILE", requires = "trust")]
    key: Option<PathBuf>,
    /// The file with the public keys of all replicas and clients (`plover key trust`), the same for all.
    #[arg(long, value_name = "FILE", requires = "key")]
    trust: Option<PathBuf>,
    /// Without keys: links between hosts are neither encrypted nor authenticated.
    #[arg(long, conflicts_with = "key")]
    plaintext: bool,
    /// Compare the replicas' answers (see `plover log check`).
    #[arg(long)]
    check_outputs: bool,
    /// Start as a new replica, which waits for `plover log member add`.
    #[arg(long)]
    join: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DurabilityArgument {
    Memory,
    Disk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FabricArgument {
    Tcp,
    Shm,
    Ofi,
}

/// A replica and its address; over `shm` it has none.
#[derive(Clone, Debug)]
pub struct Member {
    id: u8,
    address: Option<SocketAddr>,
}

impl Member {
    /// The address as the log holds it: empty if there is none.
    fn address_text(&self) -> String {
        let address = self.address.as_ref();
        address.map(ToString::to_string).unwrap_or_default()
    }
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, address) = match text.split_once('=') {
            Some((id, address)) => (id, Some(address)),
            None => (text, None),
        };
        let number = id.parse().ok().filter(|id| *id < 16);
        let id = number.ok_or_else(|| {
            format!("'{id}' is not an id from 0 to 15: give ID=HOST:PORT (over shm the ID alone)")
        })?;
        let address = address.map(resolve).transpose()?;
        Ok(Self { id, address })
    }
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut addresses = address
        .to_socket_addrs()
        .map_err(|error| format!("'{address}' is not an address ({error}): give HOST:PORT"))?;
    let first = addresses.next();
    first.ok_or_else(|| format!("'{address}' names no host: correct it"))
}

pub fn run(command: LogCommand) -> anyhow::Result<ExitCode> {
    match command {
        LogCommand::Serve(options) => serve::run(&options),
        LogCommand::Append { to, text } => client::append(to, &text),
        LogCommand::Tail {
            address,
            keys,
            since,
            follow,
            quiet,
        } => client::tail(&One { address, keys }, since, follow, quiet),
        LogCommand::Status {
            address,
            keys,
            json,
        } => client::status(&One { address, keys }, json),
        LogCommand::Check { address, keys } => client::check(&One { address, keys }),
        LogCommand::Member { change } => client::member(change),
        LogCommand::Begin { address, keys } => client::begin(&One { address, keys }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_and_mistakes_are_named() {
        let member: Member = "3=127.0.0.1:7000".parse().unwrap();
        assert_eq!((member.id, &*member.address_text()), (3, "127.0.0.1:7000"));
        let member: Member = "3".parse().unwrap();
        assert_eq!((member.id, &*member.address_text()), (3, ""));
        for (text, word) in [
            ("127.0.0.1:7000", "ID=HOST:PORT"),
            ("16=127.0.0.1:7000", "'16'"),
            ("x=127.0.0.1:7000", "'x'"),
            ("1=127.0.0.1", "'127.0.0.1'"),
        ] {
            let error = text.parse::<Member>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}

//! Why what is stored cannot be used.

use plover_store::StoreError;
use plover_types::{ReplicaId, ReplicaSet};
use std::io;
use std::path::PathBuf;

/// Why stored state cannot be used, or cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file operation failed: remove the cause and start the replica again.
    #[error("{what} {path}: {source}{}", plover_store::advice(.path, .source))]
    Io {
        /// The failed operation.
        what: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The state file is of another release or is damaged. If this replica's state is really lost, and
    /// the others run, move the state directory away: the replica then recovers from them. Do so on one
    /// replica only, because it is then unknown how old its disks are.
    #[error(
        "{path} is damaged or was written by another release ({why}): start that release, or move the \
         state directory of this replica alone away to recover from the others"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The directory belongs to another group. Check the configuration.
    #[error("{path} belongs to the group '{found}', not to '{wanted}'")]
    OtherGroup {
        /// The file.
        path: PathBuf,
        /// The group that it belongs to.
        found: String,
        /// The group of the configuration.
        wanted: String,
    },
    /// The directory belongs to another replica of the group: its votes are that one's.
    #[error(
        "{path} belongs to replica {}, and group.me is {}: with that disk this replica would vote twice; move the directory \
         away, so that this replica begins with none and gets everything by copy", .found.0, .wanted.0
    )]
    OtherReplica {
        /// The file.
        path: PathBuf,
        /// The replica that it belongs to.
        found: ReplicaId,
        /// The replica of the configuration.
        wanted: ReplicaId,
    },
    /// The replica has left the group: use another host's, or begin as a new one.
    #[error(
        "replica {} has left the group '{group}', whose members are {} now: this host is not needed any more. To make it a \
         member again, move {} away, give it an id that no host has had (group.me), and see `plover member --help`",
        .me.0, .members.in_words(), .dir.display()
    )]
    Left {
        /// The replica.
        me: ReplicaId,
        /// Its group.
        group: String,
        /// The members, as far as it knows.
        members: ReplicaSet,
        /// Its state directory.
        dir: PathBuf,
    },
    /// An error of the promise or the log; the text says what to do.
    #[error(transparent)]
    Store(#[from] StoreError),
}

//! The errors of proposals, and of running a replica.

use plover_types::ReplicaId;
use std::io;
use std::path::PathBuf;

/// Why an entry was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Ask the named replica, or another one a little later.
    #[error("the entry was not appended: this replica does not lead, {}", leader_text(*.leader))]
    NotLeader {
        /// The leader, if this replica knows it.
        leader: Option<ReplicaId>,
    },
    /// This replica stopped leading before it knew: the entry may be in the log or not. Repeat
    /// it only if that does no harm, or use a session, which makes repeating harmless.
    #[error(
        "this replica stopped leading before the entry was committed: it may be in the log or not; \
         repeat it with its session, or only if repeating does no harm"
    )]
    Unknown,
    /// Take turns until entries complete, then try again.
    #[error("the entry was not appended: the log is full; try again when entries have completed")]
    Full,
    /// Split the entry.
    #[error("an entry of {bytes} bytes was not appended: the largest has {max}, split it")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// A session's earlier number came after a later one, whose answer is the one that is kept. Two
    /// clients use one session.
    #[error("the entry was not appended: its session has used a later number")]
    Stale,
}

fn leader_text(leader: Option<ReplicaId>) -> String {
    leader.map_or("and it knows no leader; try again later".into(), |leader| {
        format!("ask {leader}")
    })
}

/// Why a replica cannot start or continue. Acknowledged entries are not affected.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The kernel refuses something basic, such as another descriptor.
    #[error("cannot {what}: {source}; remove the cause, then restart the replica")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Clients cannot connect: correct the address, or end the process that holds it.
    #[error("cannot listen for clients on {address}: {source}{}", advice(source))]
    Listen {
        /// The address.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process of this replica has a link to a peer, and lives: stop one of the two.
    #[error("replica {} says: {why}", peer.0)]
    Second {
        /// The peer.
        peer: ReplicaId,
        /// Its words.
        why: String,
    },
    /// The state machine refuses another replica's state: run the same release on all replicas.
    #[error(
        "the state of another replica cannot be used ({0}): run the same release on all replicas"
    )]
    Restore(String),
    /// The snapshot on this replica's disk is whole, and the state machine or this release refuses it:
    /// start the program that wrote it.
    #[error(
        "the snapshot in {} cannot be used ({why}): start the release that wrote it, or move the \
         directory away to recover from the others", dir.display()
    )]
    Snapshot {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with the snapshot.
        why: String,
    },
    /// Stable storage failed, or another process uses it; the text says what to do.
    #[error("{0}")]
    Store(String),
}

/// What to do about an address that cannot be listened on.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "; end the process that listens there, perhaps this replica",
        io::ErrorKind::NotFound => "; make the directory of the unix socket",
        _ => "; correct the address",
    }
}

impl ServerError {
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

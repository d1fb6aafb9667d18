//! What can go wrong, for those who propose and for those who run a replica.

use plover_types::ReplicaId;
use std::io;
use std::path::PathBuf;

/// Why an entry was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Ask the named replica, or another one a little later.
    #[error("this replica does not lead ({})", leader_text(*.leader))]
    NotLeader {
        /// Who leads, if this replica knows.
        leader: Option<ReplicaId>,
    },
    /// This replica stopped leading before it knew: the entry may be in the log or not. Repeat
    /// it only if that does no harm, or use a session, which makes repeating harmless.
    #[error("leadership was lost before the entry was committed; it may be in the log or not")]
    Unknown,
    /// Too much is waiting: take completions, then try again.
    #[error("too many entries are waiting for the log")]
    Full,
    /// Split the entry.
    #[error("an entry of {bytes} bytes exceeds the largest of {max}")]
    TooLarge {
        /// What was asked.
        bytes: usize,
        /// The most.
        max: usize,
    },
    /// A session's earlier number came after a later one: its answer is gone, so this is a
    /// mistake of the session's owner, such as two owners of one name.
    #[error("the session has gone on past this number")]
    Stale,
    /// The server has ended; what was not completed may be in the log or not.
    #[error("the log server has stopped")]
    Stopped,
}

fn leader_text(leader: Option<ReplicaId>) -> String {
    leader.map_or("nobody is known to".into(), |leader| {
        format!("{leader} does")
    })
}

/// Why a replica cannot start or go on. What was acknowledged stands.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The kernel refuses something basic, such as another descriptor.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Clients cannot be let in: correct the address, or end what holds it.
    #[error("cannot listen for clients on {address}: {source}{}", advice(source))]
    Listen {
        /// What was asked.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The state machine refuses the state that the group handed over: run the same release on
    /// all replicas.
    #[error("the state of another replica cannot be taken over: {0}")]
    Restore(String),
    /// This replica's own state from before the log on its disk is whole, and the state machine or this
    /// release refuses it: start the program that wrote it.
    #[error(
        "the snapshot in {} cannot be used: {why}. Start the release that wrote it, or move the directory \
         away to recover from the others", dir.display()
    )]
    Snapshot {
        /// Where it is.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Stable storage failed, or is not ours; its own words say what to do.
    #[error("{0}")]
    Store(String),
}

/// What to do about an address that cannot be listened on.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "; is this replica running already?",
        io::ErrorKind::NotFound => "; a unix socket needs its directory to exist",
        _ => "",
    }
}

impl ServerError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::System {
            what,
            source: source.into(),
        }
    }
}

//! Why a fabric cannot be made.

use crate::Lane;
use crate::ring::BadCapacity;
use plover_types::ReplicaId;
use std::io;
use std::net::SocketAddr;

/// Why a fabric cannot be made. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// Change `group`.
    #[error("the group name '{0}' is empty or too long: give it 1 to 64 bytes")]
    Group(String),
    /// Change `peers` or the own id.
    #[error(
        "{0} is a member twice: give every replica its own id, and leave this one out of its peers"
    )]
    Member(ReplicaId),
    /// Change the ring's size.
    #[error("the {lane} lane cannot have {source}")]
    Ring {
        /// Which ring.
        lane: Lane,
        /// Why it is refused.
        source: BadCapacity,
    },
    /// Change `listen` or the directory in which the replicas of a host meet, or end what listens
    /// there.
    #[error("cannot listen for replicas on {address}: {source}; {advice}")]
    Listen {
        /// The configured address, or the unix socket's name.
        address: String,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// The kernel refuses something basic, such as another file descriptor.
    #[error("cannot {what}: {source} (raise the limits of this process, such as open files)")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl FabricError {
    /// `what` was tried and failed.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    pub(crate) fn bind(address: SocketAddr, source: io::Error) -> Self {
        let advice = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "another process listens there: end it (is this replica running already?) or \
                 choose another port"
            }
            io::ErrorKind::AddrNotAvailable => {
                "no interface of this host has that address: correct `listen` or bring the \
                 interface up"
            }
            io::ErrorKind::PermissionDenied => "choose a port above 1023 or run with more rights",
            _ => "correct `listen`",
        };
        Self::Listen {
            address: address.to_string(),
            source,
            advice,
        }
    }
}

//! The configuration of an ofi fabric, and the errors in it.

use super::native::NativeError;
use crate::{FabricError, Keys, Spin};
use plover_types::ReplicaId;
use std::net::SocketAddr;
use std::sync::Arc;

/// The configuration of an [`OfiFabric`](super::OfiFabric).
#[derive(Clone, Debug)]
pub struct OfiConfig {
    /// The group's name, 1 to 64 bytes, the same on all its replicas.
    pub group: String,
    /// This replica.
    pub me: ReplicaId,
    /// Where replicas with lower ids reach this one for the handshake. The provider's own
    /// traffic uses the interface of this address, where the provider has such addresses.
    pub listen: SocketAddr,
    /// The other members and where they listen.
    pub peers: Vec<(ReplicaId, SocketAddr)>,
    /// The libfabric provider, the same on all replicas: `verbs;ofi_rxm` or `efa` on RDMA
    /// hardware; `tcp` (which 1.x resolves to `tcp;ofi_rxm`) or `shm` without. `fi_info -l`
    /// lists what this host has.
    pub provider: String,
    /// Whether to look for a while before sleeping. A provider that cannot wake a sleeper is
    /// refused with [`Spin::Never`]; with [`Spin::Adaptive`] it is looked at again and again.
    pub spin: Spin,
    /// Sizes of each log ring and of each bulk ring, the same on all replicas: multiples of 8. A
    /// record takes at most half. A link takes twice this of memory here: the ring, and the copy that
    /// outgoing writes are taken from. RDMA hardware pins both.
    pub ring_bytes: [usize; 2],
    /// The keys for the handshake under TLS, from which those of the records follow. Without them every peer is believed, and
    /// records are written as they are.
    pub keys: Option<Arc<Keys>>,
    /// Names this process, as [`TcpConfig::process`](crate::TcpConfig::process).
    pub process: u64,
}

impl OfiConfig {
    /// Rings of the usual sizes, no spinning.
    pub fn new(
        group: impl Into<String>,
        me: ReplicaId,
        listen: SocketAddr,
        peers: Vec<(ReplicaId, SocketAddr)>,
        provider: impl Into<String>,
    ) -> Self {
        Self {
            group: group.into(),
            me,
            listen,
            peers,
            provider: provider.into(),
            spin: Spin::default(),
            ring_bytes: [8 << 20, 16 << 20],
            keys: None,
            process: 0,
        }
    }
}

/// Why an ofi fabric cannot be made. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OfiError {
    /// As of any fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Install the libfabric that this program was built for, or build it anew.
    #[error(
        "this program was built for libfabric {built} and runs with {running}, which {why}: \
         install libfabric {built} or newer of the same major version, or build plover on this \
         host"
    )]
    Version {
        /// Version of the headers at build time.
        built: Version,
        /// Version of the library that was loaded.
        running: Version,
        /// The consequence.
        why: &'static str,
    },
    /// Choose another `provider`, or install it.
    #[error(
        "libfabric's provider '{provider}' cannot be used: {source}; `fi_info -l` (Debian: \
         libfabric-bin) lists the providers of this host, and `fi_info -p {provider} -t \
         FI_EP_RDM` shows what it offers on which addresses"
    )]
    Provider {
        /// The configured one.
        provider: String,
        /// libfabric's answer.
        source: NativeError,
    },
    /// Set `spin` to `adaptive` or `always`, or choose another provider.
    #[error(
        "libfabric's provider '{provider}' cannot wake a sleeping replica ({source}): with \
         `spin = \"never\"` its messages would lie there unseen; set `spin = \"adaptive\"` (--spin adaptive), or \
         choose a provider with a wait object, such as tcp or verbs"
    )]
    CannotSleep {
        /// The provider, as it names itself.
        provider: String,
        /// libfabric's answer to the request for a wait object.
        source: NativeError,
    },
    /// Choose another provider: this one lacks something that the protocol needs.
    #[error("libfabric's provider '{provider}' {lack}; choose another provider")]
    Unfit {
        /// The provider, as it names itself.
        provider: String,
        /// The missing property.
        lack: &'static str,
    },
}

/// A version of libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Of the interface.
    pub major: u16,
    /// Counts additions to it.
    pub minor: u16,
}

impl Version {
    /// As libfabric packs it.
    pub fn unpack(packed: u32) -> Self {
        Self {
            major: (packed >> 16) as u16,
            minor: packed as u16,
        }
    }

    /// Whether a program built against `self` works with the library `running`. Much of
    /// libfabric is compiled into its callers, so the library must know all that the headers
    /// knew.
    pub fn check(self, running: Self) -> Result<(), OfiError> {
        let why = if running.major != self.major {
            "has another interface"
        } else if running.minor < self.minor {
            "lacks what the newer headers promised"
        } else {
            return Ok(());
        };
        Err(OfiError::Version {
            built: self,
            running,
            why,
        })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_or_other_library_is_refused_in_words() {
        let version = |major, minor| Version { major, minor };
        let built = version(1, 17);
        assert!(built.check(version(1, 17)).is_ok());
        assert!(built.check(version(1, 20)).is_ok());
        for other in [version(1, 16), version(2, 1), version(0, 17)] {
            let text = built.check(other).expect_err("refused").to_string();
            assert!(text.contains("built for libfabric 1.17"), "{text}");
            assert!(text.contains(&format!("runs with {other}")), "{text}");
            assert!(text.contains("install libfabric 1.17 or newer"), "{text}");
        }
    }

    #[test]
    fn versions_are_unpacked_as_libfabric_packs_them() {
        let unpacked = Version::unpack(1 << 16 | 17);
        assert_eq!(unpacked.to_string(), "1.17");
    }
}

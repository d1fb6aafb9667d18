//! The unix socket by which two replicas meet: it carries the greeting and the descriptors of the
//! memory, and its end tells that the peer's process is gone. No record goes through it.
//!
//! Sockets are of the kind that keeps messages whole (`SOCK_SEQPACKET`), so a greeting and its
//! descriptors arrive together or not at all.
//!
//! A process that is killed leaves its socket's *file* behind, if the place is a directory. Nobody
//! answers there any more, so the restarted replica knows that it may replace the file.

use super::ShmPlace;
use crate::FabricError;
use crate::context::{Loss, No};
use crate::door::Listen;
use crate::hello::{Greet, HELLO_BYTES, Hello, Message, Refusal};
use crate::processes::Process;
use plover_types::ReplicaId;
use plover_types::wire::Versions;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// The longest path of a socket's file, by the kernel's `sockaddr_un`.
const PATH_BYTES_MAX: usize = 107;

/// Where one replica listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Abstract(Vec<u8>),
    File(PathBuf),
}

impl Address {
    /// The address of replica `id` of `group`.
    pub fn new(place: &ShmPlace, group: &str, id: ReplicaId) -> Result<Self, FabricError> {
        match place {
            ShmPlace::Abstract => Ok(Self::Abstract(
                format!("plover/{group}/{}", id.0).into_bytes(),
            )),
            ShmPlace::Directory(directory) => {
                // A group's name may hold anything, a file's name may not. Two groups of the same
                // checksum would refuse each other in the greeting.
                let digest = crc32c::crc32c(group.as_bytes());
                let path = directory.join(format!("plover-{digest:08x}-{}.sock", id.0));
                if path.as_os_str().len() > PATH_BYTES_MAX {
                    return Err(FabricError::Listen {
                        address: path.display().to_string(),
                        source: io::ErrorKind::InvalidInput.into(),
                        advice: "the path of a socket has at most 107 bytes: choose a shorter \
                                 directory",
                    });
                }
                Ok(Self::File(path))
            }
        }
    }

    fn name(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name)?,
            Self::File(path) => SocketAddrUnix::new(path)?,
        })
    }

    /// Connects. It never waits: somebody listens there, or nobody does.
    pub fn dial(&self) -> io::Result<OwnedFd> {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        net::connect(&socket, &self.name()?)?;
        Ok(socket)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{}", String::from_utf8_lossy(name).escape_debug()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The own socket, listening.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// The socket's file, and the number by which to know that it is still ours.
    file: Option<(PathBuf, u64)>,
}

impl Listener {
    /// Listens at `address`.
    pub fn open(address: Address) -> Result<Self, FabricError> {
        Self::try_open(&address).map_err(|source| FabricError::Listen {
            address: address.to_string(),
            advice: match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "another process listens there: end it (is this replica running already?)"
                }
                io::ErrorKind::NotFound => "create the directory, the same for all replicas",
                io::ErrorKind::PermissionDenied => "make the directory writable for this user",
                _ => "correct the directory",
            },
            source,
        })
    }

    fn try_open(address: &Address) -> io::Result<Self> {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let name = address.name()?;
        match (net::bind(&socket, &name), address) {
            (Err(Errno::ADDRINUSE), Address::File(path)) => {
                remove_stale(address, path)?;
                net::bind(&socket, &name)?;
            }
            (bound, _) => bound?,
        }
        let file = match address {
            Address::File(path) => Some((path.clone(), std::fs::symlink_metadata(path)?.ino())),
            Address::Abstract(_) => None,
        };
        let listener = Self { socket, file };
        net::listen(&listener.socket, 64)?;
        Ok(listener)
    }
}

/// Removes the file of a replica that was killed; fails if one listens there.
fn remove_stale(address: &Address, path: &Path) -> io::Result<()> {
    match address.dial() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        }
        _ => Err(Errno::ADDRINUSE.into()),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((path, number)) = &self.file else {
            return;
        };
        // The file may be another process's by now. A file that stays behind does no harm.
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *number) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listen for Listener {
    type Socket = OwnedFd;
    type Partial = ();
    type Greeting = Offering;

    fn accept(&self) -> io::Result<(OwnedFd, String)> {
        let socket = net::accept_with(&self.socket, FLAGS)?;
        let peer = net::sockopt::socket_peercred(&socket)?;
        Ok((socket, format!("process {}", peer.pid.as_raw_nonzero())))
    }

    fn read(&self, socket: &mut OwnedFd, (): &mut ()) -> Result<Option<Offering>, Loss> {
        // Before anything is taken: to close a descriptor of another user's file system waits for that user.
        if !is_same_user(socket) {
            return Err(Loss::Refused(Refusal::User.into()));
        }
        receive(socket)
    }

    fn send(socket: &mut OwnedFd, greeting: &Offering) -> Result<(), Loss> {
        Ok(send(socket, greeting)?)
    }
}

/// Whether the process at the other end runs as the same user as this one.
pub fn is_same_user(socket: &OwnedFd) -> bool {
    let peer = net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// A greeting, with an offer if it accepts.
#[derive(Debug)]
pub struct Offering {
    pub hello: Hello,
    pub offer: Option<Offer>,
}

impl Greet for Offering {
    fn sender(&self) -> ReplicaId {
        self.hello.from
    }

    fn versions(&self) -> Versions {
        self.hello.versions
    }

    fn process(&self) -> Process {
        self.hello.process
    }

    fn refusal(&self, mine: &Self) -> Option<No> {
        let memory = self.offer.is_none().then_some(Refusal::Memory);
        let hello = self.hello.no(&mine.hello);
        hello.or_else(|| memory.map(No::from))
    }

    fn refuse(&mut self, why: Refusal) {
        self.hello.verdict = why as u8;
    }
}

/// The descriptors that travel with a greeting that accepts.
#[derive(Debug)]
pub struct Offer {
    /// The memory that the receiver of the greeting may write.
    pub memory: OwnedFd,
    /// The eventfd that wakes the sender of the greeting.
    pub doorbell: OwnedFd,
    /// The page on which the sender of the greeting says that it sleeps.
    pub page: OwnedFd,
}

/// How many they are.
const OFFER: usize = 3;

fn send(socket: &OwnedFd, greeting: &Offering) -> io::Result<()> {
    let bytes = greeting.hello.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFER))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let offer = greeting.offer.as_ref();
    let descriptors =
        offer.map(|offer| [&offer.memory, &offer.doorbell, &offer.page].map(AsFd::as_fd));
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is space for an offer");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Takes in a greeting, if there is one. The process at the other end is one of the same user.
pub fn receive(socket: &OwnedFd) -> Result<Option<Offering>, Loss> {
    // One byte more than a greeting has, so that a longer message shows.
    let mut bytes = [0; HELLO_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFER))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    ) {
        Ok(received) => received,
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(Loss::Closed),
        Err(error) => return Err(error.into()),
    };
    // Descriptors beyond an offer's have been closed by the kernel, the others are closed when
    // they are dropped here.
    let mut descriptors = Vec::with_capacity(OFFER);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Err(Loss::Closed);
    }
    let whole: Result<[u8; HELLO_BYTES], _> = bytes[..received.bytes].try_into();
    let cut = received.flags.contains(ReturnFlags::CTRUNC);
    let offer = <[OwnedFd; OFFER]>::try_from(descriptors).ok();
    let offer = offer.map(|[memory, doorbell, page]| Offer {
        memory,
        doorbell,
        page,
    });
    let bytes = whole.ok().filter(|_| !cut);
    let bytes =
        bytes.ok_or_else(|| Loss::Damage("it sent something else than a greeting".into()))?;
    let hello = Hello::decode(&bytes).map_err(|error| Loss::Damage(error.to_string()))?;
    Ok(Some(Offering { hello, offer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let place = ShmPlace::Directory(directory.path().into());
        let address = Address::new(&place, "a group", ReplicaId(1)).unwrap();
        let first = Listener::open(address.clone()).unwrap();
        let error = Listener::open(address.clone()).unwrap_err().to_string();
        assert!(error.contains("is this replica running already"), "{error}");
        // As a killed process leaves it: the file without a listener.
        let Address::File(path) = &address else {
            panic!("a directory gives files")
        };
        let kept = directory.path().join("kept");
        std::fs::hard_link(path, &kept).unwrap();
        drop(first);
        assert!(!path.exists(), "it cleans up");
        std::fs::rename(&kept, path).unwrap();
        let second = Listener::open(address.clone()).unwrap();
        assert!(address.dial().is_ok());
        drop(second);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn impossible_places_are_named() {
        let missing = ShmPlace::Directory("/nonexistent/place".into());
        let address = Address::new(&missing, "g", ReplicaId(0)).unwrap();
        let error = Listener::open(address.clone()).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent/place") && error.contains("create"),
            "{error}"
        );
        let long = ShmPlace::Directory("/x".repeat(60).into());
        let error = Address::new(&long, "g", ReplicaId(0))
            .unwrap_err()
            .to_string();
        assert!(error.contains("107"), "{error}");
    }
}

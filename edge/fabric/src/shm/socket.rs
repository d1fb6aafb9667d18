//! The unix socket by which two replicas meet: it carries the greeting and the descriptors of the
//! memory, and its end tells that the peer's process is gone. No record goes through it.
//!
//! Sockets are of the kind that keeps messages whole (`SOCK_SEQPACKET`), so a greeting and its
//! descriptors arrive together or not at all.
//!
//! A process that is killed leaves its socket's *file* behind, if the place is a directory. Nobody
//! answers there any more, by which the next life knows that it may replace it.

use super::config::ShmPlace;
use crate::FabricError;
use crate::hello::{HELLO_BYTES, Hello};
use plover_types::ReplicaId;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);
/// The longest path of a socket's file, by the kernel's `sockaddr_un`.
const PATH_BYTES_MAX: usize = 107;

/// Where one replica listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Abstract(Vec<u8>),
    File(PathBuf),
}

impl Door {
    /// The door of replica `id` of `group`.
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
                    return Err(FabricError::Door {
                        door: path.display().to_string(),
                        source: io::ErrorKind::InvalidInput.into(),
                        advice: "the path of a socket has at most 107 bytes: choose a shorter \
                                 directory",
                    });
                }
                Ok(Self::File(path))
            }
        }
    }

    fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name)?,
            Self::File(path) => SocketAddrUnix::new(path)?,
        })
    }

    /// Connects to whoever listens there. It never waits: there is somebody, or there is nobody.
    pub fn dial(&self) -> io::Result<OwnedFd> {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        net::connect(&socket, &self.address()?)?;
        Ok(socket)
    }
}

impl std::fmt::Display for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{}", String::from_utf8_lossy(name).escape_debug()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The own door, open.
#[derive(Debug)]
pub(super) struct Listener {
    pub socket: OwnedFd,
    /// The file, and by which number to know that it is still ours.
    file: Option<(PathBuf, u64)>,
}

impl Listener {
    /// Opens it.
    pub fn open(door: &Door) -> Result<Self, FabricError> {
        Self::try_open(door).map_err(|source| FabricError::Door {
            door: door.to_string(),
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

    fn try_open(door: &Door) -> io::Result<Self> {
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let address = door.address()?;
        let bound = match (net::bind(&socket, &address), door) {
            (Err(Errno::ADDRINUSE), Door::File(path)) => {
                remove_stale(door, path)?;
                net::bind(&socket, &address)
            }
            (bound, _) => bound,
        };
        bound?;
        let file = match door {
            Door::File(path) => Some((path.clone(), std::fs::symlink_metadata(path)?.ino())),
            Door::Abstract(_) => None,
        };
        let listener = Self { socket, file };
        net::listen(&listener.socket, 64)?;
        Ok(listener)
    }

    /// The next who knocks.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        match net::accept_with(&self.socket, FLAGS) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Removes the file of a replica that was killed; fails if one lives there.
fn remove_stale(door: &Door, path: &Path) -> io::Result<()> {
    match door.dial() {
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
        // The place may be another's by now; and that it cannot be removed harms nobody.
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *number) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the process at the other end runs as the same user as this one.
pub(super) fn is_same_user(socket: &OwnedFd) -> io::Result<bool> {
    let peer = net::sockopt::socket_peercred(socket)?;
    Ok(peer.uid == rustix::process::geteuid())
}

/// What came through a socket.
pub(super) enum Heard {
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    End,
    /// One message of the size of a greeting, and the three descriptors that came with it.
    Greeting(Box<[u8; HELLO_BYTES]>, Option<Offer>),
    /// Something else.
    Noise,
}

/// The descriptors that travel with a greeting that accepts.
#[derive(Debug)]
pub(super) struct Offer {
    /// The memory that the receiver of the greeting may write.
    pub memory: OwnedFd,
    /// The eventfd that wakes the sender of the greeting.
    pub bell: OwnedFd,
    /// Where the sender of the greeting says that it sleeps.
    pub board: OwnedFd,
}

/// How many they are.
const OFFER: usize = 3;

/// Sends a greeting, with an offer if it accepts. It is the first message on its socket, so there
/// always is room for it.
pub(super) fn send(socket: &OwnedFd, hello: &Hello, offer: Option<&Offer>) -> io::Result<()> {
    let bytes = hello.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(OFFER))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors =
        offer.map(|offer| [&offer.memory, &offer.bell, &offer.board].map(AsFd::as_fd));
    if let Some(descriptors) = &descriptors {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is space for an offer");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Takes in what there is.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<Heard> {
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
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(Heard::Nothing),
        Err(Errno::CONNRESET) => return Ok(Heard::End),
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
        return Ok(Heard::End);
    }
    let whole: Result<[u8; HELLO_BYTES], _> = bytes[..received.bytes].try_into();
    let cut = received.flags.contains(ReturnFlags::CTRUNC);
    let offer = <[OwnedFd; OFFER]>::try_from(descriptors).ok();
    let offer = offer.map(|[memory, bell, board]| Offer {
        memory,
        bell,
        board,
    });
    Ok(match whole {
        Ok(bytes) if !cut => Heard::Greeting(Box::new(bytes), offer),
        _ => Heard::Noise,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let place = ShmPlace::Directory(directory.path().into());
        let door = Door::new(&place, "a group", ReplicaId(1)).unwrap();
        let first = Listener::open(&door).unwrap();
        let error = Listener::open(&door).unwrap_err().to_string();
        assert!(error.contains("is this replica running already"), "{error}");
        // As a killed process leaves it: the file without a listener.
        let Door::File(path) = &door else {
            panic!("a directory gives files")
        };
        let kept = directory.path().join("kept");
        std::fs::hard_link(path, &kept).unwrap();
        drop(first);
        assert!(!path.exists(), "it cleans up");
        std::fs::rename(&kept, path).unwrap();
        let second = Listener::open(&door).unwrap();
        assert!(door.dial().is_ok());
        drop(second);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn impossible_places_are_named() {
        let missing = ShmPlace::Directory("/nonexistent/place".into());
        let door = Door::new(&missing, "g", ReplicaId(0)).unwrap();
        let error = Listener::open(&door).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent/place") && error.contains("create"),
            "{error}"
        );
        let long = ShmPlace::Directory("/x".repeat(60).into());
        let error = Door::new(&long, "g", ReplicaId(0)).unwrap_err().to_string();
        assert!(error.contains("107"), "{error}");
    }
}

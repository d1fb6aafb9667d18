//! The socket where a preloaded program fetches the sockets of its clients.
//!
//! It has an abstract name, which a program finds after chroot(), and also as another user. So any process of this
//! host may connect; only those that know the secret in the program's memory are answered.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, socket_with,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The bytes of a request: the secret, the number of the slot, and which use of it is meant.
const REQUEST_BYTES: usize = 24;
/// Requests that wait at a time. A process that connects and asks nothing takes one of them.
const WAITING_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    pub name: String,
    pub secret: [u8; 16],
    epoll: Arc<OwnedFd>,
    kind: u64,
    next: u64,
    waiting: BTreeMap<u64, OwnedFd>,
}

impl Door {
    /// A door whose descriptors have tokens of `kind`.
    pub fn open(epoll: Arc<OwnedFd>, kind: u64) -> io::Result<Self> {
        let mut random = [0; 24];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let (secret, rest) = random.split_at(16);
        let name = format!(
            "plover-{:016x}",
            u64::from_ne_bytes(rest.try_into().expect("eight"))
        );
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(
            &listener,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&listener, 128)?;
        epoll::add(&*epoll, &listener, EventData::new_u64(kind), EventFlags::IN)?;
        Ok(Self {
            listener,
            name,
            secret: secret.try_into().expect("sixteen bytes"),
            epoll,
            kind,
            next: 1,
            waiting: BTreeMap::new(),
        })
    }

    /// A descriptor of the door is ready. `find` gives the socket of a slot in one of its uses.
    pub fn ready(&mut self, token: u64, find: impl FnOnce(usize, u32) -> Option<OwnedFd>) {
        if token == self.kind {
            return self.let_in();
        }
        let Some(asker) = self.waiting.remove(&token) else {
            return;
        };
        let mut request = [0; REQUEST_BYTES];
        let got = recv(&asker, &mut request[..], rustix::net::RecvFlags::DONTWAIT);
        let is_sound = matches!(got, Ok((_, REQUEST_BYTES))) && request[..16] == self.secret;
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
        let (slot, generation) = (word(16) as usize, word(20));
        if let Some(client) = is_sound.then(|| find(slot, generation)).flatten() {
            use std::os::fd::AsFd;
            give(asker.as_fd(), client.as_fd());
        }
    }

    fn let_in(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        while let Ok(asker) = accept_with(&self.listener, flags) {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_first();
            }
            let token = self.kind | self.next;
            self.next += 1;
            if epoll::add(
                &*self.epoll,
                &asker,
                EventData::new_u64(token),
                EventFlags::IN,
            )
            .is_ok()
            {
                self.waiting.insert(token, asker);
            }
        }
    }
}

fn give(asker: BorrowedFd<'_>, client: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let rights = [client];
    if ancillary.push(SendAncillaryMessage::ScmRights(&rights)) {
        // An asker that is gone needs no answer.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(asker, &[IoSlice::new(b"c")], &mut ancillary, flags);
    }
}

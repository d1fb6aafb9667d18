//! A level-triggered epoll with a memory for one round of readiness.
//!
//! Level-triggered, because its own descriptor then stays readable as long as a socket holds
//! anything unread, also when `progress` has stopped early. The one exception are eventfds that carry
//! no more than a wake-up ([`Interest::Edge`]): nobody has to read them, which saves a system call for
//! each wake-up.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Names one registered descriptor, never reused: an event of a descriptor that was closed in
/// the same round names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

/// Which events wake. Errors and hang-ups always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Nothing,
    Read,
    Write,
    ReadWrite,
    /// Each write of the peer once, without reading anything off: for eventfds that only wake.
    Edge,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::Nothing => EventFlags::empty(),
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::ReadWrite => EventFlags::IN | EventFlags::OUT,
            Self::Edge => EventFlags::IN | EventFlags::ET,
        }
    }
}

#[derive(Debug)]
pub struct Poll {
    epoll: OwnedFd,
    next_token: u64,
    /// The events that the last [`Poll::look`] found.
    ready: Vec<(Token, EventFlags)>,
}

/// Descriptors looked at in one round; a group has at most 30 connections.
const EVENTS_MAX: usize = 64;

impl Poll {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            next_token: 0,
            ready: Vec::with_capacity(EVENTS_MAX),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches `fd` until it is closed.
    pub fn watch(&mut self, fd: impl AsFd, interest: Interest) -> io::Result<Token> {
        let token = Token(self.next_token);
        self.next_token += 1;
        epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token.0),
            interest.flags(),
        )?;
        Ok(token)
    }

    pub fn change(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(token.0),
            interest.flags(),
        )?;
        Ok(())
    }

    /// Asks, without waiting, what is ready.
    pub fn look(&mut self) {
        self.wait(Some(Duration::ZERO));
    }

    /// Waits until something is ready, or for so long.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        self.ready.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => {
                let found = events
                    .iter()
                    .map(|event| (Token(event.data.u64()), event.flags));
                self.ready.extend(found);
            }
            // Only an interrupted call can fail here; the next round sees the same events.
            Err(error) => assert_eq!(error, rustix::io::Errno::INTR, "epoll_wait"),
        }
    }

    /// Goes on as if nothing were ready, without asking.
    pub fn skip(&mut self) {
        self.ready.clear();
    }

    /// Whether `token` has any event: bytes, an end, an error, room to write.
    pub fn is_ready(&self, token: Token) -> bool {
        !self.flags(token).is_empty()
    }

    /// Whether a read from `token` will say something.
    pub fn is_readable(&self, token: Token) -> bool {
        self.flags(token)
            .intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
    }

    /// Whether a write to `token` will go on.
    pub fn is_writable(&self, token: Token) -> bool {
        self.flags(token)
            .intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
    }

    /// Whether the connection of `token` is over in both directions. (It may also be readable
    /// from before its interest was changed.)
    pub fn has_ended(&self, token: Token) -> bool {
        self.flags(token)
            .intersects(EventFlags::HUP | EventFlags::ERR)
    }

    fn flags(&self, token: Token) -> EventFlags {
        let found = self.ready.iter().find(|(ready, _)| *ready == token);
        found.map_or(EventFlags::empty(), |(_, flags)| *flags)
    }
}

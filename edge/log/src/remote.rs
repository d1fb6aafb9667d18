//! A client in another process. It follows the leader, and repeats requests without having them applied
//! twice.
//!
//! ```text
//!   request ─► some replica ──► Appended
//!                 │ Elsewhere{leader} ─► that one
//!                 │ silence, a lost connection, no leader ─► the next address, after a pause
//! ```
//!
//! Every append belongs to the client's session, whose name is drawn at random, and has a number.
//! The replicas remember a session's last number and answer, so a request that is repeated after a
//! lost reply is answered and not applied again.

use crate::address::{self, Address};
use crate::framed::{Framed, Took, Way};
pub use crate::questions::{TailEvent, begin, status, tail};
use crate::wire::{self, FrameError, MemberChange, Refusal, Reply, Request};
use plover_fabric::{ClientLine, Keys};
use plover_types::Viewstamp;
use rustix::net::sockopt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one connection attempt may take, and one reply, before another replica is tried.
/// Longer than an election takes, so that the client does not leave a replica that is being elected.
const TRY_FOR: Duration = Duration::from_millis(700);
/// The pause after every address was tried in vain.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a request of a remote client failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No replica answered in time, or none led. An entry may be in the log or not, or come into it later.
    #[error(
        "no answer from {tried} within {patience:?}: {last}; a majority of the replicas has to run, in \
         a new group all of them"
    )]
    TimedOut {
        /// The addresses that were tried.
        tried: String,
        /// The client's patience.
        patience: Duration,
        /// The last thing that went wrong.
        last: String,
    },
    /// Split the entry.
    #[error("an entry of {bytes} bytes was not appended: the largest has {max}, split it")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size.
        max: u64,
    },
    /// Another client uses the same session: make a new client.
    #[error(
        "the entry was not appended: another client has used this session for a later request; make \
         a client of its own for each of them"
    )]
    Stale,
    /// The server refused, in its own words.
    #[error("{address}: {why}")]
    Refused {
        /// The server.
        address: Address,
        /// Why, and what to do.
        why: String,
    },
    /// Correct the address, or start the server.
    #[error("cannot reach {address} ({source}): correct the address, or start the replica there")]
    Unreachable {
        /// The server.
        address: Address,
        /// What the kernel said.
        source: io::Error,
    },
    /// The server and the client do not trust each other, or one of them has no keys.
    #[error("{address}: {why}")]
    Untrusted {
        /// The server.
        address: Address,
        /// Why, and what to do.
        why: String,
    },
    /// The address is not a server of this release.
    #[error(
        "{address} does not answer as a replica of this release does ({source}): use its release"
    )]
    Protocol {
        /// The server.
        address: Address,
        /// What is wrong with its answer.
        source: FrameError,
    },
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    address: Address,
    framed: Framed,
    /// Bytes of the last reply.
    last: usize,
}

impl Link {
    fn open(address: &Address, keys: Option<&Arc<Keys>>) -> Result<Self, RemoteError> {
        let unreachable = |source| RemoteError::Unreachable {
            address: address.clone(),
            source,
        };
        let socket = address::connect(address, TRY_FOR).map_err(unreachable)?;
        let way = match (address, keys) {
            (Address::Tcp(_), Some(keys)) => {
                let line = ClientLine::to_replica(TcpStream::from(socket), keys, TRY_FOR);
                Way::Tls(Box::new(line.map_err(|error| lost(address, error))?))
            }
            _ => Way::Plain(socket),
        };
        Ok(Self {
            address: address.clone(),
            framed: Framed::new(way),
            last: 0,
        })
    }

    /// Connects, and sends `request`.
    pub fn ask(
        address: &Address,
        keys: Option<&Arc<Keys>>,
        request: &Request<'_>,
    ) -> Result<Self, RemoteError> {
        let mut link = Self::open(address, keys)?;
        link.send(request)?;
        Ok(link)
    }

    fn send(&mut self, request: &Request<'_>) -> Result<(), RemoteError> {
        self.framed.put(request);
        // One that stands still takes nothing once the buffers are full.
        let limit =
            sockopt::set_socket_timeout(&self.framed, sockopt::Timeout::Send, Some(TRY_FOR));
        let written = limit
            .map_err(io::Error::from)
            .and_then(|()| self.framed.write());
        written.map_err(|error| lost(&self.address, error))
    }

    /// Waits for the next reply, until `until` if that is given.
    pub fn receive(&mut self, until: Option<Instant>) -> Result<Reply<'_>, RemoteError> {
        self.framed.done(std::mem::take(&mut self.last));
        self.framed.tidy();
        while self.frame()?.is_none() {
            self.read(until)?;
        }
        self.last = self.frame()?.map_or(0, <[u8]>::len);
        let frame = &self.framed.unread()[..self.last];
        wire::take(frame).map_err(|source| self.damaged(source))
    }

    fn frame(&self) -> Result<Option<&[u8]>, RemoteError> {
        self.framed.frame().map_err(|source| self.damaged(source))
    }

    fn read(&mut self, until: Option<Instant>) -> Result<(), RemoteError> {
        let read = self.wait_at_most(until).and_then(|()| self.framed.read());
        let error = match read {
            Ok(Took::End) if wire::is_alert(self.framed.unread()) => {
                let why = "it speaks TLS with its clients: give --key and --trust";
                io::Error::new(io::ErrorKind::PermissionDenied, why)
            }
            Ok(Took::End) => io::ErrorKind::ConnectionReset.into(),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                io::ErrorKind::TimedOut.into()
            }
            Err(error) => error,
        };
        Err(lost(&self.address, error))
    }

    /// Lets the next read take until `until` at most.
    fn wait_at_most(&self, until: Option<Instant>) -> io::Result<()> {
        let Some(until) = until else {
            return Ok(());
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A timeout of zero would mean none.
        let left = Some(left.max(Duration::from_millis(1)));
        Ok(sockopt::set_socket_timeout(
            &self.framed,
            sockopt::Timeout::Recv,
            left,
        )?)
    }

    fn damaged(&self, source: FrameError) -> RemoteError {
        RemoteError::Protocol {
            address: self.address.clone(),
            source,
        }
    }
}

/// A connection to `address` could not be made, or has ended.
fn lost(address: &Address, error: io::Error) -> RemoteError {
    let address = address.clone();
    match error.kind() {
        io::ErrorKind::PermissionDenied => RemoteError::Untrusted {
            address,
            why: error.to_string(),
        },
        _ => RemoteError::Unreachable {
            address,
            source: error,
        },
    }
}

/// `reply` of the server at `address` does not grant the request.
pub(crate) fn refused(address: &Address, reply: &Reply<'_>) -> RemoteError {
    let why = match reply {
        Reply::Failed(why) => why.clone(),
        Reply::Elsewhere { leader, .. } => match leader {
            Some(leader) => format!("{leader} leads"),
            None => "no replica leads".into(),
        },
        other => format!("unexpected {other:?}"),
    };
    let address = address.clone();
    RemoteError::Refused { address, why }
}

/// A remote client with a session of its own.
#[derive(Debug)]
pub struct Remote {
    session: u64,
    number: u64,
    targets: Vec<Address>,
    /// The target to try next.
    next: usize,
    link: Option<Link>,
    patience: Duration,
    keys: Option<Arc<Keys>>,
}

impl Remote {
    /// A client of the replicas at `targets`; they name others. `patience` bounds every append,
    /// retries included.
    pub fn new(targets: Vec<Address>, patience: Duration) -> Self {
        let mut name = [0; 8];
        // The kernel has randomness long before programs run.
        let _ = rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty());
        Self {
            session: u64::from_le_bytes(name),
            number: 0,
            targets,
            next: 0,
            link: None,
            patience,
            keys: None,
        }
    }

    /// The same client with a key of its own, for replicas that speak TLS with their clients.
    #[must_use]
    pub fn with_keys(mut self, keys: Option<Arc<Keys>>) -> Self {
        self.keys = keys;
        self
    }

    /// Appends an entry, once, and waits until it is committed.
    pub fn append(&mut self, entry: &[u8]) -> Result<Viewstamp, RemoteError> {
        self.call(entry, &mut Vec::new())
    }

    /// [`append`](Self::append), and appends the state machine's answer to `answer`.
    ///
    /// # Errors
    ///
    /// After [`RemoteError::TimedOut`] the entry may still take effect, later as well.
    pub fn call(&mut self, entry: &[u8], answer: &mut Vec<u8>) -> Result<Viewstamp, RemoteError> {
        self.number += 1;
        let request = Request::Append {
            number: self.number,
            session: Some(self.session),
            bytes: entry,
        };
        let done = self.until_done(&request, TRY_FOR, |reply| match reply {
            Reply::Appended { at, answer: it, .. } => {
                answer.extend_from_slice(it);
                Some(Ok(*at))
            }
            Reply::Refused { why, .. } => Some(Err(*why)),
            _ => None,
        })?;
        done.map_err(|why| match why {
            Refusal::Stale => RemoteError::Stale,
            Refusal::TooLarge { max } => {
                let bytes = entry.len();
                RemoteError::TooLarge { bytes, max }
            }
        })
    }

    /// Asks the leader to change the group, and tells `progress` how far it is. Repeats the request
    /// until it is done, which is harmless: a change that is already made succeeds.
    pub fn change_members(
        &mut self,
        change: &MemberChange,
        mut progress: impl FnMut(&str),
    ) -> Result<String, RemoteError> {
        let request = Request::Member(change.clone());
        let done = self.until_done(&request, self.patience, |reply| match reply {
            Reply::Progress(text) => {
                progress(text);
                None
            }
            Reply::Done(text) => Some(Ok(text.clone())),
            Reply::Failed(why) => Some(Err(why.clone())),
            _ => None,
        })?;
        let address = self.targets[self.next].clone();
        done.map_err(|why| RemoteError::Refused { address, why })
    }

    /// Sends `request` to one replica after the other until `answer` takes one of the replies. A
    /// reply may take `wait`.
    fn until_done<T>(
        &mut self,
        request: &Request<'_>,
        wait: Duration,
        mut answer: impl FnMut(&Reply<'_>) -> Option<T>,
    ) -> Result<T, RemoteError> {
        let mut until = Instant::now() + self.patience;
        let mut untrusted = 0;
        loop {
            let next = self.next;
            let failed = match self.attempt(request, wait, &mut until, &mut answer) {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            self.link = None;
            // No patience helps if none of them takes this client.
            untrusted = match failed {
                RemoteError::Untrusted { .. } => untrusted + 1,
                _ => 0,
            };
            if untrusted == self.targets.len() {
                return Err(failed);
            }
            if Instant::now() + PAUSE >= until {
                let tried: Vec<_> = self.targets.iter().map(Address::to_string).collect();
                return Err(RemoteError::TimedOut {
                    tried: tried.join(", "),
                    patience: self.patience,
                    last: failed.to_string(),
                });
            }
            // No other replica was named: the next target, after a pause.
            if self.next == next {
                self.next = (self.next + 1) % self.targets.len();
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Sends the request to the next target. Each sign of progress gives the request new patience.
    fn attempt<T>(
        &mut self,
        request: &Request<'_>,
        wait: Duration,
        until: &mut Instant,
        answer: &mut impl FnMut(&Reply<'_>) -> Option<T>,
    ) -> Result<T, RemoteError> {
        let target = &self.targets[self.next];
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::open(target, self.keys.as_ref())?),
        };
        link.send(request)?;
        loop {
            let reply = link.receive(Some((Instant::now() + wait).min(*until)))?;
            if let Some(done) = answer(&reply) {
                return Ok(done);
            }
            match &reply {
                Reply::Progress(_) => *until = Instant::now() + self.patience,
                Reply::Failed(_) => return Err(refused(target, &reply)),
                Reply::Elsewhere { address, .. } => {
                    let failed = refused(target, &reply);
                    let address = address.as_ref().and_then(|text| text.parse().ok());
                    if let Some(address) = address {
                        self.follow(address);
                    }
                    return Err(failed);
                }
                _ => {}
            }
        }
    }

    /// Tries `address` next.
    fn follow(&mut self, address: Address) {
        let place = self.targets.iter().position(|it| *it == address);
        self.next = place.unwrap_or(self.targets.len());
        if place.is_none() {
            self.targets.push(address);
        }
    }
}

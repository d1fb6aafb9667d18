//! A client in another process: follows the leader, and repeats without doing twice.
//!
//! ```text
//!   request ─► some replica ──► Appended
//!                 │ Elsewhere{leader} ─► that one
//!                 │ silence, a cut, nobody leads ─► the next address, after a pause
//! ```
//!
//! Every append belongs to the client's session, whose name is drawn at random, and has a number.
//! The replicas remember a session's last number and answer, so a repetition after a lost reply
//! is answered and not applied again.

use crate::address::{self, Address};
pub use crate::questions::{TailEvent, begin, status, tail};
use crate::wire::{self, FrameError, MemberChange, Refusal, Reply, Request};
use plover_types::{ReplicaId, Viewstamp};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long one connection attempt may take, and one reply, before another replica is tried.
/// Longer than an election takes, so that a leader under way is not left.
const TRY_FOR: Duration = Duration::from_millis(700);
/// The pause after every address was tried in vain.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a request of a remote client was given up.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Nobody answered in time, or nobody led. An entry may be in the log or not; the same
    /// client may repeat it.
    #[error(
        "no answer from {tried} within {patience:?}: {last}; is a majority of replicas up (for a new group: are all)?"
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
    #[error("an entry of {bytes} bytes exceeds the largest of {max}")]
    TooLarge {
        /// What was asked.
        bytes: usize,
        /// The most.
        max: u64,
    },
    /// The session was used by somebody else: make a new client.
    #[error("the session has gone on past this request: two clients use one name")]
    Stale,
    /// The server refused, in its own words.
    #[error("{address}: {why}")]
    Refused {
        /// Who.
        address: Address,
        /// Why, and what to do.
        why: String,
    },
    /// Correct the address, or start the server.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// Who was asked.
        address: Address,
        /// What the kernel said.
        source: io::Error,
    },
    /// Not a server of this release.
    #[error("{address} does not speak our protocol: {source}")]
    Protocol {
        /// Who was asked.
        address: Address,
        /// What came.
        source: FrameError,
    },
}

/// What went wrong with one attempt; another replica may do better.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Attempt {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{}", leads_text(*.0))]
    Elsewhere(Option<ReplicaId>),
    #[error("{0}")]
    Failed(String),
}

fn leads_text(leader: Option<ReplicaId>) -> String {
    leader.map_or("nobody leads".into(), |leader| format!("{leader} leads"))
}

impl From<Errno> for Attempt {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

impl Link {
    pub fn open(address: &Address) -> io::Result<Self> {
        Ok(Self {
            socket: address::connect(address, TRY_FOR)?,
            input: Vec::new(),
            taken: 0,
            output: Vec::new(),
        })
    }

    pub fn send(&mut self, request: &Request<'_>) -> Result<(), Attempt> {
        self.output.clear();
        wire::put(request, &mut self.output);
        let mut rest = &self.output[..];
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the next reply, until `until` if that is given.
    pub fn receive(&mut self, until: Option<Instant>) -> Result<Reply<'_>, Attempt> {
        self.input.drain(..self.taken);
        self.taken = 0;
        let bytes = loop {
            if let Some(bytes) = wire::whole_frame(&self.input)? {
                break bytes;
            }
            if let Some(until) = until {
                if Instant::now() >= until {
                    return Err(Errno::TIMEDOUT.into());
                }
                address::read_until(&self.socket, until)?;
            }
            self.input.reserve(64 << 10);
            let buffer = spare_capacity(&mut self.input);
            match recv(&self.socket, buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(Errno::CONNRESET.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT.into()),
                Err(error) => return Err(error.into()),
            }
        };
        self.taken = bytes;
        Ok(wire::take(&self.input[..bytes])?)
    }
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
    attempt_for: Duration,
}

impl Remote {
    /// A client of the replicas at `targets`; others are learnt of from them. `patience` bounds
    /// every append, retries included.
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
            attempt_for: TRY_FOR,
        }
    }

    /// Goes on as a client of that name that has sent `number` requests: a program that kept
    /// both can repeat its last request after a crash of its own.
    pub fn resume(mut self, session: u64, number: u64) -> Self {
        self.session = session;
        self.number = number;
        self
    }

    /// The session's name.
    pub fn session(&self) -> u64 {
        self.session
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
        let until = Instant::now() + self.patience;
        loop {
            let attempt = (Instant::now() + self.attempt_for).min(until);
            let failed = match self.try_call(entry, attempt, answer) {
                Ok(Ok(at)) => return Ok(at),
                Ok(Err(Refusal::TooLarge { max })) => {
                    let bytes = entry.len();
                    return Err(RemoteError::TooLarge { bytes, max });
                }
                Ok(Err(Refusal::Stale)) => return Err(RemoteError::Stale),
                Err(failed) => failed,
            };
            self.go_on(failed, until)?;
        }
    }

    fn try_call(
        &mut self,
        entry: &[u8],
        until: Instant,
        answer: &mut Vec<u8>,
    ) -> Result<Result<Viewstamp, Refusal>, Attempt> {
        let (asked, session) = (self.number, Some(self.session));
        let link = self.link()?;
        link.send(&Request::Append {
            number: asked,
            session,
            bytes: entry,
        })?;
        let (leader, address) = loop {
            match link.receive(Some(until))? {
                Reply::Appended {
                    number,
                    at,
                    answer: found,
                } if number == asked => {
                    answer.extend_from_slice(found);
                    return Ok(Ok(at));
                }
                Reply::Refused { number, why } if number == asked => return Ok(Err(why)),
                Reply::Elsewhere {
                    number,
                    leader,
                    address,
                } if number == asked => break (leader, address),
                Reply::Failed(why) => return Err(Attempt::Failed(why)),
                // The reply to a request that was given up.
                _ => {}
            }
        };
        self.follow(address);
        Err(Attempt::Elsewhere(leader))
    }

    /// The present connection, or one to the next target.
    fn link(&mut self) -> Result<&mut Link, Attempt> {
        if self.link.is_none() {
            let address = &self.targets[self.next % self.targets.len()];
            self.link = Some(Link::open(address)?);
        }
        Ok(self.link.as_mut().expect("it was just made"))
    }

    /// Tries `address` next.
    fn follow(&mut self, address: Option<String>) {
        let Some(address) = address.and_then(|text| text.parse().ok()) else {
            return;
        };
        let place = self.targets.iter().position(|it| *it == address);
        let place = place.unwrap_or_else(|| {
            self.targets.push(address);
            self.targets.len() - 1
        });
        if self.next % self.targets.len() != place {
            self.link = None;
            self.next = place;
        }
    }

    /// After a failed attempt: another target, or the end.
    fn go_on(&mut self, failed: Attempt, until: Instant) -> Result<(), RemoteError> {
        let moved = matches!(failed, Attempt::Elsewhere(Some(_))) && self.link.is_none();
        if !moved {
            self.link = None;
            self.next = (self.next + 1) % self.targets.len();
        }
        if Instant::now() + PAUSE >= until {
            let tried: Vec<_> = self.targets.iter().map(Address::to_string).collect();
            return Err(RemoteError::TimedOut {
                tried: tried.join(", "),
                patience: self.patience,
                last: failed.to_string(),
            });
        }
        if !moved {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Asks the leader to change who belongs to the group; `progress` hears how far it is.
    /// Repeated until done: a change that has been made already is done.
    pub fn change_members(
        &mut self,
        change: &MemberChange,
        mut progress: impl FnMut(&str),
    ) -> Result<String, RemoteError> {
        let mut until = Instant::now() + self.patience;
        loop {
            match self.try_change(change, &mut progress) {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(why)) => {
                    let address = self.targets[self.next % self.targets.len()].clone();
                    return Err(RemoteError::Refused { address, why });
                }
                Err((heard, failed)) => {
                    if heard {
                        until = Instant::now() + self.patience;
                    }
                    self.go_on(failed, until)?;
                }
            }
        }
    }

    fn try_change(
        &mut self,
        change: &MemberChange,
        progress: &mut impl FnMut(&str),
    ) -> Result<Result<String, String>, (bool, Attempt)> {
        let mut heard = false;
        let patience = self.patience;
        let link = self.link().map_err(|failed| (false, failed))?;
        link.send(&Request::Member(change.clone()))
            .map_err(|failed| (false, failed))?;
        let (leader, address) = loop {
            let reply = link.receive(Some(Instant::now() + patience));
            match reply.map_err(|failed| (heard, failed))? {
                Reply::Progress(text) => {
                    heard = true;
                    progress(&text);
                }
                Reply::Done(text) => return Ok(Ok(text)),
                Reply::Failed(why) => return Ok(Err(why)),
                Reply::Elsewhere {
                    leader, address, ..
                } => break (leader, address),
                _ => {}
            }
        };
        self.follow(address);
        Err((heard, Attempt::Elsewhere(leader)))
    }
}

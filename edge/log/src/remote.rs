//! A client in another process. It follows the leader, and repeats requests without having them in the
//! log twice.
//!
//! ```text
//!   request ─► some replica ──► Appended
//!                 │ Elsewhere{leader} ─► that one
//!                 │ silence, a lost connection, no leader ─► the next address, after a pause
//! ```
//!
//! Every append belongs to the client's session, whose name is drawn at random, and has a number.
//! The replicas remember a session's last number and answer, so a request that is repeated after a
//! lost reply is answered and not appended again (`pending.rs`).

use crate::address::Address;
use crate::link::{Link, TRY_FOR, refused};
pub use crate::questions::{TailEvent, begin, status, tail};
use crate::server::{ENTRY_OVERHEAD_MAX, MESSAGE_BYTES_MAX};
use crate::wire::{FrameError, MemberChange, PAYLOAD_BYTES_MAX, Refusal, Reply, Request};
use plover_fabric::Keys;
use plover_types::{ReplicaId, Viewstamp};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause after every address was tried in vain.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a request of a remote client failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No replica answered in time, or none led, or the leader is out of reach. An entry may be in the log or not, or come
    /// into it later.
    #[error("no answer from {tried} within {patience:?}: {last}; {advice}")]
    TimedOut {
        /// The addresses that were tried.
        tried: String,
        /// The client's patience.
        patience: Duration,
        /// The last thing that went wrong.
        last: String,
        /// The next step for a person.
        advice: String,
    },
    /// The newcomer did not come further within the client's patience: start it, or remove it.
    #[error(
        "{id} has come no further within {patience:?} ({last}): it may stay a learner, which does not vote. Start it at its \
         address with --join and give the command again, or give it up with `plover log member remove {}`", id.0
    )]
    NoProgress {
        /// The newcomer.
        id: ReplicaId,
        /// The client's patience.
        patience: Duration,
        /// How far it has come.
        last: String,
    },
    /// Another replica leads: ask it.
    #[error("{address} says that {leader} leads{}", place(at.as_deref()))]
    Elsewhere {
        /// The server that was asked.
        address: Address,
        /// The leader.
        leader: ReplicaId,
        /// Where the leader serves clients, if clients of all hosts reach that.
        at: Option<String>,
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

fn place(address: Option<&str>) -> String {
    address.map_or_else(String::new, |it| format!(", at {it}"))
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
        // No frame holds it, and no replica would take it.
        if entry.len() > PAYLOAD_BYTES_MAX {
            let max = (MESSAGE_BYTES_MAX - ENTRY_OVERHEAD_MAX) as u64;
            let bytes = entry.len();
            return Err(RemoteError::TooLarge { bytes, max });
        }
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
    /// until it is done, which is harmless: a change that is already made succeeds. Gives up after its patience
    /// without progress.
    pub fn change_members(
        &mut self,
        change: &MemberChange,
        mut progress: impl FnMut(&str),
    ) -> Result<String, RemoteError> {
        let request = Request::Member(change.clone());
        let mut told = None;
        let done = self.until_done(&request, self.patience, |reply| match reply {
            Reply::Progress(text) => {
                progress(text);
                told = Some(text.clone());
                None
            }
            Reply::Done(text) => Some(Ok(text.clone())),
            Reply::Failed(why) => Some(Err(why.clone())),
            _ => None,
        });
        let done = match (done, change, told) {
            (
                Err(RemoteError::TimedOut { patience, .. }),
                MemberChange::Add { id, .. },
                Some(last),
            ) => {
                let id = *id;
                return Err(RemoteError::NoProgress { id, patience, last });
            }
            (done, ..) => done?,
        };
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
        let mut leader = None;
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
            leader = match &failed {
                // With its address this client would ask it next.
                RemoteError::Elsewhere {
                    leader, at: None, ..
                } => Some(*leader),
                // Silence says nothing about the leader.
                RemoteError::Unreachable { .. } => leader,
                _ => None,
            };
            if Instant::now() + PAUSE >= until {
                let tried: Vec<_> = self.targets.iter().map(Address::to_string).collect();
                let advice = match leader {
                    Some(leader) => {
                        format!("give --to the address at which {leader} serves clients")
                    }
                    None => {
                        "a majority of the replicas has to run, in a new group all of them".into()
                    }
                };
                return Err(RemoteError::TimedOut {
                    tried: tried.join(", "),
                    patience: self.patience,
                    last: failed.to_string(),
                    advice,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framed::{Framed, Took, Way};
    use std::net::{SocketAddr, TcpListener};

    #[test]
    fn an_entry_that_fits_no_frame_is_too_large() {
        let mut client = Remote::new(vec![Address::Unix("/nowhere".into())], Duration::ZERO);
        let error = client.append(&vec![0; 18 << 20]).unwrap_err();
        assert!(matches!(error, RemoteError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn a_leader_that_is_out_of_reach_is_named() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(any).unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        // It answers each request alike, for as long as the test runs.
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut framed = Framed::new(Way::Plain(socket.unwrap().into()));
                while framed.frame().unwrap().is_none() && framed.read().unwrap() != Took::End {}
                framed.put(&Reply::Elsewhere {
                    number: 1,
                    leader: Some(ReplicaId(4)),
                    address: None,
                });
                framed.write().unwrap();
            }
        });
        let mut client = Remote::new(vec![address], Duration::from_secs(3));
        let error = client.append(b"x").unwrap_err().to_string();
        assert!(error.contains("at which r4 serves clients"), "{error}");
        assert!(!error.contains("majority"), "{error}");
    }
}

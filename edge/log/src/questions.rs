//! Questions that any one replica answers: where it stands, and what is in its log. Unlike an
//! append they are put to one server and to no other.

use crate::address::Address;
use crate::remote::{Attempt, Link, RemoteError};
use crate::wire::{Reply, Request, StatusReport};
use plover_types::{Index, Viewstamp};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Asks one server, and no other, with one request that it answers once.
fn ask(address: &Address, request: &Request<'_>) -> Result<Link, RemoteError> {
    let unreachable = |source| RemoteError::Unreachable {
        address: address.clone(),
        source,
    };
    let mut link = Link::open(address).map_err(unreachable)?;
    link.send(request).map_err(|it| failed(address, it))?;
    Ok(link)
}

fn failed(address: &Address, attempt: Attempt) -> RemoteError {
    let address = address.clone();
    match attempt {
        Attempt::Io(source) => RemoteError::Unreachable { address, source },
        Attempt::Frame(source) => RemoteError::Protocol { address, source },
        Attempt::Elsewhere(_) | Attempt::Failed(_) => RemoteError::Refused {
            address,
            why: attempt.to_string(),
        },
    }
}

/// What the replica at `address` says of itself.
pub fn status(address: &Address) -> Result<StatusReport, RemoteError> {
    let mut link = ask(address, &Request::Status)?;
    let until = Instant::now() + Duration::from_secs(5);
    match link.receive(Some(until)) {
        Ok(Reply::Status(report)) => Ok(*report),
        Ok(other) => Err(failed(
            address,
            Attempt::Failed(format!("unexpected {other:?}")),
        )),
        Err(error) => Err(failed(address, error)),
    }
}

/// Tells the replica at `address` to begin a new log, after all have lost the old one's entries.
pub fn begin(address: &Address) -> Result<String, RemoteError> {
    let mut link = ask(address, &Request::Begin)?;
    let until = Instant::now() + Duration::from_secs(5);
    match link.receive(Some(until)) {
        Ok(Reply::Done(text)) => Ok(text),
        Ok(Reply::Failed(why)) => Err(failed(address, Attempt::Failed(why))),
        Ok(other) => Err(failed(
            address,
            Attempt::Failed(format!("unexpected {other:?}")),
        )),
        Err(error) => Err(failed(address, error)),
    }
}

/// Something that a reader of the log is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailEvent<'a> {
    /// A committed entry.
    Entry {
        /// Its name.
        at: Viewstamp,
        /// The session and number that it was appended with.
        session: Option<(u64, u64)>,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Entries up to this one have been trimmed.
    Trimmed(Index),
}

/// Reads the committed entries after `since` from the replica at `address`, and with `follow`
/// those to come, until `each` breaks. Returns the last entry's place.
pub fn tail(
    address: &Address,
    since: Index,
    follow: bool,
    mut each: impl FnMut(TailEvent<'_>) -> ControlFlow<()>,
) -> Result<Index, RemoteError> {
    let mut link = ask(address, &Request::Tail { since, follow })?;
    let mut last = since;
    loop {
        let event = match link.receive(None) {
            Ok(Reply::Entry { at, session, bytes }) => {
                last = at.index;
                TailEvent::Entry { at, session, bytes }
            }
            Ok(Reply::Trimmed { base }) => TailEvent::Trimmed(base),
            Ok(Reply::End { .. }) => return Ok(last),
            Ok(other) => {
                let why = format!("unexpected {other:?}");
                return Err(failed(address, Attempt::Failed(why)));
            }
            Err(error) => return Err(failed(address, error)),
        };
        if each(event).is_break() {
            return Ok(last);
        }
    }
}

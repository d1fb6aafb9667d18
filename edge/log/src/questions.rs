//! Questions that any one replica answers: where it stands, and what is in its log. Unlike an
//! append they go to one server only. `keys` are those of the client, for a replica that speaks TLS with its clients.

use crate::address::Address;
use crate::link::{Link, refused};
use crate::remote::RemoteError;
use crate::wire::{Reply, Request, StatusReport};
use plover_fabric::Keys;
use plover_types::{Index, Viewstamp};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a replica may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the replica at `address` stands.
pub fn status(address: &Address, keys: Option<&Arc<Keys>>) -> Result<StatusReport, RemoteError> {
    let mut link = Link::ask(address, keys, &Request::Status)?;
    match link.receive(Some(Instant::now() + PATIENCE))? {
        Reply::Status(report) => Ok(*report),
        other => Err(refused(address, &other)),
    }
}

/// Tells the replica at `address` to begin a new log, after all have lost the old one's entries.
pub fn begin(address: &Address, keys: Option<&Arc<Keys>>) -> Result<String, RemoteError> {
    let mut link = Link::ask(address, keys, &Request::Begin)?;
    match link.receive(Some(Instant::now() + PATIENCE))? {
        Reply::Done(text) => Ok(text),
        other => Err(refused(address, &other)),
    }
}

/// One item that a reader of the log gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailEvent<'a> {
    /// A committed entry.
    Entry {
        /// Its place.
        at: Viewstamp,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// Entries up to this one have been trimmed.
    Trimmed(Index),
}

/// Reads the committed entries after `since` from the replica at `address`, and with `follow`
/// those to come, until `each` breaks. Without `follow`, a replica that says nothing for a while ends it.
pub fn tail(
    address: &Address,
    keys: Option<&Arc<Keys>>,
    since: Index,
    follow: bool,
    mut each: impl FnMut(TailEvent<'_>) -> ControlFlow<()>,
) -> Result<(), RemoteError> {
    let mut link = Link::ask(address, keys, &Request::Tail { since, follow })?;
    loop {
        let reply = match follow {
            // The next entry may come in a year.
            true => link.receive(None)?,
            false => link.receive_slowly(PATIENCE)?,
        };
        let event = match reply {
            Reply::Entry { at, bytes } => TailEvent::Entry { at, bytes },
            Reply::Trimmed { base } => TailEvent::Trimmed(base),
            Reply::End => return Ok(()),
            other => return Err(refused(address, &other)),
        };
        if each(event).is_break() {
            return Ok(());
        }
    }
}

//! Clients that have not shown a trusted key yet.
//!
//! ```text
//!   accepted ─► waiting ── a trusted key ─► a connection of the log
//!                  │  another key, no TLS ─► refused: told why by TLS, then closed
//!                  └─ no key in time, too many of them ─► closed
//! ```
//!
//! A stranger learns the replica's public key and nothing else. It costs memory for [`SHAKE_WITHIN`], and at most
//! [`WAITING_MAX`] of them do.

use plover_fabric::{ClientDoor, ClientLine, Keys, Strangers, most_crowded};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// The most time that a handshake may take: that between replicas may take 0.5 s, and a client may be further away.
pub(crate) const SHAKE_WITHIN: Duration = Duration::from_secs(2);
/// The most connections that wait.
const WAITING_MAX: usize = 64;

/// A connection that waits.
#[derive(Debug)]
struct Visitor {
    line: ClientLine,
    host: String,
    since: Instant,
    /// It was refused. It stays until the client has read why and closes, since closing a socket with unread input
    /// would take the reason back.
    is_refused: bool,
}

/// The connections that wait.
#[derive(Debug)]
pub(crate) struct Lobby {
    door: ClientDoor,
    /// By epoll's name, so oldest first.
    waiting: BTreeMap<u64, Visitor>,
    named: Strangers,
    /// Connections that were turned away.
    pub rejected: u64,
}

impl Lobby {
    pub fn new(keys: Arc<Keys>) -> Self {
        Self {
            door: ClientDoor::new(keys),
            waiting: BTreeMap::new(),
            named: Strangers::default(),
            rejected: 0,
        }
    }

    pub fn keys(&self) -> &Keys {
        self.door.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes in a connection from `host`.
    pub fn enter(&mut self, name: u64, socket: TcpStream, host: String, now: Instant) {
        if self.waiting.len() == WAITING_MAX {
            let hosts: Vec<_> = self.waiting.values().map(|it| &*it.host).collect();
            let crowded = self.waiting.keys().nth(most_crowded(&hosts)).copied();
            let crowded = crowded.and_then(|name| self.waiting.remove(&name));
            if let Some(crowded) = crowded.filter(|it| !it.is_refused) {
                self.turn_away(&crowded.host, &"too many connections wait", now);
            }
        }
        let visitor = Visitor {
            line: self.door.admit(socket),
            host,
            since: now,
            is_refused: false,
        };
        self.waiting.insert(name, visitor);
    }

    /// Goes on with a connection on which something has come. Returns it once its client has shown a trusted key.
    pub fn advance(&mut self, name: u64, now: Instant) -> Option<ClientLine> {
        let visitor = self.waiting.get_mut(&name)?;
        if visitor.is_refused {
            if is_at_end(visitor.line.socket()) {
                self.waiting.remove(&name);
            }
            return None;
        }
        match visitor.line.handshake() {
            Ok(true) => self.waiting.remove(&name).map(|it| it.line),
            Ok(false) => None,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                visitor.is_refused = true;
                // The end follows the reason, so that a client without TLS knows that nothing comes any more.
                let _ = visitor.line.socket().shutdown(std::net::Shutdown::Write);
                let host = visitor.host.clone();
                self.turn_away(&host, &error, now);
                None
            }
            Err(error) => {
                debug!(%error, "a client's connection ended early");
                self.waiting.remove(&name);
                None
            }
        }
    }

    /// Closes connections that have had their time.
    pub fn expire(&mut self, now: Instant) {
        let is_late = |it: &Visitor| now.saturating_duration_since(it.since) >= SHAKE_WITHIN;
        while let Some(oldest) = self.waiting.first_entry().filter(|it| is_late(it.get())) {
            let visitor = oldest.remove();
            if !visitor.is_refused {
                self.turn_away(&visitor.host, &"it did not show a key in time", now);
            }
        }
    }

    /// Counts a connection that is no client's. The log names its host now and then.
    fn turn_away(&mut self, host: &str, why: &dyn Display, now: Instant) {
        self.rejected += 1;
        if self.named.note(host, now) {
            warn!(
                event = "stranger",
                "a client's connection from {host} was turned away: {why}"
            );
        } else {
            debug!(host, %why, "turned away");
        }
    }
}

/// Reads once and forgets it. Whether the other side has closed the connection.
fn is_at_end(mut socket: &TcpStream) -> bool {
    match socket.read(&mut [0; 4096]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

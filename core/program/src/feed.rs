//! The order in which the program is given its inputs: one entry after the other, and the next one only when
//! the program has read the last.
//!
//! A program may read its connections in any order. If two of them hold input at once, two replicas may read
//! them in different orders. So at most one connection holds unread input at any time. Entries of one
//! connection follow each other without waiting, since TCP keeps their order.

use crate::ends::Ends;
use crate::session::Open;
use crate::{Client, ConnectionId, Session, State};
use plover_types::{Index, Micros, Viewstamp};
use std::collections::{BTreeMap, BTreeSet};

/// A program that has read everything, and has done nothing visible for so long, is taken to have nothing to do: one with several
/// threads may work for a client that is gone.
const SETTLES_WITHIN: Micros = Micros::from_ms(20);

/// Unread bytes of one connection after which the next entry waits, too.
const UNREAD_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// The entry that is taken next.
    pub next: Index,
    /// The connections that are open at the program.
    pub open: BTreeMap<ConnectionId, Open>,
    /// The connections with input that the program has not read.
    unread: BTreeSet<ConnectionId>,
    unread_bytes: usize,
    /// The first entry of it.
    unread_from: Index,
    /// Since when the program has read nothing although there is input.
    waits_since: Micros,
    /// The view in which this replica's program has read input itself, and where in the log the last of it is.
    /// `None`: all of it is committed.
    pub ahead: Option<Viewstamp>,
    /// An entry that waits for the program.
    pub held: Option<(Viewstamp, Vec<u8>)>,
    /// How long the end of a connection waits for answers.
    pub ends: Ends,
    /// All input is held here until the checkpoint is taken.
    pub checkpoint: Option<Viewstamp>,
    /// Until when the program must have answered all that it has read, or none is taken.
    pub answers_until: Micros,
    /// When the program was given something, has read or has sent something last.
    pub active_at: Micros,
    /// The program's time, µs since 1970.
    pub time: u64,
    /// Bytes of entries since the last cut for a checkpoint.
    pub bytes: u64,
}

impl Feed {
    pub fn new(next: Index) -> Self {
        Self {
            next,
            open: BTreeMap::new(),
            unread: BTreeSet::new(),
            unread_bytes: 0,
            unread_from: next,
            waits_since: Micros::NEVER,
            ahead: None,
            held: None,
            ends: Ends::new(),
            checkpoint: None,
            answers_until: Micros::NEVER,
            active_at: Micros::ZERO,
            time: 0,
            bytes: 0,
        }
    }

    /// A client has connected.
    pub fn opens(&mut self, connection: ConnectionId, client: Client) {
        self.open.insert(connection, Open::new(connection, client));
    }

    /// Whether another entry can be taken.
    pub fn is_ready(&self) -> bool {
        self.held.is_none() && self.checkpoint.is_none()
    }

    /// Whether input for `connection` may be given now.
    pub fn admits(&self, connection: ConnectionId) -> bool {
        self.is_read()
            || (self.unread.len() == 1
                && self.unread.contains(&connection)
                && self.unread_bytes < UNREAD_BYTES_MAX)
    }

    /// Whether the program has read everything.
    pub fn is_read(&self) -> bool {
        self.unread.is_empty()
    }

    /// The first entry that the program may not have read.
    pub fn first_unread(&self) -> Index {
        if self.is_read() {
            self.next
        } else {
            self.unread_from
        }
    }

    /// The program is given something on `connection`.
    pub fn gives(&mut self, now: Micros, connection: ConnectionId, bytes: usize) {
        if self.unread.is_empty() {
            self.waits_since = now;
            self.unread_from = Index(self.next.0.saturating_sub(1));
        }
        self.unread.insert(connection);
        self.unread_bytes += bytes;
        self.active_at = now;
    }

    /// The program has read all that it was given on `connection`.
    pub fn consumed(&mut self, now: Micros, connection: ConnectionId) {
        self.unread.remove(&connection);
        self.active_at = now;
        self.waits_since = now;
        if self.unread.is_empty() {
            self.unread_bytes = 0;
            self.waits_since = Micros::NEVER;
        }
    }

    fn left(&self) -> impl Iterator<Item = &Open> {
        self.open.values().filter(|it| !it.finished)
    }

    /// Whether every request is answered.
    pub fn is_answered(&self) -> bool {
        self.left().all(Open::is_between_requests)
    }

    /// When the program has nothing to do, unless it does something before.
    pub fn settles_at(&self) -> Micros {
        self.active_at + SETTLES_WITHIN
    }

    /// The state that a checkpoint keeps besides the program's files.
    pub fn state(&self) -> State {
        let sessions = self.left().map(|it| it.session.clone());
        State {
            time: self.time,
            sessions: sessions.collect(),
        }
    }

    /// The sessions that are open, which a program that is started again gets anew.
    pub fn take_sessions(&mut self) -> Vec<Session> {
        let sessions = self.state().sessions;
        self.open.clear();
        sessions
    }

    /// When the program is taken to stand still, unless it reads before.
    pub fn stalls_at(&self, stall: Micros) -> Micros {
        self.waits_since + stall
    }
}

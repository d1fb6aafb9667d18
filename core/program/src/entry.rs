//! The entries of the log: everything that a program is given, and what its replicas agree on besides.

use plover_types::{Index, ReplicaId, Viewstamp, wire};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A client's connection: the place of the entry that accepted it (APUS §4.3, `conn_vs`). So each
/// replica knows it by the same name.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ConnectionId(pub Viewstamp);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Where a client's connection comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The client's IPv4 address.
    pub ip: [u8; 4],
    /// The client's port.
    pub port: u16,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry<'a> {
    /// A client has connected.
    Accept(Client),
    /// A client has sent these bytes. The number says how many the leader's program had sent on this connection
    /// before: what a program sends behind them answers them.
    Bytes(
        ConnectionId,
        u64,
        #[serde(borrow, with = "serde_bytes")] &'a [u8],
    ),
    /// A client sends nothing more, and still reads. The number is that of [`Entry::Bytes`]: a program has to have sent as much before
    /// it is told, since it may give up what is asked of it when its client leaves.
    End(ConnectionId, u64),
    /// A connection is over; with the same number.
    Close(ConnectionId, u64),
    /// Every connection that was accepted before is over. A new leader begins with it, since it has none
    /// of the clients of the leader before. A checkpoint begins with it, too, since a restored program has
    /// no connections: then this replica takes it.
    Cut(Option<ReplicaId>),
    /// Hashes of what a replica's program has sent.
    Claims(ReplicaId, Vec<Claim>),
    /// The bytes behind a claim that differs from another one.
    Excerpt(Excerpt),
    /// A replica holds a checkpoint.
    Holds(Held),
    /// A replica needs a checkpoint, and can get none of those that the log names.
    Needs(ReplicaId),
    /// A replica's program has diverged: the checkpoints that this replica took are not to be used.
    ///
    /// The index is of the last entry that the program has executed: what it took later, it took after it was restored.
    Tainted(ReplicaId, Index),
    /// The program's time goes on to this, µs since 1970.
    Clock(u64),
    /// This replica takes a checkpoint here, and connections go on ([`Sessions`](crate::Sessions)).
    Checkpoint(ReplicaId),
    /// How a replica's program keeps up with the log.
    Progress(ReplicaId, Progress),
}

/// How a replica's program keeps up with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// It has read all that was committed more than a moment ago.
    InStep,
    /// It has not, and goes on reading.
    Behind,
    /// It does not run, or reads nothing: a checkpoint is taken of it, or it stands still.
    Away,
}

/// The hash of one piece of what a program has sent on one connection. It stands alone: it covers the bytes of
/// this piece only, so each piece is compared by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The connection.
    pub connection: ConnectionId,
    /// Where the piece begins, bytes from the connection's first.
    pub from: u64,
    /// Its length in bytes; shorter than others only if the program has ended the connection.
    pub length: u32,
    /// The hash (XXH3, 64 bits) of its bytes.
    pub hash: u64,
}

/// The bytes of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excerpt {
    /// Whose program sent them.
    pub replica: ReplicaId,
    /// On this connection.
    pub connection: ConnectionId,
    /// From this byte on.
    pub from: u64,
    /// The bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// A checkpoint that a replica holds: a file with the program's state after the entry `at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The replica that has it.
    pub replica: ReplicaId,
    /// The [`Entry::Cut`] or [`Entry::Checkpoint`] that it reflects.
    pub at: Viewstamp,
    /// The replica whose program it is the state of.
    pub taken_by: ReplicaId,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The file's checksum.
    pub sum: [u8; 32],
    /// Where `replica` serves it.
    pub address: String,
}

impl<'a> Entry<'a> {
    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        wire::encode_part(self, Vec::new())
    }

    /// Decodes an entry; `None` for one that this release does not know. All replicas run the same
    /// release, so all of them skip the same entries.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        match wire::decode_part(bytes) {
            Ok((entry, [])) => Some(entry),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Session, State};
    use plover_types::View;
    use plover_types::forms::{assert_every_kind, assert_form};

    #[test]
    fn the_form_of_entries_is_that_of_its_version() {
        let at = Viewstamp {
            view: View(1001),
            index: Index(1002),
        };
        let (connection, replica) = (ConnectionId(at), ReplicaId(3));
        let claim = Claim {
            connection,
            from: 1004,
            length: 1005,
            hash: 1006,
        };
        let held = Held {
            replica,
            at,
            taken_by: ReplicaId(4),
            bytes: 1007,
            sum: [8; 32],
            address: "an address".into(),
        };
        let excerpt = Excerpt {
            replica,
            connection,
            from: 1009,
            bytes: vec![10],
        };
        let entries = [
            Entry::Accept(Client {
                ip: [11, 12, 13, 14],
                port: 1015,
            }),
            Entry::Bytes(connection, 1016, b"bytes"),
            Entry::End(connection, 1021),
            Entry::Close(connection, 1023),
            Entry::Cut(Some(replica)),
            Entry::Claims(replica, vec![claim]),
            Entry::Excerpt(excerpt),
            Entry::Holds(held),
            Entry::Needs(replica),
            Entry::Tainted(replica, Index(1010)),
            Entry::Clock(1011),
            Entry::Checkpoint(replica),
            Entry::Progress(replica, Progress::Behind),
        ];
        assert_every_kind(&entries);
        let mut bytes: Vec<_> = entries.iter().map(Entry::encode).collect();
        for (entry, bytes) in entries.iter().zip(&bytes) {
            assert_eq!(Entry::decode(bytes).as_ref(), Some(entry));
            let longer = [&bytes[..], b"x"].concat();
            assert_eq!(Entry::decode(&longer), None);
        }
        let session = Session {
            connection,
            client: Client::default(),
            login: vec![17],
            greeting: Some(1018),
            login_end: Some(1019),
            sent: 1020,
        };
        let state = State {
            time: 1022,
            sessions: vec![session],
        };
        bytes.push(state.encode());
        assert_eq!(State::decode(&state.encode()), Some(state));
        assert_form("programs", &bytes);
    }
}

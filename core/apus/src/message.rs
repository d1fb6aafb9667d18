//! The messages of consensus: what replicas write into each other's rings on the log lane.
//!
//! Each message is one record. None of them assumes order or delivery: each names the view that
//! it belongs to, acknowledgements are cumulative, and what matters is repeated. A receiver that
//! has no use for a message (it is late, or of an older view) ignores it where the table names no
//! answer for that case.
//!
//! | message | from, to | when | answer |
//! |---|---|---|---|
//! | `Append` | leader, to backups and learners | entries were proposed and the peer's window is open; at every heartbeat; at once after a `Gap`, a `Recovery` or a new link | `Ack`, `Gap`; `Refuse` from a replica that has promised a higher view |
//! | `Ack` | backup, to the leader | its log equals the leader's up to `matched` (and is on stable storage, in disk mode) | none; the window opens and the commit index may advance |
//! | `Gap` | backup, to the leader | it lacks the entry before those of an `Append` | `Append` from where the logs agree, or with the leader's snapshot point |
//! | `Refuse` | any, to the sender of an `Append` or a `Prepare` | it has promised a higher view; for a `Prepare` also while a leader is alive | none; a leader that learns of a higher view steps down, a candidate gives up |
//! | `PreVote` | follower that heard no leader for a timeout, or was told that it died, to all members | it may lead; repeated at every heartbeat. It names the leader, if that was reported dead | `Grant`, or none from a replica that hears a leader |
//! | `Grant` | any voter, to the sender of a `PreVote` | it hears no leader, and its log does not say that the sender has left | none; a quorum of grants starts an election |
//! | `Prepare` | candidate, to all members | its own promise of the view is durable; repeated at every heartbeat | `Promise` once that is durable; `Refuse` |
//! | `Promise` | voter, to the candidate | its promise of the candidate's view is durable | `Fetch`, if its log is the best of a quorum of promises |
//! | `Fetch` | candidate, to the voter with the best log | a quorum has promised; again after each `Suffix` until it has all | `Suffix`, unless that voter has promised a higher view meanwhile |
//! | `Suffix` | voter, to the candidate | a `Fetch` came | `Fetch` for the rest; none when the candidate has all and leads |
//! | `Recovery` | replica that does not know where the group stands, to all members | after a start, and without a leader if it cannot lead itself; repeated at every timeout | `RecoveryResponse`; from the leader also `Append` |
//! | `RecoveryResponse` | any, to the sender of a `Recovery` | a `Recovery` came | none |
//! | `Resigned` | leader that hands over, to all members | it has stopped leading | none; the only candidate stands for election at once, and the others vote without waiting |
//!
//! Bytes that do not decode, or that decode to something that no correct replica sends, are
//! refused in [`decode()`] before they reach the protocol, so that its arithmetic needs no second
//! check.

mod decode;
#[cfg(test)]
mod form;
#[cfg(test)]
mod tests;

pub(crate) use decode::{Batch, decode};

use crate::{Configuration, Entry, Members};
use plover_types::{Incarnation, Index, Micros, View, Viewstamp, wire};
use serde::{Deserialize, Serialize};

/// An upper bound of what surrounds the entries of one message: tag, four views and as many
/// indices, stamp, span, incarnation, configuration and length, each a varint of at most ten bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 132;
/// An upper bound of what surrounds one payload: two varints of ten, kind and sets, length.
pub(crate) const ENTRY_BYTES_MAX: usize = 32;

/// All messages. One that carries entries says how many follow it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Append(Append),
    Ack(Ack),
    Gap(Gap),
    Refuse {
        /// The view of the message that is refused.
        view: View,
        /// The view that the sender has promised. If it is lower, the sender refuses because a leader is
        /// alive.
        promised: View,
    },
    PreVote {
        /// Names this round of asking.
        nonce: u64,
        /// Where the sender's log ends.
        last: Viewstamp,
        /// The leader that the sender heard last has died, and its host has said so.
        dead: Option<Incarnation>,
    },
    Grant(Grant),
    Prepare {
        view: View,
    },
    Promise {
        view: View,
        vote: Vote,
    },
    Fetch {
        /// The candidate's view.
        view: View,
        /// The last entry that the candidate has of this log.
        after: Viewstamp,
    },
    Suffix(Suffix),
    Recovery(Request),
    RecoveryResponse(Response),
    Resigned {
        /// The view that the sender has led until now.
        view: View,
        /// The sender's guest stays in step: it can be the next leader's secondary at once.
        stays: bool,
    },
}

impl Message {
    /// The highest round that the receiver may take over from it.
    pub(crate) fn round(&self) -> u64 {
        let view = match self {
            Self::Append(append) => append.view,
            Self::Refuse { view, promised } => *view.max(promised),
            Self::Grant(grant) => grant.promised.max(grant.generation),
            Self::Ack(Ack { view, .. })
            | Self::Gap(Gap { view, .. })
            | Self::Prepare { view }
            | Self::Promise { view, .. }
            | Self::Fetch { view, .. }
            | Self::Suffix(Suffix { view, .. })
            | Self::Resigned { view, .. } => *view,
            Self::Recovery(request) => request.promised,
            Self::RecoveryResponse(response) => response.promised,
            Self::PreVote { .. } => View::NONE,
        };
        view.round()
    }
}

/// Entries after an entry. Without entries it is a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Append {
    /// The leader's view.
    pub view: View,
    /// The view in which this generation of the group began (see `generation`).
    pub generation: View,
    /// The entry before the first that follows.
    pub prev: Viewstamp,
    /// Everything up to here is committed.
    pub commit: Index,
    /// No replica needs entries up to here.
    pub trim: Index,
    /// The leader's clock when it sent this; comes back in the acknowledgement.
    pub stamp: Micros,
    /// For how long the receiver refuses its vote to others, from when it gets this (see `silence`).
    pub span: Micros,
    /// Names the leader's process.
    pub incarnation: u64,
    /// The leader's round of sending: never falls from one message to the next.
    pub number: u64,
    /// Given when `prev` is the leader's base: the configuration there. A backup that lacks `prev`
    /// begins its log there, for the entries before it are gone. One whose log is empty there
    /// takes this configuration instead of the one that it was started with.
    pub snapshot: Option<Configuration>,
    /// How many entries follow the message.
    pub count: u64,
}

/// The sender's log equals the leader's up to `matched`, and that counts as replicated.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ack {
    /// The leader's view.
    pub view: View,
    /// From the newest `Append` that this answers.
    pub stamp: Micros,
    /// From the same `Append`.
    pub span: Micros,
    /// The span that the sender asks for, by the silences that it has seen.
    pub wanted: Micros,
    /// Cumulative.
    pub matched: Index,
    /// Names the sender's process.
    pub incarnation: u64,
}

/// The sender lacks the entry before those of an `Append`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Gap {
    /// The leader's view.
    pub view: View,
    /// From the `Append`.
    pub stamp: Micros,
    /// From the `Append`.
    pub span: Micros,
    /// From the `Append`.
    pub number: u64,
    /// Where the sender's log ends.
    pub last: Viewstamp,
    /// Up to where it is committed.
    pub commit: Viewstamp,
}

/// The sender would elect the one that asked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// From the question.
    pub nonce: u64,
    /// The highest view that the sender has promised.
    pub promised: View,
    /// Where its log ends.
    pub last: Viewstamp,
    /// The members that its log names.
    pub members: Members,
    /// The generation of its log.
    pub generation: View,
    /// See [`Vote::forgot`].
    pub forgot: Option<Viewstamp>,
}

/// The voter's log, as its promise describes it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Vote {
    /// Where it ends.
    pub last: Viewstamp,
    /// Up to where it is committed.
    pub commit: Viewstamp,
    /// Where it begins.
    pub base: Index,
    /// The members that it names.
    pub members: Members,
    /// The newest milestone of a voter that has forgotten its log: it may have acknowledged more than
    /// that log now holds (see `milestone`).
    pub forgot: Option<Viewstamp>,
}

/// The entries after the one that a candidate asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Suffix {
    /// The candidate's view.
    pub view: View,
    /// From the question.
    pub after: Viewstamp,
    /// The voter does not hold `after` any more.
    pub reclaimed: bool,
    /// How many entries follow the message: as many as fit.
    pub count: u64,
}

/// The sender does not know where the group stands.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Drawn once at the start of the asking process.
    pub incarnation: u64,
    /// Counts the times it asked.
    pub round: u32,
    /// The view that it has promised.
    pub promised: View,
    /// Where its log ends.
    pub last: Viewstamp,
    /// Up to where it is committed.
    pub commit: Viewstamp,
    /// It has started, and no leader has answered it since.
    pub restarted: bool,
}

/// Where the sender stands.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    /// From the question.
    pub incarnation: u64,
    /// From the question.
    pub round: u32,
    /// The highest view that the sender has promised.
    pub promised: View,
    /// The members that its log names.
    pub members: Members,
    /// The sender's state, as far as the replica that asked must know it.
    pub standing: Standing,
}

/// The state of a replica, as far as one that recovers must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// It leads the view that it promised, and its log ends here.
    Leading(Viewstamp),
    /// It holds the guest's state, or knows of a leader.
    Voting,
    /// It knows of no leader, and holds no guest that its log still names.
    Empty(Empty),
}

/// The state of a replica that cannot go on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Empty {
    /// It has never had anything.
    pub fresh: bool,
    /// It has a guest all the same, which another log may name.
    pub guest: bool,
    /// Its log ends here.
    pub last: Viewstamp,
    /// The configuration that its log names.
    pub configuration: Configuration,
}

impl Message {
    /// Encodes the message as one record into `buffer`, whose old content is dropped. `entries` are
    /// those that the message announces.
    pub(crate) fn encode<'a>(
        &self,
        entries: impl Iterator<Item = &'a Entry>,
        buffer: Vec<u8>,
    ) -> Vec<u8> {
        entries.fold(wire::encode_into(self, buffer), |bytes, entry| {
            wire::encode_part(entry, bytes)
        })
    }
}

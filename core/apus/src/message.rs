//! What replicas write into each other's rings.
//!
//! Each message is one record. None of them assumes order or delivery: each names the view
//! it belongs to, acknowledgements are cumulative, and what matters is repeated. Bytes that do
//! not decode, or that decode to something no correct replica says, are refused here, before
//! they reach the protocol, so that its arithmetic needs no second thoughts.
//!
//! Entries end a message, so that they are read where they lie: a [`Batch`] borrows the bytes.

use crate::api::{Configuration, Entry, EntryKind, Members};
use plover_types::{Index, Micros, ReplicaId, View, Viewstamp, wire};
use serde::{Deserialize, Serialize};

/// No replica gets here by counting rounds; beyond it, adding one might overflow.
const ROUND_MAX: u64 = 1 << 56;
/// No log gets here by counting entries.
const INDEX_MAX: u64 = 1 << 56;

/// An upper bound of what surrounds the entries of one message: tag, four views and as many
/// indices, stamp, configuration and length, each a varint of at most ten bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 112;
/// An upper bound of what surrounds one payload: two varints of ten, kind and sets, length.
pub(crate) const ENTRY_BYTES_MAX: usize = 32;

/// Entries after an entry: from the leader to its backups; empty, it is the heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Append {
    /// The leader's view.
    pub view: View,
    /// The view in which this generation of the guest began (see `recovery`).
    pub generation: View,
    /// The entry before the first of `entries`.
    pub prev: Viewstamp,
    /// Everything up to here is committed.
    pub commit: Index,
    /// Nobody needs entries up to here.
    pub trim: Index,
    /// The leader's clock when it sent this; comes back in the acknowledgement.
    pub stamp: Micros,
    /// Counts the rounds of sending: never falls from one message to the next.
    pub number: u64,
    /// Given when `prev` is the leader's base: who is who there. A backup that lacks `prev`
    /// jumps to it, for the entries before it are gone; one whose log is empty there takes over who is
    /// who, which it may have been told otherwise.
    pub jump: Option<Configuration>,
    /// How many entries follow the message.
    pub count: u64,
}

/// Everything that replicas say. What carries entries says how many follow it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Leader to backup.
    Append(Append),
    /// Backup to leader: my log equals yours up to `matched`, and that counts as replicated.
    Ack {
        /// The leader's view.
        view: View,
        /// From the newest message of the leader that this answers.
        stamp: Micros,
        /// Cumulative.
        matched: Index,
    },
    /// Backup to leader: I lack the entry before those you sent.
    Gap {
        /// The leader's view.
        view: View,
        /// From the message that did not fit.
        stamp: Micros,
        /// The number of that message.
        number: u64,
        /// Where my log ends.
        last: Viewstamp,
        /// Up to where it is committed.
        commit: Viewstamp,
    },
    /// I shall not take part in `view`.
    Refuse {
        /// The view of the message refused.
        view: View,
        /// What I have promised; if that is lower, I refuse because a leader lives.
        promised: View,
    },
    /// Would you elect me?
    PreVote {
        /// Names this round of asking.
        nonce: u64,
        /// Where my log ends.
        last: Viewstamp,
    },
    /// I would.
    Grant {
        /// From the question.
        nonce: u64,
        /// What I have promised.
        promised: View,
        /// Where my log ends.
        last: Viewstamp,
        /// And the group it names.
        members: Members,
        /// The generation that it is of.
        generation: View,
    },
    /// Promise me this view.
    Prepare {
        /// The view.
        view: View,
    },
    /// Promised, durably; and this is my log.
    Promise {
        /// The view.
        view: View,
        /// Where my log ends.
        last: Viewstamp,
        /// Up to where it is committed.
        commit: Viewstamp,
        /// Where it begins.
        base: Index,
        /// The group it names.
        members: Members,
    },
    /// Candidate to the promiser with the best log: send me what follows.
    Fetch {
        /// The candidate's view.
        view: View,
        /// The last entry the candidate has from this log.
        after: Viewstamp,
    },
    /// The answer.
    Suffix {
        /// The candidate's view.
        view: View,
        /// From the question.
        after: Viewstamp,
        /// I do not hold `after` any more.
        reclaimed: bool,
        /// How many entries follow the message: as many as fit.
        count: u64,
    },
    /// I do not know where the group stands (see `recovery`).
    Ask {
        /// Drawn once at the start of the asking process.
        incarnation: u64,
        /// Counts the times it asked.
        round: u32,
        /// What it has promised.
        promised: View,
        /// Where its log ends.
        last: Viewstamp,
        /// Up to where it is committed.
        commit: Viewstamp,
        /// It has started and has not been answered by a leader since.
        restarted: bool,
    },
    /// Where I stand.
    Stand {
        /// From the question.
        incarnation: u64,
        /// From the question.
        round: u32,
        /// What I have promised.
        promised: View,
        /// And what I am.
        standing: Standing,
    },
}

/// What a replica is to one that has lost its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// I lead the view I promised, and my log ends here.
    Leading(Viewstamp),
    /// I hold the guest's state, or know of a leader.
    Voting,
    /// I know of no leader, and hold no guest that my log still vouches for.
    Empty(Empty),
}

/// What a replica has that cannot go on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Empty {
    /// Nothing, and never had.
    pub fresh: bool,
    /// A guest all the same, which another log may vouch for.
    pub guest: bool,
    /// A log that ends here.
    pub last: Viewstamp,
    /// And by which this is who is who.
    pub configuration: Configuration,
}

impl Message {
    /// The bytes of one record, in the place of what `buffer` held. The entries are to be those
    /// that the message announces.
    pub(crate) fn encode<'a>(
        &self,
        entries: impl Iterator<Item = &'a Entry>,
        buffer: Vec<u8>,
    ) -> Vec<u8> {
        entries.fold(wire::encode_into(self, buffer), |bytes, entry| {
            wire::encode_part(entry, bytes)
        })
    }

    /// How many entries follow, after which, and from which view at most.
    fn announces(&self) -> (u64, Viewstamp, View) {
        match self {
            Self::Append(append) => (append.count, append.prev, append.view),
            Self::Suffix {
                view, after, count, ..
            } => (*count, *after, *view),
            _ => (0, Viewstamp::default(), View::NONE),
        }
    }
}

/// One entry where it lies in a message.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct EntryRef<'a> {
    pub viewstamp: Viewstamp,
    pub kind: EntryKind,
    #[serde(borrow, with = "serde_bytes")]
    pub payload: &'a [u8],
}

/// The entries of a message, as they lie in it. They have been looked at: [`decode`] gives none
/// that do not decode or do not follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    count: u64,
    bytes: &'a [u8],
}

impl<'a> Batch<'a> {
    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// The entries in turn.
    pub(crate) fn iter(&self) -> impl Iterator<Item = EntryRef<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map(move |_| {
            let (entry, after) = wire::decode_part(rest).expect("the entries have been looked at");
            rest = after;
            entry
        })
    }

    /// Entries that need no looking at.
    #[cfg(test)]
    pub(crate) fn unchecked(count: u64, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    /// Looks at the entries: they fill `bytes` and follow `prev` without gaps, views never
    /// falling and none above `view`.
    fn check(bytes: &'a [u8], (count, prev, view): (u64, Viewstamp, View)) -> Option<Self> {
        let mut before = prev;
        let mut rest = bytes;
        for _ in 0..count {
            let (entry, after) = wire::decode_part::<EntryRef<'_>>(rest).ok()?;
            let follows = entry.viewstamp.index == before.index.next()
                && entry.viewstamp.view >= before.view
                && entry.viewstamp.view <= view;
            if !follows || !sane_kind(entry.kind, entry.payload) {
                return None;
            }
            before = entry.viewstamp;
            rest = after;
        }
        (sane(prev) && rest.is_empty()).then_some(Self { count, bytes })
    }
}

/// The message in `bytes` and its entries, if a correct replica `from` may say it.
pub(crate) fn decode(bytes: &[u8], from: ReplicaId) -> Option<(Message, Batch<'_>)> {
    let (message, rest) = wire::decode_front::<Message>(bytes).ok()?;
    let entries = Batch::check(rest, message.announces())?;
    let led = |view: View| view.leader() == Some(from) && sane_view(view);
    let sound = match &message {
        Message::Append(append) => {
            led(append.view)
                && append.generation <= append.view
                && append.prev.view <= append.view
                && append.commit.0 <= INDEX_MAX
                && append.jump.is_none_or(sane_configuration)
        }
        Message::Ack { view, matched, .. } => sane_view(*view) && matched.0 <= INDEX_MAX,
        Message::Gap {
            view, last, commit, ..
        } => sane_view(*view) && sane(*last) && sane(*commit) && commit.index <= last.index,
        Message::Refuse { view, promised } => sane_view(*view) && sane_view(*promised),
        Message::PreVote { last, .. } => sane(*last),
        Message::Grant {
            promised,
            last,
            members,
            ..
        } => sane_view(*promised) && sane(*last) && members.are_sane(),
        Message::Prepare { view } => led(*view),
        Message::Promise {
            view,
            last,
            commit,
            base,
            members,
        } => {
            sane_view(*view)
                && members.are_sane()
                && sane(*last)
                && last.view <= *view
                && commit.index <= last.index
                && *base <= commit.index
        }
        Message::Fetch { view, after } => led(*view) && sane(*after),
        Message::Suffix { view, .. } => sane_view(*view),
        Message::Ask {
            promised,
            last,
            commit,
            ..
        } => sane_view(*promised) && sane(*last) && commit.index <= last.index,
        Message::Stand {
            promised, standing, ..
        } => {
            sane_view(*promised)
                && match standing {
                    Standing::Leading(last) => led(*promised) && sane(*last),
                    Standing::Voting | Standing::Empty { .. } => true,
                }
        }
    };
    sound.then_some((message, entries))
}

/// A view that counting could have reached: none at all, or one with a round.
fn sane_view(view: View) -> bool {
    view.round() <= ROUND_MAX && (view.round() > 0 || view == View::NONE)
}

fn sane(viewstamp: Viewstamp) -> bool {
    sane_view(viewstamp.view) && viewstamp.index.0 <= INDEX_MAX
}

/// An in-sync set names somebody, and a group can be a group.
fn sane_configuration(configuration: Configuration) -> bool {
    !configuration.in_sync.is_empty() && configuration.members.are_sane()
}

/// Whether an entry of this kind may carry this.
fn sane_kind(kind: EntryKind, payload: &[u8]) -> bool {
    match kind {
        EntryKind::App => true,
        EntryKind::Noop => payload.is_empty(),
        EntryKind::InSync(set) => payload.is_empty() && !set.is_empty(),
        EntryKind::Members(members) => members.are_sane(),
    }
}

#[cfg(test)]
mod form;
#[cfg(test)]
mod tests;

//! What replicas write into each other's rings.
//!
//! Each message is one record. None of them assumes order or delivery: each names the view
//! it belongs to, acknowledgements are cumulative, and what matters is repeated. Bytes that do
//! not decode, or that decode to something no correct replica says, are refused here, before
//! they reach the protocol, so that its arithmetic needs no second thoughts.

use crate::api::{Entry, EntryKind};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp, wire};
use serde::{Deserialize, Serialize};

/// No replica gets here by counting rounds; beyond it, adding one might overflow.
const ROUND_MAX: u64 = 1 << 56;
/// No log gets here by counting entries.
const INDEX_MAX: u64 = 1 << 56;

/// An upper bound of what surrounds the entries of one message: tag, four views and as many
/// indices, stamp, set and length, each a varint of at most ten bytes.
pub(crate) const HEADER_BYTES_MAX: usize = 112;
/// An upper bound of what surrounds one payload: two varints of ten, kind and set, length.
pub(crate) const ENTRY_BYTES_MAX: usize = 32;

/// Entries after an entry: from the leader to its backups; empty, it is the heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Append<E> {
    /// The leader's view.
    pub view: View,
    /// The view in which this life of the guest began (see `recovery`).
    pub life: View,
    /// The entry before the first of `entries`.
    pub prev: Viewstamp,
    /// The entries.
    pub entries: E,
    /// Everything up to here is committed.
    pub commit: Index,
    /// Nobody needs entries up to here.
    pub trim: Index,
    /// The leader's clock when it sent this; comes back in the acknowledgement.
    pub stamp: Micros,
    /// Counts the messages to this backup.
    pub number: u64,
    /// Given when `prev` is the leader's base: the in-sync set there. A backup that lacks
    /// `prev` jumps to it, for the entries before it are gone.
    pub jump: Option<ReplicaSet>,
}

/// Everything that replicas say. `E` is `Vec<Entry>` when read and a borrowed slice of the log
/// when written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message<E> {
    /// Leader to backup.
    Append(Append<E>),
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
    Canvass {
        /// Names this round of asking.
        nonce: u64,
    },
    /// I would.
    Grant {
        /// From the question.
        nonce: u64,
        /// What I have promised.
        promised: View,
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
        /// As many as fit.
        entries: E,
        /// I do not hold `after` any more.
        reclaimed: bool,
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
    /// I neither hold the guest's state nor know of a leader.
    Empty {
        /// And never did.
        fresh: bool,
    },
}

impl<E: Serialize> Message<E> {
    /// The bytes of one record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        wire::encode(self)
    }
}

/// Messages without entries need no log to borrow from.
pub(crate) type Plain = Message<[Entry; 0]>;

/// The message in `bytes`, if a correct replica `from` of the group `members` may say it.
pub(crate) fn decode(
    bytes: &[u8],
    from: ReplicaId,
    members: ReplicaSet,
) -> Option<Message<Vec<Entry>>> {
    let message: Message<Vec<Entry>> = wire::decode(bytes).ok()?;
    let led = |view: View| view.leader() == Some(from) && sane_view(view);
    let sound = match &message {
        Message::Append(append) => {
            led(append.view)
                && append.life <= append.view
                && append.prev.view <= append.view
                && append.commit.0 <= INDEX_MAX
                && append.jump.is_none_or(|set| sane_set(set, members))
                && chained(append.prev, &append.entries, append.view, members)
        }
        Message::Ack { view, matched, .. } => sane_view(*view) && matched.0 <= INDEX_MAX,
        Message::Gap {
            view, last, commit, ..
        } => sane_view(*view) && sane(*last) && sane(*commit) && commit.index <= last.index,
        Message::Refuse { view, promised } => sane_view(*view) && sane_view(*promised),
        Message::Canvass { .. } => true,
        Message::Grant { promised, .. } => sane_view(*promised),
        Message::Prepare { view } => led(*view),
        Message::Promise {
            view,
            last,
            commit,
            base,
        } => {
            sane_view(*view)
                && sane(*last)
                && last.view <= *view
                && commit.index <= last.index
                && *base <= commit.index
        }
        Message::Fetch { view, after } => led(*view) && sane(*after),
        Message::Suffix {
            view,
            after,
            entries,
            ..
        } => sane_view(*view) && chained(*after, entries, *view, members),
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
    sound.then_some(message)
}

/// A view that counting could have reached: none at all, or one with a round.
fn sane_view(view: View) -> bool {
    view.round() <= ROUND_MAX && (view.round() > 0 || view == View::NONE)
}

fn sane(viewstamp: Viewstamp) -> bool {
    sane_view(viewstamp.view) && viewstamp.index.0 <= INDEX_MAX
}

/// An in-sync set names members only, and at least one.
pub(crate) fn sane_set(set: ReplicaSet, members: ReplicaSet) -> bool {
    !set.is_empty() && set.0 & !members.0 == 0
}

/// Whether `entries` follow `prev` without gaps, views never falling and none above `view`.
fn chained(prev: Viewstamp, entries: &[Entry], view: View, members: ReplicaSet) -> bool {
    let mut before = prev;
    sane(prev)
        && entries.iter().all(|entry| {
            let follows = entry.viewstamp.index == before.index.next()
                && entry.viewstamp.view >= before.view
                && entry.viewstamp.view <= view;
            before = entry.viewstamp;
            let kind = match entry.kind {
                EntryKind::App => true,
                EntryKind::Noop => entry.payload.is_empty(),
                EntryKind::InSync(set) => entry.payload.is_empty() && sane_set(set, members),
            };
            follows && kind
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::entry;
    use proptest::prelude::*;

    const MEMBERS: ReplicaSet = ReplicaSet(0b111);
    const LEADER: ReplicaId = ReplicaId(1);

    fn append(view: View, prev: Viewstamp, entries: Vec<Entry>) -> Vec<u8> {
        Message::Append(Append {
            view,
            life: View::NONE,
            prev,
            entries,
            commit: Index(0),
            trim: Index(0),
            stamp: Micros(5),
            number: 0,
            jump: None,
        })
        .encode()
    }

    #[test]
    fn what_no_correct_replica_says_is_refused() {
        let view = View::new(2, LEADER);
        let start = Viewstamp::default();
        let noop = |index| entry(view.0, index, EntryKind::Noop);
        let good = append(view, start, vec![noop(1), noop(2)]);
        assert!(decode(&good, LEADER, MEMBERS).is_some());
        assert!(
            decode(&good, ReplicaId(2), MEMBERS).is_none(),
            "another's view"
        );
        let bad = [
            append(view, start, vec![noop(2)]),
            append(view, start, vec![noop(1), noop(3)]),
            append(View::new(1, LEADER), start, vec![noop(1)]),
            append(View::new(ROUND_MAX + 1, LEADER), start, vec![]),
            append(
                view,
                Viewstamp {
                    view,
                    index: Index(u64::MAX),
                },
                vec![],
            ),
            append(
                view,
                start,
                vec![entry(view.0, 1, EntryKind::InSync(ReplicaSet(0)))],
            ),
            append(
                view,
                start,
                vec![entry(view.0, 1, EntryKind::InSync(ReplicaSet(0b1000)))],
            ),
        ];
        for (i, bytes) in bad.iter().enumerate() {
            assert!(decode(bytes, LEADER, MEMBERS).is_none(), "case {i}");
        }
    }

    #[test]
    fn no_message_is_larger_than_its_bound() {
        let big = Viewstamp {
            view: View(u64::MAX),
            index: Index(u64::MAX),
        };
        let message = |entries| {
            Message::Append(Append {
                view: big.view,
                life: big.view,
                prev: big,
                entries,
                commit: big.index,
                trim: big.index,
                stamp: Micros::NEVER,
                number: u64::MAX,
                jump: Some(ReplicaSet(u16::MAX)),
            })
        };
        let empty = message(Vec::new()).encode().len();
        assert!(empty <= HEADER_BYTES_MAX, "{empty}");
        let kinds = [EntryKind::App, EntryKind::InSync(ReplicaSet(u16::MAX))];
        for kind in kinds {
            let one = Entry {
                viewstamp: big,
                kind,
                payload: vec![0; 1 << 20],
            };
            let full = message(vec![one]).encode().len();
            assert!(
                full <= HEADER_BYTES_MAX + ENTRY_BYTES_MAX + (1 << 20),
                "{full}"
            );
        }
    }

    proptest! {
        #[test]
        fn decoding_noise_never_panics(mut bytes: Vec<u8>, tag in 0u8..14) {
            let _ = decode(&bytes, LEADER, MEMBERS);
            // With the right version and a tag, noise gets past the first check.
            bytes.insert(0, tag);
            bytes.insert(0, wire::WIRE_VERSION);
            let _ = decode(&bytes, LEADER, MEMBERS);
        }
    }
}

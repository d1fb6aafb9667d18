//! Bytes from a ring become a message, or are refused.

use super::{Gap, Grant, Message, Request, Response, Standing, Suffix, Vote};
use crate::{Configuration, EntryKind};
use plover_types::wire::{self, Versions};
use plover_types::{ReplicaId, View, Viewstamp};
use serde::Deserialize;

/// The highest round that is accepted. No replica reaches it by counting; adding one to a much
/// higher round might overflow.
pub(super) const ROUND_MAX: u64 = 1 << 56;
/// The highest index that is accepted. No log reaches it by counting entries.
const INDEX_MAX: u64 = 1 << 56;

/// One entry where it lies in a message.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct EntryRef<'a> {
    pub viewstamp: Viewstamp,
    pub kind: EntryKind,
    #[serde(borrow, with = "serde_bytes")]
    pub payload: &'a [u8],
}

/// The entries of a message, read where they lie. [`decode`] has checked that they decode and
/// follow each other.
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
            let (entry, after) = wire::decode_part(rest).expect("the entries were checked");
            rest = after;
            entry
        })
    }

    /// Entries that need no check.
    #[cfg(test)]
    pub(crate) fn unchecked(count: u64, bytes: &'a [u8]) -> Self {
        Self { count, bytes }
    }

    /// Checks the entries: they fill `bytes` and follow `prev` without gaps, views never falling
    /// and none above `view`.
    fn check(
        bytes: &'a [u8],
        (count, prev, view): (u64, Viewstamp, View),
        spoken: Versions,
    ) -> Option<Self> {
        if !sane(prev) {
            return None;
        }
        let mut before = prev;
        let mut rest = bytes;
        for _ in 0..count {
            let (entry, after) = wire::decode_part::<EntryRef<'_>>(rest).ok()?;
            let follows = entry.viewstamp.index == before.index.next()
                && entry.viewstamp.view >= before.view
                && entry.viewstamp.view <= view;
            if !follows || !sane_kind(entry.kind, entry.payload, spoken) {
                return None;
            }
            before = entry.viewstamp;
            rest = after;
        }
        rest.is_empty().then_some(Self { count, bytes })
    }
}

/// The message in `bytes` and its entries, if a correct replica `from` may send it to one that speaks these versions.
pub(crate) fn decode(
    bytes: &[u8],
    from: ReplicaId,
    spoken: Versions,
) -> Option<(Message, Batch<'_>)> {
    let (message, rest) = wire::decode_front::<Message>(bytes).ok()?;
    let announced = match &message {
        Message::Append(append) => (append.count, append.prev, append.view),
        Message::Suffix(suffix) => (suffix.count, suffix.after, suffix.view),
        _ => (0, Viewstamp::default(), View::NONE),
    };
    let entries = Batch::check(rest, announced, spoken)?;
    is_sane(&message, from, spoken).then_some((message, entries))
}

/// Whether a correct replica `from` may send this message, apart from its entries.
fn is_sane(message: &Message, from: ReplicaId, spoken: Versions) -> bool {
    let led = |view: View| view.leader() == Some(from) && sane_view(view);
    match *message {
        Message::Append(ref append) => {
            led(append.view)
                && append.generation <= append.view
                && append.prev.view <= append.view
                && append.commit.0 <= INDEX_MAX
                && append
                    .snapshot
                    .is_none_or(|base| sane_configuration(base, spoken))
        }
        Message::Ack(ack) => sane_view(ack.view) && ack.matched.0 <= INDEX_MAX,
        Message::Gap(Gap {
            view, last, commit, ..
        }) => sane_view(view) && sane(last) && sane(commit) && commit.index <= last.index,
        Message::Refuse { view, promised } => sane_view(view) && sane_view(promised),
        Message::PreVote { last, .. } => sane(last),
        Message::Grant(Grant {
            promised,
            last,
            members,
            generation,
            ..
        }) => sane_view(promised) && sane(last) && members.are_sane() && sane_view(generation),
        Message::Prepare { view } => led(view),
        Message::Promise { view, vote } => sane_view(view) && sane_vote(view, vote),
        Message::Fetch { view, after } => led(view) && sane(after),
        Message::Suffix(Suffix { view, .. }) => sane_view(view),
        Message::Recovery(Request {
            promised,
            last,
            commit,
            ..
        }) => sane_view(promised) && sane(last) && commit.index <= last.index,
        Message::RecoveryResponse(Response {
            promised,
            members,
            standing,
            ..
        }) => {
            let is_sane = match standing {
                Standing::Leading(last) => led(promised) && sane(last),
                Standing::Voting | Standing::Empty(_) => sane_view(promised),
            };
            is_sane && members.are_sane()
        }
        Message::Resigned { view, .. } => led(view),
    }
}

fn sane_vote(view: View, vote: Vote) -> bool {
    vote.members.are_sane()
        && sane(vote.last)
        && vote.last.view <= view
        && vote.commit.index <= vote.last.index
        && vote.base <= vote.commit.index
}

/// A view that counting could have reached: none at all, or one with a round.
fn sane_view(view: View) -> bool {
    view.round() <= ROUND_MAX && (view.round() > 0 || view == View::NONE)
}

fn sane(viewstamp: Viewstamp) -> bool {
    sane_view(viewstamp.view) && viewstamp.index.0 <= INDEX_MAX
}

/// An in-sync set names at least one replica, the members can be a group, and this replica speaks its version. An older one than
/// it speaks may be what the group had once.
fn sane_configuration(configuration: Configuration, spoken: Versions) -> bool {
    !configuration.in_sync.is_empty()
        && configuration.members.are_sane()
        && configuration.version <= spoken.newest
}

/// Whether an entry of this kind may carry this payload. One that names a version is kept from a replica that does not speak
/// it.
fn sane_kind(kind: EntryKind, payload: &[u8], spoken: Versions) -> bool {
    match kind {
        EntryKind::App => true,
        EntryKind::Noop => payload.is_empty(),
        EntryKind::InSync(set) => payload.is_empty() && !set.is_empty(),
        EntryKind::Members(members) => members.are_sane(),
        EntryKind::Version(version) => {
            payload.is_empty() && version > 0 && version <= spoken.newest
        }
    }
}

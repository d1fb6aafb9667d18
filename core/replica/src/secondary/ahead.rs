//! Inputs that the secondary's guest gets before their commit (docs/decisions/0066).
//!
//! With `durability = "disk"` an entry is committed once two disks have it. The secondary's guest does not wait for
//! that:
//!
//! ```text
//!  leader: propose ─┬─▶ its disk ─────────────┐
//!                   ├─▶ its guest ─▶ outputs ─┼─▶ both have sent it, and what they followed from is committed ─▶ clients
//!  secondary: accept┼─▶ its guest ─▶ outputs ─┤
//!                   └─▶ its disk ─────────────┘
//! ```
//!
//! Only frames are fed so, and only as far as nothing but frames lies before them: a syncvm, an operator's input
//! or a change of the group waits for its commit, and all behind it waits with it.

use crate::log_ops::LogOp;
use crate::phase::Phase;
use crate::replica::Replica;
use apus::{Entry, EntryKind};
use plover_types::{Index, Viewstamp, wire};
use std::collections::VecDeque;

/// An entry that is not known to be committed.
#[derive(Debug)]
enum Accepted {
    Frames(LogOp),
    /// The guest has them.
    Fed,
    /// It takes effect at its commit.
    Waits,
}

/// The entries that this secondary has accepted and not delivered, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    entries: VecDeque<(Viewstamp, Accepted)>,
}

impl Ahead {
    /// The log behind `after` consists of these entries now. Returns whether the guest was fed entries that have lost
    /// their places.
    fn accept(&mut self, after: Index, entries: &[Entry]) -> bool {
        let kept = self.entries.partition_point(|(at, _)| at.index <= after);
        let mut lost = self.entries.drain(kept..);
        let has_lost = lost.any(|(_, accepted)| matches!(accepted, Accepted::Fed));
        drop(lost);
        self.entries.extend(entries.iter().map(|entry| {
            let op = match entry.kind {
                EntryKind::App => wire::decode(&entry.payload).ok(),
                _ => None,
            };
            let accepted = match op {
                Some(op @ (LogOp::Inputs(_) | LogOp::Paced(..))) => Accepted::Frames(op),
                _ => Accepted::Waits,
            };
            (entry.viewstamp, accepted)
        }));
        has_lost
    }

    /// The next frames for the guest, if everything up to `delivered` is done.
    fn next(&mut self, delivered: Index) -> Option<(Index, LogOp)> {
        let done = self
            .entries
            .partition_point(|(at, _)| at.index <= delivered);
        self.entries.drain(..done);
        let (first, _) = self.entries.front()?;
        if first.index != delivered.next() {
            return None;
        }
        let is_fed = |(_, accepted): &(_, _)| matches!(accepted, Accepted::Fed);
        let (at, next) = self.entries.iter_mut().find(|entry| !is_fed(entry))?;
        match std::mem::replace(next, Accepted::Fed) {
            Accepted::Frames(op) => Some((at.index, op)),
            other => {
                *next = other;
                None
            }
        }
    }

    /// Whether the guest has this entry, which is committed.
    fn has_fed(&self, at: Viewstamp) -> bool {
        let place = self
            .entries
            .binary_search_by_key(&at.index, |(at, _)| at.index);
        let entry = place.ok().map(|place| &self.entries[place]);
        matches!(entry, Some((held, Accepted::Fed)) if *held == at)
    }
}

impl Replica {
    /// The log behind `after` consists of these entries now, and they are on their way to storage.
    pub(crate) fn on_accepted(&mut self, after: Index, entries: &[Entry]) {
        let Phase::Secondary(secondary) = &mut self.phase else {
            return;
        };
        if secondary.ahead.accept(after, entries) {
            self.cx.guest.taken = self.cx.guest.taken.min(after);
        }
        self.feed_ahead();
    }

    /// Feeds the guest what it need not wait for, while it runs in step with a leader.
    pub(crate) fn feed_ahead(&mut self) {
        let group = &self.cx.group;
        let (me, in_sync, delivered) = (self.cx.config.me, group.in_sync, group.delivered);
        let is_led = group
            .leader
            .is_some_and(|it| it != me && in_sync.contains(it));
        if !is_led || !in_sync.contains(me) {
            return;
        }
        while let Phase::Secondary(secondary) = &mut self.phase {
            let Some((index, op)) = secondary.ahead.next(delivered) else {
                return;
            };
            self.give_to_guest(index, op);
        }
    }

    /// Whether the guest was fed this entry before its commit.
    pub(crate) fn was_fed_ahead(&self, at: Viewstamp) -> bool {
        matches!(&self.phase, Phase::Secondary(secondary) if secondary.ahead.has_fed(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Action;
    use crate::testing::{secondary, taken};
    use plover_policy::Preset;
    use plover_types::{Frame, SyncNo, View};

    fn entry(view: u64, index: u64, op: &LogOp) -> Entry {
        Entry {
            viewstamp: Viewstamp {
                view: View(view),
                index: Index(index),
            },
            kind: EntryKind::App,
            payload: op.encode(plover_types::wire::WIRE_VERSION),
        }
    }

    fn frame(view: u64, index: u64, byte: u8) -> Entry {
        entry(view, index, &LogOp::Inputs(vec![Frame(vec![byte])]))
    }

    /// The first bytes of the frames that its guest was fed since this was last called.
    fn fed(replica: &mut Replica) -> Vec<u8> {
        let actions = taken(replica).into_iter();
        let frames = actions.filter_map(|action| match action {
            Action::Feed(frames) => Some(frames),
            _ => None,
        });
        frames.flatten().map(|frame| frame.0[0]).collect()
    }

    fn in_step() -> Replica {
        secondary(Preset::find("hybrid").unwrap().policy)
    }

    #[test]
    fn the_guest_waits_for_no_disk_and_gets_each_input_once() {
        let mut replica = in_step();
        replica.on_accepted(Index(0), &[frame(1, 1, 1), frame(1, 2, 2)]);
        assert_eq!(fed(&mut replica), [1, 2]);
        replica.on_deliver(frame(1, 1, 1));
        replica.on_accepted(Index(2), &[frame(1, 3, 3)]);
        replica.on_deliver(frame(1, 2, 2));
        replica.on_deliver(frame(1, 3, 3));
        assert_eq!(fed(&mut replica), [3]);
    }

    #[test]
    fn what_is_behind_a_syncvm_waits_with_it() {
        let mut replica = in_step();
        let sync = entry(1, 2, &LogOp::Syncvm(SyncNo(1)));
        replica.on_accepted(Index(0), &[frame(1, 1, 1), sync.clone(), frame(1, 3, 3)]);
        assert_eq!(fed(&mut replica), [1]);
        replica.on_deliver(frame(1, 1, 1));
        assert_eq!(fed(&mut replica), [0; 0]);
        replica.cx.group.delivered = sync.viewstamp.index;
        replica.feed_ahead();
        assert_eq!(fed(&mut replica), [3]);
    }

    #[test]
    fn inputs_behind_a_gap_wait_until_it_is_delivered() {
        let mut replica = in_step();
        replica.on_accepted(Index(1), &[frame(1, 2, 2)]);
        assert_eq!(fed(&mut replica), [0; 0]);
        replica.on_deliver(frame(1, 1, 1));
        assert_eq!(fed(&mut replica), [1, 2]);
    }

    /// A new leader did not have the old one's last entries.
    #[test]
    fn an_input_that_takes_the_place_of_one_that_was_fed_is_fed_too() {
        let mut replica = in_step();
        replica.on_accepted(Index(0), &[frame(1, 1, 1), frame(1, 2, 2)]);
        replica.on_accepted(Index(1), &[frame(2, 2, 7)]);
        assert_eq!(fed(&mut replica), [1, 2, 7]);
        replica.on_deliver(frame(1, 1, 1));
        replica.on_deliver(frame(2, 2, 7));
        assert_eq!(fed(&mut replica), [0; 0]);
    }

    #[test]
    fn a_guest_without_a_leader_waits_for_the_commit() {
        let mut replica = in_step();
        replica.cx.group.leader = None;
        replica.on_accepted(Index(0), &[frame(1, 1, 1)]);
        assert_eq!(fed(&mut replica), [0; 0]);
        replica.on_deliver(frame(1, 1, 1));
        assert_eq!(fed(&mut replica), [1]);
    }
}

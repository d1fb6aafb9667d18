//! A leader whose program reads its clients itself (APUS §4.1), before the input is committed.
//!
//! ```text
//!   the program reads ─► proposed ─┬─► committed ─► Release: replies leave
//!                                  └─► the leader is deposed ─┬─► committed by the next one: it follows
//!                                                             └─► lost: it is restored, or its reads fail
//! ```
//!
//! Everything that the program has read by itself lies in the log of one view, from the leader's first cut on. So
//! one viewstamp, of the last such entry, tells all about it: each committed entry up to that index is of the same
//! view, or the rest is lost.
//!
//! With [`Entrance::HoldsOutput`] the program has executed it all. With [`Entrance::HoldsInput`] it has executed
//! what was released, and its reads of the rest wait for their fate.

use crate::api::{Action, Entrance, Taint};
use crate::canary::canary;
use crate::phase::Quiet;
use crate::replica::Replica;
use crate::{ConnectionId, Entry, Phase};
use plover_types::{Micros, Viewstamp};

/// The fate of input that a leader's program has read by itself.
pub(crate) enum Fate {
    Committed,
    /// This entry and all behind it: another leader's entries are in their place.
    Lost,
}

impl Replica {
    /// The program has read input by itself, or its time has gone on, and it was proposed.
    pub(crate) fn on_proposed(&mut self, at: Viewstamp, out: &mut Vec<Action>) {
        assert_ne!(self.config.entrance, Entrance::Fed, "the caller feeds it");
        self.feed.ahead = Some(at);
        if canary!(self.config, ReplyBeforeCommit) {
            out.push(Action::Release(at));
        }
    }

    /// It was not, and cannot be.
    pub(crate) fn on_unproposed(&mut self, now: Micros, out: &mut Vec<Action>) {
        if self.config.entrance == Entrance::HoldsOutput && !canary!(self.config, StandAhead) {
            self.taint(now, Taint::Ahead, out);
        }
    }

    pub(crate) fn on_quiet(&mut self) {
        if let Phase::Leading { quiet, .. } = &mut self.phase {
            if *quiet == Quiet::Asked {
                let last = self.feed.ahead.unwrap_or_default();
                *quiet = Quiet::Done(last.index);
            }
        }
    }

    /// Whether a follower that is elected may begin to lead.
    pub(crate) fn may_begin_to_lead(&self) -> bool {
        // One that takes a checkpoint, which may be long, hands over.
        self.phase == Phase::Following
            && self.feed.ahead.is_none()
            && self.feed.checkpoint.is_none()
    }

    /// The fate of the program's own input at `at`.
    pub(crate) fn compare(&mut self, at: Viewstamp) -> Fate {
        match self.feed.ahead {
            Some(last) if at.view != last.view => Fate::Lost,
            Some(last) => {
                if at.index == last.index {
                    self.feed.ahead = None;
                }
                Fate::Committed
            }
            None => unreachable!("the caller has looked"),
        }
    }

    /// Takes note of an entry of clients in the view in which the program reads by itself: it has it. False for other
    /// entries.
    pub(crate) fn skip(
        &mut self,
        at: Viewstamp,
        entry: Option<&Entry<'_>>,
        out: &mut Vec<Action>,
    ) -> bool {
        match entry {
            Some(Entry::Accept(client)) => self.feed.opens(ConnectionId(at), *client),
            Some(Entry::Clock(time)) => self.feed.time = *time,
            Some(Entry::Bytes(..) | Entry::End(..)) => {}
            Some(Entry::Close(connection, _)) => {
                self.feed.open.remove(connection);
                self.check.closed(*connection);
            }
            _ => return false,
        }
        self.feed.next = at.index.next();
        out.extend(self.pace.committed(at).map(Action::Release));
        true
    }

    /// A known bug: what the program is ahead of the log is forgotten, and the program goes on.
    pub(crate) fn go_on_ahead(&mut self) {
        if let Some(last) = self.feed.ahead.take() {
            self.feed.next = last.index.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Canary, Client, Config, Event, LogState, Note, Sessions, State};
    use plover_types::{Index, ReplicaId, ReplicaSet, View};

    const NOW: Micros = Micros(1);

    fn at(view: u64, index: u64) -> Viewstamp {
        Viewstamp {
            view: View(view),
            index: Index(index),
        }
    }

    /// A leader that was deposed when its program had read entry 3 of view 16, which nobody else has.
    fn deposed(entrance: Entrance) -> (Replica, Vec<Action>) {
        let config = Config {
            me: ReplicaId(0),
            members: ReplicaSet::of([ReplicaId(0), ReplicaId(1), ReplicaId(2)]),
            address: String::new(),
            check: None,
            checkpoints: false,
            checkpoint_bytes: u64::MAX,
            checkpoint_bytes_max: u64::MAX,
            room: u64::MAX,
            stall: Micros::from_ms(5000),
            checkpoint_within: Micros::from_ms(60_000),
            checkpoint_within_if_full: Micros::from_ms(60_000),
            entrance,
            sessions: Sessions::Reconnect,
            restarts: false,
            canary: Canary::None,
        };
        let (mut replica, mut out) = (Replica::new(config, None), Vec::new());
        let log = |leads, commit, last| LogState {
            leads,
            commit: Index(commit),
            last,
            ..LogState::default()
        };
        let leads = Some(View(16));
        let accept = Entry::Accept(Client::default()).encode();
        let cut = Entry::Cut(None).encode();
        let mut apply = |event| replica.apply(NOW, event, &mut out);
        apply(Event::Log(log(leads, 0, at(16, 0))));
        apply(Event::Started(State::default()));
        apply(Event::Log(log(leads, 2, at(16, 2))));
        apply(Event::Entry(at(16, 1), Some(&cut)));
        apply(Event::Proposed(at(16, 2)));
        apply(Event::Entry(at(16, 2), Some(&accept)));
        apply(Event::Proposed(at(16, 3)));
        apply(Event::Log(log(None, 3, at(16, 3))));
        (replica, out)
    }

    #[test]
    fn a_leader_skips_what_its_program_has_read() {
        let (replica, out) = deposed(Entrance::HoldsOutput);
        assert!(out.contains(&Action::Release(at(16, 2))));
        assert!(!out.iter().any(|it| matches!(it, Action::Connect(..))));
        assert_eq!(replica.connections().count(), 1);
    }

    #[test]
    fn it_does_not_stand_until_the_fate_of_the_rest_is_known() {
        for entrance in [Entrance::HoldsOutput, Entrance::HoldsInput] {
            let (mut replica, mut out) = deposed(entrance);
            assert!(!replica.may_lead(), "{entrance:?}");
            let bytes = Entry::Bytes(ConnectionId(at(16, 2)), 0, b"x").encode();
            replica.apply(NOW, Event::Entry(at(16, 3), Some(&bytes)), &mut out);
            assert!(replica.may_lead(), "{entrance:?}");
            assert_eq!(out.last(), Some(&Action::Release(at(16, 3))));
        }
    }

    #[test]
    fn what_is_lost_was_executed_or_not() {
        let (mut replica, mut out) = deposed(Entrance::HoldsOutput);
        replica.apply(NOW, Event::Entry(at(33, 3), None), &mut out);
        assert!(out.contains(&Action::Note(Note::Restores(Taint::Ahead))));
        assert!(!replica.may_lead());

        let (mut replica, mut out) = deposed(Entrance::HoldsInput);
        replica.apply(NOW, Event::Entry(at(33, 3), None), &mut out);
        assert_eq!(out.last(), Some(&Action::Forget));
        assert!(replica.may_lead());
    }
}

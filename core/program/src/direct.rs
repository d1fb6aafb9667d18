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

/// What became of input that a leader's program has read by itself.
pub(crate) enum Fate {
    Committed,
    /// This entry and all behind it: another leader's entries are in their place.
    Lost,
}

impl Replica {
    /// The program has read input by itself, and it was proposed.
    pub(crate) fn on_proposed(&mut self, at: Viewstamp, out: &mut Vec<Action>) {
        assert_ne!(self.config.entrance, Entrance::Fed, "the caller feeds it");
        self.stalled = false;
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
                *quiet = Quiet::Quiet(last.index);
            }
        }
    }

    /// Whether a follower that is elected may begin to lead.
    pub(crate) fn may_begin_to_lead(&self) -> bool {
        self.phase == Phase::Following && self.feed.ahead.is_none()
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
            Some(Entry::Accept(_)) => {
                self.feed.open.insert(ConnectionId(at));
            }
            Some(Entry::Bytes(..) | Entry::End(_)) => {}
            Some(Entry::Close(connection)) => {
                self.feed.open.remove(connection);
                self.check.closed(*connection);
            }
            _ => return false,
        }
        self.feed.next = at.index.next();
        out.push(Action::Release(at));
        true
    }

    /// A known bug: what the program is ahead of the log is forgotten, and the program goes on.
    pub(crate) fn go_on_ahead(&mut self) {
        if let Some(last) = self.feed.ahead.take() {
            self.feed.next = last.index.next();
        }
    }
}

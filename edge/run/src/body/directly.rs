//! A program that reads its clients itself: what the loop does for it.

use super::{Body, propose};
use crate::direct::{Direct, Happened};
use plover_program::Event;
use std::time::Duration;

/// Records that one turn takes at most.
const RECORDS_PER_TURN: usize = 1024;

impl Body {
    /// Does something with the program's memory, if it shares one.
    pub(super) fn directly(&mut self, what: impl FnOnce(&mut Direct)) {
        if let Some(direct) = &mut self.direct {
            what(direct);
        }
    }

    /// The program has ended.
    pub(super) fn forget_connections(&mut self) {
        self.sockets.clear();
        self.clients_known.forget_open();
        self.directly(Direct::clear);
    }

    /// Proposes what the program has read, and takes note of what it has sent.
    pub(super) fn pump(&mut self) {
        for _ in 0..RECORDS_PER_TURN {
            let Some(direct) = &mut self.direct else {
                return;
            };
            let server = &mut self.server;
            // A full log is trimmed only after a cut, and the input that was read before the cut comes first.
            let room = if direct.quiesces() {
                usize::MAX
            } else {
                self.room
            };
            let Some(happened) = direct.pump(&mut |entry| propose(server, room, entry)) else {
                return;
            };
            match happened {
                Happened::Proposed(at) => self.apply(Event::Proposed(at)),
                Happened::ProposedTime(at) => self.apply(Event::ProposedTime(at)),
                Happened::Unproposed => self.apply(Event::Unproposed),
                Happened::Output(id, bytes) => self.apply(Event::Output(id, &bytes)),
                Happened::Ended(id) => self.apply(Event::OutputEnded(id)),
                Happened::Noticed(id) => self.apply(Event::Consumed(id)),
                Happened::Quiet => self.apply(Event::Quiet),
                Happened::Note(words) => {
                    tracing::warn!("{words}");
                    self.remember(words);
                }
                Happened::Broken(why) => {
                    self.died = Some(why.into());
                    return;
                }
            }
        }
    }

    /// Tells the program what is committed, and looks whether it goes on.
    pub(super) fn look_at_direct(&mut self) {
        let gone = self.sockets.take_gone();
        let Some(direct) = &mut self.direct else {
            return;
        };
        direct.gone(gone);
        direct.flush();
        if !direct.looks() {
            return;
        }
        if let Some(program) = &self.program {
            direct.look_for_the_dead(program.pid());
        }
        let stall = Duration::from_millis(self.config.program.stall_ms);
        if !direct.stands_still(stall) {
            return;
        }
        if direct.is_locked() {
            // It has ended there, or a signal's handler waits for the thread that it has interrupted.
            let why = "one of its threads stands still in the middle of a read";
            self.died = Some(why.into());
        } else if self.brain.serves() {
            self.apply(Event::StandsStill);
        }
    }
}

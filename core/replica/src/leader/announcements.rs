//! Announcements: switches learn where the guest is now.
//!
//! A single frame may be lost, or come before a bridge forwards again. So it is repeated, a little later each
//! time, as QEMU does after a migration.

use super::Leader;
use crate::api::Action;
use crate::context::Context;
use plover_types::Micros;

/// How often the guest's address is announced.
const TIMES: u64 = 5;
const FIRST: Micros = Micros::from_ms(50);
const STEP: Micros = Micros::from_ms(100);

/// Those that are still to be sent.
#[derive(Debug)]
pub(crate) struct Announcements {
    sent: u64,
    next_at: Micros,
}

impl Announcements {
    pub fn none() -> Self {
        Self {
            sent: 0,
            next_at: Micros::NEVER,
        }
    }
}

impl Leader {
    /// Clients reach the guest here from now on, or a switch may have forgotten that they do.
    pub(crate) fn announce(&mut self, cx: &mut Context) {
        self.announcements = Announcements {
            sent: 0,
            next_at: cx.now,
        };
        self.tick_announcements(cx);
    }

    pub(crate) fn tick_announcements(&mut self, cx: &mut Context) {
        let Announcements { sent, next_at } = &mut self.announcements;
        if cx.now < *next_at {
            return;
        }
        // A leader that may have been replaced would draw the clients to itself.
        if cx.now < cx.group.core.lease_until() {
            cx.out.push(Action::Announce);
        }
        *next_at = cx.now + FIRST + Micros(STEP.0 * *sent);
        *sent += 1;
        if *sent == TIMES {
            *next_at = Micros::NEVER;
        }
    }

    pub(crate) fn announcements_deadline(&self) -> Micros {
        self.announcements.next_at
    }
}

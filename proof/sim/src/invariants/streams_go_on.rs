//! What a client has read of a stream never changes: whoever sends, the bytes at one place are
//! the same (COLO §3.1, equation 4: packets of the primary, then packets of the secondary).
//!
//! A client's TCP would take a second sender's other bytes for the same place as nothing new,
//! and go on from what it has; the guest that sent them would be of another mind.
//!
//! So it is with the sequence numbers of a connection: whoever sends, they count from one number,
//! and stamps are read off one clock. And what a client acknowledges, every guest that may serve it has sent,
//! under its own number and stamp.

use super::{Check, Violation};
use crate::guest::Strange;
use crate::history::Histories;
use crate::spoken::Spoken;
use plover_types::{ReplicaId, View};
use std::collections::HashMap;

/// What clients have read.
#[derive(Debug, Default)]
pub struct StreamsGoOn {
    words: HashMap<(u8, u32), (u32, ReplicaId)>,
    /// Where each connection's numbers count from, and its clock.
    numbers: HashMap<(u8, u8), ((u32, u32), ReplicaId)>,
}

fn violation(message: String) -> Violation {
    Violation {
        invariant: "streams_go_on",
        section: "COLO §3.1",
        message,
    }
}

impl StreamsGoOn {
    /// A client reads this.
    pub fn shown(&mut self, who: ReplicaId, view: View, spoken: &Spoken) -> Check {
        let number = (spoken.opened_at(), spoken.clock);
        let key = (spoken.client, spoken.connection);
        let (first, by) = *self.numbers.entry(key).or_insert((number, who));
        if first != number {
            return Err(violation(format!(
                "{who} (view {view}) counts connection {} of client {} from {number:?}, and {by} \
                 from {first:?} (number, clock)",
                spoken.connection, spoken.client
            )));
        }
        for (place, word) in spoken.placed() {
            let (first, by) = *self
                .words
                .entry((spoken.client, place))
                .or_insert((word, who));
            if first != word {
                return Err(violation(format!(
                    "{who} (view {view}) sends other bytes at {place} of client {}'s stream \
                     than {by} had",
                    spoken.client
                )));
            }
        }
        Ok(())
    }

    /// The guest of a member of the in-sync set has got a frame that acknowledges what it has
    /// never sent, as it sees it, or echoes another clock than the connection's.
    pub fn fed(who: ReplicaId, strange: Option<Strange>, all: &Histories) -> Check {
        let Some(Strange {
            request,
            heard,
            history,
        }) = strange.filter(|one| all.are_of_one_boot(one.heard, one.history))
        else {
            return Ok(());
        };
        Err(violation(format!(
            "{who}'s guest at {history:x} is fed {request:?} with numbers or a clock that it has not sent: \
             heard at {heard:x}"
        )))
    }
}

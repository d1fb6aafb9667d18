//! The bytes at one place of a client's stream are the same from every sender (COLO §3.1, equation 4:
//! packets of the primary, then packets of the secondary).
//!
//! If a second sender sent other bytes for a place that the client has read, the client's TCP would
//! drop them as old. The client and the new guest would then disagree on the stream.
//!
//! The sequence numbers of a connection count from the same number with every sender, and timestamps
//! are read off the same clock. Every guest that may serve a client has sent the bytes that the client
//! acknowledges, under its own numbers and timestamps.

use super::{Check, Violation};
use crate::guest::Strange;
use crate::history::Histories;
use crate::spoken::Spoken;
use plover_types::{ReplicaId, View};
use std::collections::HashMap;

/// The streams that clients have read.
#[derive(Debug, Default)]
pub struct StreamsGoOn {
    words: HashMap<(u8, u8, u32), (u32, ReplicaId)>,
    /// The number from which each connection counts, and its clock.
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
        if spoken.resets {
            // It has the numbers that the client acknowledges.
            return Ok(());
        }
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
                .entry((spoken.client, spoken.connection, place))
                .or_insert((word, who));
            if first != word {
                return Err(violation(format!(
                    "{who} (view {view}) sends other bytes at {place} of client {}'s \
                     connection {} than {by} had",
                    spoken.client, spoken.connection
                )));
            }
        }
        Ok(())
    }

    /// The guest of a member of the in-sync set has received a frame that acknowledges bytes that, by its
    /// own numbers, it has never sent, or that echoes another clock than the connection's.
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

//! What a client has read of a stream never changes: whoever sends, the bytes at one place are
//! the same (COLO §3.1, equation 4: packets of the primary, then packets of the secondary).
//!
//! A client's TCP would take a second sender's other bytes for the same place as nothing new,
//! and go on from what it has; the guest that sent them would be of another mind.

use super::{Check, Violation};
use crate::spoken::Spoken;
use plover_types::{ReplicaId, View};
use std::collections::HashMap;

/// What clients have read.
#[derive(Debug, Default)]
pub struct StreamsGoOn {
    words: HashMap<(u8, u32), (u32, ReplicaId)>,
}

impl StreamsGoOn {
    /// A client reads this.
    pub fn shown(&mut self, who: ReplicaId, view: View, spoken: &Spoken) -> Check {
        for (place, word) in spoken.placed() {
            let (first, by) = *self
                .words
                .entry((spoken.client, place))
                .or_insert((word, who));
            if first != word {
                return Err(Violation {
                    invariant: "streams_go_on",
                    section: "COLO §3.1",
                    message: format!(
                        "{who} (view {view}) sends other bytes at {place} of client {}'s stream \
                         than {by} had",
                        spoken.client
                    ),
                });
            }
        }
        Ok(())
    }
}

//! A replica that waits for something sleeps: it does not ask to be woken at once, for ever.

use super::{Check, Violation};
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;

/// Ticks in a row, with nothing else between them, that are one too many.
const TICKS_MAX: u32 = 300;

/// Ticks closer than this follow each other; heartbeats are 25 ms apart.
const CLOSE: Micros = Micros(200);

/// How often each replica was woken for nothing.
#[derive(Debug, Default)]
pub struct NothingSpins {
    ticks: BTreeMap<ReplicaId, (Micros, u32)>,
}

impl NothingSpins {
    /// Something else than time happened to a replica.
    pub fn busy(&mut self, who: ReplicaId) {
        self.ticks.remove(&who);
    }

    /// A replica is woken because it asked for it.
    pub fn ticked(&mut self, who: ReplicaId, now: Micros) -> Check {
        let (last, count) = self.ticks.entry(who).or_insert((now, 0));
        *count = if now.since(*last) < CLOSE {
            *count + 1
        } else {
            0
        };
        *last = now;
        if *count < TICKS_MAX {
            return Ok(());
        }
        Err(Violation {
            invariant: "nothing_spins",
            section: "design §5, \"wait -> apply -> act\"",
            message: format!("{who} asks to be woken at once, again and again"),
        })
    }
}

//! A replica that waits for something sleeps. It does not ask again and again to be woken at once.

use super::{Check, Violation};
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;

/// So many ticks in a row without another event between them, other than samples, break the invariant.
const TICKS_MAX: u32 = 300;

/// Ticks closer than this follow each other; heartbeats are 25 ms apart.
const CLOSE: Micros = Micros(200);

/// How many ticks in a row each replica has had.
#[derive(Debug, Default)]
pub struct NothingSpins {
    ticks: BTreeMap<ReplicaId, (Micros, u32)>,
}

impl NothingSpins {
    /// A replica was told an event other than a tick or a sample.
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
            section: "ARCHITECTURE.md, edge/node",
            message: format!("{who} asks to be woken at once, again and again"),
        })
    }
}

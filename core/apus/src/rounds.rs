//! How far a peer can drive the numbers of views.
//!
//! A replica that stands for election takes a round above all that it has heard of. Nobody can check what a peer says of its
//! rounds. A peer that lies could name the highest number that fits a message: then no view comes after it, and the group never
//! has another leader.
//!
//! So each peer can raise the highest round known here by [`AT_ONCE`] and one more for each microsecond since this process has
//! started, all its claims together. A claim beyond that is refused and costs the link ([`Contradiction::Ahead`]).
//!
//! **Correct peers stay far below.** A group counts an election a second when it fails all the time. A replica that was away for
//! eight years is told of the present round at once. A greater distance is believed after a while: the
//! link comes back every two seconds, and the bound has grown.
//!
//! **No peer gets far.** To reach the highest round, 2^56, a peer of two correct replicas has to lie to both for a thousand years. Each restart of one
//! of them saves it 268 seconds.
//!
//! **Correct peers repeat what a liar has told them**, and it counts as theirs. The liar may raise two replicas by the same amount, and each may raise the
//! other by as much, so neither refuses the other. In two cases it does, for a while: the other one has started again, and the liar could
//! raise it by [`AT_ONCE`] once more (268 seconds); or this one was away, or has lost its state, while the liar raised the other (as long as that went on).

use crate::{Apus, Contradiction};
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;
use std::fmt;

/// Rounds by which a peer may raise this replica at any time: eight years of an election a second.
const AT_ONCE: u64 = 1 << 28;

/// By how much each peer has raised the highest round known here.
#[derive(Clone)]
pub(crate) struct Raised {
    /// When this process has started.
    since: Micros,
    by: BTreeMap<ReplicaId, u64>,
}

/// Prints nothing: as long as no peer lies, it makes no difference what each has said.
impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Raised")
    }
}

impl Raised {
    pub(crate) fn new(now: Micros) -> Self {
        Self {
            since: now,
            by: BTreeMap::new(),
        }
    }

    fn allows(&self, now: Micros, peer: ReplicaId, rounds: u64) -> bool {
        let before = self.by.get(&peer).copied().unwrap_or(0);
        before.saturating_add(rounds) <= AT_ONCE.saturating_add(now.since(self.since).0)
    }

    pub(crate) fn note(&mut self, peer: ReplicaId, rounds: u64) {
        if rounds > 0 {
            *self.by.entry(peer).or_default() += rounds;
        }
    }
}

impl Apus {
    /// Whether `peer` may tell this replica of `round`.
    pub(crate) fn check_round(
        &self,
        now: Micros,
        peer: ReplicaId,
        round: u64,
    ) -> Result<(), Contradiction> {
        let known = self.round_max;
        match self.raised.allows(now, peer, round.saturating_sub(known)) {
            true => Ok(()),
            false => Err(Contradiction::Ahead { told: round, known }),
        }
    }
}

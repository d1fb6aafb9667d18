//! A second process of this replica: it takes no part while the first one lives.
//!
//! ```text
//!   start ─▶ links are made, and nothing is said over them ─▶ all are up, or 1 s is over ─▶ takes part
//!                  │ a peer says that it is linked to another process of this replica          │ the same, of a peer with
//!                  ▼                                                                           ▼ which there was no link yet
//!             set aside: no links any more, until it is started again ◀────────────────────────┘
//! ```
//!
//! Each peer decides alone which process it takes (`plover-fabric`, `processes`). One peer may have lost the first process at
//! the moment when the second one comes, while another peer has it still; if both processes took part, each would count as the
//! same replica in another majority. So the second one waits until it has heard all peers that it reaches, and the word of one
//! is enough.
//!
//! It does not come back by itself when the first one ends: its state may be older than what the first one has promised.

use super::{Body, BoxError};
use crate::clock;
use plover_fabric::FabricEvent;
use plover_types::{Micros, ReplicaId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The time for which a replica that starts waits for its peers before it takes part. A peer has found out whether
/// another process of this replica lives after some 0.3 s. Only a start beside a peer that is down takes so long.
const WITHIN: Micros = Micros::from_ms(1000);

/// The most bytes of one peer that are kept meanwhile, and what each record counts beside its own.
const KEPT_BYTES_MAX: usize = 64 << 20;
const RECORD_WEIGHT: usize = 64;

/// The peers that have said more than is kept.
fn talkative(happened: &[FabricEvent]) -> Vec<ReplicaId> {
    let mut kept = BTreeMap::<ReplicaId, usize>::new();
    for event in happened {
        if let FabricEvent::Record { from, bytes, .. } = event {
            *kept.entry(*from).or_default() += bytes.len() + RECORD_WEIGHT;
        }
    }
    let too_much = kept.into_iter().filter(|(_, kept)| *kept > KEPT_BYTES_MAX);
    too_much.map(|(peer, _)| peer).collect()
}

impl Body {
    /// Makes links, and keeps what comes over them until this process may take part.
    pub(super) fn meet_peers(&mut self) -> Result<(), BoxError> {
        let mut happened = Vec::new();
        let until = clock::now() + WITHIN;
        loop {
            let Some(fabric) = &mut self.fabric else {
                return Ok(());
            };
            fabric.progress(&mut happened);
            for peer in talkative(&happened) {
                fabric.cut(peer, "more than this replica keeps until it takes part");
                happened.retain(
                    |event| !matches!(event, FabricEvent::Record { from, .. } if *from == peer),
                );
            }
            if self.give_way()? {
                return Ok(());
            }
            let left = until.since(clock::now());
            if left == Micros::ZERO || self.are_all_up(&happened) {
                return self.take_fabric_events(happened);
            }
            if let Some(fabric) = &mut self.fabric {
                let left = Duration::from_micros(left.0);
                fabric.wait(Some(fabric.timeout().unwrap_or(left).min(left)));
            }
        }
    }

    fn are_all_up(&self, happened: &[FabricEvent]) -> bool {
        let mut missing = self.replica.members();
        missing.remove(ReplicaId(self.config.group.me));
        for event in happened {
            match event {
                FabricEvent::Up(peer) => missing.remove(*peer),
                FabricEvent::Down(peer) => missing.insert(*peer),
                FabricEvent::Record { .. } | FabricEvent::Room { .. } => {}
            }
        }
        missing.is_empty()
    }

    /// Takes part no more if a peer has told this process that it is the second one. `true` if so.
    pub(super) fn give_way(&mut self) -> Result<bool, BoxError> {
        let Some((peer, why)) = self.fabric.as_ref().and_then(|fabric| fabric.twin()) else {
            return Ok(false);
        };
        let by = peer.0;
        tracing::error!(
            event = "set_aside",
            "replica {by} says: {why}; this process takes no part in the group any more"
        );
        self.fabric = None;
        self.set_aside = Some((peer, why));
        for peer in self.replica.members().iter() {
            if peer != ReplicaId(self.config.group.me) {
                self.on_link(peer, false)?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::Lane;

    #[test]
    fn one_that_says_too_much_before_this_replica_takes_part_is_found_out() {
        let record = |from, bytes| FabricEvent::Record {
            from: ReplicaId(from),
            lane: Lane::Bulk,
            bytes: vec![0; bytes],
        };
        let mut happened = vec![FabricEvent::Up(ReplicaId(1)), record(1, 7)];
        happened.extend((0..64).map(|_| record(2, 1 << 20)));
        assert_eq!(talkative(&happened), [ReplicaId(2)]);
        happened.pop();
        assert_eq!(talkative(&happened), []);
    }
}

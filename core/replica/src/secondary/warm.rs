//! Keeping a witness warm, so that making it secondary copies only what changed.
//!
//! ```text
//!  leader ═══ syncvm ═══▶ secondary ─── in the background ───▶ witness
//!                         (its ledger of what the             (a guest that stands,
//!                          witness lacks)                      and has never run)
//! ```
//!
//! The secondary does it, not the leader, because the secondary leads when the leader is lost. It then knows
//! from its own ledger which pages the warm copy lacks. It also has more time. When the secondary is lost
//! instead, the leader compares hashes with the witness (`copy::stream`): slower than a ledger, much faster
//! than a copy.
//!
//! Keeping warm is best effort and never delays a slot: nothing is sent while this side takes part in a
//! syncvm, nor faster than configured. A page that is written all the time is sent once a sweep.

use super::Secondary;
use crate::api::{Note, Warm};
use crate::context::Context;
use crate::copy::stream::Stream;
use plover_syncvm::message::{Body, CopyPurpose};
use plover_types::{Micros, PAGE_BYTES, PageNo, ReplicaId};

/// From becoming secondary to the first offer: first the new guest catches up.
const DELAY: Micros = Micros::from_ms(500);

/// A target that has not answered is asked again after this: a hypervisor starts in less.
const RETRY: Micros = Micros::from_ms(3_000);

/// A target that has refused is asked again after this.
const REFUSED: Micros = Micros::from_ms(60_000);

/// The same of a new host: a change of the members waits for its copy.
const NEWCOMER_REFUSED: Micros = Micros::from_ms(5_000);

/// A new host whose link has been down for this long since its copy last went on loses its place to another witness.
const NEWCOMER_AWAY: Micros = Micros::from_ms(15_000);

/// From the begin of a sweep to that of the next, at least: a page that is written more often is sent
/// this often.
const SWEEP: Micros = Micros::from_ms(1_000);

/// How often a leader is told that a new host has a whole copy.
pub(crate) const REPORT_EVERY: Micros = Micros::from_ms(500);

/// Chunks under way at most: half a MiB, which the witness writes in a fraction of a millisecond.
const WINDOW_CHUNKS: usize = 4;

/// Comparisons under way at most.
const WINDOW_COMPARISONS: usize = 2;

/// Hashing a page costs this part of sending it.
const HASH_COST_PART: u64 = 8;

/// When each part of the work may go on.
#[derive(Debug)]
pub(crate) struct WarmKeeper {
    /// The next offer.
    next_at: Micros,
    /// The target that refused last, and when it is asked again. Another one is asked at once.
    refused: Option<(ReplicaId, Micros)>,
    /// The next chunk or comparison.
    pace: Micros,
    next_sweep_at: Micros,
    /// The opening that was last reported as warm ([`Note::Warm`]).
    told: u64,
    /// When the leader is told next that a new host has a whole copy.
    report_at: Micros,
}

impl WarmKeeper {
    pub fn new(now: Micros) -> Self {
        Self {
            next_at: now + DELAY,
            refused: None,
            pace: Micros::ZERO,
            next_sweep_at: Micros::ZERO,
            told: 0,
            report_at: Micros::ZERO,
        }
    }

    pub fn refused(&mut self, peer: ReplicaId, is_newcomer: bool, now: Micros) {
        let wait = if is_newcomer {
            NEWCOMER_REFUSED
        } else {
            REFUSED
        };
        self.refused = Some((peer, now + wait));
    }

    /// When `peer` is offered a copy.
    fn offer_at(&self, peer: ReplicaId) -> Micros {
        let refused = self.refused.filter(|(by, _)| *by == peer);
        refused.map_or(self.next_at, |(_, until)| until.max(self.next_at))
    }

    /// Whether the target has had all that it keeps since this opening, and lacks only what has changed since.
    pub fn is_whole(&self, stream: &Stream) -> bool {
        stream.is_open && stream.attempt == self.told
    }

    /// So many bytes were sent.
    pub fn charge(&mut self, now: Micros, bytes: u64, bytes_per_s: u64) {
        self.pace = self.pace.max(now) + Micros(bytes * 1_000_000 / bytes_per_s.max(1));
    }
}

impl Secondary {
    fn keeps_warm(&self, cx: &Context) -> bool {
        cx.config.warm != Warm::Off && cx.group.in_sync.contains(cx.config.me)
    }

    fn is_witness(&self, cx: &Context, peer: ReplicaId) -> bool {
        cx.peers.is_linked(peer) && !cx.group.in_sync.contains(peer)
    }

    /// The witness that is kept warm: the new host that is to join, the last one, or the first there is. Nobody while the link
    /// to the new one is down for a moment: another one would take the place of its copy.
    fn warm_peer(&self, cx: &Context) -> Option<ReplicaId> {
        let kept = cx.peers.copy();
        let newcomers = kept.filter(|stream| cx.newcomer() == Some(stream.peer));
        let is_flapping = |stream: &Stream| {
            !cx.peers.is_linked(stream.peer) && cx.now.since(stream.last_progress) < NEWCOMER_AWAY
        };
        if newcomers.is_some_and(is_flapping) {
            return None;
        }
        let kept = kept.map(|stream| stream.peer);
        let members = cx.group.record.members.all();
        let others = members.iter().filter(|p| *p != cx.config.me);
        let newcomer = cx.newcomer().into_iter();
        newcomer
            .chain(kept)
            .chain(others)
            .find(|p| self.is_witness(cx, *p))
    }

    /// The open copy to the witness that is to be kept warm.
    fn open_copy<'a>(&self, cx: &'a Context) -> Option<&'a Stream> {
        let open = cx.peers.copy().filter(|stream| stream.is_open)?;
        (self.warm_peer(cx) == Some(open.peer)).then_some(open)
    }

    /// Tells the leader that the new host has a whole copy, for which it waits before another one leaves; again and again,
    /// for it may have begun to lead since.
    fn report_copied(&mut self, cx: &mut Context) {
        let (Some(peer), Some(leader)) = (cx.newcomer(), cx.group.leader) else {
            return;
        };
        let open = self.open_copy(cx);
        let is_whole = open.is_some_and(|copy| copy.peer == peer && self.warm.is_whole(copy));
        let keeps_none = cx.config.warm == Warm::Off;
        if (is_whole || keeps_none) && cx.now >= self.warm.report_at {
            self.warm.report_at = cx.now + REPORT_EVERY;
            cx.send_bulk(leader, Body::Copied { peer });
        }
    }

    /// Offers the copy, and goes on with it as time and load allow; not while this side takes part in a
    /// syncvm.
    pub(crate) fn tick_warm(&mut self, cx: &mut Context, in_a_sync: bool) {
        self.report_copied(cx);
        if !self.keeps_warm(cx) {
            return;
        }
        let now = cx.now;
        if let Some(stream) = cx.peers.copy_mut() {
            if stream.awaits() && now.since(stream.last_progress) > RETRY {
                stream.is_open = false;
            }
        }
        if self.open_copy(cx).is_some() {
            return self.pump_warm(cx, in_a_sync);
        }
        let peer = self.warm_peer(cx);
        if let Some(peer) = peer.filter(|peer| now >= self.warm.offer_at(*peer)) {
            self.warm.next_at = now + RETRY;
            cx.open_copy(peer, CopyPurpose::Warm);
        }
    }

    fn pump_warm(&mut self, cx: &mut Context, in_a_sync: bool) {
        let now = cx.now;
        let Some(stream) = cx.peers.copy_mut() else {
            return;
        };
        if in_a_sync || now < self.warm.pace {
            return;
        }
        if stream.is_comparing() {
            let bytes = u64::from(crate::copy::stream::COMPARE_PAGES) * PAGE_BYTES as u64;
            let rate = cx.config.warm_bytes_per_s * HASH_COST_PART;
            self.warm.charge(now, bytes, rate);
            return cx.pump_comparing(WINDOW_COMPARISONS);
        }
        let (peer, attempt) = (stream.peer, stream.attempt);
        let is_warm = stream.was_swept();
        if stream.is_settled() && stream.is_stale() && now >= self.warm.next_sweep_at {
            self.warm.next_sweep_at = now + SWEEP;
            stream.begin_sweep(PageNo(stream.keep_from));
        }
        if is_warm && self.warm.told != attempt {
            self.warm.told = attempt;
            cx.note(Note::Warm { peer });
        }
        cx.pump_copy(WINDOW_CHUNKS);
    }

    pub(crate) fn warm_deadline(&self, cx: &Context, in_a_sync: bool) -> Micros {
        if !self.keeps_warm(cx) {
            return Micros::NEVER;
        }
        let Some(stream) = self.open_copy(cx) else {
            let peer = self.warm_peer(cx);
            return peer.map_or(Micros::NEVER, |peer| self.warm.offer_at(peer));
        };
        let patience = if stream.awaits() {
            stream.last_progress + RETRY + Micros(1)
        } else {
            Micros::NEVER
        };
        let pace = self.warm.pace;
        let work = if in_a_sync {
            // Its end is an event, after which this is asked again.
            Micros::NEVER
        } else if stream.can_compare(WINDOW_COMPARISONS) || stream.can_copy(WINDOW_CHUNKS) {
            pace
        } else if stream.is_settled() && !stream.is_comparing() && stream.is_stale() {
            self.warm.next_sweep_at.max(pace)
        } else {
            Micros::NEVER
        };
        patience.min(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Change;
    use crate::testing::{LEADER, secondary};
    use plover_policy::VSMR;

    /// The fear: each time the link is down for a moment, all that the new host has is compared anew.
    #[test]
    fn a_new_host_keeps_its_copy_while_its_link_flaps() {
        let (old, new) = (ReplicaId(2), ReplicaId(3));
        let mut replica = secondary(VSMR.policy);
        let (secondary, cx) = replica.following().unwrap();
        cx.peers.become_of([LEADER, old, new].into_iter());
        cx.group.record.members.learners.insert(new);
        cx.group.record.change = Some(Change {
            add: Some(new),
            remove: Some(old),
        });
        for peer in [old, new] {
            cx.peers.get_mut(peer).unwrap().is_linked = true;
        }
        assert_eq!(secondary.warm_peer(cx), Some(new));
        cx.open_copy(new, CopyPurpose::Warm);
        cx.peers.get_mut(new).unwrap().is_linked = false;
        assert_eq!(secondary.warm_peer(cx), None);
        cx.now = cx.now + NEWCOMER_AWAY;
        assert_eq!(secondary.warm_peer(cx), Some(old));
    }
}

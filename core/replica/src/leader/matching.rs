//! Release on match: an output leaves as soon as the secondary's guest has itself sent the same
//! (COLO §3; docs/decisions/0011 has why that is sound).
//!
//! ```text
//!  leader                                             secondary
//!  End(sync n, compare) ────────────────────────────▶ apply, run
//!  its guest sends  ─▶ guard, matcher                 its guest sends ─▶ guard
//!                                    ◀──────────────── OutputsReported(n, frames)
//!  a SYN: LeaderSyn(n, its number, clock) ──────────▶ reports its own SYN with these
//!  matcher: both have sent it ─▶ clients
//!  OutputsReleased(n, how many) ────────────────────▶ forgets those
//!  … until they differ, one is late, or the slot is long: sync n + 1
//! ```
//!
//! A *compared slot* lasts from the pause of sync n to the pause of sync n + 1. The leader decides at
//! its begin whether to compare ([`plover_policy::MatchRule`]) and tells the secondary with the end mark.
//! Reports count once sync n is acknowledged: from then on both guests go on from one state, and only
//! frames sent since then are compared. Frames are numbered on both sides, so a lost message is noticed.
//! It ends the comparing; so does a failed sync, a lost secondary or a change of the view.
//!
//! The secondary keeps a reported frame until it hears that clients have it: if the leader dies, the
//! secondary sends it. Clients may then get a frame twice, as on any network. At most a window of bytes is
//! reported and not released, so neither the leader's memory nor the lane fills up.

use super::Leader;
use crate::api::{Config, Note};
use crate::canary::canary;
use crate::context::Context;
use crate::secondary::window;
use apus::Durability;
use plover_guard::Taken;
use plover_matching::{Difference, Matcher};
use plover_policy::{
    MatchRule, MatchView, ReleaseWhen, SlotCost, SlotView, SyncReason, SyncWhen, Verdict,
};
use plover_syncvm::message::Body;
use plover_types::{Frame, Index, Micros, OutputNo, ReplicaId, SyncNo};

/// The secondary is told of this many released frames at once, so that telling costs little.
const DONE_FRAMES: u64 = 64;

/// The slot that is being compared, as the leader sees it.
#[derive(Debug)]
struct Compared {
    /// The sync it began with.
    sync: SyncNo,
    /// The secondary has acknowledged that sync.
    acknowledged: bool,
    verdict: Verdict,
    /// Since when it is known that a sync is needed.
    differs_since: Option<Micros>,
    /// Frames that went out on a match.
    matched: u32,
    /// Frames that the secondary has reported, and how many of them it was told to be released.
    said: u64,
    told: u64,
    told_bytes: usize,
}

/// The leader's side.
#[derive(Debug)]
pub(crate) struct Matching {
    matcher: Matcher,
    releases_on_match: bool,
    slot: Option<Compared>,
    /// How the outputs of the slot before the last cut came out, if they were compared.
    ended: Option<Verdict>,
}

impl Matching {
    pub fn new(config: &Config) -> Self {
        // The secondary keeps within its window; twice that is room for its last frame.
        #[cfg_attr(not(feature = "canary"), allow(unused_mut))]
        let mut matcher = Matcher::new(2 * window(config) + (1 << 16));
        #[cfg(feature = "canary")]
        if config.canary == crate::Canary::IgnoreAcks {
            matcher.ignore_acks();
        }
        Self {
            matcher,
            releases_on_match: config.policy.release == ReleaseWhen::Matched,
            slot: None,
            ended: None,
        }
    }

    /// The guest stands at the cut of a sync: the slot ends, and another begins, in which the secondary's guest
    /// may rest. Returns how many frames of the old one went out on a match.
    pub fn cut(&mut self, sync: SyncNo, rests: bool, rule: &mut MatchRule) -> u32 {
        let ended = self.slot.take();
        self.ended = ended.as_ref().map(|ended| ended.verdict);
        if self.releases_on_match && !rests && rule.compares(self.ended) {
            self.matcher.begin(ended.is_some());
            self.slot = Some(Compared {
                sync,
                acknowledged: false,
                verdict: Verdict::Agrees,
                differs_since: None,
                matched: 0,
                said: 0,
                told: 0,
                told_bytes: 0,
            });
        }
        ended.map_or(0, |ended| ended.matched)
    }

    /// Learns from the cost of the slot before the last cut, its sync included.
    pub fn learn(&self, cost: &SlotCost, rule: &mut MatchRule) {
        if self.releases_on_match {
            rule.learn(self.ended, cost);
        }
    }

    /// The slot that is compared since its sync was acknowledged, and how many frames the secondary has
    /// reported in it.
    pub fn heard(&self) -> Option<(SyncNo, u64)> {
        let slot = self.slot.as_ref().filter(|slot| slot.acknowledged)?;
        Some((slot.sync, slot.said))
    }

    /// Frames of this slot that went out on a match.
    pub fn matched(&self) -> u32 {
        self.slot.as_ref().map_or(0, |slot| slot.matched)
    }

    /// Whether the slot that runs, or is about to, is compared.
    pub fn compares(&self) -> bool {
        self.slot.is_some()
    }

    /// From here on both guests are known to go on from one state.
    pub fn acknowledged(&mut self, sync: SyncNo) {
        if let Some(slot) = self.slot.as_mut().filter(|slot| slot.sync == sync) {
            slot.acknowledged = true;
        }
    }

    /// The outputs of the two sides are not compared any more.
    pub fn stop(&mut self) {
        self.slot = None;
    }

    /// Our guest has sent this.
    pub fn sent(&mut self, no: OutputNo, frame: &Frame) {
        if self.slot.is_some() {
            self.matcher.ours(no, frame);
        }
    }

    /// Our guest has sent what could not be kept.
    pub fn dropped(&mut self) {
        if self.slot.is_some() {
            self.matcher.dropped();
        }
    }
}

impl Leader {
    /// Reports our guest's SYNs to the secondary.
    pub(crate) fn report_syns(&mut self, cx: &mut Context) {
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(sync) = slot.as_ref().map(|slot| slot.sync) else {
            return;
        };
        let syns = matcher.take_syns();
        let peer = self.sync.as_ref().map(|sync| sync.run.peer);
        let Some(peer) = peer.or_else(|| self.secondary(cx)) else {
            return;
        };
        for syn in syns {
            cx.send_bulk(peer, Body::LeaderSyn { sync, syn });
        }
    }

    /// Outputs that the secondary's guest has sent as well are as good as synced: they may go.
    pub(crate) fn clear_what_is_matched(&mut self, cx: &mut Context) {
        self.notice_difference(cx);
        let settled = self.proposed.is_none() && self.secondary(cx).is_some();
        let leads = self.serving && settled;
        let canary = canary!(cx, ReleaseWithoutMatch);
        let Some(slot) = &mut self.matching.slot else {
            return;
        };
        if !leads || !slot.acknowledged {
            return;
        }
        let taken = if canary {
            Taken {
                frames: cx.outputs.guard.release_all(),
                ..Taken::default()
            }
        } else if self.matching.matcher.has_covered() {
            let covered = self.matching.matcher.take_covered();
            cx.outputs.guard.take(&covered)
        } else {
            return;
        };
        if let Some(since) = taken.since {
            let waited = cx.now.since(since.max(self.slot.started));
            cx.rules.matching.matched(waited);
        }
        slot.matched += taken.frames.len() as u32;
        let follows = match cx.config.durability {
            Durability::Disk if !canary!(cx, MatchBeforeCommit) => taken.follows,
            // The secondary's guest was fed committed inputs only.
            _ => Index(0),
        };
        cx.outputs.clear(slot.sync.next(), follows, taken.frames);
    }

    fn notice_difference(&mut self, cx: &mut Context) {
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(slot) = slot.as_mut().filter(|slot| slot.differs_since.is_none()) else {
            return;
        };
        let Some(difference) = matcher.difference() else {
            return;
        };
        slot.differs_since = Some(cx.now);
        slot.verdict = match difference {
            Difference::Syn => Verdict::Opens,
            _ => Verdict::Differs,
        };
        let why = matcher.describe_difference();
        cx.note(Note::OutputsDiffer { why });
    }

    /// Why the slot ends now, if the comparing is what decides it.
    pub(crate) fn compared_slot_ends(
        &mut self,
        cx: &mut Context,
        view: &SlotView,
        found: &MatchView,
    ) -> Option<SyncReason> {
        let reason = cx.rules.matching.ends(&cx.rules.slot, view, found);
        if reason == Some(SyncReason::Unmatched) {
            cx.rules.matching.was_late();
            if let Some(slot) = &mut self.matching.slot {
                slot.verdict = Verdict::Differs;
            }
            let why = self.matching.matcher.describe_waiting();
            let why = why.unwrap_or_else(|| "what is not compared".to_string());
            cx.note(Note::OutputsUnmatched { why });
        }
        reason
    }

    /// When [`Self::compared_slot_ends`] is to be asked again at the latest.
    pub(crate) fn compared_slot_deadline(
        &self,
        cx: &Context,
        view: &SlotView,
        found: &MatchView,
    ) -> Micros {
        let rule = &cx.rules.matching;
        cx.now + rule.ends_within(&cx.rules.slot, view, found)
    }

    /// Whether the guest's idleness decides nothing now: its outputs may yet be matched.
    pub(crate) fn waits_for_a_match(&self, cx: &Context) -> bool {
        let found = self.match_view(cx);
        found.is_some_and(|found| found.differs_for.is_none())
    }

    /// Whether the comparing decides when the slot ends, and what it has found.
    pub(crate) fn match_view(&self, cx: &Context) -> Option<MatchView> {
        if cx.config.policy.sync != SyncWhen::Mismatch {
            return None;
        }
        let slot = self.matching.slot.as_ref()?;
        // A sync that could not be started is tried again after as long as the first.
        let since = |then: Micros| cx.now.since(then.max(self.slot.started));
        Some(MatchView {
            differs_for: slot.differs_since.map(since),
            oldest_waits: cx.outputs.guard.oldest_since().map_or(Micros::ZERO, since),
        })
    }

    /// The secondary's guest has sent these.
    pub(crate) fn on_reported(
        &mut self,
        cx: &mut Context,
        from: ReplicaId,
        sync: SyncNo,
        first: u64,
        frames: &[Frame],
    ) {
        if self.secondary(cx) != Some(from) {
            return;
        }
        let Matching { matcher, slot, .. } = &mut self.matching;
        let current = |slot: &&mut Compared| slot.sync == sync && slot.acknowledged;
        let Some(slot) = slot.as_mut().filter(current) else {
            // Of a slot that has ended, or that this leader does not compare any more.
            return;
        };
        if first != slot.said {
            return matcher.lost();
        }
        slot.said += frames.len() as u64;
        for frame in frames {
            matcher.theirs(frame);
        }
    }

    /// Tells the secondary now and then which frames it need not keep. A frame that is cleared and waits
    /// for the lease is not released yet.
    pub(crate) fn report_released(&mut self, cx: &mut Context) {
        let many = window(&cx.config) / 4;
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(slot) = slot.as_mut().filter(|_| cx.outputs.cleared.is_empty()) else {
            return;
        };
        let (done, bytes) = (matcher.done(), matcher.done_bytes());
        if done - slot.told < DONE_FRAMES && bytes - slot.told_bytes < many {
            return;
        }
        (slot.told, slot.told_bytes) = (done, bytes);
        let (sync, frames) = (slot.sync, done);
        if let Some(peer) = self.secondary(cx) {
            cx.send_bulk(peer, Body::OutputsReleased { sync, frames });
        }
    }
}

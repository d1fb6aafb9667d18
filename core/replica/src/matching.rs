//! Release on match: an output leaves as soon as the secondary's guest has itself sent the same
//! (COLO §3; docs/decisions/0011 has why that is sound).
//!
//! ```text
//!  leader                                             secondary
//!  End(sync n, compare) ────────────────────────────▶ apply, run
//!  its guest sends  ─▶ guard, matcher                 its guest sends ─▶ guard
//!                                              ◀───── Said(n, frames)
//!  a SYN: LeaderSyn(n, its number, clock) ──────────▶ says its own SYN with these
//!  matcher: both have sent it ─▶ clients
//!  Done(n, how many of yours) ──────────────────────▶ forgets those
//!  … until they differ, one is late, or the slot is long: sync n + 1
//! ```
//!
//! *Compared slot*: from the pause of sync n to the pause of sync n + 1. The leader decides at
//! its begin ([`plover_policy::MatchRule`]) and tells with the end mark. What the secondary says
//! counts once sync n is acknowledged: only then do both guests go on from one state, and only
//! what was sent since then is compared. The two sides' frames are numbered, so that a message
//! that was lost is noticed and ends the comparing, as does a failed sync, a lost secondary, a
//! change of the view.
//!
//! The secondary keeps what it has said until it hears that clients have it: if the leader
//! dies, it is the secondary's to send. What clients then get twice they have to bear with, as
//! on any network. It has at most a window of bytes under way, so that neither the leader's
//! memory nor the lane fills up.

use crate::api::{Canary, Config, Note, Role};
use crate::replica::Replica;
use plover_matching::{Difference, LeaderSyn, Matcher};
use plover_policy::{
    MatchRule, MatchView, ReleaseWhen, SlotCost, SlotView, SyncReason, SyncWhen, Verdict,
};
use plover_syncvm::message::Body;
use plover_types::{Frame, Micros, OutputNo, ReplicaId, SyncNo};

/// Bytes that the secondary may have said and not heard to be done. A slot's frames are seldom
/// more; 1 MiB fits the bulk lane's ring 16 times.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes of frames in one message, about.
const MESSAGE_BYTES: usize = 256 << 10;

/// The secondary hears of so many frames at once, so that hearing costs little.
const DONE_FRAMES: u64 = 64;

/// The slot that is being compared, as the leader sees it.
#[derive(Debug)]
struct Compared {
    /// The sync it began with.
    sync: SyncNo,
    /// That sync is acknowledged.
    acknowledged: bool,
    verdict: Verdict,
    /// When it was found that a sync is needed.
    differs_since: Option<Micros>,
    /// Frames that went out on a match.
    matched: u32,
    /// Frames the secondary has said, and how many it was told to be done.
    said: u64,
    told: u64,
    told_bytes: usize,
}

/// The leader's side.
#[derive(Debug)]
pub(crate) struct Matching {
    matcher: Matcher,
    rule: MatchRule,
    releases_on_match: bool,
    slot: Option<Compared>,
    /// How the outputs of the slot before the last cut came out, if they were compared.
    ended: Option<Verdict>,
}

/// The secondary's side: what it says in this slot.
#[derive(Debug)]
pub(crate) struct Saying {
    sync: SyncNo,
    /// The slot's first frame, and the next one to be said.
    first: OutputNo,
    next: OutputNo,
    under_way: usize,
}

fn window(config: &Config) -> usize {
    config.guard_bytes_max.min(WINDOW_BYTES)
}

impl Matching {
    pub fn new(config: &Config) -> Self {
        // The secondary keeps within its window; twice that is room for its last frame.
        let mut matcher = Matcher::new(2 * window(config) + (1 << 16));
        if config.canary == Canary::IgnoreAcks {
            matcher.ignore_acks();
        }
        Self {
            matcher,
            rule: MatchRule::new(config.matching),
            releases_on_match: config.policy.release == ReleaseWhen::Matched,
            slot: None,
            ended: None,
        }
    }

    /// The guest stands at the cut of a sync: the slot ends, and another begins. Returns how
    /// many frames of the old one went out on a match.
    pub fn cut(&mut self, sync: SyncNo) -> u32 {
        let ended = self.slot.take();
        self.ended = ended.as_ref().map(|ended| ended.verdict);
        if self.releases_on_match && self.rule.compares(self.ended) {
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

    /// What the slot before the last cut has cost, its sync included.
    pub fn learn(&mut self, cost: &SlotCost) {
        if self.releases_on_match {
            self.rule.learn(self.ended, cost);
        }
    }

    /// The slot that is compared since its sync was acknowledged, and how much was heard in it.
    pub fn heard(&self) -> Option<(SyncNo, u64)> {
        let slot = self.slot.as_ref().filter(|slot| slot.acknowledged)?;
        Some((slot.sync, slot.said))
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

    /// What the two sides send has nothing to do with each other any more.
    pub fn stop(&mut self) {
        self.slot = None;
    }

    /// Our guest has sent this.
    pub fn sent(&mut self, no: OutputNo, frame: &Frame) {
        if self.slot.is_some() {
            self.matcher.ours(no, frame);
        }
    }
}

impl Saying {
    /// The slot, and how many frames of it were said.
    pub fn said(&self) -> (SyncNo, u64) {
        (self.sync, self.next.0 - self.first.0)
    }
}

impl Replica {
    /// The leader's part ends, and the secondary's.
    pub(crate) fn stop_comparing(&mut self) {
        self.matching.stop();
        self.stop_saying();
    }

    /// What the guest opens from here on, clients know by its own numbers.
    fn stop_saying(&mut self) {
        self.saying = None;
        for frame in self.guest.translator.stop() {
            // One that finds no room is lost, as on any network.
            self.guard.hold(self.now, frame);
        }
    }

    /// Reports our guest's SYNs to the secondary.
    pub(crate) fn tell_syns(&mut self) {
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(sync) = slot.as_ref().map(|slot| slot.sync) else {
            return;
        };
        let syns = matcher.take_syns();
        let peer = self.lead.as_ref().map(|sync| sync.peer);
        let Some(peer) = peer.or_else(|| self.secondary()) else {
            return;
        };
        for syn in syns {
            self.send_bulk(peer, Body::LeaderSyn { sync, syn });
        }
    }

    /// The outputs that the secondary's guest has sent as well are as good as synced.
    pub(crate) fn clear_what_is_matched(&mut self) {
        self.notice_difference();
        let settled = self.pending_in_sync.is_none() && self.secondary().is_some();
        let leads = self.role == Role::Leader && self.serving && settled;
        let canary = self.canary(Canary::ReleaseWithoutMatch);
        let Some(slot) = &mut self.matching.slot else {
            return;
        };
        if !leads || !slot.acknowledged {
            return;
        }
        let frames = if canary {
            self.guard.release_all()
        } else if self.matching.matcher.has_covered() {
            let covered = self.matching.matcher.take_covered();
            let (frames, since) = self.guard.take(&covered);
            if let Some(since) = since {
                let waited = self.now.since(since.max(self.slot_started));
                self.matching.rule.matched(waited);
            }
            frames
        } else {
            return;
        };
        slot.matched += frames.len() as u32;
        if !frames.is_empty() {
            self.cleared.push_back((slot.sync.next(), frames));
        }
    }

    fn notice_difference(&mut self) {
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(slot) = slot.as_mut().filter(|slot| slot.differs_since.is_none()) else {
            return;
        };
        let Some(difference) = matcher.difference() else {
            return;
        };
        slot.differs_since = Some(self.now);
        slot.verdict = match difference {
            Difference::Syn => Verdict::Opens,
            _ => Verdict::Differs,
        };
        let why = matcher.describe_difference();
        self.note(Note::OutputsDiffer { why });
    }

    /// Why the slot ends now, if the comparing is what decides it.
    pub(crate) fn compared_slot_ends(
        &mut self,
        view: &SlotView,
        found: &MatchView,
    ) -> Option<SyncReason> {
        let reason = self.matching.rule.ends(&self.slot_rule, view, found);
        if reason == Some(SyncReason::Unmatched) {
            self.matching.rule.was_late();
            if let Some(slot) = &mut self.matching.slot {
                slot.verdict = Verdict::Differs;
            }
            let why = self.matching.matcher.describe_waiting();
            let why = why.unwrap_or_else(|| "what is not compared".to_string());
            self.note(Note::OutputsUnmatched { why });
        }
        reason
    }

    /// When [`Self::compared_slot_ends`] is to be asked again at the latest.
    pub(crate) fn compared_slot_deadline(&self, view: &SlotView, found: &MatchView) -> Micros {
        let rule = &self.matching.rule;
        self.now + rule.ends_within(&self.slot_rule, view, found)
    }

    /// Whether the guest's idleness decides nothing now: its outputs may yet be matched.
    pub(crate) fn waits_for_a_match(&self) -> bool {
        let found = self.match_view();
        found.is_some_and(|found| found.differs_for.is_none())
    }

    /// Whether the comparing decides when the slot ends, and what it has found.
    pub(crate) fn match_view(&self) -> Option<MatchView> {
        if self.config.policy.sync != SyncWhen::Mismatch {
            return None;
        }
        let slot = self.matching.slot.as_ref()?;
        // A sync that could not be started is tried again after as long as the first.
        let since = |then: Micros| self.now.since(then.max(self.slot_started));
        Some(MatchView {
            differs_for: slot.differs_since.map(since),
            oldest_waits: self.guard.oldest_since().map_or(Micros::ZERO, since),
        })
    }

    /// The secondary's guest has sent these.
    pub(crate) fn on_said(&mut self, from: ReplicaId, sync: SyncNo, first: u64, frames: &[Frame]) {
        if self.secondary() != Some(from) {
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

    /// Tells the secondary what it need not keep, now and then. What is cleared and waits for
    /// the lease is not done.
    pub(crate) fn tell_done(&mut self) {
        let many = window(&self.config) / 4;
        let Matching { matcher, slot, .. } = &mut self.matching;
        let Some(slot) = slot.as_mut().filter(|_| self.cleared.is_empty()) else {
            return;
        };
        let (done, bytes) = (matcher.done(), matcher.done_bytes());
        if done - slot.told < DONE_FRAMES && bytes - slot.told_bytes < many {
            return;
        }
        (slot.told, slot.told_bytes) = (done, bytes);
        let (sync, frames) = (slot.sync, done);
        if let Some(peer) = self.secondary() {
            self.send_bulk(peer, Body::Done { sync, frames });
        }
    }

    // The secondary's side.

    /// The state of this syncvm is in place; what the guest sends from here on is said if the
    /// leader wants to hear it.
    pub(crate) fn begin_saying(&mut self, sync: SyncNo, compare: bool) {
        let first = self.guard.next_no();
        self.saying = compare.then_some(Saying {
            sync,
            first,
            next: first,
            under_way: 0,
        });
    }

    /// Says what the guest has sent and the window allows. Once a frame was dropped, what
    /// follows it cannot be compared.
    pub(crate) fn say(&mut self, dropped: bool) {
        if dropped && self.saying.is_some() {
            self.stop_saying();
        } else if self.role != Role::Secondary {
            self.saying = None;
        }
        let window = window(&self.config);
        let Some(leader) = self.leader else { return };
        while let Some(saying) = &mut self.saying {
            let (mut frames, mut bytes) = (Vec::new(), 0);
            let first = saying.next.0 - saying.first.0;
            for (no, frame) in self.guard.from(saying.next) {
                if saying.under_way >= window || bytes >= MESSAGE_BYTES {
                    break;
                }
                saying.next = OutputNo(no.0 + 1);
                saying.under_way += frame.0.len();
                bytes += frame.0.len();
                frames.push(frame.clone());
            }
            if frames.is_empty() {
                return;
            }
            let sync = saying.sync;
            self.send_bulk(
                leader,
                Body::Said {
                    sync,
                    first,
                    frames,
                },
            );
        }
    }

    /// The leader's guest has opened a connection: what ours has sent on it can be said.
    pub(crate) fn on_leader_syn(&mut self, sync: SyncNo, syn: LeaderSyn) {
        let mut dropped = false;
        for frame in self.guest.translator.on_leader_syn(sync, syn) {
            dropped |= self.guard.hold(self.now, frame).is_none();
        }
        self.say(dropped);
    }

    /// Clients have got what these frames said.
    pub(crate) fn on_done(&mut self, sync: SyncNo, frames: u64) {
        let Some(saying) = self.saying.as_mut().filter(|saying| saying.sync == sync) else {
            return;
        };
        let no = OutputNo(saying.first.0.saturating_add(frames));
        if no > saying.next {
            return self.note(Note::Rejected {
                from: self.leader.unwrap_or(self.config.me),
                why: "more is done than was said".to_string(),
            });
        }
        let bytes = self.guard.forget_before(no);
        saying.under_way = saying.under_way.saturating_sub(bytes);
        self.say(false);
    }
}

//! A leader: it runs the guest, faces clients, and keeps another replica in step.
//!
//! ```text
//!            in-sync set {me} agreed,            joined: first syncvm acknowledged,
//!            guest runs                          in-sync set of both agreed
//!  elected ───────────────────▶ serving, solo ───────────────────────────────▶ protected
//!                                     ▲                                           │
//!                                     └──────── the secondary is lost: {me} ──────┘
//! ```
//!
//! Solo or protected is no state of its own: it follows from the agreed in-sync set and the one proposed.
//! [`slot`] says when a syncvm begins, [`sync`] carries it out, [`matching`] releases outputs between two of
//! them, and [`join`] brings up a new secondary.

mod announcements;
pub(crate) mod clean;
mod inputs;
pub(crate) mod join;
mod late_log;
pub(crate) mod matching;
pub(crate) mod operators;
mod outputs;
pub(crate) mod resets;
mod slot;
pub(crate) mod sync;
#[cfg(test)]
mod tests;

use self::announcements::Announcements;
use self::clean::CleanReplies;
use self::join::LeadJoin;
use self::late_log::LogWaits;
use self::matching::Matching;
use self::resets::Resets;
use self::slot::Slot;
use self::sync::LeadSync;
use crate::api::{Action, Config, Note};
use crate::context::Context;
use crate::guest::{Arrange, Power};
use crate::members::MemberOrder;
use crate::planned::Switchover;
use crate::secondary::warm::REPORT_EVERY;
use apus::EntryKind;
use plover_types::{Frame, Index, Micros, ReplicaId, ReplicaSet, Unconsumed};

/// How long a new leader answers clients before it copies its guest to another replica. Requests have waited during the
/// failover, and the end of the copy pauses the guest for longer than most answers take.
const ANSWERS_FIRST: Micros = Micros::from_ms(20);

/// For how long the word holds that a new host has a whole copy. The secondary repeats it while it is true, and does not
/// say when the copy is lost.
const COPIED_FOR: Micros = Micros(4 * REPORT_EVERY.0);

/// The data that exists only while a replica leads.
#[derive(Debug)]
pub(crate) struct Leader {
    /// Facing clients.
    pub serving: bool,
    /// The in-sync set that was proposed and is not yet seen committed.
    pub proposed: Option<ReplicaSet>,
    /// The entry of the set that was proposed last.
    pub proposed_at: Index,
    /// The newest log entry that holds an input.
    pub last_input_proposed: Index,
    pub slot: Slot,
    /// The running syncvm.
    pub sync: Option<LeadSync>,
    pub matching: Matching,
    pub clean: CleanReplies,
    pub resets: Resets,
    /// The running attempt to bring up a secondary.
    pub join: Option<LeadJoin>,
    pub next_join_at: Micros,
    /// The leader before this one, if it has resigned and its guest stays in step.
    pub partner: Option<ReplicaId>,
    /// A joiner has all, and is to replace the secondary: what this side owes to the two is settled when the log
    /// names the joiner.
    pub settles: bool,
    /// The secondary has acknowledged a sync since the log named it, so its guest runs in step.
    pub is_proven: bool,
    /// So many syncs in a row were given up by the secondary.
    pub given_up: u32,
    /// An operator wants the members changed.
    pub ordered: Option<MemberOrder>,
    /// This secondary has said that that new host has a whole copy, and when it last did.
    copied: Option<(ReplicaId, ReplicaId, Micros)>,
    /// An operator wants another replica to lead.
    pub switchover: Option<Switchover>,
    /// Clients' frames that came in the moment before this leader hands over; the next leader gets them.
    pub kept_frames: Option<Vec<Vec<Frame>>>,
    pub log_waits: LogWaits,
    announcements: Announcements,
}

impl Leader {
    pub fn new(config: &Config, now: Micros) -> Self {
        Self {
            serving: false,
            proposed: None,
            proposed_at: Index(0),
            last_input_proposed: Index(0),
            slot: Slot::new(now),
            sync: None,
            matching: Matching::new(config),
            clean: CleanReplies::new(),
            resets: Resets::default(),
            join: None,
            next_join_at: Micros::ZERO,
            partner: None,
            settles: false,
            is_proven: false,
            given_up: 0,
            ordered: None,
            copied: None,
            switchover: None,
            kept_frames: None,
            log_waits: LogWaits::default(),
            announcements: Announcements::none(),
        }
    }

    /// The peer that runs the guest in step with this leader.
    pub fn secondary(&self, cx: &Context) -> Option<ReplicaId> {
        let (me, set) = (cx.config.me, self.proposed.unwrap_or(cx.group.in_sync));
        set.iter().find(|id| *id != me && set.contains(me))
    }

    /// Whether the agreed in-sync set is this replica alone and no other set is under way.
    pub fn is_solo(&self, cx: &Context) -> bool {
        self.proposed.is_none()
            && cx.group.in_sync.len() == 1
            && cx.group.in_sync.contains(cx.config.me)
    }

    /// Whether the guest would survive the loss of any one replica.
    pub fn is_protected(&self, cx: &Context) -> bool {
        let two = |set: ReplicaSet| set.len() > 1;
        self.serving && two(cx.group.in_sync) && self.proposed.is_none_or(two)
    }

    /// Whether another replica holds the guest and may be handed the lead. Never in a pair (docs/decisions/0018).
    pub fn is_covered(&self, cx: &Context) -> bool {
        let secondary = self.secondary(cx);
        !cx.is_pair()
            && self.proposed.is_none()
            && self.is_protected(cx)
            && secondary.is_some_and(|peer| cx.peers.answers(peer))
    }

    pub fn propose_in_sync(&mut self, cx: &mut Context, set: ReplicaSet) {
        self.proposed = Some(set);
        self.is_proven = false;
        let entry = cx.propose(EntryKind::InSync(set), Vec::new());
        let entry = entry.expect("a leader's log always has room for an in-sync set");
        self.proposed_at = entry.index;
    }

    /// An in-sync set is committed.
    pub fn on_in_sync(&mut self, cx: &mut Context) {
        self.serve_if_ready(cx);
        if self.proposed.is_none() {
            if std::mem::take(&mut self.settles) {
                cx.memory.ledger.settle();
            }
            if let Some(peer) = self.secondary(cx) {
                cx.note(Note::Protected { peer });
            }
        }
    }

    /// Faces clients once the guest runs and the log says that nobody else can take over.
    pub fn serve_if_ready(&mut self, cx: &mut Context) {
        let partner = self.partner.filter(|_| self.proposed.is_none());
        // The log does not rule the partner out, so only the lease says that it does not lead by now.
        let has_lease = cx.now < cx.group.core.lease_until();
        let partner = partner.filter(|peer| has_lease && cx.group.in_sync.contains(*peer));
        let may_serve = self.is_solo(cx) || partner.is_some();
        if !self.serving && may_serve && cx.guest.power == Power::Running {
            self.serving = true;
            // With a partner, what clients wait for is held until the first sync.
            self.slot.is_due = partner.is_some();
            self.next_join_at = cx.now + ANSWERS_FIRST;
            cx.peers.forget_refusals();
            self.slot.started = cx.now;
            cx.out.push(Action::FaceClients(true));
            self.announce(cx);
            let connections = self.resets.serve(cx.now);
            if connections > 0 {
                cx.note(Note::ConnectionsReset { connections });
            }
            let view = cx.group.view;
            cx.note(Note::Serving { view });
        }
    }

    /// Goes on without `peer`: solo, until a new secondary is synced.
    pub fn lose_peer(&mut self, cx: &mut Context, peer: ReplicaId, why: &str) {
        if self.join.as_ref().is_some_and(|j| j.peer == peer) {
            self.fail_join(cx, why);
        }
        if self.secondary(cx) != Some(peer) {
            return;
        }
        if self.sync.as_ref().is_some_and(|s| s.run.peer == peer) {
            self.abort_sync(cx, why);
        }
        self.slot.is_retry = false;
        self.given_up = 0;
        self.settles = false;
        self.partner.take_if(|partner| *partner == peer);
        self.matching.stop();
        cx.stop_translating();
        self.next_join_at = cx.now;
        let me = cx.config.me;
        self.propose_in_sync(cx, ReplicaSet::of([me]));
    }

    /// The link to a peer broke or came up anew: the messages in flight on the bulk lane are lost.
    pub fn on_link(&mut self, cx: &mut Context, peer: ReplicaId) {
        if self.sync.as_ref().is_some_and(|s| s.run.peer == peer) {
            self.abort_sync(cx, "the link to the secondary broke");
        }
        if self.join.as_ref().is_some_and(|j| j.peer == peer) {
            self.fail_join(cx, "the link to the joining replica broke");
        }
        // It may have been started again, without its copy.
        self.copied.take_if(|(_, new, _)| *new == peer);
    }

    /// The secondary `from` has said that the new host `peer` has a whole copy.
    pub fn on_copied(&mut self, cx: &Context, from: ReplicaId, peer: ReplicaId) {
        self.copied = Some((from, peer, cx.now));
    }

    /// Whether the new host `peer` has a whole copy, by what this secondary says.
    pub fn is_copied(&self, cx: &Context, secondary: ReplicaId, peer: ReplicaId) -> bool {
        self.copied.is_some_and(|(from, new, said_at)| {
            (from, new) == (secondary, peer) && cx.now.since(said_at) <= COPIED_FOR
        })
    }

    /// Lets the paused guest run. Cuts among what waits are of older views: nobody carries them out.
    pub fn resume_guest(&mut self, cx: &mut Context, first: Unconsumed) {
        let mut cut = cx.resume_guest(first, Arrange::AsTheyCame);
        while cut.is_some() {
            cut = cx.open_gate(Arrange::AsTheyCame);
        }
    }

    /// Does what is due by time.
    pub fn tick(&mut self, cx: &mut Context) {
        self.tick_members(cx);
        // Before the next sync may begin, for a round of a copy ends between two of them.
        self.tick_join(cx);
        self.tick_slot(cx);
        self.tick_announcements(cx);
        self.tick_resets(cx);
    }

    /// When something of a leader's is due at the latest.
    pub fn deadline(&self, cx: &Context) -> Micros {
        let deadline = self.slot_deadline(cx).min(self.join_deadline(cx));
        let deadline = deadline.min(self.switchover_deadline());
        let deadline = deadline.min(self.operators_deadline(cx));
        let deadline = deadline.min(self.log_deadline(cx));
        let deadline = deadline.min(self.resets_deadline());
        deadline.min(self.announcements_deadline())
    }
}

//! Planned work: an operator moves the lead to another host, or clears a host of its roles.
//!
//! ```text
//!  switchover                   leader 0           secondary 1        witness 2
//!    no sync runs           ──▶ Resigned (the log lane) ──▶ elected
//!                               stays in step ◀── in-sync set {0, 1} (the log): serves, syncs at once
//!                               secondary 0        leader 1           witness 2
//!
//!  drain of a leader            a switchover, then as below
//!  drain of a secondary         the leader copies its guest to the witness while the secondary stays in step,
//!                               and then one entry of the log names the one instead of the other (leader::join)
//! ```
//!
//! So the guest is protected all the time. The old leader's guest stays in step because it was the leader's: it
//! has the same memory at the last sync, but for pages that either side has written since, and those are in the
//! dirty bits and ledgers of the two. The next sync compares them as ever. Outputs of the old leader's guest since
//! then were held and stay held. The new leader's guest has sent the same or something else; clients have seen
//! neither.
//!
//! Why a leader that keeps its predecessor in sync may serve although the in-sync set is not itself alone (rule
//! 4 of the crate): the rule keeps an old leader from serving on. This one has said that it does not lead, and
//! cannot lead that view again. It is a secondary like any other from the moment at which the log names it, and
//! outputs wait for its acknowledgement.
//!
//! | what happens | consequence |
//! |---|---|
//! | the old leader dies in the middle | it is lost as any secondary: the new leader goes on alone, and copies |
//! | the new leader is not elected | the old one stands after a timeout, and leads on, alone until it has copied |
//! | the old leader's guest was lost when the log named it | it says so, and is lost as any secondary |
//! | the secondary is lost before | the switchover is given up, and said so |
//! | no moment without a sync comes, or the secondary answers nothing | the same, after [`WITHIN`] |
//! | an operator asks twice | the second request replaces the first |
//! | secondary and leader are drained at once | the secondary is replaced by the third first, then the lead moves there |
//! | all three are drained, or the third is away | protection comes first: the roles stay, and move when they can |
//!
//! Under a policy whose secondary waits (checkpoints) the old leader cannot stay in step, because its guest has
//! run beyond the checkpoint. There a checkpoint is taken, the lead moves with its acknowledgement, and the guest
//! is copied anew: unprotected until then.

use crate::api::{Action, Note};
use crate::context::Context;
use crate::guest::Power;
use crate::leader::Leader;
use crate::phase::Phase;
use crate::replica::Replica;
use crate::secondary::Secondary;
use plover_syncvm::HashHistory;
use plover_syncvm::message::Body;
use plover_types::{Frame, Micros, ReplicaId, Runs, SyncNo, Viewstamp};

/// How long a switchover may wait for its moment. A sync takes some 10 ms; a disk that hangs takes longer.
const WITHIN: Micros = Micros::from_ms(5_000);

/// After a lead that moved because this host is drained came back: when it is tried again. Each attempt that
/// fails costs the clients a timeout.
const AGAIN_AFTER: Micros = Micros::from_ms(10_000);

/// Why a leader does not hand over, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchoverRefused {
    /// Ask the leader.
    #[error("replica {} does not lead: ask the replica that does", .0.0)]
    NotLeading(ReplicaId),
    /// There is nothing to do.
    #[error("replica {} leads already: there is nothing to do", .0.0)]
    Leads(ReplicaId),
    /// Name another one.
    #[error("replica {} is no member of the group: name one of {}", .0.0, .1)]
    Unknown(ReplicaId, String),
    /// Use what a group of two has.
    #[error(
        "a group of two does not hand over: it has no third replica that decides which of the two leads; stop the \
         replica that leads instead, and its clients wait as they do at a crash"
    )]
    Pair,
    /// Wait for the copy.
    #[error(
        "the guest is not protected: no other replica is in sync; wait until `plover status` says that it is"
    )]
    NotProtected,
    /// Name the secondary.
    #[error(
        "replica {} is not in sync, so it does not hold the guest's state: replica {} does; name that one, or drain it \
         (`plover drain` on its host) so that replica {} takes its place",
        .to.0, .secondary.0, .to.0
    )]
    NotInSync {
        /// The replica that was named.
        to: ReplicaId,
        /// The one that is in sync.
        secondary: ReplicaId,
    },
    /// Look at its host.
    #[error("replica {} does not answer at present: look at its host, or try again", .0.0)]
    Silent(ReplicaId),
    /// Mend its network.
    #[error("clients are not reached from the host of replica {}: mend its TAP or its uplink first", .0.0)]
    CutOff(ReplicaId),
    /// Wait.
    #[error(
        "replica {} is about to leave the group: wait until another one has taken its place in sync, see `plover status`", .0.0
    )]
    Leaving(ReplicaId),
    /// Undrain it.
    #[error("replica {} is drained: run `plover undrain` on its host first", .0.0)]
    Drained(ReplicaId),
}

/// A switchover that waits for its moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switchover {
    to: ReplicaId,
    until: Micros,
    /// The newest syncvm when it was asked for. Checkpoints need a newer one.
    after: SyncNo,
    /// It is wanted because this host is drained, or its replica is about to leave.
    clears: bool,
}

impl Switchover {
    fn begin(cx: &Context, to: ReplicaId, clears: bool) -> Self {
        Self {
            to,
            until: cx.now + WITHIN,
            after: cx.group.sync_no,
            clears,
        }
    }
}

impl Leader {
    /// The replica that would lead next, if an operator wants this leader to hand over to `to` or any.
    fn heir(&self, cx: &Context, to: Option<ReplicaId>) -> Result<ReplicaId, SwitchoverRefused> {
        use SwitchoverRefused::{
            CutOff, Drained, Leads, Leaving, NotInSync, NotProtected, Pair, Silent, Unknown,
        };
        let members = cx.voters();
        if let Some(to) = to {
            if !members.contains(to) {
                return Err(Unknown(to, members.in_words()));
            }
            if to == cx.config.me {
                return Err(Leads(to));
            }
        }
        if cx.is_pair() {
            return Err(Pair);
        }
        let settled = self.serving && self.proposed.is_none() && cx.group.in_sync.len() > 1;
        let secondary = self.secondary(cx).filter(|_| settled);
        let Some(secondary) = secondary else {
            return Err(NotProtected);
        };
        match to {
            Some(to) if to != secondary => Err(NotInSync { to, secondary }),
            _ if !cx.peers.answers(secondary) => Err(Silent(secondary)),
            _ if !cx.peers.reaches_clients(secondary) => Err(CutOff(secondary)),
            _ if cx.peers.is_drained(secondary) => Err(Drained(secondary)),
            _ if cx.leaving() == Some(secondary) => Err(Leaving(secondary)),
            _ => Ok(secondary),
        }
    }

    /// Whether both guests can go on from where they are, with their roles exchanged.
    fn is_between_syncs(&self, cx: &Context) -> bool {
        self.sync.is_none()
            && self.join.is_none()
            && !self.slot.is_retry
            && cx.guest.power == Power::Running
            && cx.memory.ledger.owed().is_empty()
            && cx.outputs.cleared.is_empty()
    }

    /// Whether the moment has come to hand over.
    fn may_switch(&mut self, cx: &Context, after: SyncNo) -> bool {
        // With the next sync no early stream is left, which the next leader would reset.
        if !self.is_proven || self.has_early_streams() {
            self.slot.is_due |= self.sync.is_none();
            return false;
        }
        if !cx.takes_checkpoints() {
            let log = cx.group.core.status();
            let between = self.is_between_syncs(cx);
            let committed = log.commit == log.last.index;
            if between && !committed && self.kept_frames.is_none() {
                // Inputs without a place in the log might be lost with this view.
                self.kept_frames = Some(Vec::new());
            }
            return between && committed;
        }
        // The lead moves with the acknowledgement of a checkpoint that was taken for it.
        let done = self.sync.as_ref().is_none_or(|sync| sync.is_acknowledged());
        if done && cx.group.sync_no > after && !self.slot.is_retry {
            return true;
        }
        self.slot.is_due |= self.sync.is_none();
        false
    }

    /// When a switchover that waits is given up.
    pub(crate) fn switchover_deadline(&self) -> Micros {
        let waits = self.switchover.as_ref();
        waits.map_or(Micros::NEVER, |waits| waits.until)
    }

    /// The secondary is drained, and another replica that is not could take its place.
    pub(crate) fn replaces_secondary(&self, cx: &Context) -> bool {
        let drained = self.secondary(cx).is_some_and(|peer| cx.spares(peer));
        let settled = self.serving && self.proposed.is_none() && cx.group.in_sync.len() > 1;
        let drained_all = cx.spared().0 | cx.group.in_sync.0;
        let left = cx.peers.ready_for_a_copy(cx.now).0 & cx.voters().0 & !drained_all;
        drained && settled && left != 0 && !cx.is_pair()
    }
}

impl Replica {
    /// Why this leader would not hand over to `to`, or to any that can lead; `None` if it would.
    pub fn why_not_switch_over(&self, to: Option<ReplicaId>) -> Option<SwitchoverRefused> {
        match &self.phase {
            Phase::Leader(leader) => leader.heir(&self.cx, to).err(),
            _ => Some(SwitchoverRefused::NotLeading(self.cx.config.me)),
        }
    }

    /// Whether this replica has a role that a drained one should not have.
    pub fn has_a_role_to_lose(&self) -> bool {
        !matches!(self.phase, Phase::Witness { .. } | Phase::Recovering)
    }

    /// An operator wants this leader to hand over.
    pub(crate) fn on_switch_over(&mut self, to: Option<ReplicaId>) {
        let Some((leader, cx)) = self.leading() else {
            return;
        };
        match leader.heir(cx, to) {
            Ok(to) => leader.switchover = Some(Switchover::begin(cx, to, false)),
            Err(refused) => cx.note(Note::SwitchoverFailed {
                why: refused.to_string(),
            }),
        }
    }

    /// An operator drains this host, or lets it have roles again.
    pub(crate) fn on_drain(&mut self, drained: bool) {
        if std::mem::replace(&mut self.cx.drained, drained) != drained {
            self.cx.switch_not_before = Micros::ZERO;
            self.cx.note(Note::Drained { drained });
            self.tell_drained();
        }
    }

    /// Tells the leader whether this host is drained.
    pub(crate) fn tell_drained(&mut self) {
        let cx = &mut self.cx;
        let drained = cx.drained;
        let leader = cx.group.leader.filter(|leader| cx.peers.is_linked(*leader));
        if let Some(leader) = leader {
            cx.send_bulk(leader, Body::Drained { drained });
        }
    }

    /// Hands over when an operator wants it and the moment has come.
    pub(crate) fn watch_planned(&mut self) {
        let Phase::Leader(leader) = &mut self.phase else {
            return;
        };
        let cx = &mut self.cx;
        if leader.partner.is_some() {
            leader.serve_if_ready(cx);
        }
        if let Some(waits) = leader.switchover {
            let why = match leader.heir(cx, Some(waits.to)) {
                _ if waits.clears && !cx.is_clearing() => {
                    Some("this host keeps its roles after all".to_string())
                }
                Err(refused) => Some(refused.to_string()),
                Ok(_) if cx.now >= waits.until => Some(format!(
                    "no sync with replica {} has ended within {} s",
                    waits.to.0,
                    WITHIN.0 / 1_000_000
                )),
                Ok(_) => None,
            };
            if let Some(why) = why {
                leader.switchover = None;
                for kept in leader.kept_frames.take().unwrap_or_default() {
                    leader.on_frames(cx, kept);
                }
                cx.note(Note::SwitchoverFailed { why });
            }
        } else if cx.is_clearing() && cx.now >= cx.switch_not_before {
            if let Ok(to) = leader.heir(cx, None) {
                leader.switchover = Some(Switchover::begin(cx, to, true));
            }
        }
        let Some(waits) = leader.switchover else {
            return;
        };
        if leader.may_switch(cx, waits.after) {
            leader.switchover = None;
            cx.switch_not_before = cx.now + AGAIN_AFTER;
            cx.note(Note::HandedOver { to: waits.to });
            let kept = leader.kept_frames.take();
            cx.switch_over(kept.unwrap_or_default().concat());
        }
    }

    /// The log names this replica beside the one that leads: it has led until now, and its guest stays in step.
    pub(crate) fn stay_in_step(&mut self, at: Viewstamp) {
        let group = &self.cx.group;
        let me = self.cx.config.me;
        let leader = group.leader.filter(|leader| *leader != me);
        let is_named = group.in_sync.contains(me)
            && at.view == group.view
            && leader.is_some_and(|leader| group.in_sync.contains(leader));
        if !is_named {
            return;
        }
        match &self.phase {
            Phase::Deposed => {
                let secondary = Secondary::new(None, self.cx.now);
                self.cx.outputs.cleared.clear();
                // Entries of its own view that the next leader did not have made room for others.
                self.cx.guest.taken = at.index;
                self.cx.memory.hash_history = HashHistory::default();
                self.enter(Phase::Secondary(Box::new(secondary)));
            }
            Phase::Witness { .. } => {
                if let Some(leader) = leader.filter(|leader| self.cx.peers.is_linked(*leader)) {
                    let why = "its guest was lost before it could stay in step".to_string();
                    self.cx.send_bulk(leader, Body::GuestLost { why });
                }
            }
            _ => {}
        }
    }

    /// The leader knows pages that a reset of this side's devices may write.
    pub(crate) fn on_reset_pages(&mut self, runs: &Runs) {
        if let Some(pages) = runs.to_set(self.cx.config.layout.pages()) {
            self.cx.memory.reset_pages.union_with(&pages);
        }
    }
}

impl Context {
    /// The secondary is to lead; this replica's guest stays in step, where the policy allows it.
    fn switch_over(&mut self, kept: Vec<Frame>) {
        self.out.push(Action::SendOn(kept));
        let stays = !self.takes_checkpoints();
        let (now, group) = (self.now, &mut self.group);
        if stays {
            group.core.switch_over(now, &mut group.commands);
        } else {
            group.core.hand_over(now, &mut group.commands);
        }
    }

    /// The leader before this one, if its guest is in step and the log still names both.
    pub(crate) fn partner_in_step(&self) -> Option<ReplicaId> {
        let (me, core) = (self.config.me, &self.group.core);
        let partner = core.predecessor_in_step()?;
        let named = core.status().in_sync;
        let both = named.contains(me) && named.contains(partner) && named.len() == 2;
        let linked = self.peers.is_linked(partner);
        (both && linked && !self.takes_checkpoints()).then_some(partner)
    }

    /// A new leader keeps its predecessor in step.
    pub(crate) fn keep_in_step(&mut self) {
        self.memory.hash_history = HashHistory::default();
        if let Some(stream) = self.peers.copy_mut() {
            stream.is_open = false;
        }
    }

    /// A sync with the predecessor ends, and it has not acknowledged one yet: tells it the pages that its reset
    /// may write.
    pub(crate) fn tell_reset_pages(&mut self, partner: ReplicaId) {
        if !self.config.needs_reset {
            return;
        }
        let mut pages = self.memory.reset_pages.clone();
        pages.union_with(&self.memory.recent_pages);
        let runs = pages.to_runs();
        self.send_bulk(partner, Body::ResetPages { runs });
    }

    /// A follower's host is drained, or not any more.
    pub(crate) fn on_peer_drained(&mut self, from: ReplicaId, drained: bool) {
        if let Some(peer) = self.peers.get_mut(from) {
            peer.is_drained = drained;
        }
    }
}

#[cfg(test)]
mod tests;

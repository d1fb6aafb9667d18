//! The end of a join, as the joiner sees it. The syncvm that it takes for the last one may be one that the leader has
//! given up, and the message that says so may be lost.
//!
//! ```text
//!  leader                         joiner
//!  end mark ────────────────────▶ Ack, load, run: a secondary
//!      ◀──── Ack, in time ───────
//!  in-sync set = both (the log) ▶ agreed
//!
//!  end mark ────────────────────▶ Ack, load, run: a secondary
//!  gives the join up      ✂ Ack
//!  tells it ────────────────────▶ it leaves
//!  goes on with another one ────▶ in-sync set of two others, or a syncvm before any set that names it: it leaves
//! ```

use super::{FollowSync, Stage};
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_types::ReplicaId;

impl Replica {
    /// Whether this joiner has acknowledged the syncvm that ends its join, and only loads it yet. The log may name it in
    /// sync by now, and its leader may be dead: then its guest is the only one.
    pub(crate) fn counts_once_loaded(&self) -> bool {
        let follow = self.follow.as_ref();
        let is_loading = follow.is_some_and(|follow| matches!(follow.stage, Stage::Loading(_)));
        is_loading && self.ends_its_join()
    }

    /// Whether the syncvm that a joiner takes part in ends its join: no second one, for a reset, comes.
    fn ends_its_join(&self) -> bool {
        match &self.phase {
            Phase::Joining { copy } => copy.has_state || !self.cx.config.needs_reset,
            _ => false,
        }
    }

    /// A set of the log is recorded. If it names two others, whatever this replica joins, or has joined and is not named
    /// for yet, is over: the message that said so was lost, or the acknowledgement of the last syncvm came too late.
    pub(crate) fn leave_to_others(&mut self) {
        let in_sync = self.cx.group.in_sync;
        if in_sync.len() < 2 || in_sync.contains(self.cx.config.me) {
            return;
        }
        match &self.phase {
            Phase::Joining { copy } => {
                let (source, attempt) = (copy.source, copy.attempt);
                let why = "the log names two others in sync".to_string();
                self.cx.send_bulk(source, Body::CopyFailed { attempt, why });
                self.leave_join();
            }
            _ => {
                self.leave_if_passed_over();
            }
        }
    }

    /// The leader begins its next syncvm. If this replica has taken its join for complete and no set has named it, the
    /// leader has given the join up. Returns whether that is so; this replica's guest is given up then.
    pub(crate) fn leave_if_passed_over(&mut self) -> bool {
        if self.cx.group.in_sync.contains(self.cx.config.me) {
            return false;
        }
        let follow = self.follow.as_ref();
        let has_all = follow.is_some_and(FollowSync::is_past_the_end_mark);
        match &self.phase {
            Phase::Secondary(secondary) if secondary.joined_by.is_some() => {
                self.drop_guest();
                self.become_witness();
            }
            Phase::Joining { .. } if has_all && self.ends_its_join() => self.leave_join(),
            _ => return false,
        }
        true
    }

    /// The leader has given this attempt up. It does so only while no set that names this replica is proposed, so what
    /// this replica has joined by it is over.
    pub(crate) fn leave_if_ended(&mut self, from: ReplicaId, attempt: u64) {
        let Phase::Secondary(secondary) = &self.phase else {
            return;
        };
        let is_of_leader = self.cx.group.leader == Some(from);
        if is_of_leader && secondary.joined_by == Some(attempt) {
            self.drop_guest();
            self.become_witness();
        }
    }
}

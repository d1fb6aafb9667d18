//! A replica that was cut off and comes back does not depose a healthy leader (pre-vote).
//!
//! Checked at the end of every run, in a group that has recovered: one follower is cut off, in both
//! directions or in one, long enough to look for a leader many times, and then healed. The leader
//! has to lead the same view all the time, and in the end the follower has to follow it.

use super::{Check, demand};
use plover_types::View;

/// `leader` led `view` before the cut; `now` is what is led afterwards, by whom.
pub fn stays(follower: usize, before: (usize, View), now: Option<(usize, View)>) -> Check {
    demand(
        now == Some(before),
        "healthy_leader_stays",
        "Paxos made practical §3",
        || {
            let (leader, view) = before;
            format!("r{leader} led {view}, r{follower} was cut off and healed, now {now:?} leads")
        },
    )
}

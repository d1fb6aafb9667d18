//! A replica that was cut off and comes back does not depose a healthy leader (pre-vote).
//!
//! Checked at the end of every run, in a group that has got well: one follower is cut off, in
//! both directions or in one, long enough to look for a leader many times; then it is healed. The
//! leader must lead the same view from beginning to end, and the follower must follow it.

use super::{Check, demand};
use plover_types::View;

/// `leader` led `view` before the cut; `now` is what is led afterwards, by whom.
pub fn stays(follower: usize, before: (usize, View), now: Option<(usize, View)>) -> Check {
    demand(
        now == Some(before),
        "healthy_leader_stays",
        "Paxos made practical §3; design §6",
        || {
            let (leader, view) = before;
            format!("r{leader} led {view}, r{follower} was cut off and healed, now {now:?} leads")
        },
    )
}

//! Whole groups under simulated time, network, disks and crashes, from one seed.
//!
//! ```text
//!   seed -> scenario -> world:  hosts (clock, disk, process = `apus`)      invariants
//!                               network (loses, doubles, delays, cuts)  ->  after every step
//!                               callers (clients, in-sync set, operator)
//!
//!   time:  start .. faults, work, replacements .. heal .. serves again? .. encore .. end
//! ```
//!
//! * A run depends on nothing but its seed: the same seed gives the same trace.
//! * Faults come at random times, and at fault injection points (`faults`).
//! * After the last fault the group has to recover and serve (`heal`), and a follower that is then
//!   cut off and comes back has to change nothing (the encore).
//! * Each property is a file of [`invariants`], with its section in the papers.
//! * `coverage` counts how often the interesting branches were reached.

mod body;
mod caller;
mod coverage;
mod death;
mod describe;
mod disk;
mod faults;
mod heal;
mod host;
mod inject;
pub mod invariants;
mod net;
mod observe;
mod replace;
mod run;
mod scenario;
mod schedule;
mod world;

pub use coverage::REACHED;
pub(crate) use plover_sim::panics::without_panic;
pub use plover_sim::{Coverage, TraceMode};
pub use world::Options;

use apus::Canary;

/// Bugs that can be put back, by name.
pub const CANARIES: [(&str, Canary); 12] = [
    ("vote-after-amnesia", Canary::VoteAfterAmnesia),
    ("acknowledge-before-disk", Canary::AcknowledgeBeforeDisk),
    ("recover-before-disk", Canary::RecoverBeforeDisk),
    ("first-members-for-ever", Canary::FirstMembersForEver),
    ("old-majority-elects", Canary::OldMajorityElects),
    ("count-old-views", Canary::CountOldViews),
    ("skip-pre-vote", Canary::SkipPreVote),
    ("milestone-not-stored", Canary::MilestoneNotStored),
    ("commit-without-in-sync", Canary::CommitWithoutInSync),
    ("mourn-the-living", Canary::MournTheLiving),
    ("report-before-death", Canary::ReportBeforeDeath),
    ("count-the-timeout", Canary::CountTheTimeout),
];

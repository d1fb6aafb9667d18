//! The invariants, one property a file, each with its section in the papers. The checks observe from
//! outside: a replica's report of itself counts only where the property is about that report.

pub mod acknowledged_survive;
pub mod committed_not_lost;
pub mod deliveries_in_order;
pub mod healthy_leader_stays;
pub mod held_by_a_quorum;
pub mod lease_exclusive;
pub mod logs_agree;
pub mod nobody_is_refused;
pub mod nothing_spins;
pub mod one_leader_a_view;
pub mod progress_after_healing;
pub mod recovered_logs_are_stored;

pub use plover_sim::invariants::{Check, Violation};

/// The check that `holds`, or else what happened.
pub(crate) fn demand(
    holds: bool,
    invariant: &'static str,
    section: &'static str,
    message: impl FnOnce() -> String,
) -> Check {
    if holds {
        return Ok(());
    }
    Err(Violation {
        invariant,
        section,
        message: message(),
    })
}

/// The invariants that remember something.
#[derive(Debug, Default)]
pub struct Invariants {
    /// See the file.
    pub one_leader_a_view: one_leader_a_view::OneLeaderAView,
    /// See the file.
    pub log: logs_agree::ChosenLog,
    /// See the file.
    pub acknowledged: acknowledged_survive::Acknowledged,
}

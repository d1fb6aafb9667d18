//! The policy axes and the slot and idle rules.
//!
//! A [`Policy`] is plain data: five axes (docs/policies.md), each with its choices. A [`Preset`] is a
//! policy with a name. The unreplicated baseline, `none`, is no policy but a group of one.

#![forbid(unsafe_code)]

mod axes;
mod idle;
mod lag;
mod matching;
mod presets;
mod slot;
mod trigger;
mod wait;

pub use axes::{Input, Policy, PolicyError, ReleaseWhen, Secondary, Sent, SyncWhen};
pub use idle::IdleDetector;
pub use matching::{MatchConfig, MatchRule, MatchView, Verdict};
pub use presets::{DEFAULT, HYBRID, PRESETS, Preset, VSMR};
pub use slot::{SlotConfig, SlotCost, SlotRule, SlotView, SyncReason};
pub use wait::WaitRule;

use serde::{Deserialize, Serialize};

/// Whether outputs go out while the leader is solo (an in-sync set of one, after a failure).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnprotectedOutput {
    /// Outputs go out at once: one failure has already been spent (the default).
    #[default]
    Release,
    /// Outputs wait until the guest is protected again.
    Hold,
}

//! The policy axes and the slot and idle rules.
//!
//! A policy is plain data: five axes (design §8), each with its choices. Presets are points in
//! that space. This release implements `vsmr`; `none` is the unreplicated baseline, which is a
//! group of one.

mod idle;
mod slot;
mod wait;

pub use idle::IdleDetector;
pub use slot::{SlotConfig, SlotRule, SlotView, SyncReason};
pub use wait::WaitRule;

use serde::{Deserialize, Serialize};

/// What solo (an in-sync set of one, after a failure) does with outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnprotectedOutput {
    /// Outputs go out at once: one failure has already been spent (the default).
    #[default]
    Release,
    /// Outputs wait until the guest is protected again.
    Hold,
}

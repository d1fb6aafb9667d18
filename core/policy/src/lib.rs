//! The policies, and the rules that decide when a slot ends.
//!
//! A [`Policy`] is plain data: five axes (docs/policies.md), each with its choices. A [`Preset`] is a
//! policy with a name. The unreplicated baseline, `none`, is no policy but a group of one.
//!
//! | rule | decides |
//! |---|---|
//! | [`IdleDetector`] | whether the guest is idle |
//! | [`SlotRule`] | when a slot ends whose outputs wait for the sync |
//! | [`MatchRule`] | which slots are compared, and when a compared one ends |
//! | [`RestRule`] | in which slots the secondary's guest rests |
//! | [`WaitRule`] | how long a sync waits for the secondary to finish its inputs |
//!
//! A slot under `vsmr`, as [`SlotRule`] sees it:
//!
//! ```text
//!   started ──▶ no output waits ──────── quiet_max is over ──────────────────▶ sync
//!                  │ the guest sends                                          ▲ ▲
//!                  ▼                                                          │ │
//!               outputs wait ─────────── the guest is idle, or slot_max ──────┘ │
//!                  │                                                            │
//!                  └──────────────────── the guard is full, or the log half ────┘
//! ```
//!
//! The rules read no clock: a caller says how long a slot has run, and gets the decision.
//!
//! ```
//! use plover_policy::{Preset, SlotConfig, SlotRule, SlotView, SyncReason, SyncWhen};
//! use plover_types::Micros;
//!
//! let vsmr = Preset::find("vsmr").expect("it is a preset");
//! assert_eq!(vsmr.policy.sync, SyncWhen::Idle);
//! assert!(vsmr.policy.check().is_ok());
//!
//! let rule = SlotRule::new(SlotConfig::default());
//! let mut view = SlotView {
//!     age: Micros::from_ms(3),
//!     outputs_held: true,
//!     idle: false,
//!     guard_full: false,
//!     log_half_full: false,
//! };
//! assert_eq!(rule.decide(&view), None, "the guest still works");
//! view.idle = true;
//! assert_eq!(rule.decide(&view), Some(SyncReason::Idle));
//! ```

#![forbid(unsafe_code)]

mod axes;
mod idle;
mod lag;
mod matching;
mod presets;
mod rest;
mod slot;
mod trigger;
mod wait;

pub use axes::{Input, Policy, PolicyError, ReleaseWhen, Secondary, Sent, SyncWhen};
pub use idle::IdleDetector;
pub use matching::{MatchConfig, MatchRule, MatchView, Verdict};
pub use presets::{DEFAULT, HYBRID, PRESETS, Preset, VSMR};
pub use rest::{RestRule, RestView, RestYield};
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

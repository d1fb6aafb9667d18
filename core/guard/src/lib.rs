//! Held outputs: released or discarded, never dropped; and the comparing that lets them go early.
//!
//! Output commit (Strom and Yemini; PLOVER §3.2): what the guest sends must not reach a client
//! before the state behind it is safe on another replica. The guard is where it waits.
//!
//! ```text
//!            collect                seal (the guest is paused)        release
//!  guest ───────────▶ open slot ───────────────────────▶ HeldSlot ───────────▶ clients
//!                       ▲  │                                 │ discard
//!                       │  └── take (the secondary's guest   ├──────────▶ nothing
//!                       │      has sent the same) ▶ clients  │
//!                       └────────── reopen (sync failed) ────┘
//! ```
//!
//! A [`HeldSlot`] is an obligation: dropping one that was neither released nor discarded is a
//! bug that loses a client's answer, so it panics, in release builds too.
//!
//! Which outputs of the open slot may be taken before its sync, because the secondary's guest
//! has itself sent the same, is the [`Matcher`]'s to say (COLO §3.3.2; docs/decisions/0011). What
//! it compares are the numbers that clients know; a guest whose own are others, or whose clocks are, has
//! [`Numbers`] before it, in both directions (docs/decisions/0016).

mod connection;
mod flow;
mod guard;
mod held;
mod matcher;
mod numbers;
mod options;
mod packet;
mod renumber;

pub use guard::{Guard, OutputNo};
pub use held::HeldSlot;
pub use matcher::{Difference, Matcher};
pub use numbers::{Known, Numbers, Opened, Outgoing};
pub use packet::{Route, payload_bytes};

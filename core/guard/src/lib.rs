//! Held outputs: released or discarded, never dropped.
//!
//! Output commit (Strom and Yemini; PLOVER §3.2): what the guest sends must not reach a client
//! before the state behind it is safe on another replica. Until then it waits in the [`Guard`].
//!
//! ```text
//!           hold                seal (the guest is paused)         release
//!  guest ─────────▶ open slot ────────────────────────▶ HeldSlot ───────────▶ clients
//!                    ▲  │                                 │    │ discard
//!                    │  └── take (the secondary's guest   │    └───────────▶ nothing
//!                    │      has sent the same) ▶ clients  │
//!                    └─────────── reopen (sync failed) ───┘
//! ```
//!
//! A [`HeldSlot`] is an obligation: dropping one that was neither released nor discarded would lose
//! a client's answer, so it panics, in release builds too.
//!
//! `core/matching` decides which outputs of the open slot may be taken before its sync.
//!
//! ```
//! use plover_guard::Guard;
//! use plover_types::{Frame, Index, Micros, SyncNo};
//!
//! let mut guard = Guard::new(1 << 20);
//! guard.hold(Micros(1), Index(7), Frame(vec![1; 60]));
//! let held = guard.seal(SyncNo(1));
//! // The secondary has acknowledged sync 1.
//! assert_eq!(guard.release(held).len(), 1);
//! ```

#![forbid(unsafe_code)]

mod guard;
mod held;

pub use guard::{Guard, Taken};
pub use held::HeldSlot;

//! The library that is preloaded into a replicated program, carried as bytes, and the memory that it shares with
//! plover.
//!
//! `preload.c` says what the library does, `shared.h` what it shares. [`Shared`] is the same in Rust, so that the
//! two ends are changed together.
//!
//! ```text
//!   plover                                      the program
//!     │ slot, by_port[p]; connect(127.0.0.1:p)    │
//!     ├──────────────────────────────────────────►│ accept(): finds its slot by p
//!     │             the client's socket, by door  │
//!     │◄─────────────────────────────────────────►│
//!     │                ring: Accept, Bytes, End … │ recv()
//!     │◄──────────────────────────────────────────┤
//!     │ committed, bell                           │
//!     ├──────────────────────────────────────────►│ write()
//! ```
//!
//! A program that plover has not started takes no notice of the library.

mod layout;

pub use layout::{
    Kind, PAYLOAD_BYTES_MAX, REFS_GIVEN_UP, REFS_NOT_ACCEPTED, RING_AT, RING_BYTES, Record,
    SHARED_MAGIC, SHARED_VERSION, SLOT_BITS, SLOT_CLIENT, SLOT_FREE, SLOT_REPLAY, SLOTS, Shared,
    Slot,
};

/// The shared object to preload.
pub const PRELOAD_SO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

/// The environment variable with the numbers of the inherited descriptors: the memory, and the eventfd that wakes
/// plover.
pub const PRELOAD_ENV: &str = "PLOVER_PRELOAD";

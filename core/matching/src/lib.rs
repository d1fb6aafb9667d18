//! Release on match: finds the outputs that both guests have sent, so that they may leave before a
//! sync (COLO §3.3.2; docs/decisions/0011).
//!
//! - [`Matcher`] runs on the leader. It compares the outputs of both guests and says which of the
//!   leader's may go to clients.
//! - [`SequenceTranslator`] runs on the secondary, at its guest's NIC. Two guests that open a TCP
//!   connection choose different initial sequence numbers. Clients know those of the leader's guest, so
//!   the translator replaces the secondary's by these (docs/decisions/0016).
//!
//! A slot of the matcher:
//!
//! ```text
//!                          a difference, a lost message, too much waits
//!   begin (a sync is done) ┌──────────────────────────────────────────┐
//!   ──────▶ comparing ─────┘──▶ waiting for a sync: nothing more of the connection (of any, if
//!             │  ▲                a message was lost) is covered
//!             ▼  │
//!     take_covered: outputs that may go to clients
//! ```
//!
//! ```
//! use plover_matching::Matcher;
//! use plover_types::{Frame, OutputNo};
//!
//! let mut matcher = Matcher::new(1 << 20);
//! matcher.begin(false);
//! let frame = Frame(vec![7; 60]);
//! matcher.ours(OutputNo(0), &frame);
//! assert!(matcher.take_covered().is_empty(), "the secondary's guest has not sent it yet");
//! matcher.theirs(&frame);
//! assert_eq!(matcher.take_covered(), [OutputNo(0)]);
//! ```

#![forbid(unsafe_code)]

mod connection;
mod connections;
mod flow;
mod matcher;
mod side;
mod translation;

pub use matcher::{Difference, Matcher};
pub use translation::{LeaderSyn, Outgoing, SequenceTranslator, Translation};

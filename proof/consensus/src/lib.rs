//! The proof of consensus: the core of `apus`, simulated and model-checked.
//!
//! There are two ways to find a broken promise, because each finds what the other misses:
//!
//! * [`sim`] runs thousands of whole groups with time, disks, a network and an operator, each
//!   repeated exactly by its seed. Runs are long, and cover a small part of all possible ones.
//! * [`model`] visits every state of a small group that a few steps can reach, each step in every
//!   order, without time. It misses nothing within its bound.
//!
//! ```text
//!                      events                       commands
//!   sim or model  ───────────────▶  apus::Apus  ───────────────▶  sim or model
//!   (time, network, disks,          the code that                 (carries them out,
//!    clients, faults)               runs in production             checks every invariant)
//! ```
//!
//! ```
//! use plover_consensus_proof::sim::Options;
//! use plover_sim::Simulation;
//!
//! let outcome = Options::default().run(7);
//! assert_eq!(outcome.violation, None);
//! ```

pub mod model;
pub mod sim;

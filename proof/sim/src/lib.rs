//! Deterministic simulation of whole groups: the real brain (`plover-replica` with consensus,
//! guard, policy and syncvm) in a world made up from one seed.
//!
//! ```text
//!            seed
//!             │ draws
//!             ▼
//!   scenario ──▶ world ── one happening after the other, by simulated time
//!                 │
//!    ┌────────────┼───────────────┬──────────────┬─────────────┐
//!  clients ──▶ process ×3 ◀──▶ network        faults       invariants
//!             brain, clock,    sessions,    at random, or    watch from
//!             hypervisor,      lanes,       in wait for a    outside
//!             guest, disk      cuts         moment
//! ```
//!
//! * The brain is the code that runs in production, with the same order of events and actions
//!   (`body`); everything around it is simulated.
//! * A run depends on nothing but its seed: [`Simulation::run`] of the same seed gives the same trace.
//! * In some seeds guests reboot, power off and crash, and an operator starts those that are off.
//! * In some an operator pauses, resets and reboots the guest.
//! * Faults come for some seconds, then all of them end, and the group must recover.
//! * Each property is a file of [`invariants`].
//! * In groups of two (`pair`) either links hold, and all properties must hold; or links fail, two
//!   may lead at once, and once healed there must be one leader again that serves.
//!
//! ```
//! use plover_sim::{Options, Simulation};
//!
//! let outcome = Options::default().run(7);
//! assert_eq!(outcome.violation, None);
//! assert!(outcome.coverage.of("healed") > 0);
//! ```
//!
//! # What is not simulated
//!
//! * A process that is stopped *between* the brain's decision and the act: a `Release` that was
//!   decided under a valid lease and carried out long after it. No user-space program can rule
//!   this out. For a moment two replicas may then send as the guest, but no client's state is lost.
//! * Time that computing takes: a turn takes no time, hashing and copying included.
//! * Bytes that change under way or on disk (the fabric's checksums and the storage have tests
//!   of their own), and replicas that lie.

mod alone;
mod areas;
pub mod clean;
pub mod clients;
pub mod clock;
pub mod copy;
mod coverage;
mod death;
pub mod disk;
pub mod expect;
pub mod faults;
mod fencing;
pub mod guest;
pub mod history;
pub mod hypervisor;
pub mod invariants;
pub mod net;
pub mod panics;
pub mod plots;
pub mod process;
pub mod replace;
mod request;
pub mod rng;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod seeds;
pub mod spoken;
pub mod timetable;
pub mod trace;
pub mod typist;
mod upgrade;
pub mod world;

mod body;
mod describe;
mod heal;
mod life;
mod listener;
mod observe;
mod orders;
mod pair;
mod planned;
mod streams;
mod strike;
mod work;

pub use coverage::Coverage;
pub use plover_replica::Canary;
pub use seeds::{Outcome, Simulation};
pub use trace::TraceMode;
pub use world::Options;

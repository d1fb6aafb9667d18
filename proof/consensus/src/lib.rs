//! The proof of consensus: the core of `apus`, simulated and model-checked.
//!
//! Two ways to look for a broken promise, because each sees what the other misses:
//!
//! * [`sim`]: thousands of long random lives of whole groups, with time, disks, a network and
//!   an operator, each repeated exactly by its seed. It reaches deep, and everywhere a little.
//! * [`model`]: every state of a small group that a few steps can reach, each step in every order,
//!   without time. It misses nothing within its bound.
//!
//! Both drive the very code that runs in production: it does no I/O and reads no clock.

pub mod model;
pub mod sim;

//! The body of a replica of an unmodified program: it turns commits, sockets and finished work into events for
//! the brain (`plover-program`), and carries out the brain's actions.
//!
//! ```text
//!            clients ──► listener ─► entries ─► Server (consensus, fabric, store)
//!               ▲                                   │ committed
//!               │ replies, on the leader            ▼
//!            Body ◄── Replica::apply ──► connections on 127.0.0.1 ──► the program, a child of this process
//!               │
//!               └── jobs in threads of their own: archive, unpack, fetch
//! ```
//!
//! One thread owns everything but the jobs. It is the thread that starts the program, which the kernel kills
//! with it.
//!
//! How this body knows that a program has read its input: it asks the kernel (`sock_diag`) how much of it waits
//! in the program's socket ([`unread`]).

mod body;
mod clients;
mod config;
mod control;
mod direct;
mod face;
mod files;
mod jobs;
mod orphans;
mod program;
mod sockets;
mod unread;

pub use body::{Stop, run};
pub use config::{Check, ProgramConfig, RunConfig, Via, Wait};
pub use control::ask;

/// An error that ends the replica, as a sentence.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

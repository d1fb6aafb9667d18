//! A replicated log of its own: consensus over any fabric, with proposers near and far.
//!
//! ```text
//!   Client (thread) ──┐                                ┌── Remote (process) ── plover log append
//!   Server::append ───┤                                ├── remote::tail
//!                     ▼                                ▼
//!   ┌─ Server: one thread's loop ──────────────────────────────────────────────┐
//!   │ proposals ─► apus ─► commands ─► fabric, disk ─► committed ─► StateMachine│──► answers
//!   └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`Server`] owns a consensus core (`apus`), a fabric (`tcp`, `shm`, or a mix) and a
//! [`StateMachine`], to which every replica applies the same entries in the same order. Only the
//! leader appends; the others say who leads.
//!
//! * **Proposers** in the same process use a [`Client`] each, or drive the server's turns
//!   themselves ([`Server::append`]): then one proposer pays for no hand-over between threads.
//!   Those in other processes use [`Remote`], which follows the leader and repeats without doing
//!   twice: its session and number are in the log, and every replica remembers the last answer.
//! * **What a turn gathers goes together**: entries of all proposers in one message, all messages
//!   in one system call, all entries in one sync.
//! * **Nothing grows without bound.** The log has a size; when it is full proposals wait, then
//!   their proposers do. The leader keeps the newest [`Config::retain_bytes`] of what is committed
//!   and trims the rest; a replica that comes later than that is handed the state over.
//! * **What survives**: in memory, the loss of any minority at a time ([`Server::in_memory`], and
//!   with less to ask after a restart [`Server::in_directory`]); on disk, the end of all of them.
//! * **The group can change** while it runs: a replica goes, another learns the log, then votes
//!   ([`wire::MemberChange`]; `plover log member`).
//! * **Outputs are compared** between replicas, through the log (APUS §3,
//!   [`Server::output_verdicts`]).
//!
//! # A counter in three threads, over shared memory
//!
//! ```
//! use plover_fabric::{ShmConfig, ShmFabric};
//! use plover_log::{Config, Server, StateMachine};
//! use plover_types::{ReplicaId, ReplicaSet, Viewstamp};
//! use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
//! # use std::time::Duration;
//! # const PATIENCE: Duration = Duration::from_secs(60);
//! # #[derive(Default)]
//! # struct Counter(u64);
//! # impl StateMachine for Counter {
//! #     fn apply(&mut self, _: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
//! #         self.0 += u64::from(entry[0]);
//! #         answer.extend(self.0.to_le_bytes());
//! #     }
//! #     fn snapshot(&self, out: &mut Vec<u8>) { out.extend(self.0.to_le_bytes()) }
//! #     fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
//! #         let bytes = snapshot.unwrap_or(&[0; 8]).try_into();
//! #         self.0 = u64::from_le_bytes(bytes.map_err(|_| "not eight bytes")?);
//! #         Ok(())
//! #     }
//! # }
//! # let group = format!("doctest-{}", std::process::id());
//! # let group = &group;
//!
//! let ids = [0, 1, 2].map(ReplicaId);
//! let finished = AtomicU8::new(0);
//! let replica = |me| {
//!     let others = ids.into_iter().filter(|id| *id != me).collect();
//!     let fabric = ShmFabric::new(ShmConfig::new(group, me, others)).unwrap();
//!     let config = Config::new(me, ReplicaSet::of(ids));
//!     let mut server = Server::in_memory(config, fabric, Counter::default()).unwrap();
//!     if me == ids[0] {
//!         server.wait_until_leading(PATIENCE).unwrap();
//!         (0..10).for_each(|_| drop(server.append(&[1], PATIENCE).unwrap().unwrap()));
//!     }
//!     assert!(server.turn_until(PATIENCE, |server| server.machine().0 == 10).unwrap());
//!     finished.fetch_add(1, SeqCst);
//!     server.turn_until(PATIENCE, |_| finished.load(SeqCst) == 3).unwrap()
//! };
//! std::thread::scope(|threads| ids.map(|me| drop(threads.spawn(move || replica(me)))));
//! # assert_eq!(finished.load(SeqCst), 3);
//! ```
//!
//! `examples/counter.rs` is the same in three processes, over TCP.

mod act;
mod address;
mod client;
mod config;
mod door;
mod envelope;
mod error;
mod handover;
mod inline;
mod machine;
mod mail;
mod members;
mod nap;
mod outputs;
mod pending;
mod questions;
pub mod remote;
mod replicated;
mod serve;
mod server;
mod stable;
pub mod wire;

pub use address::Address;
pub use apus::{Durability, Phase};
pub use client::{Client, Completion, Ticket};
pub use config::Config;
pub use envelope::SessionRequest;
pub use error::{Error, ServerError};
pub use machine::{LogOnly, StateMachine};
pub use outputs::{Divergence, Verdict};
pub use plover_store::Counters;
pub use remote::{Remote, RemoteError};
pub use server::{Server, Stopper};

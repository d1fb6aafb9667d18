//! A replicated log: consensus over any fabric, with proposers in this process and in others.
//!
//! ```text
//!   Server::append (this thread) ──┐                 ┌── Remote (other threads and processes)
//!                                  ▼                 ▼
//!   ┌─ Server: one thread's loop ──────────────────────────────────────────────┐
//!   │ proposals ─► apus ─► commands ─► fabric, disk ─► committed ─► StateMachine│──► answers
//!   └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`Server`] owns a consensus core (`apus`), a fabric (`tcp`, `shm`, or a mix) and a
//! [`StateMachine`]. Every replica applies the same entries to it in the same order. Only the
//! leader appends; the others name the leader.
//!
//! A server is in one of these states ([`Server::status`]); `apus` draws the transitions in full:
//!
//! ```text
//!   start ─► Recovering ─► Following ──── silence of the leader ───► Electing ─► Leading
//!                            ▲  └─ asks for a state that the             │           │
//!                            │     log continues, if it is far behind    │           │
//!                            └───────────── another replica leads ◄──────┴───────────┘
//! ```
//!
//! * **Proposers.** The thread that owns the server can append by itself ([`Server::append`]); then
//!   no thread hands anything over. All others, in this process or elsewhere, use a [`Remote`] each
//!   over TCP or a unix socket. It follows the leader and repeats requests without doing them
//!   twice: the log holds its session and number, and every replica remembers the last answer.
//! * **Batches.** Entries of all proposers go in one message, all messages of a turn in one system
//!   call, all entries in one sync.
//! * **Bounds.** The log has a size; when it is full, proposals wait. The leader keeps the newest
//!   [`Config::retain_bytes`] of the committed entries and trims the rest. A replica that is further
//!   behind gets the state of another one.
//! * **Durability.** In memory, the log survives the loss of a minority at a time
//!   ([`Server::in_memory`]). With a promise on disk ([`Server::in_directory`]), a restarted replica
//!   needs only the leader to recover. With the log on disk, it survives the end of all replicas.
//! * **Members.** The group can change while it runs: a replica is removed, another learns the log,
//!   then votes ([`wire::MemberChange`]; `plover log member`).
//! * **Output check.** Replicas compare hashes of their answers through the log (APUS §3,
//!   [`Config::check_outputs`]).
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
//!
//! #[derive(Default)]
//! struct Counter(u64);
//! impl StateMachine for Counter {
//!     fn apply(&mut self, _: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
//!         self.0 += u64::from(entry[0]);
//!         answer.extend(self.0.to_le_bytes());
//!     }
//!     fn snapshot(&self, out: &mut Vec<u8>) { out.extend(self.0.to_le_bytes()) }
//!     fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
//!         let bytes = snapshot.unwrap_or(&[0; 8]).try_into();
//!         self.0 = u64::from_le_bytes(bytes.map_err(|_| "not eight bytes")?);
//!         Ok(())
//!     }
//! }
//! # let group = format!("doctest-{}", std::process::id());
//! # let group = &group;
//!
//! let ids = [0, 1, 2].map(ReplicaId);
//! let finished = AtomicU8::new(0);
//! let replica = |me| {
//!     let others = ids.into_iter().filter(|id| *id != me).collect();
//!     let fabric = Box::new(ShmFabric::new(ShmConfig::new(group, me, others)).unwrap());
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

mod act;
mod address;
mod append;
mod clients;
mod config;
mod connection;
mod embedded;
mod envelope;
mod error;
mod framed;
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod link;
mod lobby;
mod machine;
mod mail;
mod members;
mod outputs;
mod pending;
mod questions;
pub mod remote;
mod replicated;
mod serve;
mod server;
mod sleep;
mod stable;
pub mod wire;

pub use address::Address;
pub use append::{Completion, Ticket};
pub use apus::{Durability, Phase};
pub use config::Config;
pub use error::{Error, ServerError};
pub use machine::{LogOnly, StateMachine};
pub use outputs::{Divergence, Verdict};
pub use plover_store::Counters;
pub use remote::{Remote, RemoteError};
pub use server::{Server, Stopper};

//! A replicated register over real processes, checked for linearizability.
//!
//! ```text
//!   clients ──read, write──► replicas (processes) ◄── SIGKILL, SIGSTOP, cut links, restarts
//!      │                                                          ▲
//!      └─► history of every key ─► stateright's tester            └── faults, from one seed
//! ```
//!
//! A history says when each operation began and when it was answered, as the clients saw it. It is
//! linearizable if every operation can be given one moment between the two so that each read
//! returns what was last written. An operation that was never answered may have happened at any
//! later time, or not at all; its client goes on under another name.
//!
//! * `registers` is the state machine, `replica` the process that runs it.
//! * `cluster` starts, kills, stops and cuts off replicas, and waits until they are back.
//! * `clients` read and write, and record the `history`; `check` cuts it and `search` explains it. `./x chaos` uses both for the
//!   clients of a protected guest.
//!
//! ```
//! use plover_register_proof::check::Judge;
//! use plover_register_proof::history::{Action, Answer, Operation};
//!
//! let operation = |client, from, action, answer| Operation {
//!     client,
//!     key: 1,
//!     action,
//!     invoked_us: from,
//!     answer: Some((from + 5, answer)),
//! };
//! let write = operation(1, 10, Action::Write(7), Answer::Done);
//! let read = |found| operation(2, 20, Action::Read, Answer::Found(found));
//! assert!(Judge::whole(&[write, read(Some(7))]).is_ok());
//! assert!(Judge::whole(&[write, read(None)]).is_err());
//! ```

pub mod check;
pub mod clients;
pub mod cluster;
mod cut;
pub mod history;
pub mod registers;
pub mod replica;
pub mod run;
mod search;

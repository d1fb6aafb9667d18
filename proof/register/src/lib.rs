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
//! * `clients` read and write, and record the history; `check` checks it.
//!
//! The check is exponential in the worst case, so clients move on to another key every few
//! operations. A history of a key has some dozens of them, and each key is checked alone, which is
//! as strong (linearizability is local).
//!
//! ```
//! use plover_register_proof::check::{Event, is_linearizable};
//!
//! let write = [(1, Event::Write(7)), (1, Event::Written)];
//! assert!(is_linearizable(&[&write[..], &[(2, Event::Read), (2, Event::Found(7))]].concat()));
//! assert!(!is_linearizable(&[&write[..], &[(2, Event::Read), (2, Event::Found(0))]].concat()));
//! ```

pub mod check;
pub mod clients;
pub mod cluster;
pub mod registers;
pub mod replica;
pub mod run;

//! The consensus log on stable storage: segmented, checksummed, one sync for many entries.
//!
//! # The problem
//!
//! With `durability = "disk"` a replica may acknowledge an entry only when the entry would survive a
//! power failure, and a sync costs a hundred times what the message did. So:
//!
//! * **Group commit.** Requests queue. A thread writes all that wait and syncs once; requests that
//!   come meanwhile are the next batch ([`Store::submit`]). A caller with nothing else to do can
//!   sync in its own thread ([`Store::sync`]).
//! * **Only data to sync.** Segments have their full size, filled with zeros, before they are used.
//!   `fdatasync` then has no metadata to write.
//! * **Every record is checked.** A record has a CRC32C, the number of its segment's present use, and
//!   the place of its batch. They tell a torn tail, which is cut off, from damage, after which the
//!   replica has *forgotten* and recovers from the others.
//! * **A failed sync is the end.** The kernel may drop what it could not write and report success
//!   the next time. So nothing is acknowledged after a failure ([`Completion::Failed`]).
//!
//! # A replica's directory
//!
//! ```text
//!   lock                    held by the process that uses the directory
//!   state                   the promise and the group's name, two copies of each of the last two
//!   log.000000a7d1c03f52 …  segments: Begin, records, End | rest of an earlier use
//!   recycled, unfinished    files that become segments
//!   damaged                 the last segment that was found damaged, for inspection
//! ```
//!
//! # What a restart finds
//!
//! ```text
//!   nothing             ──▶ Fresh
//!   log whole           ──▶ Restarted with the log: a full member at once
//!   last batch torn     ──▶ the same; the batch had not been acknowledged
//!   earlier record bad  ──▶ forgotten, with the Damage; recovers before it votes
//!   run in memory mode  ──▶ forgotten likewise: the log on disk would be out of date
//!   promise unreadable  ──▶ an error that says what to do: this replica must not vote
//! ```
//!
//! A replica that has forgotten stays so over any number of restarts, until the consensus core
//! persists a state that is not amnesiac ([`apus::DurableState`]).
//!
//! # An example
//!
//! ```
//! # use apus::{Durability, DurableState, Entry, EntryKind};
//! # use plover_types::{Index, ReplicaId, View, Viewstamp};
//! # let dir = tempfile::tempdir().unwrap();
//! use plover_store::{Completion, Options, Store};
//!
//! let options = Options::new("group", Durability::Disk);
//! let (mut store, found) = Store::open(dir.path(), &options).unwrap();
//! assert!(found.promise.is_none());
//!
//! let view = View::new(1, ReplicaId(0));
//! let viewstamp = Viewstamp { view, index: Index(1) };
//! let entry = Entry { viewstamp, kind: EntryKind::App, payload: b"hello".to_vec() };
//! store.persist_state(DurableState { promised: view, ..Default::default() });
//! store.persist_entries(Viewstamp::default(), None, &[entry]);
//! store.sync(); // or submit(), and wait for wait_fd()
//!
//! let mut done = Vec::new();
//! store.completions(&mut done);
//! assert!(matches!(done[0], Completion::StatePersisted(state) if state.promised == view));
//! assert!(matches!(done[1], Completion::EntriesPersisted(v) if v == viewstamp));
//! ```

mod directory;
mod engine;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod lock;
mod open;
mod outline;
mod queue;
mod record;
mod recover;
mod replay;
mod segment;
mod state;
mod store;
mod writer;

#[cfg(test)]
mod tests;

pub use engine::Counters;
pub use error::{Damage, SegmentNumber, StoreError, advice};
pub use open::{Options, Recovered};
pub use record::Base;
pub use store::{Completion, Store};

//! Unmodified server programs under `plover run` on three hosts: clients write, replicas fail, and every acknowledged
//! write is read back.
//!
//! ```text
//!   subjects   a program each: how it is started, its checkpoints, its real client
//!   group      three hosts in namespaces, a replica of the program on each
//!   load       writers of keys of their own; clients that write and read the same keys
//!   trial      faults one after the other, and then the audit
//! ```
//!
//! Clients connect to one address, and again when their connection is lost. A write whose answer did not come may
//! have been executed or not, and proves nothing; its key is never used again.

pub mod group;
mod load;
mod report;
pub mod subject;
mod subjects;
mod tool;
mod trial;

pub use report::{Gap, Report};
pub use subject::{ALL, Client, Subject, Wrong, named};
pub use trial::{Fault, Plan, Role, run};

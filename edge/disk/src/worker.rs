//! The threads that wait for the disk, so that the loop does not.
//!
//! One works on blocks: it reads, hashes and writes what a syncvm or a copy asks for, in the order
//! asked. Another makes durable what was written: it can take as long as the disk takes for all that
//! a guest has written, and hashes must not wait for that. What they owe each other is in the gate
//! (`Inner`): nothing is staged or settled before what was to be written before it is written.

use crate::Batch;
use crate::disks::{Blocks, Inner};
use plover_types::SyncNo;
use std::sync::Weak;
use std::sync::mpsc::Receiver;

/// What happened to the disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A syncvm's blocks are durable ([`crate::Disks::stage`]).
    Staged(SyncNo),
    /// Work on blocks is done ([`crate::Attachment::begin`]).
    Worked,
    /// So much was written since the last scan that a syncvm is due.
    ManyWritten,
    /// The disk failed; the guest's state on it is lost here.
    Failed(String),
}

/// What the thread is to do. Orders of a guest that has been given up are left undone.
pub(crate) enum Job {
    Stage {
        life: u64,
        sync: SyncNo,
        /// Makes its batch, for which it may have to read.
        make: Make,
    },
    Settle {
        life: u64,
    },
    /// Write behind, so that the sync that somebody waits for has little left to do.
    Flush,
}

/// See [`crate::Disks::stage_with`].
pub(crate) type Make = Box<dyn FnOnce() -> Batch + Send>;

/// Work on blocks of one guest's disks.
pub(crate) struct Work {
    pub(crate) blocks: Blocks,
    pub(crate) work: Box<dyn FnOnce(&Blocks) + Send>,
    pub(crate) writes: bool,
}

/// A thread of the disks that panics leaves work half done, which nobody could go on with: the host
/// counts as lost then.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Works on blocks.
pub(crate) fn work(orders: &Receiver<Work>) {
    let _abort = AbortOnPanic;
    while let Ok(order) = orders.recv() {
        (order.work)(&order.blocks);
        order.blocks.worked(order.writes);
    }
}

/// Makes durable what was written. It keeps no files open of disks that nobody has any more.
pub(crate) fn run(disks: &Weak<Inner>, jobs: &Receiver<Job>) {
    let _abort = AbortOnPanic;
    while let Ok(job) = jobs.recv() {
        let Some(inner) = disks.upgrade() else { return };
        let done = match job {
            Job::Stage { life, sync, make } => inner.stage_now(life, sync, make).map(|()| {
                if inner.is_alive(life) {
                    inner.tell(DiskEvent::Staged(sync));
                }
            }),
            Job::Settle { life } => inner.settle_now(life),
            Job::Flush => inner.sync_images(),
        };
        if let Err(error) = done {
            let why = error.to_string();
            inner.note_failure(&why);
            inner.tell(DiskEvent::Failed(why));
        }
    }
}

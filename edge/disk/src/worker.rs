//! Two threads that wait for the disk, so that the loop does not.
//!
//! One works on blocks: it reads, hashes and writes them for syncvms and copies, in the order of the calls.
//! The other makes writes durable. That can take long, and hashes must not wait for it. The gate in
//! `Inner` orders the two: nothing is staged or settled before earlier writes are done.

use crate::Batch;
use crate::disks::{Blocks, Inner};
use plover_types::SyncNo;
use std::sync::Weak;
use std::sync::mpsc::Receiver;

/// An event of the disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A syncvm's blocks are durable ([`crate::Disks::stage`]).
    Staged(SyncNo),
    /// The disks are attached, or cannot be ([`crate::Disks::take_attachment`]).
    Attached,
    /// Work on blocks is done ([`crate::Attachment::begin`]).
    Worked,
    /// The guest has written enough since the last scan that a syncvm is due.
    ManyWritten,
    /// The disk failed; the guest's state on it is lost here.
    Failed(String),
}

/// A job for the thread that makes writes durable. Jobs of a guest that is gone are skipped.
pub(crate) enum Job {
    Stage {
        life: u64,
        sync: SyncNo,
        /// Makes its batch; it may have to read blocks for that.
        make: Make,
    },
    Settle {
        life: u64,
    },
    /// Flush ahead of time, so that a later flush that something waits for takes less.
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

/// In a thread that a replica cannot do without. Its panic leaves work half done and cannot be recovered: it ends the process,
/// and the host counts as lost.
#[derive(Debug)]
pub struct AbortOnPanic;

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
        order.blocks.inner.worked(order.writes);
    }
}

/// Makes writes durable. Ends, and keeps no files open, once the disks are dropped.
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

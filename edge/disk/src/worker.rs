//! The thread that waits for the disk, so that the loop does not.

use crate::Batch;
use crate::disks::Inner;
use plover_types::SyncNo;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// What happened to the disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// A syncvm's blocks are durable ([`crate::Disks::stage`]).
    Staged(SyncNo),
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
        batch: Batch,
    },
    Settle {
        life: u64,
    },
    /// Write behind, so that the sync that somebody waits for has little left to do.
    Flush,
}

pub(crate) fn run(inner: &Arc<Inner>, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let done = match &job {
            Job::Stage { life, sync, batch } => inner.stage_now(*life, *sync, batch),
            Job::Settle { life } => inner.settle_now(*life),
            Job::Flush => inner.sync_images(),
        };
        match (done, job) {
            (Ok(()), Job::Stage { life, sync, .. }) if inner.is_alive(life) => {
                inner.tell(DiskEvent::Staged(sync));
            }
            (Ok(()), _) => {}
            (Err(error), _) => {
                let why = error.to_string();
                inner.note_failure(&why);
                inner.tell(DiskEvent::Failed(why));
            }
        }
    }
}

//! The disks, attached to one guest.

use super::blocks::Blocks;
use super::inner::Inner;
use crate::health::lock;
use crate::image::Image;
use crate::snapshot::{Snapshot, SnapshotRoom};
use crate::worker::{DiskEvent, Work};
use plover_types::{BlockNo, PageLayout, PageSet};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// The disks, attached to one guest: connections for its QEMU, and the blocks. Dropping it means that the
/// guest is gone: its open requests are dropped.
pub struct Attachment {
    pub(super) inner: Arc<Inner>,
    pub(super) blocks: Blocks,
    pub(super) works: Sender<Work>,
    pub(super) ours: Vec<UnixStream>,
    pub(super) theirs: Vec<OwnedFd>,
    pub(super) found: bool,
}

impl Attachment {
    /// Blocks of all writable disks.
    pub fn blocks(&self) -> u32 {
        self.inner.blocks
    }

    /// Whether there was a file beside the disks when they were attached ([`crate::Disks::begin_attach`]).
    pub fn found(&self) -> bool {
        self.found
    }

    /// Of each disk that the guest only reads, a mark of what it holds: hosts whose files differ have different ones.
    pub fn marks(&self) -> impl Iterator<Item = Option<u64>> {
        self.inner.images.iter().map(|image| image.mark)
    }

    /// QEMU's ends of the NBD connections, in the order of the configuration.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.theirs.iter().map(AsFd::as_fd)
    }

    /// QEMU has inherited its ends: closes ours, so that we notice when QEMU ends.
    pub fn close_connections(&mut self) {
        self.theirs.clear();
    }

    /// Whether no request of the guest is under way.
    pub fn is_idle(&self) -> bool {
        let is_empty = |end: &UnixStream| rustix::io::ioctl_fionread(end).is_ok_and(|it| it == 0);
        self.inner.busy.load(Ordering::Acquire) == 0
            && self.ours.iter().all(is_empty)
            && lock(&self.inner.more_ends).iter().all(is_empty)
    }

    /// Adds the blocks that the guest has written since the last scan to `set`, as pages.
    pub fn scan(&self, layout: PageLayout, set: &mut PageSet) {
        self.inner.many_told.store(false, Ordering::Release);
        for (first, image) in &self.inner.regions {
            let base = layout.page_of(BlockNo(*first));
            self.inner.images[*image].written.take(base, set);
        }
    }

    /// The blocks, for a caller that can wait for the disk.
    pub fn direct(&self) -> &Blocks {
        &self.blocks
    }

    /// Does `work` on the blocks, on a thread, in the order of the calls. [`DiskEvent::Worked`] follows
    /// when it is done. If the guest is gone by then, the work runs without effect.
    pub fn begin(&self, work: impl FnOnce(&Blocks) + Send + 'static) {
        self.send(Box::new(work), false);
    }

    /// [`Attachment::begin`] of work that writes. Until it is done the guest's requests wait, and nothing is
    /// staged or settled.
    pub fn begin_writing(&self, work: impl FnOnce(&Blocks) + Send + 'static) {
        self.inner.shut(|gate| gate.unwritten += 1);
        self.send(Box::new(work), true);
    }

    fn send(&self, work: Box<dyn FnOnce(&Blocks) + Send>, writes: bool) {
        let blocks = self.blocks.clone();
        let order = Work {
            blocks,
            work,
            writes,
        };
        if self.works.send(order).is_err() {
            self.inner
                .tell(DiskEvent::Failed("its thread has ended".into()));
        }
    }

    /// Takes a snapshot of all writable disks, after the work that was begun before, and hands it to `taken`. The
    /// guest's requests wait until it is taken, which reads and writes no block and makes no file.
    pub fn snapshot(
        &self,
        room: SnapshotRoom,
        taken: impl FnOnce(Result<Snapshot, String>) + Send + 'static,
    ) {
        self.begin_writing(move |blocks| taken(Snapshot::take(blocks, room)));
    }

    /// The present sizes of the disks, in bytes, in the order of the configuration; 0 for one that may not grow.
    pub fn sizes(&self) -> Vec<u64> {
        let size = |image: &Image| if image.may_grow { image.bytes() } else { 0 };
        self.inner.images.iter().map(size).collect()
    }

    /// Whether the sizes of the disks may change, so that they are a part of the guest's state.
    pub fn may_grow(&self) -> bool {
        self.inner.images.iter().any(|image| image.may_grow)
    }

    /// Gives a disk another size, durably, after the work that was begun before, and hands QEMU's end of a new connection
    /// to it to `done`. The guest's requests wait until then. The connection that QEMU has goes on, with the size that it
    /// began with.
    pub fn resize(
        &self,
        disk: usize,
        bytes: u64,
        done: impl FnOnce(Result<OwnedFd, String>) + Send + 'static,
    ) {
        self.begin_writing(move |blocks| {
            let resized = blocks.inner.resize(blocks.life, disk, bytes);
            done(resized);
        });
    }

    /// Waits until all begun work is written; for tests and checksums.
    pub fn wait_until_written(&self) {
        self.inner.wait_until_written(self.blocks.life);
    }

    /// The first failure, if there is one: this guest's disks cannot be used any more.
    pub fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // One whose start was given up may come to its end when another guest has the disks.
        let more = match self.inner.end_this_guest(self.blocks.life) {
            // Those of disks that were resized, too.
            true => lock(&self.inner.more_ends).drain(..).collect::<Vec<_>>(),
            false => Vec::new(),
        };
        for end in self.ours.iter().chain(&more) {
            // Wakes the server's thread, which may be waiting for a request.
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

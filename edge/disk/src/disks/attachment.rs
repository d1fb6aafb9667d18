//! What one guest has of the disks.

use super::blocks::Blocks;
use super::inner::Inner;
use crate::worker::{DiskEvent, Work};
use plover_types::{BlockNo, PageLayout, PageSet};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// The disks as one guest has them: connections for its hypervisor, and the blocks beside guest
/// RAM. When it is dropped the guest is no more: what it still wanted is left undone.
pub struct Attachment {
    pub(super) inner: Arc<Inner>,
    pub(super) blocks: Blocks,
    pub(super) works: Sender<Work>,
    pub(super) ours: Vec<UnixStream>,
    pub(super) theirs: Vec<OwnedFd>,
}

impl Attachment {
    /// Blocks of all writable disks.
    pub fn blocks(&self) -> u32 {
        self.inner.blocks
    }

    /// The hypervisor's ends, in the order of the configuration; speaking NBD.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.theirs.iter().map(AsFd::as_fd)
    }

    /// The hypervisor has inherited its ends: that it goes is seen from now on.
    pub fn close_connections(&mut self) {
        self.theirs.clear();
    }

    /// Whether nothing is under way between the guest and its disks.
    pub fn is_idle(&self) -> bool {
        self.inner.busy.load(Ordering::Acquire) == 0
            && self
                .ours
                .iter()
                .all(|end| rustix::io::ioctl_fionread(end).is_ok_and(|bytes| bytes == 0))
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

    /// Does `work` on the blocks, on a thread of its own: what was asked for before comes first, and
    /// [`DiskEvent::Worked`] tells that it is done. It is done too, to no effect, when the guest is no
    /// more by then.
    pub fn begin(&self, work: impl FnOnce(&Blocks) + Send + 'static) {
        self.send(Box::new(work), false);
    }

    /// [`Attachment::begin`] of work that writes. Until it is done the guest reads and writes nothing,
    /// and nothing is staged or settled.
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

    /// Waits until what was begun is written; for tests, which want to look at it.
    pub fn wait_until_written(&self) {
        self.inner.wait_until_written(self.blocks.life);
    }

    /// What went wrong, if anything: this guest's disks are not to be used any longer.
    pub fn failure(&self) -> Option<String> {
        self.inner.failure()
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.inner.end_life();
        for end in &self.ours {
            // Wakes the server's thread, which may be waiting for a request.
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

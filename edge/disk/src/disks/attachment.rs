//! What one guest has of the disks.

use super::COPY_FLUSH_BLOCKS;
use super::inner::{Inner, cannot};
use crate::worker::Job;
use crate::{BLOCK_BYTES, BlockNo};
use plover_types::PageSet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// The disks as one guest has them: connections for its hypervisor, and the blocks beside guest
/// RAM. When it is dropped the guest is no more: what it still wanted is left undone.
pub struct Attachment {
    pub(super) inner: Arc<Inner>,
    pub(super) jobs: Sender<Job>,
    /// Blocks written since the last order to write them out.
    pub(super) copied: u32,
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

    /// Adds the blocks that the guest has written since the last scan to `set`, the first block of
    /// all as member `base`.
    pub fn scan(&self, base: u32, set: &mut PageSet) {
        self.inner.many_told.store(false, Ordering::Release);
        for (first, image) in &self.inner.regions {
            self.inner.images[*image].written.take(base + first, set);
        }
    }

    /// Copies a block out. Zeroes if that fails, which [`Attachment::take_failure`] tells.
    pub fn read(&self, block: BlockNo, to: &mut [u8]) {
        let (image, offset) = self.inner.place(block);
        if let Err(error) = image.read(offset, to) {
            to.fill(0);
            self.inner.note_failure(&cannot("read", image, &error));
        }
    }

    /// Copies a block in, on behalf of the leader's guest: not noted as written.
    pub fn write(&mut self, block: BlockNo, from: &[u8]) {
        assert_eq!(from.len(), BLOCK_BYTES, "a block is copied whole");
        let (image, offset) = self.inner.place(block);
        // Holes stay holes: a full copy of a disk is mostly zeroes.
        let zero = from.iter().all(|byte| *byte == 0);
        let written = if zero {
            image.write_zeroes(offset, BLOCK_BYTES as u64, true)
        } else {
            image.write(offset, from)
        };
        if let Err(error) = written {
            self.inner.note_failure(&cannot("write", image, &error));
        }
        self.copied += 1;
        if self.copied == COPY_FLUSH_BLOCKS {
            self.copied = 0;
            // A worker that is gone has told so.
            let _ = self.jobs.send(Job::Flush);
        }
    }

    /// The first block at or after `block` that may hold something other than zeroes, or the number
    /// of blocks.
    pub fn first_data(&self, block: BlockNo) -> u32 {
        let found = self.inner.regions.iter().find_map(|(first, image)| {
            let image = &self.inner.images[*image];
            let start = image.first_data(block.0.saturating_sub(*first));
            (start < image.blocks()).then_some(first + start)
        });
        found.unwrap_or(self.inner.blocks)
    }

    /// The first run of blocks at or after `block` that may hold something other than zeroes; `None`
    /// if all the rest is holes.
    pub fn next_data(&self, block: BlockNo) -> Option<(u32, u32)> {
        self.inner.regions.iter().find_map(|(first, image)| {
            let image = &self.inner.images[*image];
            let from = block.0.saturating_sub(*first);
            let (start, end) = image.next_data(from)?;
            Some((first + start, first + end))
        })
    }

    /// What went wrong since the last call: this guest's disks are not to be used any longer.
    pub fn take_failure(&self) -> Option<String> {
        self.inner.take_failure()
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

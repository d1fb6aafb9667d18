//! The blocks of one guest's disks, for callers that can wait for the disk.

use super::inner::{Inner, cannot};
use super::{COPY_FLUSH_BLOCKS, Job};
use plover_types::{BlockNo, DISK_BLOCK_BYTES};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};

/// The blocks as one guest has them. Once that guest is gone they read as zeroes, and writes are
/// ignored.
#[derive(Clone)]
pub struct Blocks {
    pub(crate) inner: Arc<Inner>,
    pub(super) jobs: Sender<Job>,
    pub(crate) life: u64,
}

impl Blocks {
    /// Copies a block out. If that fails, `to` is zero and [`crate::Attachment::failure`] says why.
    pub fn read(&self, block: BlockNo, to: &mut [u8]) {
        let (image, offset) = self.inner.place(block);
        if !self.inner.is_alive(self.life) {
            return to.fill(0);
        }
        std::thread::sleep(image.delay);
        if let Err(error) = image.read(offset, to) {
            to.fill(0);
            self.failed(&cannot("read", image, &error));
        }
    }

    /// Copies a block of the leader's guest in. It is not noted as written.
    pub fn write(&self, block: BlockNo, from: &[u8]) {
        assert_eq!(from.len(), DISK_BLOCK_BYTES, "a block is copied whole");
        let inner = &self.inner;
        let (image, offset) = inner.place(block);
        std::thread::sleep(image.delay);
        let _changing = inner
            .changing
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !inner.is_alive(self.life) {
            return;
        }
        // Holes stay holes: a full copy of a disk is mostly zeroes.
        let zero = from.iter().all(|byte| *byte == 0);
        let written = if zero {
            image.write_zeroes(offset, DISK_BLOCK_BYTES as u64, true)
        } else {
            image.write(offset, from)
        };
        if let Err(error) = written {
            self.failed(&cannot("write", image, &error));
        }
        let copied = inner.copied.fetch_add(1, Ordering::Relaxed) + 1;
        if copied % COPY_FLUSH_BLOCKS == 0 {
            // A worker that is gone has reported it.
            let _ = self.jobs.send(Job::Flush);
        }
    }

    /// The first block at or after `block` that may not be zero, or the number of blocks.
    pub fn first_data(&self, block: BlockNo) -> u32 {
        let found = self.inner.regions.iter().find_map(|(first, image)| {
            let image = &self.inner.images[*image];
            let start = image.first_data(block.0.saturating_sub(*first));
            (start < image.blocks()).then_some(first + start)
        });
        found.unwrap_or(self.inner.blocks)
    }

    /// The first run of blocks at or after `block` that may not be zero; `None` if there is none.
    pub fn next_data(&self, block: BlockNo) -> Option<(u32, u32)> {
        self.inner.regions.iter().find_map(|(first, image)| {
            let image = &self.inner.images[*image];
            let from = block.0.saturating_sub(*first);
            let (start, end) = image.next_data(from)?;
            Some((first + start, first + end))
        })
    }

    fn failed(&self, why: &str) {
        if self.inner.is_alive(self.life) {
            self.inner.note_failure(why);
        }
    }
}

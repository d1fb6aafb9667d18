//! The opened files of all disks, and who may change them when.

use super::DiskSpec;
use crate::error::{DiskError, advice};
use crate::health::Health;
use crate::image::Image;
use crate::journal::{Batch, Journal};
use crate::worker::DiskEvent;
use plover_types::{BlockNo, DISK_BLOCK_BYTES, SyncNo};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

pub(crate) struct Inner {
    pub(super) images: Vec<Image>,
    /// The writable images and the number of each one's first block.
    pub(super) regions: Vec<(u32, usize)>,
    pub(super) blocks: u32,
    pub(super) journal: Mutex<Journal>,
    /// What the journal says, for those who must not wait for it.
    pub(super) whole: AtomicBool,
    /// What the guest's requests wait for.
    gate: Mutex<Gate>,
    opened: Condvar,
    /// Counts the guests that these disks were given to; the servers of older ones change nothing.
    pub(super) life: AtomicU64,
    /// Held by servers while they change an image.
    pub(super) changing: RwLock<()>,
    pub(super) busy: AtomicU32,
    /// Blocks written on behalf of another replica's guest.
    pub(super) copied: AtomicU32,
    pub(super) many_told: AtomicBool,
    /// What this guest's disks failed with.
    pub(super) failure: Mutex<Option<String>>,
    pub(super) health: Arc<Health>,
}

/// What has been begun and is not done.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Syncvms that are staged and not settled: the guest may write while there is none. There are
    /// two while one is staged and the one before it is being settled.
    pub(super) unsettled: u32,
    /// Work that writes blocks: the guest may read while there is none.
    pub(super) unwritten: u32,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has left nothing half-changed behind these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn cannot(what: &str, image: &Image, error: &io::Error) -> String {
    format!(
        "cannot {what} the disk image {}: {error}; {}",
        image.path().display(),
        advice(error)
    )
}

impl Inner {
    /// Opens the images and the journal, and carries on what a crash has cut short.
    pub(super) fn open(
        specs: &[DiskSpec],
        journal: &Path,
        health: &Arc<Health>,
    ) -> Result<Self, DiskError> {
        let used_before = journal.exists();
        let images: Vec<Image> = specs
            .iter()
            .map(|spec| Image::open(spec, used_before))
            .collect::<Result<_, _>>()?;
        let mut regions = Vec::new();
        let mut blocks = 0u32;
        for (i, image) in images.iter().enumerate().filter(|(_, i)| !i.read_only) {
            regions.push((blocks, i));
            // Half of what can be numbered: guest RAM is counted with them.
            blocks = blocks
                .checked_add(image.blocks())
                .filter(|blocks| *blocks <= 1 << 31)
                .ok_or_else(|| DiskError::TooLarge(images.iter().map(Image::bytes).sum()))?;
        }
        let mut journal = Journal::open(journal, blocks)?;
        if used_before && images.iter().any(|image| image.made) {
            // What was there is gone, and an empty disk is not what the journal speaks of.
            journal.begin_copy()?;
        }
        let inner = Self {
            images,
            regions,
            blocks,
            whole: AtomicBool::new(journal.is_whole()),
            journal: Mutex::new(journal),
            gate: Mutex::default(),
            opened: Condvar::new(),
            life: AtomicU64::new(0),
            changing: RwLock::new(()),
            busy: AtomicU32::new(0),
            copied: AtomicU32::new(0),
            many_told: AtomicBool::new(false),
            failure: Mutex::new(None),
            health: Arc::clone(health),
        };
        inner.recover()?;
        Ok(inner)
    }

    /// The image that `block` is in, and the byte where it begins. Asserts that there is one.
    pub(super) fn place(&self, block: BlockNo) -> (&Image, u64) {
        assert!(
            block.0 < self.blocks,
            "block {} outside disks of {} blocks",
            block.0,
            self.blocks
        );
        let after = self.regions.partition_point(|(first, _)| *first <= block.0);
        let (first, image) = self.regions[after - 1];
        let offset = u64::from(block.0 - first) * DISK_BLOCK_BYTES as u64;
        (&self.images[image], offset)
    }

    pub(crate) fn sync_images(&self) -> Result<(), DiskError> {
        for (_, image) in &self.regions {
            let image = &self.images[*image];
            image
                .sync()
                .map_err(|error| DiskError::Failed(cannot("write", image, &error)))?;
        }
        Ok(())
    }

    /// Carries on a syncvm that is in the journal and perhaps not whole in the images.
    pub(super) fn recover(&self) -> Result<(), DiskError> {
        let mut journal = lock(&self.journal);
        if let Some(batch) = journal.pending()? {
            tracing::info!(sync = %journal.sync(), "the disks are brought to the journal's syncvm");
            for (block, content) in batch.iter() {
                let (image, offset) = self.place(block);
                image
                    .write(offset, content)
                    .map_err(|error| DiskError::Failed(cannot("write", image, &error)))?;
            }
            self.sync_images()?;
            journal.retire()?;
        }
        self.shut(|gate| gate.unsettled = 0);
        Ok(())
    }

    pub(crate) fn stage_now(
        &self,
        life: u64,
        sync: SyncNo,
        make: impl FnOnce() -> Batch,
    ) -> Result<(), DiskError> {
        self.wait_until_written(life);
        let batch = make();
        let mut journal = lock(&self.journal);
        if !self.is_alive(life) {
            return Ok(());
        }
        self.check_failure()?;
        self.sync_images()?;
        if !batch.is_empty() || !journal.is_whole() {
            journal.stage(sync, &batch)?;
            self.whole.store(true, Ordering::Release);
        }
        self.health.mend();
        Ok(())
    }

    pub(crate) fn settle_now(&self, life: u64) -> Result<(), DiskError> {
        self.wait_until_written(life);
        let mut journal = lock(&self.journal);
        if !self.is_alive(life) {
            return Ok(());
        }
        // A block that could not be written is in the journal only.
        self.check_failure()?;
        self.sync_images()?;
        journal.retire()?;
        self.shut(|gate| gate.unsettled -= 1);
        Ok(())
    }

    /// The guest that these disks were given to is no more; returns the number of the next. Its
    /// servers change nothing from here on.
    pub(super) fn end_life(&self) -> u64 {
        let life = self.life.fetch_add(1, Ordering::AcqRel) + 1;
        self.shut(|_| ());
        // Waits for the change that is being made, if one is.
        drop(
            self.changing
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        );
        life
    }

    /// Changes what the guest's requests wait for, and wakes those that wait.
    pub(super) fn shut(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut lock(&self.gate));
        self.opened.notify_all();
    }

    /// Waits until `may` holds, or the guest is no more.
    pub(super) fn wait_for(&self, life: u64, may: impl Fn(&Gate) -> bool) {
        let mut gate = lock(&self.gate);
        while !may(&gate) && self.is_alive(life) {
            let opened = self.opened.wait(gate);
            gate = opened.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn wait_until_written(&self, life: u64) {
        self.wait_for(life, |gate| gate.unwritten == 0);
    }

    /// Whether nothing that was begun is still to be written.
    pub(super) fn is_written(&self) -> bool {
        lock(&self.gate).unwritten == 0
    }

    /// Work on blocks is done.
    pub(super) fn worked(&self, wrote: bool) {
        if wrote {
            self.shut(|gate| gate.unwritten -= 1);
        }
        self.tell(DiskEvent::Worked);
    }

    pub(crate) fn is_alive(&self, life: u64) -> bool {
        self.life.load(Ordering::Acquire) == life
    }

    pub(crate) fn note_failure(&self, why: &str) {
        let mut failure = lock(&self.failure);
        if failure.is_none() {
            tracing::error!(%why, "the guest's disks");
            *failure = Some(why.to_owned());
        }
        self.health.fail(why);
    }

    /// What went wrong since the disks were given to this guest.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    pub(super) fn forget_failure(&self) {
        *lock(&self.failure) = None;
    }

    fn check_failure(&self) -> Result<(), DiskError> {
        self.failure()
            .map_or(Ok(()), |why| Err(DiskError::Failed(why)))
    }

    pub(crate) fn tell(&self, event: DiskEvent) {
        self.health.tell(event);
    }

    pub(super) fn written(&self) -> u32 {
        let images = self.regions.iter().map(|(_, image)| &self.images[*image]);
        images.map(|image| image.written.count()).sum()
    }
}

//! The opened files of all disks, and when they may be changed.

use super::{DiskSpec, Purpose};
use crate::calls::Calls;
use crate::error::{DiskError, advice, io_error};
use crate::health::{Health, lock};
use crate::image::Image;
use crate::journal::{Batch, Journal};
use crate::worker::DiskEvent;
use plover_types::{BlockNo, DISK_BLOCK_BYTES, SyncNo};
use rustix::fd::OwnedFd;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, TryLockError};

pub(crate) struct Inner {
    pub(crate) images: Vec<Image>,
    /// The writable images, each with the number of its first block.
    pub(crate) regions: Vec<(u32, usize)>,
    pub(super) blocks: u32,
    pub(super) journal: Mutex<Journal>,
    /// The calls that wait for the journal's file, and its path.
    journal_calls: (Arc<Calls>, PathBuf),
    /// Whether the journal says that the images are whole; readable without its lock.
    pub(super) whole: AtomicBool,
    /// Unfinished work that the guest's requests wait for.
    gate: Mutex<Gate>,
    opened: Condvar,
    /// The number of the guest that has the disks. Servers of older guests change nothing.
    pub(super) life: AtomicU64,
    /// Held by servers while they change an image.
    pub(super) changing: RwLock<()>,
    pub(super) busy: AtomicU32,
    /// Blocks written for syncvms and copies.
    pub(super) copied: AtomicU32,
    pub(super) many_told: AtomicBool,
    /// The first failure since this guest has the disks.
    pub(super) failure: Mutex<Option<String>>,
    pub(super) health: Arc<Health>,
    /// Our ends of the connections to disks that were resized since this guest has the disks.
    pub(super) more_ends: Mutex<Vec<UnixStream>>,
}

/// Unfinished work.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Syncvms that are staged and not settled; the guest's writes wait for them. There are two while one
    /// is staged and the one before is being settled.
    pub(super) unsettled: u32,
    /// Jobs that write blocks; the guest's reads and writes wait for them.
    pub(super) unwritten: u32,
}

pub(crate) fn cannot(what: &str, image: &Image, error: &io::Error) -> String {
    format!(
        "cannot {what} the disk image {}: {error}; {}",
        image.path().display(),
        advice(error)
    )
}

impl Inner {
    /// Opens the images and the journal. [`Inner::recover`] follows, which may take long.
    pub(super) fn open(
        specs: &[DiskSpec],
        journal: &Path,
        health: &Arc<Health>,
        purpose: Purpose,
    ) -> Result<Self, DiskError> {
        let used_before = journal
            .try_exists()
            .map_err(io_error("cannot look for the disk journal", journal))?
            .then_some(journal);
        let images: Vec<Image> = specs
            .iter()
            .map(|spec| Image::open(spec, used_before, purpose))
            .collect::<Result<_, _>>()?;
        let mut regions = Vec::new();
        let mut blocks = 0u32;
        for (i, image) in images.iter().enumerate().filter(|(_, i)| !i.read_only) {
            regions.push((blocks, i));
            // Half of the page numbers, because guest RAM is numbered with them.
            blocks = blocks
                .checked_add(image.blocks())
                .filter(|blocks| *blocks <= 1 << 31)
                .ok_or_else(|| DiskError::TooLarge(images.iter().map(Image::bytes).sum()))?;
        }
        let path = journal.to_path_buf();
        let journal = Journal::open(journal, blocks)?;
        Ok(Self {
            images,
            regions,
            blocks,
            whole: AtomicBool::new(journal.is_whole()),
            journal_calls: (journal.calls(), path),
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
            more_ends: Mutex::default(),
        })
    }

    /// The image of `block`, and the byte where the block begins. Asserts that there is one.
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

    /// Completes a syncvm that is in the journal and may not be whole in the images.
    pub(super) fn recover(&self) -> Result<(), DiskError> {
        let mut journal = lock(&self.journal);
        if let Some(batch) = journal.pending()? {
            tracing::info!(event = "disks_brought_forward", sync = %journal.sync(), "the disks are brought to the journal's syncvm");
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

    /// Gives a disk another size, and serves it on a new connection. Returns QEMU's end.
    pub(super) fn resize(
        self: &Arc<Self>,
        life: u64,
        disk: usize,
        bytes: u64,
    ) -> Result<OwnedFd, String> {
        if !self.is_alive(life) {
            return Err("this replica's guest was lost at this moment".into());
        }
        let image = &self.images[disk];
        if image.bytes() != bytes {
            image.resize(bytes).map_err(|error| {
                let why = cannot("resize", image, &error);
                if image.is_broken() {
                    self.note_failure(&why);
                }
                why
            })?;
        }
        let (ours, theirs) = super::server::start(self, disk, life)
            .map_err(|error| cannot("serve", image, &error))?;
        lock(&self.more_ends).push(ours);
        Ok(theirs)
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
        // A block that could not be written is only in the journal.
        self.check_failure()?;
        self.sync_images()?;
        journal.retire()?;
        self.shut(|gate| gate.unsettled -= 1);
        Ok(())
    }

    /// The guest that had the disks is gone: its servers begin no change from here on. Returns the number
    /// of the next guest, which may have the disks once they are at rest.
    pub(super) fn end_guest(&self) -> u64 {
        let life = self.life.fetch_add(1, Ordering::AcqRel) + 1;
        self.shut(|_| ());
        life
    }

    /// [`Inner::end_guest`], if this is the guest that has the disks.
    pub(super) fn end_this_guest(&self, life: u64) -> bool {
        let next = life + 1;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let ended = self.life.compare_exchange(life, next, success, failure);
        self.shut(|_| ());
        ended.is_ok()
    }

    /// Whether no change is under way, neither of an image nor of the journal. On a disk that hangs there
    /// may be one for as long as it hangs.
    pub(super) fn is_at_rest(&self) -> bool {
        let changes = matches!(self.changing.try_write(), Err(TryLockError::WouldBlock));
        let writes = matches!(self.journal.try_lock(), Err(TryLockError::WouldBlock));
        !changes && !writes
    }

    /// An image, or the journal, that has not answered for long, in words.
    pub(super) fn hangs(&self) -> Option<String> {
        let images = self.images.iter();
        let calls = images.map(|image| ("disk image", image.path(), &image.calls));
        let (of_journal, path) = &self.journal_calls;
        let calls = calls.chain([("disk journal", path.as_path(), &**of_journal)]);
        let hang = calls.filter_map(|(what, path, calls)| Some((what, path, calls.hang()?)));
        let (what, path, waits) = hang.max_by_key(|(_, _, waits)| *waits)?;
        Some(format!(
            "the {what} {} has not answered for {} s; look at the storage below it",
            path.display(),
            waits.as_secs()
        ))
    }

    /// Changes the unfinished work, and wakes the requests that wait for it.
    pub(super) fn shut(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut lock(&self.gate));
        self.opened.notify_all();
    }

    /// Waits until `may` holds, or the guest is gone.
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

    /// Whether no job that writes blocks is unfinished.
    pub(super) fn is_written(&self) -> bool {
        lock(&self.gate).unwritten == 0
    }

    /// A job is done.
    pub(crate) fn worked(&self, wrote: bool) {
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
            tracing::error!(
                event = "disk_failed",
                "the guest's disks have failed: {why}"
            );
            *failure = Some(why.to_owned());
        }
        drop(failure);
        self.health.fail(why);
        // A backup may have read what is not on the disk.
        for image in &self.images {
            if let Some((_, kept)) = &*lock(&image.kept) {
                kept.end(why);
            }
        }
    }

    /// The first failure since this guest has the disks.
    pub(crate) fn failure(&self) -> Option<String> {
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

//! All disks of one replica's guest.

use crate::error::DiskError;
use crate::image::Image;
use crate::journal::{Batch, Journal};
use crate::nbd::{self, Backing};
use crate::worker::{self, DiskEvent, Job};
use crate::{BLOCK_BYTES, BlockNo};
use plover_types::{PageSet, SyncNo};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// Blocks written since the last scan that make a syncvm due: 16 MiB, which both sides hash in
/// about 20 ms. More would make the pause of the next syncvm longer than a long slot.
const MANY_BLOCKS: u32 = 4096;

/// Blocks of a full copy between two orders to write them out: 64 MiB.
const COPY_FLUSH_BLOCKS: u32 = 16_384;

/// One disk, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The image: a raw file or a block device, of a multiple of 4096 bytes.
    pub path: PathBuf,
    /// The guest cannot write it, and it takes no part in syncs: all replicas must have the same.
    pub read_only: bool,
    /// The size it must have. If it does not exist it is made, empty.
    pub bytes: Option<u64>,
}

pub(crate) struct Inner {
    images: Vec<Image>,
    /// The writable images and the number of each one's first block.
    regions: Vec<(u32, usize)>,
    blocks: u32,
    journal: Mutex<Journal>,
    /// What the journal says, for those who must not wait for it.
    whole: AtomicBool,
    /// Syncvms that are staged and not settled: the guest may write while there is none. There
    /// are two while one is staged and the one before it is being settled.
    unsettled: Mutex<u32>,
    settled: Condvar,
    /// Counts the guests that these disks were given to; the servers of older ones change nothing.
    life: AtomicU64,
    /// Held by servers while they change an image.
    changing: RwLock<()>,
    busy: AtomicU32,
    many_told: AtomicBool,
    failure: Mutex<Option<String>>,
    events: Mutex<Vec<DiskEvent>>,
    /// Readable while there are events.
    wake: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has left nothing half-changed behind these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The disks of one replica's guest; see the crate.
pub struct Disks {
    inner: Arc<Inner>,
    jobs: Sender<Job>,
    /// Blocks are staged, and [`Disks::settle`] was not called since.
    staged: bool,
}

impl Disks {
    /// Opens the images and the journal, and carries on what a crash has cut short.
    ///
    /// # Errors
    /// An image or the journal cannot be used; the text says which and what to do.
    pub fn open(specs: &[DiskSpec], journal: &Path) -> Result<Self, DiskError> {
        let images: Vec<Image> = specs.iter().map(Image::open).collect::<Result<_, _>>()?;
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
        let journal = Journal::open(journal, blocks)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| DiskError::Failed(format!("making an eventfd: {error}")))?;
        let inner = Arc::new(Inner {
            images,
            regions,
            blocks,
            whole: AtomicBool::new(journal.is_whole()),
            journal: Mutex::new(journal),
            unsettled: Mutex::new(0),
            settled: Condvar::new(),
            life: AtomicU64::new(0),
            changing: RwLock::new(()),
            busy: AtomicU32::new(0),
            many_told: AtomicBool::new(false),
            failure: Mutex::new(None),
            events: Mutex::new(Vec::new()),
            wake,
        });
        inner.recover()?;
        let (jobs, orders) = channel();
        let worker = Arc::clone(&inner);
        std::thread::Builder::new()
            .name("disks".into())
            .spawn(move || worker::run(&worker, &orders))
            .map_err(|error| DiskError::Failed(format!("starting a thread: {error}")))?;
        Ok(Self {
            inner,
            jobs,
            staged: false,
        })
    }

    /// Blocks of all writable disks.
    pub fn blocks(&self) -> u32 {
        self.inner.blocks
    }

    /// Whether the images are a guest's as it was at one moment, and not a copy cut short.
    pub fn is_whole(&self) -> bool {
        self.inner.whole.load(Ordering::Acquire)
    }

    /// A connection to each disk for a guest that is about to start. Whatever the last guest still
    /// wanted is left undone.
    ///
    /// # Errors
    /// The images cannot be brought to one moment.
    pub fn attach(&mut self) -> Result<Attachment, DiskError> {
        self.staged = false;
        let inner = &self.inner;
        *lock(&inner.failure) = None;
        let life = inner.end_life();
        inner.recover()?;
        let failed = |error: io::Error| DiskError::Failed(format!("serving a disk: {error}"));
        let mut attachment = Attachment {
            inner: Arc::clone(inner),
            jobs: self.jobs.clone(),
            copied: 0,
            ours: Vec::new(),
            theirs: Vec::new(),
        };
        for image in 0..inner.images.len() {
            let (ours, theirs) = UnixStream::pair().map_err(failed)?;
            let mut stream = ours.try_clone().map_err(failed)?;
            let server = Server {
                inner: Arc::clone(inner),
                image,
                life,
            };
            std::thread::Builder::new()
                .name(format!("disk {image}"))
                .spawn(move || {
                    if let Err(error) = nbd::serve(&mut stream, &server) {
                        tracing::debug!(image, %error, "a disk's connection ended");
                    }
                })
                .map_err(failed)?;
            attachment.ours.push(ours);
            attachment.theirs.push(theirs.into());
        }
        Ok(attachment)
    }

    /// A full copy begins, by [`Attachment::write`]: until the next [`Disks::stage`] is durable the
    /// images are of no use.
    ///
    /// # Errors
    /// That could not be made durable.
    pub fn begin_copy(&mut self) -> Result<(), DiskError> {
        self.inner.whole.store(false, Ordering::Release);
        lock(&self.inner.journal).begin_copy()
    }

    /// Makes `batch`, and what was written before, durable as a whole; [`DiskEvent::Staged`] tells
    /// when. The caller then writes the blocks, and calls [`Disks::settle`] before the guest runs.
    pub fn stage(&mut self, sync: SyncNo, batch: Batch) {
        let inner = &self.inner;
        let writable = || inner.regions.iter().map(|(_, image)| &inner.images[*image]);
        if batch.is_empty() && writable().all(Image::is_synced) && self.is_whole() {
            return inner.tell(DiskEvent::Staged(sync));
        }
        if !batch.is_empty() {
            *lock(&inner.unsettled) += 1;
            self.staged = true;
        }
        let life = inner.life.load(Ordering::Acquire);
        self.order(Job::Stage { life, sync, batch });
    }

    /// The staged blocks are written: from now on the guest may run, and writes as soon as they are
    /// durable where they belong.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.staged) {
            let life = self.inner.life.load(Ordering::Acquire);
            self.order(Job::Settle { life });
        }
    }

    fn order(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            self.inner
                .tell(DiskEvent::Failed("its thread has ended".into()));
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self, events: &mut Vec<DiskEvent>) {
        let _ = rustix::io::read(&self.inner.wake, &mut [0u8; 8]);
        events.append(&mut lock(&self.inner.events));
    }

    /// Polls readable when [`Disks::take_events`] has something; open as long as this.
    pub fn wait_fd(&self) -> RawFd {
        self.inner.wake.as_raw_fd()
    }
}

/// The disks as one guest has them: connections for its hypervisor, and the blocks beside guest
/// RAM. When it is dropped the guest is no more: what it still wanted is left undone.
pub struct Attachment {
    inner: Arc<Inner>,
    jobs: Sender<Job>,
    /// Blocks written since the last order to write them out.
    copied: u32,
    ours: Vec<UnixStream>,
    theirs: Vec<OwnedFd>,
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
        lock(&self.inner.failure).take()
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

fn cannot(what: &str, image: &Image, error: &io::Error) -> String {
    format!(
        "cannot {what} the disk image {}: {error}",
        image.path().display()
    )
}

impl Inner {
    /// The image that `block` is in, and the byte where it begins. Asserts that there is one.
    fn place(&self, block: BlockNo) -> (&Image, u64) {
        assert!(
            block.0 < self.blocks,
            "block {} outside disks of {} blocks",
            block.0,
            self.blocks
        );
        let after = self.regions.partition_point(|(first, _)| *first <= block.0);
        let (first, image) = self.regions[after - 1];
        let offset = u64::from(block.0 - first) * BLOCK_BYTES as u64;
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
    fn recover(&self) -> Result<(), DiskError> {
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
        *lock(&self.unsettled) = 0;
        Ok(())
    }

    pub(crate) fn stage_now(
        &self,
        life: u64,
        sync: SyncNo,
        batch: &Batch,
    ) -> Result<(), DiskError> {
        let mut journal = lock(&self.journal);
        if !self.is_alive(life) {
            return Ok(());
        }
        self.sync_images()?;
        if !batch.is_empty() || !journal.is_whole() {
            journal.stage(sync, batch)?;
            self.whole.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn settle_now(&self, life: u64) -> Result<(), DiskError> {
        let mut journal = lock(&self.journal);
        if !self.is_alive(life) {
            return Ok(());
        }
        self.sync_images()?;
        journal.retire()?;
        *lock(&self.unsettled) -= 1;
        self.settled.notify_all();
        Ok(())
    }

    /// The guest that these disks were given to is no more; returns the number of the next. Its
    /// servers change nothing from here on.
    fn end_life(&self) -> u64 {
        let life = self.life.fetch_add(1, Ordering::AcqRel) + 1;
        drop(lock(&self.unsettled));
        self.settled.notify_all();
        // Waits for the change that is being made, if one is.
        drop(
            self.changing
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        );
        life
    }

    pub(crate) fn is_alive(&self, life: u64) -> bool {
        self.life.load(Ordering::Acquire) == life
    }

    pub(crate) fn note_failure(&self, why: &str) {
        tracing::error!(%why, "the guest's disks");
        lock(&self.failure).get_or_insert_with(|| why.to_owned());
    }

    pub(crate) fn tell(&self, event: DiskEvent) {
        lock(&self.events).push(event);
        // Fails only if it is readable beyond counting.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn written(&self) -> u32 {
        let images = self.regions.iter().map(|(_, image)| &self.images[*image]);
        images.map(|image| image.written.count()).sum()
    }
}

/// What serves one disk to one guest.
struct Server {
    inner: Arc<Inner>,
    image: usize,
    life: u64,
}

impl Backing for Server {
    fn image(&self) -> &Image {
        &self.inner.images[self.image]
    }

    fn change(&self, change: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let inner = &self.inner;
        let mut unsettled = lock(&inner.unsettled);
        while *unsettled > 0 && inner.is_alive(self.life) {
            unsettled = inner
                .settled
                .wait(unsettled)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(unsettled);
        let _changing = inner
            .changing
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if !inner.is_alive(self.life) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        change()
    }

    fn changed(&self) {
        if self.inner.written() >= MANY_BLOCKS && !self.inner.many_told.swap(true, Ordering::AcqRel)
        {
            self.inner.tell(DiskEvent::ManyWritten);
        }
    }

    fn busy(&self, busy: bool) {
        if busy {
            self.inner.busy.fetch_add(1, Ordering::AcqRel);
        } else {
            self.inner.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn failed(&self, what: &str, error: &io::Error) {
        if self.inner.is_alive(self.life) {
            self.inner.note_failure(&cannot(what, self.image(), error));
        }
    }
}

#[cfg(test)]
mod tests;

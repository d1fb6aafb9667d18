//! All disks of one replica's guest.

mod attaching;
mod attachment;
mod blocks;
mod inner;
mod server;

use crate::error::DiskError;
use crate::health::Health;
use crate::image::Image;
use crate::journal::{Batch, Journal};
use crate::worker::{self, DiskEvent, Job, Work};
use attaching::Attaching;
pub use attaching::Purpose;
pub use attachment::Attachment;
pub use blocks::Blocks;
pub(crate) use inner::{Inner, cannot};
use plover_types::{DISK_BLOCK_BYTES, SyncNo};
use rustix::fd::AsRawFd;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Blocks written since the last scan that make a syncvm due: 16 MiB, which both sides hash in
/// about 20 ms. More would make the pause of the next syncvm longer than a long slot.
const MANY_BLOCKS: u32 = 4096;

/// Blocks of a full copy between two orders to write them out: 64 MiB.
const COPY_FLUSH_BLOCKS: u32 = 16_384;

/// A replica that has taken part before begins to vote after this time, although its disks are not open.
const OPEN_WITHIN: Duration = Duration::from_secs(5);

/// One disk, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The image: a raw file or a block device, of a multiple of 4096 bytes.
    pub path: PathBuf,
    /// The guest cannot write it. It is not synced: all replicas must have the same.
    pub read_only: bool,
    /// The size that it must have. With `bytes_max` it must have at least that until a guest uses it, and any size from then on.
    /// If it does not exist it is made, empty: before a guest uses it, and for a copy of the guest.
    pub bytes: Option<u64>,
    /// The size to which it may grow; its blocks are numbered as if it had that already.
    pub bytes_max: Option<u64>,
    /// Added to each read or write of a block for a syncvm or a copy: a slow disk, for tests.
    pub delay: Duration,
}

/// The disks of one replica's guest; see the crate.
pub struct Disks {
    specs: Vec<DiskSpec>,
    journal: PathBuf,
    blocks: u32,
    health: Arc<Health>,
    /// `None` while they cannot be used.
    open: Option<Open>,
    /// The files that were open before, until their threads have ended.
    closing: Option<Arc<Inner>>,
    attaching: Option<Attaching>,
    /// When they were last opened, or tried to be, without a guest.
    opened_at: Instant,
    /// Blocks are staged, and [`Disks::settle`] was not called since.
    staged: bool,
}

#[derive(Clone)]
struct Open {
    inner: Arc<Inner>,
    jobs: Sender<Job>,
    works: Sender<Work>,
}

impl Disks {
    /// Opens the images and the journal, and completes a syncvm that a crash has interrupted.
    ///
    /// If there is a journal, this replica has taken part before. If only its images cannot be used, or do not answer in time,
    /// it can still vote: the disks are opened when they are needed, or answer, and until then [`Disks::failure`] says
    /// what is wrong.
    ///
    /// # Errors
    /// An image or the journal cannot be used; the text says which one and what to do.
    pub fn open(specs: &[DiskSpec], journal: &Path) -> Result<Self, DiskError> {
        Self::open_within(specs, journal, OPEN_WITHIN)
    }

    fn open_within(specs: &[DiskSpec], journal: &Path, limit: Duration) -> Result<Self, DiskError> {
        let health = Health::new()
            .map_err(|error| DiskError::Failed(format!("making an eventfd: {error}")))?;
        let before = Journal::blocks_at(journal);
        let mut disks = Self {
            specs: specs.to_vec(),
            journal: journal.into(),
            blocks: before.unwrap_or_default(),
            health: Arc::new(health),
            open: None,
            closing: None,
            attaching: None,
            opened_at: Instant::now(),
            staged: false,
        };
        let opened = match before {
            None => Open::new(specs, journal, &disks.health, Purpose::Boot).map(Some),
            Some(_) => disks.open_on_a_thread(limit),
        };
        let only_votes = |why: &str| {
            tracing::error!(
                event = "disks_not_opened",
                "without its disks this replica only votes: {why}"
            );
        };
        match opened {
            Ok(Some(open)) => {
                disks.blocks = open.inner.blocks;
                disks.open = Some(open);
            }
            Ok(None) => only_votes(&disks.hangs(limit)),
            Err(error) if before.is_some() && error.is_of_an_image() => {
                only_votes(&error.to_string());
                disks.health.fail(&error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(disks)
    }

    /// Blocks of all writable disks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The present sizes of all disks, in bytes, in the order of the configuration; none while they cannot be used.
    pub fn sizes(&self) -> Vec<u64> {
        let images = self.open.iter().flat_map(|open| &open.inner.images);
        images.map(Image::bytes).collect()
    }

    /// Whether a disk could have `bytes` bytes: why not, and what to do. Whether its host has room is [`Disks::room_for`]'s.
    pub fn why_not_resize(&self, disk: usize, bytes: u64) -> Option<String> {
        let Some(spec) = self.specs.get(disk) else {
            return Some(format!(
                "there is no disk {disk}: the guest has {}, counted from 0",
                self.specs.len()
            ));
        };
        if spec.read_only {
            return Some(format!(
                "disk {disk} is read-only: replace its file on each host"
            ));
        }
        let Some(max) = spec.bytes_max else {
            return Some(format!(
                "disk {disk} has no disk.max_size_mib, so it cannot grow while the guest runs"
            ));
        };
        let Some(image) = self.open.as_ref().map(|open| &open.inner.images[disk]) else {
            return Some(
                self.failure()
                    .unwrap_or_else(|| "its disks cannot be used".into()),
            );
        };
        let now = image.bytes();
        if bytes < now {
            return Some(format!(
                "disk {disk} has {} MiB: no disk is made smaller, because the guest would lose what is behind the end",
                now >> 20
            ));
        }
        if bytes > max || bytes % DISK_BLOCK_BYTES as u64 != 0 {
            return Some(format!(
                "disk {disk} may have {} MiB at most (disk.max_size_mib), in whole blocks of 4096 bytes",
                max >> 20
            ));
        }
        None
    }

    /// Why this host has no room for a disk of so many bytes. It may have to wait for the file system, so it is another
    /// thread's to call.
    pub fn room_for(
        &self,
        disk: usize,
        bytes: u64,
    ) -> impl FnOnce() -> Option<String> + Send + 'static {
        let inner = self.open.as_ref().map(|open| Arc::clone(&open.inner));
        move || {
            let image = &inner.as_ref()?.images[disk];
            image.why_no_room(bytes.saturating_sub(image.bytes()))
        }
    }

    /// Whether the images are those of a guest at one moment, and not an incomplete copy.
    pub fn is_whole(&self) -> bool {
        let whole = |open: &Open| open.inner.whole.load(Ordering::Acquire);
        self.open.as_ref().is_some_and(whole)
    }

    /// Why the disks cannot be used, or that one of them hangs; `None` while all is well. The last failure is
    /// reported until a copy of the guest is whole again.
    pub fn failure(&self) -> Option<String> {
        let hangs = || self.open.as_ref().and_then(|open| open.inner.hangs());
        let failure = self.health.failure().or_else(hangs);
        failure.or_else(|| self.attaches_slowly())
    }

    /// For calls that are made only while a guest has the disks.
    fn opened(&self) -> &Open {
        self.open.as_ref().expect("disks that are in use are open")
    }

    /// [`Disks::stage_with`] for known blocks, or none.
    pub fn stage(&mut self, sync: SyncNo, batch: Batch) {
        if !batch.is_empty() {
            return self.stage_with(sync, move |_| batch);
        }
        let inner = &self.opened().inner;
        let writable = || inner.regions.iter().map(|(_, image)| &inner.images[*image]);
        let is_sound = inner.failure().is_none() && self.is_whole();
        if is_sound && inner.is_written() && writable().all(Image::is_synced) {
            return inner.tell(DiskEvent::Staged(sync));
        }
        let life = inner.life.load(Ordering::Acquire);
        let make = Box::new(Batch::new);
        self.order(Job::Stage { life, sync, make });
    }

    /// Makes the batch that `make` returns (at least one block), and everything written before, durable
    /// as a whole; then [`DiskEvent::Staged`] follows. The caller then writes the blocks, and calls
    /// [`Disks::settle`] before the guest runs. Another syncvm may come before it does: a replica that joins takes two
    /// where devices are reset.
    pub fn stage_with(
        &mut self,
        sync: SyncNo,
        make: impl FnOnce(&Blocks) -> Batch + Send + 'static,
    ) {
        self.settle();
        let inner = &self.opened().inner;
        let life = inner.life.load(Ordering::Acquire);
        inner.shut(|gate| gate.unsettled += 1);
        let blocks = self.opened().blocks(life);
        self.staged = true;
        let make = Box::new(move || make(&blocks));
        self.order(Job::Stage { life, sync, make });
    }

    /// The staged blocks are written: the guest may run. Its writes wait until the blocks are durable in
    /// the images.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.staged) {
            let life = self.opened().inner.life.load(Ordering::Acquire);
            self.order(Job::Settle { life });
        }
    }

    fn order(&self, job: Job) {
        if self.opened().jobs.send(job).is_err() {
            self.health
                .tell(DiskEvent::Failed("its thread has ended".into()));
        }
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self, events: &mut Vec<DiskEvent>) {
        self.health.take_events(events);
    }

    /// Polls readable when there are events; open as long as this.
    pub fn wait_fd(&self) -> RawFd {
        self.health.wake().as_raw_fd()
    }
}

impl Open {
    fn new(
        specs: &[DiskSpec],
        journal: &Path,
        health: &Arc<Health>,
        purpose: Purpose,
    ) -> Result<Self, DiskError> {
        let inner = Arc::new(Inner::open(specs, journal, health, purpose)?);
        let failed = |error| DiskError::Failed(format!("starting a thread: {error}"));
        let (jobs, orders) = channel();
        let worker = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("disks".into())
            .spawn(move || worker::run(&worker, &orders))
            .map_err(failed)?;
        let (works, orders) = channel();
        std::thread::Builder::new()
            .name("blocks".into())
            .spawn(move || worker::work(&orders))
            .map_err(failed)?;
        Ok(Self { inner, jobs, works })
    }

    /// The blocks as the guest with this number has them.
    fn blocks(&self, life: u64) -> Blocks {
        Blocks {
            inner: Arc::clone(&self.inner),
            jobs: self.jobs.clone(),
            life,
        }
    }
}

#[cfg(test)]
mod tests;

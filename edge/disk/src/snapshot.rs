//! The disks as they were at one moment, read while the guest and its syncs go on to write them.
//!
//! ```text
//!   guest, syncs ── write ──▶ is the block kept? ── no ──▶ its old content ──▶ a file, removed at once
//!                                    │                                            │
//!                                    ▼                                            ▼
//!                                  image ──────────── if it is not kept ───────▶ reader
//! ```
//!
//! Before a block is written for the first time its old content is kept. Nothing waits for the reader, which may be
//! slow or stand still: the room for kept blocks is bounded, and when it is used up the snapshot ends, with a reason,
//! and the guest goes on. The file of kept blocks is beside the journal, on a disk of this host. It has no name, so
//! nothing of it is left when this process ends.
//!
//! The reader takes a block from the image first, and looks then whether it is kept. A writer keeps a block before it
//! writes it. So a block that is not kept after it was read was read before any write, and the same holds for a hole.
//!
//! The reader of an incremental backup is told which blocks are as the backup before has them ([`crate::changes`]).

use crate::changes::{CLUSTER_BLOCKS, Since};
use crate::disks::{Blocks, Inner, cannot};
use crate::error::advice;
use crate::health::lock;
use crate::image::Image;
use crate::nbd::{self, Backing, Extent};
use crate::pace::Pace;
use crate::scratch;
use plover_types::DISK_BLOCK_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};

const BLOCK: u64 = DISK_BLOCK_BYTES as u64;

/// Blocks that are kept for one request at most: 16 MiB, which takes some 20 ms. A discard can name gigabytes, and a
/// guest that waited for so many would delay the next sync.
const KEPT_A_REQUEST: usize = 4096;

/// Blocks that one answer about extents tells of at most: 64 MiB.
const TOLD_AT_ONCE: u32 = (64 << 20) / DISK_BLOCK_BYTES as u32;

/// How a snapshot is kept and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// The most bytes of old content that are kept.
    pub kept_bytes: u64,
    /// The most bytes that are read in a second.
    pub bytes_per_s: u64,
}

/// The room of a snapshot that is to be taken. It is made before, because the guest's requests wait while a snapshot is taken,
/// and a folder may be slow.
#[derive(Debug)]
pub struct SnapshotRoom {
    kept: Kept,
    pace: Pace,
}

impl SnapshotRoom {
    /// Makes it in `dir`. Waits for the file system.
    ///
    /// # Errors
    /// There is too little room, or a file cannot be made there: the reason, and what to do.
    pub fn make(dir: &Path, limits: SnapshotLimits) -> Result<Self, String> {
        Ok(Self {
            kept: Kept::new(dir, limits.kept_bytes)?,
            pace: Pace::new(limits.bytes_per_s),
        })
    }
}

/// One disk of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotDisk {
    /// Its number in the configuration, from 0.
    pub disk: usize,
    /// Its size.
    pub bytes: u64,
}

/// All writable disks of a guest as they were at one moment. Dropping it lets the kept blocks go.
#[derive(Debug)]
pub struct Snapshot {
    inner: Weak<Inner>,
    disks: Vec<SnapshotDisk>,
    mark: u64,
    /// Of each of `disks`, what was written since the last backup that is finished.
    since: Vec<Option<Since>>,
    kept: Arc<Kept>,
    pace: Pace,
}

impl Snapshot {
    /// Takes one, in an instant.
    pub(crate) fn take(blocks: &Blocks, room: SnapshotRoom) -> Result<Self, String> {
        let inner = &blocks.inner;
        if !inner.is_alive(blocks.life) {
            return Err("this replica's guest was lost at this moment: try again".into());
        }
        if let Some(why) = inner.failure() {
            return Err(why);
        }
        let writable = || inner.regions.iter().map(|(_, image)| *image);
        let runs = |image: usize| {
            let kept = lock(&inner.images[image].kept).clone();
            kept.is_some_and(|(_, kept)| kept.ended.get().is_none())
        };
        if writable().any(runs) {
            return Err("another backup of this guest runs: wait for its end".into());
        }
        let mut mark = [0; 8];
        rustix::rand::getrandom(&mut mark, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("cannot get random bytes for the backup's mark: {error}"))?;
        let mark = u64::from_le_bytes(mark);
        let kept = Arc::new(room.kept);
        let mut since = Vec::new();
        for number in writable() {
            let image = &inner.images[number];
            *lock(&image.kept) = Some((number, Arc::clone(&kept)));
            let blocks = image.bytes().div_ceil(BLOCK) as u32;
            since.push(lock(&image.changes).begin(mark, blocks));
        }
        // One that came meanwhile did not find it.
        if let Some(why) = inner.failure() {
            kept.end(&why);
        }
        Ok(Self {
            inner: Arc::downgrade(inner),
            disks: writable()
                .map(|disk| SnapshotDisk {
                    disk,
                    bytes: inner.images[disk].bytes(),
                })
                .collect(),
            mark,
            since,
            kept,
            pace: room.pace,
        })
    }

    /// Its disks.
    pub fn disks(&self) -> &[SnapshotDisk] {
        &self.disks
    }

    /// Names it: a later snapshot knows it by this ([`Self::since`]).
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// The mark of the last snapshot that was finished, if what was written since is known of all disks.
    pub fn since(&self) -> Option<u64> {
        let marks = self
            .since
            .iter()
            .map(|since| since.as_ref().map(Since::mark));
        marks
            .reduce(|all, mark| all.filter(|_| all == mark))
            .flatten()
    }

    /// The backup of it is safe: a later one need hold only what was written since.
    pub fn finish(&self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        for disk in &self.disks {
            lock(&inner.images[disk.disk].changes).finish(self.mark);
        }
    }

    /// The bytes of old content that are kept at present.
    ///
    /// # Errors
    /// The snapshot has ended, and why: what was read of it since is not to be used.
    pub fn kept_bytes(&self) -> Result<u64, String> {
        if self.inner.strong_count() == 0 {
            self.end(REOPENED);
        }
        let kept = lock(&self.kept.state).slots.len();
        match self.kept.ended.get() {
            Some(why) => Err(why.clone()),
            None => Ok(kept as u64 * BLOCK),
        }
    }

    /// Ends it: nothing is kept any more, and nothing can be read.
    pub fn end(&self, why: &str) {
        self.kept.end(why);
    }

    /// Serves the disk of this number in the configuration over NBD, until the client leaves. With `only_changes` the blocks
    /// that were not written since the last finished snapshot are told as holes that are not zero: look elsewhere for them.
    ///
    /// # Errors
    /// The client violates the protocol, or there is no such disk in the snapshot.
    pub fn serve(&self, disk: usize, only_changes: bool, mut stream: UnixStream) -> io::Result<()> {
        let place = self.disks.iter().position(|its| its.disk == disk);
        let place = place.ok_or(io::ErrorKind::NotFound)?;
        let export = Export {
            snapshot: self,
            disk: self.disks[place],
            since: self.since_of(place).filter(|_| only_changes),
        };
        nbd::serve(&mut stream, &export)
    }

    /// The clusters of the disk at this place of [`Self::disks`] that were written since the last finished snapshot.
    pub(crate) fn since_of(&self, place: usize) -> Option<&Since> {
        self.since[place].as_ref()
    }

    pub(crate) fn read(&self, disk: usize, offset: u64, to: &mut [u8]) -> Result<(), String> {
        self.pace.wait_for(to.len());
        let inner = self.inner.upgrade().ok_or(REOPENED)?;
        let image = &inner.images[disk];
        let read = image.read(offset, to);
        read.map_err(|error| cannot("read", image, &error))?;
        self.kept.put_back(disk, offset, to)
    }
}

const REOPENED: &str =
    "the disks on this host have failed, and were opened anew: see `plover status`";

impl Drop for Snapshot {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        for disk in &self.disks {
            let mut kept = lock(&inner.images[disk.disk].kept);
            kept.take_if(|(_, kept)| Arc::ptr_eq(kept, &self.kept));
        }
    }
}

/// One disk of a snapshot, for one NBD client.
pub(crate) struct Export<'a> {
    pub snapshot: &'a Snapshot,
    pub disk: SnapshotDisk,
    /// The client has everything else.
    pub since: Option<&'a Since>,
}

impl Export<'_> {
    /// The kind of each of `blocks`, where `image` is as it was before any write that is not kept.
    fn kinds(&self, image: &Image, blocks: Range<u32>) -> Vec<Extent> {
        let mut kinds = vec![Extent::Zero; blocks.len()];
        for run in image.data_in(blocks.clone()) {
            let run = (run.start - blocks.start) as usize..(run.end - blocks.start) as usize;
            kinds[run].fill(Extent::Data);
        }
        // After the image was looked at: a hole that was written meanwhile is kept.
        let kept = lock(&self.snapshot.kept.state);
        for (kind, block) in kinds.iter_mut().zip(blocks) {
            if kept.slots.contains_key(&(self.disk.disk, block)) {
                *kind = Extent::Data;
            }
            let is_new = |since: &Since| since.contains(block / CLUSTER_BLOCKS);
            if !self.since.is_none_or(is_new) {
                *kind = Extent::Elsewhere;
            }
        }
        kinds
    }
}

impl Backing for Export<'_> {
    fn bytes(&self) -> u64 {
        self.disk.bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let read = self.snapshot.read(self.disk.disk, offset, to);
        read.map_err(|why| {
            self.snapshot.end(&why);
            io::Error::other(why)
        })
    }

    fn tells_extents(&self) -> bool {
        true
    }

    fn extents(&self, offset: u64, bytes: u64) -> io::Result<Vec<(u64, Extent)>> {
        let blocks = (offset / BLOCK) as u32..(offset + bytes).div_ceil(BLOCK) as u32;
        let blocks = blocks.start..blocks.end.min(blocks.start + TOLD_AT_ONCE);
        let inner = self
            .snapshot
            .inner
            .upgrade()
            .ok_or_else(|| io::Error::other(REOPENED))?;
        let kinds = self.kinds(&inner.images[self.disk.disk], blocks.clone());
        // Else what was written anew is not known any more.
        self.snapshot.kept_bytes().map_err(io::Error::other)?;
        let (mut at, end) = (offset, offset + bytes);
        let mut extents: Vec<(u64, Extent)> = Vec::new();
        for (kind, block) in kinds.into_iter().zip(blocks) {
            let part = ((u64::from(block) + 1) * BLOCK).min(end) - at;
            at += part;
            match extents.last_mut() {
                Some((bytes, last)) if *last == kind => *bytes += part,
                _ => extents.push((part, kind)),
            }
        }
        Ok(extents)
    }
}

/// The old content of blocks that were written since.
#[derive(Debug)]
pub(crate) struct Kept {
    dir: PathBuf,
    blocks_max: u64,
    state: Mutex<State>,
    /// Why it has ended. Not in `state`, which is locked while a disk is waited for.
    ended: OnceLock<String>,
}

#[derive(Debug)]
struct State {
    /// It goes with the snapshot, usually on its reader's thread: to free it may take long.
    file: Arc<File>,
    /// By image and block, the place in the file, in blocks.
    slots: HashMap<(usize, u32), u64>,
}

impl Kept {
    fn new(dir: &Path, bytes_max: u64) -> Result<Self, String> {
        let room = scratch::room(dir).map_err(|error| cannot_keep(dir, &error))?;
        if bytes_max > room / 2 {
            return Err(format!(
                "{} has {} MiB free, and a backup may take half of that for the old content of blocks that are \
                 written meanwhile, not the {} MiB of --keep-mib: make room, or name less",
                dir.display(),
                room >> 20,
                bytes_max >> 20
            ));
        }
        let file = scratch::unnamed(dir, "backup.kept");
        Ok(Self {
            dir: dir.into(),
            blocks_max: bytes_max / BLOCK,
            state: Mutex::new(State {
                file: Arc::new(file.map_err(|error| cannot_keep(dir, &error))?),
                slots: HashMap::new(),
            }),
            ended: OnceLock::new(),
        })
    }

    /// The snapshot ends here: later reads are not to be used.
    pub(crate) fn end(&self, why: &str) {
        self.ended.get_or_init(|| why.into());
    }

    /// `runs` of blocks of an image are about to be written by one request: keeps what `read` reads of those that are
    /// not kept yet.
    pub(crate) fn keep(
        &self,
        image: usize,
        runs: impl Iterator<Item = Range<u32>>,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) {
        let mut state = lock(&self.state);
        let mut old = [0; DISK_BLOCK_BYTES];
        for (count, block) in runs.flatten().enumerate() {
            if self.ended.get().is_some() {
                return;
            }
            if state.slots.contains_key(&(image, block)) {
                continue;
            }
            if count >= KEPT_A_REQUEST {
                return self.end(&format!(
                    "the guest has discarded or zeroed more than {} MiB in one request, and of no more the old content \
                     is kept: back up when it does not (fstrim)",
                    (KEPT_A_REQUEST * DISK_BLOCK_BYTES) >> 20
                ));
            }
            let slot = state.slots.len() as u64;
            if slot >= self.blocks_max {
                return self.end(&format!(
                    "the guest has written {} MiB of the disks anew since the backup began, and of no more the old \
                     content is kept: give it more room with --keep-mib, let it read faster with --mib-per-s, or write \
                     it to a faster place",
                    (self.blocks_max * BLOCK) >> 20
                ));
            }
            let kept = read(u64::from(block) * BLOCK, &mut old)
                .and_then(|()| state.file.write_all_at(&old, slot * BLOCK));
            if let Err(error) = kept {
                return self.end(&cannot_keep(&self.dir, &error));
            }
            state.slots.insert((image, block), slot);
        }
    }

    /// Puts the old content of kept blocks over `content`, which was read at `offset` of an image.
    fn put_back(&self, image: usize, offset: u64, content: &mut [u8]) -> Result<(), String> {
        let end = offset + content.len() as u64;
        let blocks = (offset / BLOCK) as u32..end.div_ceil(BLOCK) as u32;
        let state = lock(&self.state);
        if let Some(why) = self.ended.get() {
            return Err(why.clone());
        }
        let file = Arc::clone(&state.file);
        let kept: Vec<(u64, u64)> = blocks
            .filter_map(|block| {
                let slot = state.slots.get(&(image, block))?;
                Some((u64::from(block) * BLOCK, slot * BLOCK))
            })
            .collect();
        drop(state);
        for (at, slot) in kept {
            let (from, to) = (at.max(offset), (at + BLOCK).min(end));
            let part = &mut content[(from - offset) as usize..(to - offset) as usize];
            file.read_exact_at(part, slot + (from - at))
                .map_err(|error| cannot_keep(&self.dir, &error))?;
        }
        Ok(())
    }
}

fn cannot_keep(dir: &Path, error: &io::Error) -> String {
    format!(
        "cannot keep the old content of blocks in {}: {error}; {}",
        dir.display(),
        advice(error)
    )
}

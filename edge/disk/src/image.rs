//! One raw image: the file, its size in blocks, and the blocks that were written.

use crate::DiskSpec;
use crate::calls::Calls;
use crate::changes::Changes;
use crate::disks::Purpose;
use crate::error::{DiskError, io_error};
use crate::health::lock;
use crate::holes;
use crate::import::Format;
use crate::journal::Journal;
use crate::lock::Locked;
use crate::mark;
use crate::snapshot::Kept;
use crate::written::Written;
use plover_types::DISK_BLOCK_BYTES;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The size of the open image that `spec` names, if it can be a guest's disk.
fn sized(spec: &DiskSpec, file: &File, used_before: bool) -> Result<u64, DiskError> {
    let path = &spec.path;
    // Not the size in the metadata, which is 0 for a block device.
    let bytes = seek(file, SeekFrom::End(0))
        .map_err(|e| io_error("cannot size the disk image", path)(e.into()))?;
    if bytes == 0 {
        return Err(DiskError::Empty(path.clone()));
    }
    // A disk that may grow has the size that the guest's state says. A replica that was not there when it grew has the old
    // size until it loads such a state, whatever its configuration says meanwhile.
    let resized = |wanted: u64| spec.bytes_max.is_some() && (used_before || bytes >= wanted);
    if let Some(wanted) = spec.bytes.filter(|it| *it != bytes && !resized(*it)) {
        return Err(DiskError::WrongSize {
            path: path.clone(),
            found: bytes,
            wanted,
        });
    }
    if let Some(max) = spec.bytes_max.filter(|max| bytes > *max) {
        return Err(DiskError::OverMax {
            path: path.clone(),
            found: bytes,
            max,
        });
    }
    if bytes % DISK_BLOCK_BYTES as u64 != 0 {
        return Err(DiskError::Uneven {
            path: path.clone(),
            bytes,
        });
    }
    if used_before {
        return Ok(bytes);
    }
    match Format::of_content(file).map_err(io_error("cannot read the disk image", path))? {
        Some(format) => Err(DiskError::NotRaw {
            path: path.clone(),
            format: format.name(),
        }),
        None => Ok(bytes),
    }
}

/// Makes an image that does not exist, or leaves none. If there is a `journal`, a guest has used the one that was there before.
/// Then the journal says durably that it is lost, before the new one gets its size: an image without a byte is refused. So an
/// empty image never passes for the guest's.
fn make(
    options: &mut OpenOptions,
    path: &Path,
    bytes: u64,
    journal: Option<&Path>,
) -> Result<File, DiskError> {
    let cannot = || io_error("cannot create the disk image", path);
    let file = options.create_new(true).open(path).map_err(cannot())?;
    let told = journal.map_or(Ok(()), Journal::lose_an_image);
    let made = told.and_then(|()| {
        let made = file.set_len(bytes).and_then(|()| file.sync_all());
        made.and_then(|()| sync_folder_of(path)).map_err(cannot())
    });
    if made.is_err() {
        let _ = std::fs::remove_file(path);
    }
    made.map(|()| file)
}

/// Makes the names in the folder of this file durable.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")));
    match folder.and_then(|folder| folder.sync_all()) {
        // Only its owner may read it, or its file system has no such call.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// The blocks of so many bytes.
pub(crate) fn blocks_within(bytes: u64) -> Result<u32, DiskError> {
    u32::try_from(bytes / DISK_BLOCK_BYTES as u64).map_err(|_| DiskError::TooLarge(bytes))
}

/// An open image.
#[derive(Debug)]
pub(crate) struct Image {
    path: PathBuf,
    file: Locked,
    bytes: AtomicU64,
    /// The size to which it may grow, and whether it may.
    bytes_max: u64,
    pub(crate) may_grow: bool,
    pub(crate) read_only: bool,
    /// Of what it holds, if the guest only reads it.
    pub(crate) mark: Option<u64>,
    pub(crate) delay: Duration,
    /// The blocks that the guest wrote since the last scan.
    pub(crate) written: Written,
    /// There were writes since the last sync; set after the write, as in [`Written`].
    unsynced: AtomicBool,
    /// A sync has failed: writes may be lost, and a later sync would not report it.
    broken: AtomicBool,
    /// Held during a sync, so that a second one does not return before the first is done.
    syncing: Mutex<()>,
    /// The calls that wait for the file.
    pub(crate) calls: Calls,
    /// While there is a snapshot: where blocks go before they are written, and the number of this image there.
    pub(crate) kept: Mutex<Option<(usize, Arc<Kept>)>>,
    /// The clusters that were written since a backup.
    pub(crate) changes: Mutex<Changes>,
}

/// As a replica opens an image.
fn access(spec: &DiskSpec) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(!spec.read_only);
    options
}

impl Image {
    /// Opens the image that `spec` names, or makes it. With a `journal` a guest has used it: it is raw, whatever its first
    /// bytes are, since the guest may have written them; and if it is gone it is made for a copy only, since it may come
    /// back with the file system that it is on.
    pub(crate) fn open(
        spec: &DiskSpec,
        journal: Option<&Path>,
        purpose: Purpose,
    ) -> Result<Self, DiskError> {
        let path = &spec.path;
        let mut options = access(spec);
        let file = match (options.open(path), spec.bytes) {
            (Err(error), wanted) if error.kind() == io::ErrorKind::NotFound => {
                let is_gone = journal.is_some() && !spec.read_only;
                if is_gone && purpose != Purpose::Copy {
                    return Err(DiskError::Gone(path.clone()));
                }
                let Some(bytes) = wanted.filter(|_| !spec.read_only) else {
                    return Err(DiskError::Missing(path.clone()));
                };
                make(&mut options, path, bytes, journal)?
            }
            (opened, _) => opened.map_err(io_error("cannot open the disk image", path))?,
        };
        let file = Locked::take(file, spec.read_only)
            .map_err(io_error("cannot lock the disk image", path))?
            .ok_or_else(|| DiskError::InUse(path.clone()))?;
        // After a failed write the kernel keeps the block in memory as if it were on the disk. Another replica's copy is compared
        // with this one, so such blocks are dropped, and read from the disk again.
        let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed);
        let bytes = sized(spec, &file, journal.is_some())?;
        let bytes_max = spec.bytes_max.unwrap_or(bytes);
        let blocks = blocks_within(bytes_max)?;
        let mark = spec.read_only.then(|| mark::of(&file, bytes));
        let mark = mark.transpose();
        let mark = mark.map_err(io_error("cannot read the disk image", path))?;
        Ok(Self {
            path: path.clone(),
            file,
            bytes: bytes.into(),
            bytes_max,
            may_grow: spec.bytes_max.is_some(),
            read_only: spec.read_only,
            mark,
            delay: spec.delay,
            written: Written::new(if spec.read_only { 0 } else { blocks }),
            // A process that was killed may have left blocks that are not on the disk yet.
            unsynced: AtomicBool::new(!spec.read_only),
            broken: AtomicBool::new(false),
            syncing: Mutex::new(()),
            calls: Calls::default(),
            kept: Mutex::new(None),
            changes: Mutex::default(),
        })
    }

    /// The size of the image that `spec` names, for a process that does not use it; `None` if it will be made at the start.
    pub(crate) fn look(spec: &DiskSpec, used_before: bool) -> Result<Option<u64>, DiskError> {
        match access(spec).open(&spec.path) {
            Ok(file) => sized(spec, &file, used_before).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match spec.bytes.filter(|_| !spec.read_only) {
                    _ if used_before && !spec.read_only => Err(DiskError::Gone(spec.path.clone())),
                    Some(_) => Ok(None),
                    None => Err(DiskError::Missing(spec.path.clone())),
                }
            }
            Err(error) => Err(io_error("cannot open the disk image", &spec.path)(error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Blocks, counted as if it had grown as far as it may. Those behind its end are zero.
    pub(crate) fn blocks(&self) -> u32 {
        (self.bytes_max / DISK_BLOCK_BYTES as u64) as u32
    }

    /// Why it cannot grow by so many bytes on this host.
    pub(crate) fn why_no_room(&self, more: u64) -> Option<String> {
        let path = self.path.display();
        if !self.file.metadata().is_ok_and(|it| it.is_file()) {
            return Some(format!(
                "{path} is no file: only image files grow while the guest runs"
            ));
        }
        match rustix::fs::fstatvfs(&*self.file) {
            Ok(about) if about.f_bavail * about.f_frsize >= more => None,
            Ok(about) => Some(format!(
                "the file system of {path} has {} MiB free, and the disk is to grow by {}: make room",
                (about.f_bavail * about.f_frsize) >> 20,
                more >> 20
            )),
            Err(error) => Some(format!("cannot tell what is free at {path}: {error}")),
        }
    }

    /// Gives it another size, durably. What is behind the new end is lost.
    pub(crate) fn resize(&self, bytes: u64) -> io::Result<()> {
        let call = self.calls.begin_flush();
        self.file.set_len(bytes)?;
        drop(call);
        self.unsynced.store(true, Ordering::Release);
        // The kernel tells once that writes are lost, and the guest is to hear of it too.
        self.sync()?;
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_it(&self) {
        self.broken.store(true, Ordering::Release);
    }

    /// Whether writes may be lost.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let inside = self.bytes().saturating_sub(offset).min(to.len() as u64);
        let (to, behind) = to.split_at_mut(inside as usize);
        behind.fill(0);
        let _call = self.calls.begin();
        self.file.read_exact_at(to, offset).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return io::Error::new(error.kind(), "it ends there, and did not before");
            }
            error
        })
    }

    /// Writes. If the guest is the writer, the caller notes the blocks.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let _call = self.calls.begin();
        self.keep(std::iter::once(blocks_of(offset, from.len() as u64)));
        let result = self.file.write_all_at(from, offset);
        // A block of the leader's guest may lie behind the end of a disk that is smaller here: it grows to hold it.
        let end = offset + from.len() as u64;
        self.bytes.fetch_max(end, Ordering::AcqRel);
        // A failed write may have written a part.
        self.unsynced.store(true, Ordering::Release);
        result
    }

    /// Makes `bytes` from `offset` zero; `hole` allows a hole.
    pub(crate) fn write_zeroes(&self, offset: u64, bytes: u64, hole: bool) -> io::Result<()> {
        if bytes == 0 || offset >= self.bytes() {
            return Ok(());
        }
        let _call = self.calls.begin();
        self.keep(self.data_in(blocks_of(offset, bytes)));
        let flags = if hole {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        };
        let result = match fallocate(&*self.file, flags, offset, bytes) {
            // Some file systems do not support it, and block devices only for whole sectors.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {
                self.write_zeroes_by_hand(offset, bytes)
            }
            result => result.map_err(Into::into),
        };
        self.unsynced.store(true, Ordering::Release);
        result
    }

    fn write_zeroes_by_hand(&self, mut offset: u64, mut bytes: u64) -> io::Result<()> {
        let zeroes = [0; 16 * DISK_BLOCK_BYTES];
        while bytes > 0 {
            let part = bytes.min(zeroes.len() as u64);
            self.file.write_all_at(&zeroes[..part as usize], offset)?;
            (offset, bytes) = (offset + part, bytes - part);
        }
        Ok(())
    }

    /// `runs` of blocks are about to be written: a snapshot keeps what is there, and the next backup has what will be.
    fn keep(&self, runs: impl Iterator<Item = Range<u32>>) {
        let kept = lock(&self.kept).clone();
        let mut changes = lock(&self.changes);
        if kept.is_none() && changes.are_not_noted() {
            return;
        }
        let runs: Vec<_> = runs.inspect(|run| changes.note(run)).collect();
        drop(changes);
        if let Some((image, kept)) = kept {
            kept.keep(image, runs.into_iter(), |offset, to| self.read(offset, to));
        }
    }

    /// The runs among `blocks` that may not be zero.
    pub(crate) fn data_in(&self, blocks: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let mut from = blocks.start;
        std::iter::from_fn(move || {
            let (start, end) = self.next_data(from)?;
            from = end;
            Some(start.max(blocks.start)..end.min(blocks.end)).filter(|run| !run.is_empty())
        })
    }

    /// Notes that the guest has written these bytes.
    pub(crate) fn note(&self, offset: u64, bytes: u64) {
        self.written.note(blocks_of(offset, bytes));
    }

    /// Makes all earlier writes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.broken.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier flush has failed"));
        }
        if self.unsynced.swap(false, Ordering::AcqRel) {
            let _call = self.calls.begin_flush();
            if let Err(error) = self.file.sync_data() {
                self.broken.store(true, Ordering::Release);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether a sync would do nothing.
    pub(crate) fn is_synced(&self) -> bool {
        self.syncing.try_lock().is_ok()
            && !self.unsynced.load(Ordering::Acquire)
            && !self.broken.load(Ordering::Acquire)
    }

    /// The first block at or after `block` that may not be zero, or the number of blocks.
    pub(crate) fn first_data(&self, block: u32) -> u32 {
        let bytes = self.bytes();
        let _call = self.calls.begin();
        match holes::first_data(&*self.file, bytes, block) {
            found if u64::from(found) * DISK_BLOCK_BYTES as u64 >= bytes => self.blocks(),
            found => found,
        }
    }

    /// The first run of blocks at or after `block` that may not be zero; `None` if there is none.
    pub(crate) fn next_data(&self, block: u32) -> Option<(u32, u32)> {
        let _call = self.calls.begin();
        holes::next_data(&*self.file, self.bytes(), block)
    }
}

/// The blocks that these bytes lie in.
fn blocks_of(offset: u64, bytes: u64) -> Range<u32> {
    let block = DISK_BLOCK_BYTES as u64;
    (offset / block) as u32..(offset + bytes).div_ceil(block) as u32
}

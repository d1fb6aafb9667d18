//! The journal: the blocks of one syncvm, durable as a whole or not at all.
//!
//! ```text
//!   0          4096       8192
//!   ├ slot A ──┼ slot B ──┼ block, content, block, content, … ┤
//!   └ the newer of the two that is intact counts
//! ```
//!
//! A slot says whether the images are whole, and whether the blocks after the slots are in force, with a
//! hash over them. Staging writes blocks and slot, and syncs once. Until both are on the disk, the slot does
//! not fit its blocks (or is torn itself) and the older slot counts, which does not know the syncvm. So
//! there is one moment within that sync: a restart before it finds the images as they were, and a restart
//! after it writes the blocks into them.
//!
//! A slot whose blocks do not fit may also mean that the blocks went bad later. Both are taken for an
//! unfinished staging, which was never acknowledged.
//!
//! Every format keeps the magic bytes, its number and the hash at the same place. So a slot of another
//! release is recognised, and then the other slot does not count, even if it is one of ours.

use crate::calls::Calls;
use crate::error::{DiskError, io_error};
use plover_types::{BlockNo, DISK_BLOCK_BYTES, SyncNo};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"plovdisk";
const VERSION: u32 = 1;
const SLOT_BYTES: usize = 4096;
/// Where the two slots begin.
const SLOTS: [u64; 2] = [0, SLOT_BYTES as u64];
const BODY_AT: u64 = 2 * SLOT_BYTES as u64;
/// Bytes of a slot's fields; their hash follows.
const FIELDS_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 8 + 4 + 32;
const HASH_BYTES: usize = 32;
/// A block in the body: its number, then its content.
const ENTRY_BYTES: usize = 4 + DISK_BLOCK_BYTES;

/// Blocks that are applied together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    body: Vec<u8>,
}

impl Batch {
    /// No blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a block of [`DISK_BLOCK_BYTES`] bytes.
    pub fn push(&mut self, block: BlockNo, content: &[u8]) {
        assert_eq!(content.len(), DISK_BLOCK_BYTES, "a block is written whole");
        self.body.extend_from_slice(&block.0.to_le_bytes());
        self.body.extend_from_slice(content);
    }

    /// Whether it holds no block.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The blocks, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = (BlockNo, &[u8])> {
        self.body.chunks_exact(ENTRY_BYTES).map(|entry| {
            let (number, content) = entry.split_at(4);
            let number = number.try_into().map(u32::from_le_bytes);
            (BlockNo(number.unwrap_or_default()), content)
        })
    }
}

/// A slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    generation: u64,
    /// The images, with the blocks written into them if those are in force, are those of a guest at one
    /// moment.
    whole: bool,
    in_force: bool,
    /// The newest syncvm that is in the images.
    sync: SyncNo,
    /// Blocks of all disks together.
    blocks: u32,
    body_bytes: u64,
    body_hash: [u8; HASH_BYTES],
}

impl Slot {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let fields: [&[u8]; 8] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &[u8::from(self.whole), u8::from(self.in_force), 0, 0],
            &self.generation.to_le_bytes(),
            &self.sync.0.to_le_bytes(),
            &self.body_bytes.to_le_bytes(),
            &self.blocks.to_le_bytes(),
            &self.body_hash,
        ];
        let fields = fields.concat();
        assert_eq!(fields.len(), FIELDS_BYTES, "the fields and their length");
        bytes[..FIELDS_BYTES].copy_from_slice(&fields);
        let hash = blake3::hash(&fields);
        bytes[FIELDS_BYTES..FIELDS_BYTES + HASH_BYTES].copy_from_slice(hash.as_bytes());
        bytes
    }

    /// Whether the hash fits the fields, of any format.
    fn is_intact(bytes: &[u8; SLOT_BYTES]) -> bool {
        let (fields, rest) = bytes.split_at(FIELDS_BYTES);
        blake3::hash(fields).as_bytes() == &rest[..HASH_BYTES]
    }

    /// The slot in `bytes`, if it is intact and of our format.
    fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        if !Self::is_intact(bytes) {
            return None;
        }
        let fields = &bytes[..FIELDS_BYTES];
        let fields = fields.strip_prefix(&MAGIC)?;
        let fields = fields.strip_prefix(&VERSION.to_le_bytes())?;
        let (flags, fields) = fields.split_first_chunk::<4>()?;
        let (generation, fields) = fields.split_first_chunk()?;
        let (sync, fields) = fields.split_first_chunk()?;
        let (body_bytes, fields) = fields.split_first_chunk()?;
        let (blocks, fields) = fields.split_first_chunk()?;
        Some(Self {
            generation: u64::from_le_bytes(*generation),
            whole: flags[0] != 0,
            in_force: flags[1] != 0,
            sync: SyncNo(u64::from_le_bytes(*sync)),
            blocks: u32::from_le_bytes(*blocks),
            body_bytes: u64::from_le_bytes(*body_bytes),
            body_hash: fields.try_into().ok()?,
        })
    }
}

/// The open journal of one replica.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    slot: Slot,
    calls: Arc<Calls>,
}

impl Journal {
    /// Opens the journal of disks of `blocks` blocks, or makes one that says that they are whole.
    pub(crate) fn open(path: &Path, blocks: u32) -> Result<Self, DiskError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::create(path, blocks)
                    .map_err(io_error("cannot create the disk journal", path));
            }
            opened => opened.map_err(io_error("cannot open the disk journal", path))?,
        };
        // After a failed write the kernel keeps it in memory as if it were on the disk, and a power loss would bring back a slot
        // that was believed to be replaced. So changes in memory are written now, and the rest is read from the disk again.
        file.sync_data()
            .map_err(io_error("cannot write the disk journal", path))?;
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let slot = newest(&file, path, blocks)?;
        let slot = Slot { blocks, ..slot };
        Ok(Self::of(path, file, slot))
    }

    fn of(path: &Path, file: File, slot: Slot) -> Self {
        Self {
            path: path.into(),
            file,
            slot,
            calls: Arc::default(),
        }
    }

    /// The calls that wait for the file.
    pub(crate) fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls)
    }

    /// Looks at the journal of disks of `blocks` blocks, for a process that does not own it. Returns the blocks that they had
    /// before; `None` if there is no journal.
    pub(crate) fn look(path: &Path, blocks: u32) -> Result<Option<u32>, DiskError> {
        match File::open(path) {
            Ok(file) => Ok(Some(newest(&file, path, blocks)?.blocks)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("cannot open the disk journal", path)(error)),
        }
    }

    /// The number of blocks of the disks that the journal at `path` is for, if there is one. One slot that can be read tells
    /// it.
    pub(crate) fn blocks_at(path: &Path) -> Option<u32> {
        let file = File::open(path).ok()?;
        let readable: Vec<_> = SLOTS
            .iter()
            .filter_map(|at| slot_at(&file, *at).ok().flatten())
            .collect();
        slots(&readable).first().map(|slot| slot.blocks)
    }

    /// An image of these disks is gone, and an empty one is about to be made in its place. Once it returns, no restart takes
    /// the images for a whole copy.
    pub(crate) fn lose_an_image(path: &Path) -> Result<(), DiskError> {
        let blocks = Self::blocks_at(path).unwrap_or_default();
        Self::open(path, blocks)?.begin_copy()
    }

    fn create(path: &Path, blocks: u32) -> io::Result<Self> {
        let slot = Slot {
            generation: 0,
            whole: true,
            in_force: false,
            sync: SyncNo(0),
            blocks,
            body_bytes: 0,
            body_hash: [0; HASH_BYTES],
        };
        // Under another name first, so that the file exists whole or not at all.
        let new = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&new)?;
        file.write_all_at(&slot.encode(), 0)?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(Self::of(path, file, slot))
    }

    /// The blocks that are in force, if any.
    pub(crate) fn pending(&self) -> Result<Option<Batch>, DiskError> {
        if !self.slot.in_force {
            return Ok(None);
        }
        let _call = self.calls.begin_flush();
        // It was intact when it was written or opened.
        let batch = read_body(&self.file, &self.slot).map_err(unreadable(&self.path))?;
        batch
            .map(Some)
            .ok_or_else(|| DiskError::DamagedJournal(self.path.clone()))
    }

    /// Whether the images are whole.
    pub(crate) fn is_whole(&self) -> bool {
        self.slot.whole
    }

    /// The newest syncvm that is in the images.
    pub(crate) fn sync(&self) -> SyncNo {
        self.slot.sync
    }

    /// A full copy begins: the images are useless until the next [`Journal::stage`].
    pub(crate) fn begin_copy(&mut self) -> Result<(), DiskError> {
        self.advance(|slot| {
            slot.whole = false;
            slot.in_force = false;
        })
    }

    /// Once it returns, a restart writes `batch` into the images, and they are whole.
    pub(crate) fn stage(&mut self, sync: SyncNo, batch: &Batch) -> Result<(), DiskError> {
        assert!(!self.slot.in_force, "one syncvm at a time");
        let body = &batch.body;
        let hash = *blake3::hash(body).as_bytes();
        let calls = self.calls();
        let call = calls.begin_flush();
        self.file
            .write_all_at(body, BODY_AT)
            .map_err(io_error("cannot write the disk journal", &self.path))?;
        drop(call);
        let body_bytes = body.len() as u64;
        self.advance(|slot| {
            slot.whole = true;
            slot.in_force = body_bytes > 0;
            slot.sync = sync;
            slot.body_bytes = body_bytes;
            slot.body_hash = hash;
        })
    }

    /// The blocks are durable in the images.
    pub(crate) fn retire(&mut self) -> Result<(), DiskError> {
        self.advance(|slot| slot.in_force = false)
    }

    fn advance(&mut self, change: impl FnOnce(&mut Slot)) -> Result<(), DiskError> {
        let mut slot = self.slot;
        change(&mut slot);
        slot.generation += 1;
        let at = slot.generation % 2 * SLOT_BYTES as u64;
        let _call = self.calls.begin_flush();
        self.file
            .write_all_at(&slot.encode(), at)
            .and_then(|()| self.file.sync_data())
            .map_err(io_error("cannot write the disk journal", &self.path))?;
        self.slot = slot;
        Ok(())
    }
}

/// The slot that counts, of a journal of disks of `blocks` blocks.
fn newest(file: &File, path: &Path, blocks: u32) -> Result<Slot, DiskError> {
    let stored = stored(file).map_err(unreadable(path))?;
    if let Some(found) = other_format(&stored, Slot::is_intact) {
        return Err(other_release(path, found));
    }
    for slot in slots(&stored) {
        if slot.in_force && read_body(file, &slot).map_err(unreadable(path))?.is_none() {
            // An unfinished staging: the older slot has the state before it.
            continue;
        }
        if slot.blocks != blocks && slot.in_force {
            return Err(DiskError::OtherDisks {
                path: path.into(),
                found: slot.blocks,
                wanted: blocks,
            });
        }
        return Ok(slot);
    }
    // No slot is usable. Another format's number after the magic bytes explains it.
    Err(match other_format(&stored, |_| true) {
        Some(found) => other_release(path, found),
        None => DiskError::DamagedJournal(path.into()),
    })
}

fn other_release(path: &Path, found: u32) -> DiskError {
    DiskError::OtherRelease {
        path: path.into(),
        found,
        known: VERSION,
    }
}

/// An error in reading is no torn write: the older slot must not count for it.
fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> DiskError + use<> {
    io_error("cannot read the disk journal", path)
}

/// The format of a slot for which `counts` holds, if it is not ours.
fn other_format(
    stored: &[[u8; SLOT_BYTES]],
    counts: impl Fn(&[u8; SLOT_BYTES]) -> bool,
) -> Option<u32> {
    let other = |bytes: &[u8; SLOT_BYTES]| {
        let format = *bytes.strip_prefix(&MAGIC)?.first_chunk()?;
        let format = u32::from_le_bytes(format);
        (format != VERSION && counts(bytes)).then_some(format)
    };
    stored.iter().find_map(other)
}

/// `None` if the file ends before.
fn inside(read: io::Result<()>) -> io::Result<Option<()>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => read.map(Some),
    }
}

/// The bytes of the slot at this place. A slot beyond the end of the file was never written.
fn slot_at(file: &File, at: u64) -> io::Result<Option<[u8; SLOT_BYTES]>> {
    let mut bytes = [0; SLOT_BYTES];
    let read = inside(file.read_exact_at(&mut bytes, at))?;
    Ok(read.map(|()| bytes))
}

/// The bytes of both slots.
fn stored(file: &File) -> io::Result<Vec<[u8; SLOT_BYTES]>> {
    let slots = SLOTS.iter().map(|at| slot_at(file, *at));
    slots.filter_map(Result::transpose).collect()
}

/// The intact slots, newest first.
fn slots(stored: &[[u8; SLOT_BYTES]]) -> Vec<Slot> {
    let mut slots: Vec<_> = stored.iter().filter_map(Slot::decode).collect();
    slots.sort_by_key(|slot| std::cmp::Reverse(slot.generation));
    slots
}

/// The blocks of `slot`, if they are intact.
fn read_body(file: &File, slot: &Slot) -> io::Result<Option<Batch>> {
    let held = file.metadata()?.len().saturating_sub(BODY_AT);
    let length = usize::try_from(slot.body_bytes).unwrap_or(usize::MAX);
    if slot.body_bytes > held || length % ENTRY_BYTES != 0 {
        return Ok(None);
    }
    let mut body = vec![0; length];
    if inside(file.read_exact_at(&mut body, BODY_AT))?.is_none() {
        return Ok(None);
    }
    let batch = Batch { body };
    let fits = *blake3::hash(&batch.body).as_bytes() == slot.body_hash
        && batch.iter().all(|(block, _)| block.0 < slot.blocks);
    Ok(fits.then_some(batch))
}

pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

//! The guest's memory as of one sync, copied into a file while the guest runs; and a new guest's memory from that.
//!
//! ```text
//!   the replica's loop                             a thread
//!   ──────────────────                             ─────────────────────────────────────────────────
//!                                                  every page that has data is owed
//!                                                  owed pages ── read ──▶ a file, removed at once
//!   at each sync: the pages that the guest or
//!   the sync has written since the one before ───▶ are owed again
//!
//!   at the sync that the backup is of, few are
//!   owed: the loop reads them, and the guest
//!   stands still meanwhile                    ───▶ ──────▶ the file: it is whole
//! ```
//!
//! Nobody waits for the thread, which writes to a disk. A guest that writes faster than the thread reads never comes to
//! the last step, and the caller gives up.
//!
//! The file holds the memory, and behind it the [`MachineState`].

use crate::error::{advice, io_error};
use crate::health::lock;
use crate::nbd::{self, Backing, Extent};
use crate::pace::Pace;
use crate::scratch;
use crate::{DiskError, holes};
use plover_types::{DISK_BLOCK_BYTES, PAGE_BYTES, PageNo, PageSet};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Pages that a sync may leave to be read while the guest stands still: 16 MiB.
const LAST_PAGES_MAX: u32 = 4096;

/// The thread rests while no more pages are owed, since the guest writes some of them again before the next sync.
const RESTS_AT: u32 = LAST_PAGES_MAX / 2;

/// Pages that the thread reads at once: 1 MiB.
const AT_ONCE: u32 = 256;

const PAGE: u64 = PAGE_BYTES as u64;

/// A state begins with this.
const MAGIC: &[u8; 8] = b"plvrmem1";
/// The magic and two lengths.
const HEAD_BYTES: usize = 16;
/// A state, with its words, has fewer bytes.
const STATE_BYTES_MAX: u64 = 128 << 20;

/// The state of a guest's devices and CPUs, and the machine that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// The parts that must be alike in the machine that loads it, in words.
    pub machine: String,
    /// As the hypervisor serialised it.
    pub devices: Vec<u8>,
}

impl MachineState {
    /// In whole blocks.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.machine.len() as u32).to_le_bytes());
        bytes.extend((self.devices.len() as u32).to_le_bytes());
        bytes.extend(self.machine.as_bytes());
        bytes.extend(&self.devices);
        bytes.resize(bytes.len().next_multiple_of(DISK_BLOCK_BYTES), 0);
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let (magic, lengths) = head.split_at(MAGIC.len());
        let (words, devices) = lengths.split_at(4);
        let length = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize);
        let (words, rest) = rest.split_at_checked(length(words)?)?;
        let devices = rest.get(..length(devices)?)?;
        let machine = std::str::from_utf8(words).ok()?;
        (magic == MAGIC).then(|| Self {
            machine: machine.into(),
            devices: devices.to_vec(),
        })
    }
}

/// A running copy.
#[derive(Debug)]
pub struct MemoryCopy {
    ram: File,
    ram_bytes: u64,
    dir: PathBuf,
    /// Opened by the thread, since the folder may be slow.
    file: OnceLock<File>,
    pace: Pace,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    owed: PageSet,
    /// Whether all pages with data were owed once.
    begun: bool,
    /// The thread goes on from here.
    at: PageNo,
    last: Option<Last>,
    /// The bytes of the file, once it is whole.
    whole: Option<u64>,
    ended: Option<String>,
}

/// The bytes of the whole file; places in it and what belongs there.
type Last = (u64, Vec<(u64, Vec<u8>)>);

/// The thread's next step.
enum Step {
    Write(u64, Vec<u8>),
    Finish(Last),
    End,
}

impl MemoryCopy {
    /// Begins to copy the `ram_bytes` of `ram`, a memory file, into a file without a name in `dir`. From now on the caller
    /// says what is written ([`Self::wrote`]).
    ///
    /// # Errors
    /// There can be no thread for it.
    pub fn begin(ram: File, ram_bytes: u64, dir: &Path, bytes_per_s: u64) -> io::Result<Arc<Self>> {
        let copy = Arc::new(Self::new(ram, ram_bytes, dir, bytes_per_s));
        let for_thread = Arc::clone(&copy);
        std::thread::Builder::new()
            .name("memory-copy".into())
            .spawn(move || for_thread.run())?;
        Ok(copy)
    }

    fn new(ram: File, ram_bytes: u64, dir: &Path, bytes_per_s: u64) -> Self {
        Self {
            ram,
            ram_bytes,
            dir: dir.into(),
            file: OnceLock::new(),
            pace: Pace::new(bytes_per_s),
            state: Mutex::new(State {
                owed: PageSet::new((ram_bytes / PAGE) as u32),
                begun: false,
                at: PageNo(0),
                last: None,
                whole: None,
                ended: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// These pages were written since the last call. Those behind the memory, which are of disks, are passed over.
    pub fn wrote(&self, pages: &PageSet) {
        let mut state = lock(&self.state);
        let memory = PageNo(state.owed.capacity());
        let written = pages.iter().take_while(|page| *page < memory);
        written.for_each(|page| state.owed.insert(page));
        self.changed.notify_all();
    }

    /// The pages that are not copied, or not as they are now.
    ///
    /// # Errors
    /// The copy has ended, and why.
    pub fn owed(&self) -> Result<u32, String> {
        let state = lock(&self.state);
        match &state.ended {
            Some(why) => Err(why.clone()),
            None if !state.begun => Ok(state.owed.capacity()),
            None => Ok(state.owed.len()),
        }
    }

    /// Whether the rest may be read while the guest stands still. Not before it is known which pages have data, however small
    /// the memory is.
    ///
    /// # Errors
    /// As [`Self::owed`].
    pub fn is_close(&self) -> Result<bool, String> {
        let owed = self.owed()?;
        Ok(lock(&self.state).begun && owed <= LAST_PAGES_MAX)
    }

    /// Reads what is owed: the copy is of this moment, in which the guest stands still. It is whole soon, and then has the
    /// returned number of bytes.
    ///
    /// # Errors
    /// As [`Self::owed`].
    pub fn finish(&self, machine: &MachineState) -> Result<u64, String> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        if !state.begun {
            return Err("the copy of the guest's memory has not begun: try again".into());
        }
        let runs = state.owed.to_runs().0;
        let machine = machine.to_bytes();
        let bytes = self.ram_bytes + machine.len() as u64;
        let mut last = vec![(self.ram_bytes, machine)];
        for (first, pages) in runs {
            let read = self.read(first, pages);
            last.push(read.map_err(|error| cannot_read(&error))?);
        }
        state.owed.clear();
        state.last = Some((bytes, last));
        self.changed.notify_all();
        Ok(bytes)
    }

    /// Ends it, unless it has ended.
    pub fn end(&self, why: &str) {
        lock(&self.state).ended.get_or_insert_with(|| why.into());
        self.changed.notify_all();
    }

    /// The bytes of the image, once it is whole. Waits for that.
    ///
    /// # Errors
    /// It has ended, and why.
    pub fn wait_until_whole(&self) -> Result<u64, String> {
        let mut state = lock(&self.state);
        loop {
            match (&state.ended, state.whole) {
                (Some(why), _) => return Err(why.clone()),
                (None, Some(bytes)) => return Ok(bytes),
                (None, None) => {
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Serves the image over NBD, once it is whole, until the client leaves.
    ///
    /// # Errors
    /// The copy has ended, or the client violates the protocol.
    pub fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let bytes = self.wait_until_whole().map_err(io::Error::other)?;
        let file = self.file.get().ok_or(io::ErrorKind::NotFound)?;
        let export = Export {
            copy: self,
            file,
            bytes,
        };
        nbd::serve(&mut stream, &export)
    }

    fn run(&self) {
        let copied = self.open().and_then(|file| {
            self.owe_all();
            self.copy(file)
                .map_err(|error| cannot_keep(&self.dir, &error))
        });
        if let Err(why) = copied {
            self.end(&why);
        }
    }

    fn open(&self) -> Result<&File, String> {
        let cannot = |error: io::Error| cannot_keep(&self.dir, &error);
        let room = scratch::room(&self.dir).map_err(cannot)?;
        if self.ram_bytes > room / 2 {
            return Err(format!(
                "{} has {} MiB free, and a backup may take half of that for a copy of the guest's memory, which has {} \
                 MiB: make room, or back up without the memory",
                self.dir.display(),
                room >> 20,
                self.ram_bytes >> 20
            ));
        }
        let file = scratch::unnamed(&self.dir, "backup.memory").map_err(cannot)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Every page that has data. Those that get some later are written, and the caller says so.
    fn owe_all(&self) {
        let mut all = PageSet::new((self.ram_bytes / PAGE) as u32);
        let mut at = 0;
        while let Some((start, end)) = holes::next_data(&self.ram, self.ram_bytes, at) {
            all.insert_run(start, end);
            at = end;
        }
        let mut state = lock(&self.state);
        state.owed.union_with(&all);
        state.begun = true;
    }

    fn copy(&self, file: &File) -> io::Result<()> {
        loop {
            match self.next()? {
                Step::Write(at, content) => {
                    self.pace.wait_for(content.len());
                    file.write_all_at(&content, at)?;
                }
                Step::Finish((bytes, last)) => {
                    for (at, content) in last {
                        file.write_all_at(&content, at)?;
                    }
                    lock(&self.state).whole = Some(bytes);
                    self.changed.notify_all();
                    return Ok(());
                }
                Step::End => return Ok(()),
            }
        }
    }

    fn next(&self) -> io::Result<Step> {
        let mut state = lock(&self.state);
        loop {
            if state.ended.is_some() {
                return Ok(Step::End);
            }
            if let Some(last) = state.last.take() {
                return Ok(Step::Finish(last));
            }
            if state.owed.len() > RESTS_AT {
                let ahead = state.owed.iter_from(state.at).next();
                let first = ahead.or_else(|| state.owed.iter().next());
                let first = first.map_or(0, |page| page.0);
                let owed = |page: &u32| state.owed.contains(PageNo(*page));
                let until = (first + AT_ONCE).min(state.owed.capacity());
                let pages = (first..until).take_while(owed).count() as u32;
                // Under the lock: a write that is told after this is not in it.
                let (at, content) = self.read(first, pages)?;
                for page in first..first + pages {
                    state.owed.remove(PageNo(page));
                }
                state.at = PageNo(first + pages);
                return Ok(Step::Write(at, content));
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The place of pages, and their content at present.
    fn read(&self, first: u32, pages: u32) -> io::Result<(u64, Vec<u8>)> {
        let at = u64::from(first) * PAGE;
        let mut content = vec![0; pages as usize * PAGE_BYTES];
        self.ram.read_exact_at(&mut content, at)?;
        Ok((at, content))
    }
}

fn cannot_keep(dir: &Path, error: &io::Error) -> String {
    format!(
        "cannot keep a copy of the guest's memory in {}: {error}; {}",
        dir.display(),
        advice(error)
    )
}

fn cannot_read(error: &io::Error) -> String {
    format!("cannot read the guest's memory: {error}")
}

/// A whole copy, for one NBD client.
struct Export<'a> {
    copy: &'a MemoryCopy,
    file: &'a File,
    bytes: u64,
}

impl Backing for Export<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.copy.pace.wait_for(to.len());
        let read = self.file.read_exact_at(to, offset);
        read.inspect_err(|error| self.copy.end(&cannot_keep(&self.copy.dir, error)))
    }

    fn tells_extents(&self) -> bool {
        true
    }

    fn extents(&self, offset: u64, bytes: u64) -> io::Result<Vec<(u64, Extent)>> {
        let first = (offset / PAGE) as u32;
        let (kind, end) = match holes::next_data(self.file, self.bytes, first) {
            Some((start, _)) if u64::from(start) * PAGE > offset => {
                (Extent::Zero, u64::from(start) * PAGE)
            }
            Some((_, end)) => (Extent::Data, u64::from(end) * PAGE),
            None => (Extent::Zero, self.bytes),
        };
        Ok(vec![((end - offset).min(bytes), kind)])
    }
}

/// A whole copy as a file.
#[derive(Debug)]
pub struct MemoryImage {
    path: PathBuf,
    file: File,
    ram_bytes: u64,
    /// The state of the machine that the memory is of.
    pub state: MachineState,
}

impl MemoryImage {
    /// Opens the copy of a memory of `ram_bytes` that is the file `path`.
    ///
    /// # Errors
    /// It cannot be read, or is of a memory of another size.
    pub fn open(path: &Path, ram_bytes: u64) -> Result<Self, DiskError> {
        let cannot = || io_error("cannot read the memory of a backup", path);
        let file = File::open(path).map_err(cannot())?;
        let bytes = file.metadata().map_err(cannot())?.len();
        let rest = bytes.checked_sub(ram_bytes);
        let read = |length: u64| -> io::Result<Vec<u8>> {
            let mut rest = vec![0; length as usize];
            file.read_exact_at(&mut rest, ram_bytes)?;
            Ok(rest)
        };
        let rest = rest.filter(|length| *length <= STATE_BYTES_MAX).map(read);
        let rest = rest.transpose().map_err(cannot())?;
        let state = rest.and_then(|bytes| MachineState::of_bytes(&bytes));
        let state = state.ok_or_else(|| DiskError::OtherMemory(path.into(), ram_bytes >> 20))?;
        Ok(Self {
            path: path.into(),
            file,
            ram_bytes,
            state,
        })
    }

    /// Writes the memory into `ram`, whatever is there. Calls `progress` with each finished percent.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn fill(&self, ram: &File, mut progress: impl FnMut(u8)) -> Result<(), DiskError> {
        let cannot = || io_error("cannot read the memory of a backup", &self.path);
        let (mut at, mut told) = (0, 0);
        let mut content = vec![0; AT_ONCE as usize * PAGE_BYTES];
        while let Some((start, end)) = holes::next_data(&self.file, self.ram_bytes, at) {
            self.clear(ram, at..start)?;
            let pages = (end - start).min(AT_ONCE);
            let part = &mut content[..pages as usize * PAGE_BYTES];
            let offset = u64::from(start) * PAGE;
            let copied = self.file.read_exact_at(part, offset);
            copied
                .and_then(|()| ram.write_all_at(part, offset))
                .map_err(cannot())?;
            at = start + pages;
            let percent = (u64::from(at) * PAGE * 100 / self.ram_bytes) as u8;
            if percent > std::mem::replace(&mut told, percent) {
                progress(percent);
            }
        }
        self.clear(ram, at..(self.ram_bytes / PAGE) as u32)
    }

    /// Makes these pages of `ram` zero: QEMU has put a kernel or its firmware there, perhaps.
    fn clear(&self, ram: &File, pages: Range<u32>) -> Result<(), DiskError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mut at = pages.start;
        // Not even a look where the backup has no hole: the end of the data may be far.
        while at < pages.end {
            let run = holes::next_data(ram, self.ram_bytes, at);
            let Some((start, end)) = run.filter(|(start, _)| *start < pages.end) else {
                break;
            };
            at = end.min(pages.end);
            let (first, bytes) = (u64::from(start) * PAGE, u64::from(at - start) * PAGE);
            fallocate(ram, flags, first, bytes)
                .map_err(io::Error::from)
                .map_err(io_error("cannot clear the guest's memory for", &self.path))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

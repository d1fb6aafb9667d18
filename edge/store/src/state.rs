//! The promise: the few bytes that must survive in either durability.
//!
//! ```text
//!   state   | copy of an even generation | copy of the same | copy of an odd one | copy of it |
//!           0                          4096               8192                12288        16384
//! ```
//!
//! A write goes to the pair of the older generation and takes one sync, so a crash in the middle
//! leaves the newer one whole. Both copies of a generation lie in blocks of their own, and no copy
//! is larger than a sector. So one unreadable block never makes an older promise look like the newest.
//!
//! The format has a version of its own, the last digit of the magic bytes, because a promise outlives
//! the release that made it.

use crate::directory::{Directory, StoredFile};
use crate::error::StoreError;
use apus::{Durability, DurableState};
use serde::{Deserialize, Serialize};

/// The file's name.
pub(crate) const FILE: &str = "state";
const COPY_BYTES: usize = 4096;
const PAIR_BYTES: usize = 2 * COPY_BYTES;
const MAGIC: [u8; 7] = *b"PLVSTAT";
pub(crate) const FORMAT: u8 = b'3';

/// The longest name of a group: a copy must fit a sector of 512 bytes.
pub(crate) const GROUP_BYTES_MAX: usize = 255;

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Counts writes.
    pub generation: u64,
    /// The group's name.
    pub group: String,
    /// Random; see [`crate::record`].
    pub salt: u64,
    /// The replica's durability when it last ran.
    pub durability: Durability,
    /// The promise; none if it never made one.
    pub promise: Option<DurableState>,
    /// The log holds everything that was acknowledged. False until a first recovery is complete,
    /// in memory mode, and after damage.
    pub whole: bool,
}

/// The open file and what it holds.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: StoredFile,
    /// The state of the last successful write.
    pub state: State,
    bytes: Vec<u8>,
}

impl StateFile {
    /// Makes the file of a directory that has none, complete or not at all.
    pub fn create(directory: &Directory, state: State) -> Result<Self, StoreError> {
        let file = directory.create("state.new")?;
        file.fill(0, 2 * PAIR_BYTES as u64)?;
        let mut this = Self {
            file,
            state,
            bytes: Vec::with_capacity(PAIR_BYTES),
        };
        this.write()?;
        this.file.renamed(FILE)?;
        directory.sync()?;
        Ok(this)
    }

    /// Opens the file and reads the newest state.
    ///
    /// # Errors
    /// [`StoreError::PromiseLost`] if the newest promise may be unreadable;
    /// [`StoreError::OtherRelease`] if it is of a later format.
    pub fn open(directory: &Directory) -> Result<Self, StoreError> {
        let file = directory.existing(FILE)?;
        let bytes = file.read_from_disk()?;
        let (state, sound) = newest(&bytes).map_err(|why| match later_format(&bytes) {
            None => StoreError::PromiseLost {
                path: file.path(),
                why,
            },
            Some(format) => StoreError::OtherRelease {
                path: file.path(),
                why: format!(
                    "it has format {format}, and this release knows {}",
                    FORMAT as char
                ),
                go_on: "move the directory away",
            },
        })?;
        let mut this = Self {
            file,
            state,
            bytes: Vec::with_capacity(PAIR_BYTES),
        };
        if !sound {
            tracing::warn!(
                event = "promise_repaired", path = %this.file.path().display(),
                "a copy of the promise was damaged or torn; the other copy serves, and is copied"
            );
            this.write()?;
            this.write()?;
        }
        Ok(this)
    }

    /// Changes the state and makes it durable: one write, one sync.
    pub fn update(&mut self, change: impl FnOnce(&mut State)) -> Result<(), StoreError> {
        change(&mut self.state);
        self.write()
    }

    fn write(&mut self) -> Result<(), StoreError> {
        self.state.generation += 1;
        self.bytes.clear();
        for _ in 0..2 {
            push_copy(&mut self.bytes, &self.state);
        }
        let offset = (self.state.generation % 2) * PAIR_BYTES as u64;
        self.file.write(&self.bytes, offset)?;
        self.file.sync()
    }
}

/// `magic, format, CRC32C, length, state, zeros`.
pub(crate) fn push_copy(to: &mut Vec<u8>, state: &State) {
    let start = to.len();
    to.extend_from_slice(&MAGIC);
    to.push(FORMAT);
    to.extend_from_slice(&[0; 8]);
    *to = postcard::to_extend(state, std::mem::take(to)).expect("plain data, and a Vec grows");
    let length = to.len() - start - 16;
    assert!(length + 16 <= 512, "a copy of the state fits a sector");
    to[start + 12..start + 16].copy_from_slice(&(length as u32).to_le_bytes());
    let sum = crc32c::crc32c(&to[start + 12..]);
    to[start + 8..start + 12].copy_from_slice(&sum.to_le_bytes());
    to.resize(start + COPY_BYTES, 0);
}

pub(crate) fn read_copy(bytes: &[u8]) -> Option<State> {
    let (format, rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
    let (sum, covered) = rest.split_first_chunk::<4>()?;
    let (length, _) = covered.split_first_chunk::<4>()?;
    let covered = covered.get(..4 + u32::from_le_bytes(*length) as usize)?;
    if crc32c::crc32c(covered) != u32::from_le_bytes(*sum) {
        return None;
    }
    match postcard::take_from_bytes(&covered[4..]) {
        Ok((state, [])) if *format == FORMAT => Some(state),
        _ => None,
    }
}

/// The format of a pair of copies that a later release has written.
fn later_format(bytes: &[u8]) -> Option<char> {
    let format = |copy: &[u8]| {
        let format = *copy.strip_prefix(&MAGIC)?.first()?;
        (format > FORMAT && format.is_ascii_graphic()).then_some(char::from(format))
    };
    let pairs = bytes.chunks(PAIR_BYTES);
    let mut formats = pairs.map(|pair| {
        let [first, second] = [0, COPY_BYTES].map(|at| format(pair.get(at..)?));
        first.filter(|_| first == second)
    });
    formats.find_map(|format| format)
}

/// The newest state, and whether every copy is as it should be.
fn newest(bytes: &[u8]) -> Result<(State, bool), String> {
    if bytes.len() != 2 * PAIR_BYTES {
        return Err(format!(
            "{} bytes long instead of {}",
            bytes.len(),
            2 * PAIR_BYTES
        ));
    }
    let mut found: Option<State> = None;
    let mut sound = true;
    for pair in bytes.chunks(PAIR_BYTES) {
        let copies: Vec<_> = pair.chunks(COPY_BYTES).map(read_copy).collect();
        sound &= copies[0] == copies[1];
        let best = copies.into_iter().flatten().max_by_key(|s| s.generation);
        match best {
            None if pair.iter().all(|byte| *byte == 0) => {}
            None => return Err("both copies of a generation are unreadable".to_string()),
            Some(state) => {
                if found
                    .as_ref()
                    .is_none_or(|f| f.generation < state.generation)
                {
                    found = Some(state);
                }
            }
        }
    }
    let state = found.ok_or("it is empty")?;
    Ok((state, sound))
}

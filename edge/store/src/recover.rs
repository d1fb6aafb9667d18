//! Reads the segments, and decides whether a bad record is a torn tail or damage.
//!
//! A crash may leave the last batch in any state: some of its blocks written, some not. That batch
//! had not been acknowledged, so it is cut off. Everything before it had been, so a bad record there
//! is *damage*: this replica no longer holds what it has acknowledged. The records tell the two apart:
//!
//! ```text
//!   batch 1 (synced)    batch 2 (synced)     batch 3 (a crash came)
//!   |  r1  |  r2  |     |  r3  |  r4  |     | ~~~~ | r6 |
//!                          ^ bad: damage,      ^ bad: torn, because r6's batch
//!                            r6 began later      does not begin after it
//! ```
//!
//! A batch is written only after the one before is synced. So a good record whose batch begins after
//! the bad one proves that the bad one had been good. When the store has nothing else to do it writes
//! a *seal*, a batch of its own that proves the same for the last real one. Without a seal on disk, a
//! flipped bit in the last batch looks like a torn write. Sectors of 512 bytes are written whole or
//! not at all, as disks promise.
//!
//! A file that is *shorter* than it was is damage, too: no crash takes away space that was there
//! before the first record. Recovery notices it because a segment has room for every record in it and
//! an End.

use crate::directory::Directory;
use crate::error::{Damage, SegmentNumber, StoreError};
use crate::open::SEGMENT_BYTES_MIN;
use crate::record::{ALIGN_BYTES, Base, Checked, EMPTY_BYTES, HEADER_BYTES, Record, begun, check};
use crate::replay::Replay;
use crate::segment::{self, Segment};
use apus::Entry;
use plover_types::Index;

/// The unit that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// A segment that takes no more records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub number: SegmentNumber,
    /// The highest index in it. The segment can go once a trim reaches it.
    pub index_max: Index,
}

/// A log that holds all that was acknowledged.
#[derive(Debug)]
pub(crate) struct Found {
    pub base: Base,
    pub entries: Vec<Entry>,
    pub closed: Vec<Closed>,
    /// The segment in which it continues.
    pub current: Segment,
    /// Where in that segment; 0 if it has not begun.
    pub at: u64,
    pub index_max: Index,
    pub prepared: Option<Segment>,
    /// Whether a torn batch was cut off.
    pub torn: bool,
}

/// The last segment that has begun, and where its records end.
#[derive(Clone, Copy, Debug)]
struct Tail {
    number: SegmentNumber,
    at: usize,
    /// It ends with an End record.
    complete: bool,
    torn: bool,
}

/// Why the log cannot be used.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It is damaged.
    Damage(Damage),
    /// Another release has written it; in words.
    Foreign(String),
    /// The file system failed.
    System(StoreError),
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::System(error)
    }
}

fn damage(segment: SegmentNumber, at: usize, what: impl Into<String>) -> Problem {
    Problem::Damage(Damage::Bad {
        segment,
        offset: at as u64,
        what: what.into(),
    })
}

/// The file of `segment` has only `bytes`, and had more.
fn cut_off(segment: SegmentNumber, at: usize, bytes: u64) -> Problem {
    let what = format!("the file is cut off: it has only {bytes} bytes");
    damage(segment, at, what)
}

/// Reads the log.
pub(crate) fn recover(directory: &Directory, salt: u64) -> Result<Found, Problem> {
    let reader = Reader {
        directory,
        salt,
        replay: Replay::default(),
        closed: Vec::new(),
        tail: None,
    };
    reader.read()
}

struct Reader<'a> {
    directory: &'a Directory,
    salt: u64,
    replay: Replay,
    closed: Vec<Closed>,
    tail: Option<Tail>,
}

impl Reader<'_> {
    fn read(mut self) -> Result<Found, Problem> {
        let numbers = segment::list(self.directory)?;
        for number in &numbers {
            let bytes = self.bytes_of(*number)?;
            let begun = records(&bytes, self.salt, *number).next().is_some();
            if begun {
                self.close_tail(*number)?;
                self.tail = Some(self.read_segment(*number, &bytes)?);
            }
        }
        let Some(tail) = self.tail else {
            let gone = Problem::Damage(Damage::Gone);
            let first = numbers.first();
            return Err(first.map_or(gone, |first| damage(*first, 0, "no record is left")));
        };
        let after: Vec<_> = numbers.into_iter().filter(|n| *n > tail.number).collect();
        match after.as_slice() {
            [] => self.finish(tail, None),
            [next] if *next == tail.number.next() => self.finish(tail, Some(*next)),
            [next, ..] => Err(damage(*next, 0, "no record of this segment is left")),
        }
    }

    /// The bytes of a segment. A block that the disk cannot read is damage.
    fn bytes_of(&self, number: SegmentNumber) -> Result<Vec<u8>, Problem> {
        let unreadable = rustix::io::Errno::IO.raw_os_error();
        match Segment::open(self.directory, number).and_then(|s| s.file.read_from_disk()) {
            Err(StoreError::Io { source, .. }) if source.raw_os_error() == Some(unreadable) => Err(
                damage(number, 0, format!("the disk cannot read it: {source}")),
            ),
            other => Ok(other?),
        }
    }

    /// Segment `next` has begun, so the one before must be complete.
    fn close_tail(&mut self, next: SegmentNumber) -> Result<(), Problem> {
        let Some(tail) = self.tail.take() else {
            return Ok(());
        };
        if !tail.complete {
            let what = format!("an unreadable record, although {next} has begun since");
            return Err(damage(tail.number, tail.at, what));
        }
        if tail.number.next() != next {
            // A reclaimed segment can outlive a younger one in a crash. If entries are missing, the
            // replay notices.
            self.replay = Replay::default();
        }
        let index_max = self.replay.index_max();
        self.closed.push(Closed {
            number: tail.number,
            index_max,
        });
        Ok(())
    }

    /// Reads the records of a segment up to its end, its first bad record, or what was never
    /// written.
    fn read_segment(&mut self, number: SegmentNumber, bytes: &[u8]) -> Result<Tail, Problem> {
        let mut tail = Tail {
            number,
            at: 0,
            complete: false,
            torn: false,
        };
        let (mut batch_start, mut seal) = (0, None);
        while let Some(checked) = check(&bytes[tail.at.min(bytes.len())..], self.salt, number) {
            if checked.batch_start < batch_start || checked.batch_start > tail.at as u64 {
                return Err(damage(number, tail.at, "a record of another batch"));
            }
            batch_start = checked.batch_start;
            tail.complete = self.take(number, tail.at, &checked)?;
            if tail.complete {
                return Ok(tail);
            }
            seal = checked.is_seal().then_some(tail.at);
            tail.at += checked.length;
        }
        let from = tail.at.min(bytes.len());
        for (at, later) in records(&bytes[from..], self.salt, number) {
            if later.batch_start > tail.at as u64 {
                let since = from + at;
                let what = format!("an unreadable record, although byte {since} came later");
                return Err(damage(number, tail.at, what));
            }
            tail.torn = true;
        }
        match seal {
            // Nothing came after the seal, or that would have overwritten it. The next batch does so.
            Some(seal) => tail.at = seal,
            None if is_cut_off(bytes, tail.at, number, batch_start) => {
                return Err(cut_off(number, tail.at, bytes.len() as u64));
            }
            None => {}
        }
        Ok(tail)
    }

    /// Takes one record. Returns whether it completes the segment.
    fn take(
        &mut self,
        number: SegmentNumber,
        at: usize,
        checked: &Checked<'_>,
    ) -> Result<bool, Problem> {
        let foreign = |what| format!("byte {at} of {number}: {what}");
        let record = checked
            .decode()
            .map_err(|what| Problem::Foreign(foreign(what)))?;
        if matches!(record, Record::Begin { .. }) != (at == 0) {
            return Err(damage(number, at, "a record out of place"));
        }
        if matches!(record, Record::Anew(_)) {
            // Records before this one are not part of the log any more.
            for closed in &mut self.closed {
                closed.index_max = Index(0);
            }
        }
        let complete = record == Record::End;
        let applied = self.replay.apply(record);
        applied.map_err(|what| damage(number, at, what))?;
        Ok(complete)
    }

    fn finish(mut self, tail: Tail, next: Option<SegmentNumber>) -> Result<Found, Problem> {
        let next = next.map(|n| Segment::open(self.directory, n)).transpose()?;
        let mut index_max = self.replay.index_max();
        let log = self.replay.finish();
        let (base, entries) = log.map_err(|what| damage(tail.number, tail.at, what))?;
        let (current, at, prepared) = match next {
            None if tail.complete => {
                let missing = tail.number.next();
                return Err(damage(missing, 0, "the segment is missing"));
            }
            Some(next) if tail.complete && next.bytes < SEGMENT_BYTES_MIN => {
                return Err(cut_off(next.number, 0, next.bytes));
            }
            Some(next) if tail.complete => {
                self.closed.push(Closed {
                    number: tail.number,
                    index_max,
                });
                index_max = Index(0);
                (next, 0, None)
            }
            next => (Segment::open(self.directory, tail.number)?, tail.at, next),
        };
        Ok(Found {
            base,
            entries,
            closed: self.closed,
            current,
            at: at as u64,
            index_max,
            prepared,
            torn: tail.torn,
        })
    }
}

/// Whether a segment that is neither complete nor sealed, and whose next record would stand `at` this
/// place, had more bytes once. The last record's batch began at `batch_start`.
fn is_cut_off(bytes: &[u8], at: usize, segment: SegmentNumber, batch_start: u64) -> bool {
    let left = bytes.len().saturating_sub(at) as u64;
    // A header across two sectors may be half old and half new.
    let is_parted = at % SECTOR_BYTES + HEADER_BYTES > SECTOR_BYTES;
    let header = bytes.get(at..).filter(|_| !is_parted);
    let begun = header.and_then(|header| begun(header, segment));
    // Bytes that a guest wrote here earlier could look like a header, except for the batch start.
    let begun = begun.filter(|begun| [batch_start, at as u64].contains(&begun.batch_start));
    left < begun.map_or(0, |begun| begun.length) + EMPTY_BYTES
}

/// All records of `segment` in `bytes`, wherever they begin. The other bytes were written when the
/// file had another number, or only in part.
fn records(
    bytes: &[u8],
    salt: u64,
    segment: SegmentNumber,
) -> impl Iterator<Item = (usize, Checked<'_>)> {
    (0..bytes.len())
        .step_by(ALIGN_BYTES)
        .filter_map(move |at| Some((at, check(&bytes[at..], salt, segment)?)))
}

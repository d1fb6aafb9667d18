//! Writes the queued requests: one batch, one sync.

use crate::directory::Directory;
use crate::error::{SegmentNumber, StoreError};
use crate::queue::{Effect, Pending};
use crate::record::{self, Base, EMPTY_BYTES, Kind};
use crate::recover::{Closed, Found};
use crate::segment::{Segment, Supply};
use crate::state::StateFile;
use plover_types::{Index, Viewstamp};
use std::collections::VecDeque;

/// Counts of what has been written since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Entries.
    pub entries: u64,
    /// Syncs of the log that entries waited for. `entries / syncs` is what group commit gained.
    pub syncs: u64,
}

/// The files. The thread that writes a batch owns them meanwhile.
#[derive(Debug)]
pub(crate) struct Engine {
    state: StateFile,
    log: Option<LogWriter>,
    pub counters: Counters,
}

impl Engine {
    pub fn new(state: StateFile, log: Option<LogWriter>) -> Self {
        Self {
            state,
            log,
            counters: Counters::default(),
        }
    }

    /// Makes durable what is pending. The promise goes first, so that no entry is on disk without it.
    pub fn write(&mut self, pending: &mut Pending) -> Result<(), StoreError> {
        if let Some(promise) = pending.promise.take() {
            let whole = self.log.is_some() && !promise.amnesiac;
            self.state.update(|state| {
                state.promise = Some(promise);
                state.whole = whole;
            })?;
        }
        if let Some(log) = &mut self.log {
            log.write(pending, &mut self.counters)?;
        }
        Ok(())
    }

    /// Removes old segments, and orders the next one. No caller waits for this.
    pub fn tidy(&mut self) -> Result<(), StoreError> {
        self.log.as_mut().map_or(Ok(()), LogWriter::tidy)
    }

    /// Writes a seal at the end of the log. To be called when nothing is pending.
    pub fn seal(&mut self) -> Result<(), StoreError> {
        self.log.as_mut().map_or(Ok(()), LogWriter::seal)
    }

    pub fn finish(&mut self) {
        if let Some(log) = &mut self.log {
            log.supply.finish();
        }
    }
}

/// The end of the log.
#[derive(Debug)]
pub(crate) struct LogWriter {
    salt: u64,
    current: Segment,
    /// Where the next record goes.
    at: u64,
    /// Where the batch began that is being written.
    batch_start: u64,
    sealed: bool,
    /// The base that the records name.
    base: Base,
    /// A newer base, which the next segment will begin with.
    trimmed: Option<Base>,
    last: Viewstamp,
    /// The highest index in the current segment.
    index_max: Index,
    closed: VecDeque<Closed>,
    supply: Supply,
    /// Buffer for the records that the log itself adds.
    small: Vec<u8>,
}

impl LogWriter {
    /// An empty log whose first segment is `number`.
    pub fn create(
        directory: &Directory,
        salt: u64,
        number: SegmentNumber,
        segment_bytes: u64,
    ) -> Result<Self, StoreError> {
        let current = Segment::prepare(directory, number, segment_bytes, false)?;
        let supply = Supply::new(directory, segment_bytes, None);
        Self::open(
            salt,
            (current, 0),
            Base::default(),
            Viewstamp::default(),
            supply,
        )
    }

    /// A log whose next record goes to byte `at` of the current segment. At 0, a Begin is written first.
    fn open(
        salt: u64,
        (current, at): (Segment, u64),
        base: Base,
        last: Viewstamp,
        supply: Supply,
    ) -> Result<Self, StoreError> {
        let mut log = Self {
            salt,
            current,
            at,
            batch_start: at,
            sealed: false,
            base,
            trimmed: None,
            last,
            index_max: Index(0),
            closed: VecDeque::new(),
            supply,
            small: Vec::new(),
        };
        if at == 0 {
            log.write_begin()?;
            log.current.file.sync()?;
        }
        log.supply.order(log.current.number.next());
        Ok(log)
    }

    /// Continues where `found` ends. First overwrites the rest of a torn batch: a record of it could
    /// later be taken for one that follows a new record.
    pub fn resume(
        directory: &Directory,
        salt: u64,
        segment_bytes: u64,
        found: Found,
        last: Viewstamp,
    ) -> Result<Self, StoreError> {
        let current = found.current;
        current.file.zero(found.at, current.bytes)?;
        current.file.sync()?;
        let supply = Supply::new(directory, segment_bytes, found.prepared);
        let mut log = Self::open(salt, (current, found.at), found.base, last, supply)?;
        log.index_max = found.index_max;
        log.closed = found.closed.into();
        log.seal()?;
        Ok(log)
    }

    fn write(&mut self, pending: &mut Pending, counters: &mut Counters) -> Result<(), StoreError> {
        let mut later = None;
        if let Some(base) = pending.trim.take() {
            if self
                .closed
                .front()
                .is_some_and(|c| c.index_max <= base.viewstamp.index)
            {
                // A Trim on disk must say why segments are gone before they go.
                pending.push(Kind::Trim, &base, Effect::Trim(base));
                self.trimmed = None;
            } else {
                later = Some(base);
            }
        }
        if !pending.records.is_empty() {
            self.append(pending, counters)?;
            self.current.file.sync()?;
            counters.syncs += 1;
        }
        self.trimmed = later.or(self.trimmed);
        Ok(())
    }

    /// Writes the records, in as few pieces as segments allow.
    fn append(&mut self, pending: &mut Pending, counters: &mut Counters) -> Result<(), StoreError> {
        self.batch_start = self.at;
        self.sealed = false;
        let (mut piece, mut piece_at, mut from) = (0, self.at, 0);
        for queued in &pending.records {
            let length = (queued.end - from) as u64;
            if self.at + length + EMPTY_BYTES > self.current.bytes {
                self.current
                    .file
                    .write(&pending.bytes[piece..from], piece_at)?;
                self.go_on_in_next(length)?;
                (piece, piece_at) = (from, self.at);
            }
            let bytes = &mut pending.bytes[from..queued.end];
            record::stamp(bytes, self.salt, self.current.number, self.batch_start);
            self.at += length;
            counters.entries += u64::from(matches!(queued.effect, Effect::Entry(_)));
            self.follow(queued.effect);
            from = queued.end;
        }
        self.current
            .file
            .write(&pending.bytes[piece..from], piece_at)
    }

    /// Notes the effect of a record: on the records with which the next segment begins, and on the segments
    /// that can be removed.
    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Entry(viewstamp) => {
                self.last = viewstamp;
                self.index_max = self.index_max.max(viewstamp.index);
            }
            Effect::Cut(after) => self.last = after,
            Effect::Anew(base) => {
                self.base = base;
                self.trimmed = None;
                self.last = base.viewstamp;
                self.index_max = Index(0);
                for closed in &mut self.closed {
                    closed.index_max = Index(0);
                }
            }
            Effect::Trim(base) => self.base = base,
        }
    }

    /// Completes the current segment and begins the next, which has room for `length` bytes. The next
    /// one gets its name before the End record is written, because an End promises that there is one.
    fn go_on_in_next(&mut self, length: u64) -> Result<(), StoreError> {
        let number = self.current.number.next();
        self.base = self.trimmed.take().unwrap_or(self.base);
        let room = begin_bytes(&mut self.small, self.base, self.last) + length + EMPTY_BYTES;
        let next = self.supply.take(number, room)?;
        self.write_small(Kind::End)?;
        self.current.file.sync()?;
        self.closed.push_back(Closed {
            number: self.current.number,
            index_max: self.index_max,
        });
        self.current = next;
        self.index_max = Index(0);
        self.at = 0;
        self.batch_start = 0;
        self.write_begin()
    }

    fn write_begin(&mut self) -> Result<(), StoreError> {
        let length = begin_bytes(&mut self.small, self.base, self.last);
        record::stamp(&mut self.small, self.salt, self.current.number, 0);
        self.current.file.write(&self.small, 0)?;
        self.at = length;
        Ok(())
    }

    /// Writes an End or a Seal where the next record would go; `at` stays.
    fn write_small(&mut self, kind: Kind) -> Result<(), StoreError> {
        self.small.clear();
        record::push(&mut self.small, kind, &());
        let batch_start = if kind == Kind::Seal {
            self.at
        } else {
            self.batch_start
        };
        record::stamp(&mut self.small, self.salt, self.current.number, batch_start);
        self.current.file.write(&self.small, self.at)
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        while self
            .closed
            .front()
            .is_some_and(|c| c.index_max <= self.base.viewstamp.index)
        {
            if let Some(closed) = self.closed.pop_front() {
                self.supply.reclaim(closed.number)?;
            }
        }
        self.supply.order(self.current.number.next());
        Ok(())
    }

    /// Writes a seal behind the last batch: the batch has been synced. The seal itself is not synced,
    /// and the next batch overwrites it. It is of use only while nothing else is written.
    fn seal(&mut self) -> Result<(), StoreError> {
        if self.sealed {
            return Ok(());
        }
        self.sealed = true;
        self.write_small(Kind::Seal)
    }
}

/// Puts the first record of a segment into `small`. Returns its length.
fn begin_bytes(small: &mut Vec<u8>, base: Base, last: Viewstamp) -> u64 {
    small.clear();
    record::push(small, Kind::Begin, &(base, last));
    small.len() as u64
}

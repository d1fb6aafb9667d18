//! The log: every entry between `base` and `last`, without gaps.
//!
//! ```text
//!          base             commit              last
//!   reclaimed | delivered, kept | not yet chosen  |
//!   ----------+-----------------+-----------------+
//!             ^ configuration_at_base     ^ may be truncated by a new leader
//! ```
//!
//! Entries at or below `commit` are chosen for ever: they are never truncated. A peer that has others there is refused
//! before the log changes ([`Log::accept`]), and release builds assert it as well. The newest in-sync set and the newest members in the log are in force as soon as
//! they are in the log, committed or not, and are reverted with their entries. So the log keeps
//! them, as its *configuration*.

use crate::message::Batch;
use crate::pool::Pool;
use crate::{Configuration, Contradiction, Entry, EntryKind};
use plover_types::{Index, Viewstamp};
use std::collections::VecDeque;

/// The effect of a leader's entries on the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// The log does not hold the entry before the first of them.
    Gap,
    /// All of them were there already.
    Unchanged,
    /// The log after this viewstamp is new.
    ChangedAfter(Viewstamp),
}

/// The bytes by which an entry fills the log. One about the group takes no room from the application.
fn counted(entry: &Entry) -> usize {
    match entry.kind {
        EntryKind::App => entry.payload.len(),
        EntryKind::Noop | EntryKind::InSync(_) => 0,
        EntryKind::Members(_) | EntryKind::Version(_) => 0,
    }
}

/// The bytes of memory that an entry takes, of any kind.
fn held(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.payload.len()
}

/// One replica's log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    base: Viewstamp,
    configuration_at_base: Configuration,
    entries: VecDeque<Entry>,
    commit: Index,
    configuration: Configuration,
    /// The newest entry that named members.
    members_at: Index,
    /// The newest entry that named an in-sync set.
    in_sync_at: Index,
    /// The newest entry that began a view or changed the configuration.
    milestone: Viewstamp,
    bytes: usize,
    /// The bytes of memory that the entries take.
    held: usize,
    /// Disk mode: stable storage has confirmed the present log up to here, which may be below `base`.
    confirmed: Index,
}

impl Log {
    /// An empty log after `base`, everything up to there being committed.
    pub(crate) fn new(base: Viewstamp, configuration_at_base: Configuration) -> Self {
        Self {
            base,
            configuration_at_base,
            entries: VecDeque::new(),
            commit: base.index,
            configuration: configuration_at_base,
            members_at: base.index,
            in_sync_at: base.index,
            milestone: base,
            bytes: 0,
            held: 0,
            confirmed: Index(0),
        }
    }

    /// The log that stable storage holds.
    pub(crate) fn restored(
        base: Viewstamp,
        configuration: Configuration,
        entries: Vec<Entry>,
    ) -> Self {
        let mut log = Self::new(base, configuration);
        for entry in entries {
            log.push(entry);
        }
        log.confirmed = log.last().index;
        log
    }

    pub(crate) fn base(&self) -> Viewstamp {
        self.base
    }

    pub(crate) fn configuration_at_base(&self) -> Configuration {
        self.configuration_at_base
    }

    pub(crate) fn configuration(&self) -> Configuration {
        self.configuration
    }

    /// The place of the newest entry that named members, or at most `base`.
    pub(crate) fn members_at(&self) -> Index {
        self.members_at
    }

    /// The place of the newest entry that named an in-sync set, or at most `base`.
    pub(crate) fn in_sync_at(&self) -> Index {
        self.in_sync_at
    }

    /// The newest entry that began a view or changed the configuration, or `base` if it is lower.
    pub(crate) fn milestone(&self) -> Viewstamp {
        self.milestone
    }

    pub(crate) fn commit(&self) -> Index {
        self.commit
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes of memory that the entries take.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Stable storage has confirmed the log up to here. After a trim, or the start of a log anew, storage may hold less
    /// than `base`.
    pub(crate) fn confirmed(&self) -> Index {
        self.confirmed
    }

    /// This replica's copy counts up to here. Never below `base`: reclaimed entries are committed without it.
    pub(crate) fn stable(&self) -> Index {
        self.confirmed.max(self.base.index)
    }

    /// The viewstamp of the last entry, or `base`. Of two logs, the one in which this is higher is
    /// the better one.
    pub(crate) fn last(&self) -> Viewstamp {
        self.entries
            .back()
            .map_or(self.base, |entry| entry.viewstamp)
    }

    /// The viewstamp at `index`, if that is neither reclaimed nor after the end.
    pub(crate) fn at(&self, index: Index) -> Option<Viewstamp> {
        if index == self.base.index {
            return Some(self.base);
        }
        self.get(index).map(|entry| entry.viewstamp)
    }

    /// The viewstamp of the last committed entry.
    pub(crate) fn committed(&self) -> Viewstamp {
        self.at(self.commit)
            .expect("commit lies between base and last")
    }

    /// Whether the log holds this entry, or it is the last reclaimed one. Two logs for which this is
    /// true are equal up to it (the log matching property, Raft §5.3).
    pub(crate) fn has(&self, viewstamp: Viewstamp) -> bool {
        self.at(viewstamp.index) == Some(viewstamp)
    }

    pub(crate) fn get(&self, index: Index) -> Option<&Entry> {
        let offset = index.0.checked_sub(self.base.index.0)?.checked_sub(1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// The entries `from..=to`, which are in the log.
    pub(crate) fn slice(&self, from: Index, to: Index) -> Slice<'_> {
        assert!(
            from > self.base.index && to <= self.last().index,
            "slice outside the log"
        );
        let start = (from.0 - self.base.index.0 - 1) as usize;
        let end = ((to.0 + 1).max(from.0) - self.base.index.0 - 1) as usize;
        Slice {
            entries: &self.entries,
            start,
            end,
        }
    }

    /// The empty slice.
    pub(crate) fn nothing(&self) -> Slice<'_> {
        Slice {
            entries: &self.entries,
            start: 0,
            end: 0,
        }
    }

    /// Appends the next entry.
    pub(crate) fn push(&mut self, entry: Entry) {
        let last = self.last();
        assert_eq!(
            entry.viewstamp.index,
            last.index.next(),
            "the log has no gaps"
        );
        assert!(
            entry.viewstamp.view >= last.view,
            "views never fall along a log"
        );
        self.note(last, entry.kind, entry.viewstamp);
        self.bytes += counted(&entry);
        self.held += held(&entry);
        self.entries.push_back(entry);
    }

    /// Takes an entry of this kind, which follows `prev`, into the configuration.
    fn note(&mut self, prev: Viewstamp, kind: EntryKind, at: Viewstamp) {
        self.configuration.note(kind);
        match kind {
            EntryKind::Members(_) => self.members_at = at.index,
            EntryKind::InSync(_) => self.in_sync_at = at.index,
            EntryKind::Version(_) => {}
            EntryKind::Noop | EntryKind::App if at.view > prev.view => {}
            EntryKind::Noop | EntryKind::App => return,
        }
        self.milestone = at;
    }

    /// Takes the entries that follow `prev` in a leader's log: entries that are there already are
    /// skipped, and the first that differs replaces everything from there on. Up to `matched`, which is at or after the
    /// commit index, that log and this one are known to be equal.
    ///
    /// Only a conflict truncates. An older message of the same leader may end before this log does,
    /// and a cut there could remove entries that were acknowledged.
    ///
    /// # Errors
    /// The entries contradict what is known. The log is as it was.
    pub(crate) fn accept(
        &mut self,
        prev: Viewstamp,
        entries: Batch<'_>,
        matched: Index,
        pool: &mut Pool,
    ) -> Result<Accepted, Contradiction> {
        if prev.index >= self.base.index && !self.has(prev) {
            self.check_known(prev, matched)?;
            return Ok(Accepted::Gap);
        }
        let known = entries.iter().map(|entry| entry.viewstamp);
        for told in known.take_while(|told| told.index <= matched) {
            self.check_known(told, matched)?;
        }
        let mut changed = None;
        for entry in entries.iter() {
            let index = entry.viewstamp.index;
            if index <= self.base.index || self.has(entry.viewstamp) {
                continue;
            }
            if index <= self.last().index {
                self.truncate(Index(index.0 - 1));
            }
            changed.get_or_insert(self.last());
            self.push(Entry {
                viewstamp: entry.viewstamp,
                kind: entry.kind,
                payload: pool.copy(entry.payload),
            });
        }
        Ok(changed.map_or(Accepted::Unchanged, Accepted::ChangedAfter))
    }

    /// Whether a log that equals this one up to `matched` can have this entry.
    fn check_known(&self, told: Viewstamp, matched: Index) -> Result<(), Contradiction> {
        let base = self.base;
        match self.at(told.index) {
            Some(held) if told.index <= matched && held != told => {
                Err(Contradiction::Agreed { told, held })
            }
            None if told.index < base.index && told.view > base.view => {
                Err(Contradiction::Reclaimed { told, base })
            }
            _ => Ok(()),
        }
    }

    /// Cuts everything after `last`.
    fn truncate(&mut self, last: Index) {
        assert!(
            last >= self.commit,
            "truncating after {last} would lose committed entries"
        );
        let keep = (last.0 - self.base.index.0) as usize;
        for entry in self.entries.drain(keep..) {
            self.bytes -= counted(&entry);
            self.held -= held(&entry);
        }
        if self.milestone.index > last {
            self.take_configuration_anew();
        }
        self.confirmed = self.confirmed.min(last);
    }

    /// Computes the configuration from the entries that are left.
    fn take_configuration_anew(&mut self) {
        self.configuration = self.configuration_at_base;
        self.members_at = self.base.index;
        self.in_sync_at = self.base.index;
        self.milestone = self.base;
        let mut prev = self.base;
        for place in 0..self.entries.len() {
            let Entry {
                kind, viewstamp, ..
            } = self.entries[place];
            self.note(prev, kind, viewstamp);
            prev = viewstamp;
        }
    }

    /// Marks everything up to `index` as committed. The caller delivers the entries after the old
    /// commit index.
    pub(crate) fn commit_to(&mut self, index: Index) {
        assert!(
            index >= self.commit && index <= self.last().index,
            "commit {index} off the log"
        );
        self.commit = index;
    }

    /// Reclaims everything up to `index` that is committed.
    pub(crate) fn trim(&mut self, index: Index, pool: &mut Pool) {
        let index = index.min(self.commit);
        while self.base.index < index {
            let entry = self.entries.pop_front().expect("commit lies in the log");
            self.bytes -= counted(&entry);
            self.held -= held(&entry);
            self.base = entry.viewstamp;
            self.configuration_at_base.note(entry.kind);
            pool.give(entry.payload);
        }
    }

    /// Storage holds the log up to `viewstamp`. Ignored if that entry has been cut since.
    pub(crate) fn mark_stable(&mut self, viewstamp: Viewstamp) {
        if self.has(viewstamp) {
            self.confirmed = self.confirmed.max(viewstamp.index);
        }
    }
}

/// Neighbouring entries, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    entries: &'a VecDeque<Entry>,
    start: usize,
    end: usize,
}

impl Slice<'_> {
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.range(self.start..self.end)
    }
}

#[cfg(test)]
pub(crate) fn entry(view: u64, index: u64, kind: EntryKind) -> Entry {
    let payload = if kind == EntryKind::App {
        vec![view as u8; 3]
    } else {
        Vec::new()
    };
    let view = plover_types::View(view);
    Entry {
        viewstamp: Viewstamp {
            view,
            index: Index(index),
        },
        kind,
        payload,
    }
}

#[cfg(test)]
mod tests;

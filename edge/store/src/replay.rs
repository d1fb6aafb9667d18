//! Turns a sequence of records back into the log.

use crate::record::{Base, Record};
use apus::Entry;
use plover_types::{Index, Viewstamp};
use std::collections::VecDeque;

/// The log as far as records have been read.
///
/// Reading begins in the oldest segment that is left, so the first records may refer to entries whose
/// segments are gone. A later record names the base, which lies after all of those.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    begun: bool,
    base: Base,
    last: Viewstamp,
    /// Ends with `last`, without gaps. Its front may lie before the base, and until the base has been
    /// read also after it.
    entries: VecDeque<Entry>,
    /// The highest index of an entry of this generation in the segment being read.
    index_max: Index,
}

impl Replay {
    /// Takes the next record.
    ///
    /// # Errors
    /// In words, if it contradicts what came before.
    pub fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Begin { base, last } => {
                if self.begun && last != self.last {
                    let due = self.last;
                    return Err(format!(
                        "a segment that begins after {last}, not after {due}"
                    ));
                }
                self.begun = true;
                self.index_max = Index(0);
                self.base = base;
                self.last = last;
            }
            Record::Entry(entry) => self.push(entry)?,
            Record::Cut(after) => self.cut(after)?,
            Record::Anew(base) => {
                self.entries.clear();
                self.index_max = Index(0);
                self.base = base;
                self.last = base.viewstamp;
            }
            Record::Trim(base) => self.base = base,
            Record::End | Record::Seal => {}
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<(), String> {
        let Viewstamp { view, index } = entry.viewstamp;
        if index != self.last.index.next() || view < self.last.view {
            return Err(format!("entry {} after {}", entry.viewstamp, self.last));
        }
        self.last = entry.viewstamp;
        self.index_max = self.index_max.max(index);
        self.entries.push_back(entry);
        Ok(())
    }

    fn cut(&mut self, after: Viewstamp) -> Result<(), String> {
        if after.index > self.last.index {
            return Err(format!("a cut after {after}, behind the end {}", self.last));
        }
        while self
            .entries
            .back()
            .is_some_and(|e| e.viewstamp.index > after.index)
        {
            self.entries.pop_back();
        }
        let held = self.entries.back().map(|e| e.viewstamp);
        if held.is_some_and(|held| held != after) {
            return Err(format!("a cut after {after}, which the log does not hold"));
        }
        self.last = after;
        Ok(())
    }

    /// The highest index of an entry in the segment being read; 0 after the log began anew.
    pub fn index_max(&self) -> Index {
        self.index_max
    }

    /// The log.
    ///
    /// # Errors
    /// In words, if entries are missing.
    pub fn finish(mut self) -> Result<(Base, Vec<Entry>), String> {
        let base = self.base.viewstamp;
        while self
            .entries
            .front()
            .is_some_and(|e| e.viewstamp.index <= base.index)
        {
            self.entries.pop_front();
        }
        let first = self.entries.front().map(|e| e.viewstamp.index);
        let complete = match first {
            Some(first) => first == base.index.next(),
            None => self.last == base,
        };
        if complete {
            Ok((self.base, self.entries.into()))
        } else {
            let first = first.unwrap_or(self.last.index.next());
            Err(format!(
                "entries are missing from {} to before {first}",
                base.index.next()
            ))
        }
    }
}

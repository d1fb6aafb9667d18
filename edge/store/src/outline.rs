//! The log without its entries: enough to check the requests of the consensus core and to name the
//! base at a trim. It stays small, because it holds one item for each view.

use crate::record::Base;
use apus::{Entry, EntryKind};
use plover_types::{Index, View, Viewstamp};
use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outline {
    base: Base,
    last: Viewstamp,
    /// Runs after the base: the view and the index of its first entry.
    runs: VecDeque<(View, Index)>,
    /// Entries after the base that change the configuration.
    changes: VecDeque<(Index, EntryKind)>,
}

impl Outline {
    pub fn new(base: Base) -> Self {
        Self {
            base,
            last: base.viewstamp,
            ..Self::default()
        }
    }

    pub fn base(&self) -> Base {
        self.base
    }

    pub fn last(&self) -> Viewstamp {
        self.last
    }

    /// Whether the log holds this entry, or this is the last reclaimed one.
    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        self.view_at(viewstamp.index) == Some(viewstamp.view)
    }

    fn view_at(&self, index: Index) -> Option<View> {
        if index == self.base.viewstamp.index {
            return Some(self.base.viewstamp.view);
        }
        if index < self.base.viewstamp.index || index > self.last.index {
            return None;
        }
        let run = self.runs.partition_point(|(_, first)| *first <= index);
        self.runs.get(run.checked_sub(1)?).map(|(view, _)| *view)
    }

    /// # Errors
    /// In words, if the entry is not the next one.
    pub fn push(&mut self, entry: &Entry) -> Result<(), String> {
        let Viewstamp { view, index } = entry.viewstamp;
        let due = self.last.index.next();
        if index != due || view < self.last.view {
            let last = self.last;
            return Err(format!("entry {} after {last}", entry.viewstamp));
        }
        if self.runs.back().is_none_or(|(newest, _)| *newest != view) {
            self.runs.push_back((view, index));
        }
        if !matches!(entry.kind, EntryKind::App | EntryKind::Noop) {
            self.changes.push_back((index, entry.kind));
        }
        self.last = entry.viewstamp;
        Ok(())
    }

    /// # Errors
    /// In words, if the log does not hold `after`.
    pub fn cut(&mut self, after: Viewstamp) -> Result<(), String> {
        if !self.holds(after) {
            return Err(format!("a cut after {after}, which the log does not hold"));
        }
        while self
            .runs
            .back()
            .is_some_and(|(_, first)| *first > after.index)
        {
            self.runs.pop_back();
        }
        while self.changes.back().is_some_and(|(at, _)| *at > after.index) {
            self.changes.pop_back();
        }
        self.last = after;
        Ok(())
    }

    /// Reclaims up to `index`, at most up to the last entry. Returns the new base.
    pub fn trim(&mut self, index: Index) -> Base {
        let index = index.min(self.last.index);
        if let Some(view) = self.view_at(index) {
            self.base.viewstamp = Viewstamp { view, index };
            let reclaimed = self.changes.partition_point(|(at, _)| *at <= index);
            for (_, kind) in self.changes.drain(..reclaimed) {
                self.base.configuration.note(kind);
            }
            while self
                .runs
                .get(1)
                .is_some_and(|(_, first)| first.0 <= index.0 + 1)
            {
                self.runs.pop_front();
            }
            if self.last.index == index {
                self.runs.clear();
            }
        }
        self.base
    }
}

//! How this replica's program keeps up with the log: whether what it lacks was committed long ago.

use crate::checkpoints::REPEAT;
use crate::entry::Progress;
use plover_types::{Index, Micros};
use std::collections::VecDeque;

/// A program is behind if it lacks an entry that was committed so long ago,
const BEHIND: Micros = Micros::from_ms(100);
/// and in step again when it lacks none that was committed so long ago.
const IN_STEP: Micros = Micros::from_ms(25);

/// A program that reads nothing for so long does not catch up.
pub(crate) const ADVANCES_WITHIN: Micros = Micros(2 * REPEAT.0);

/// Entries that were committed within this time are noted together.
const TOGETHER: Micros = Micros::from_ms(5);
const NOTED_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct OwnProgress {
    pub is: Progress,
    /// The entries that the program lacks: up to where, and when they were committed; the oldest first.
    lacks: VecDeque<(Index, Micros)>,
    /// The first entry that it may not have read, and since when.
    next: Index,
    since: Micros,
}

impl OwnProgress {
    pub fn new() -> Self {
        Self {
            is: Progress::Away,
            lacks: VecDeque::new(),
            next: Index(0),
            since: Micros::ZERO,
        }
    }

    /// The program was started. How long ago the entries up to `commit` were committed is not known.
    pub fn starts(&mut self, now: Micros, commit: Index) {
        self.lacks = VecDeque::from([(commit, Micros::ZERO)]);
        self.since = now;
    }

    /// Entries up to `commit` are committed. The program has read those before `next`; it is given none before its checkpoint
    /// is taken if it is `held`. Returns whether its progress has changed.
    pub fn look(&mut self, now: Micros, commit: Index, next: Index, held: bool) -> bool {
        let is_full = self.lacks.len() >= NOTED_MAX;
        match self.lacks.back_mut() {
            Some((last, _)) if *last >= commit => {}
            Some((last, since)) if is_full || now.since(*since) < TOGETHER => *last = commit,
            _ if commit >= next => self.lacks.push_back((commit, now)),
            _ => {}
        }
        while self.lacks.front().is_some_and(|(last, _)| *last < next) {
            self.lacks.pop_front();
        }
        if self.next != next {
            (self.next, self.since) = (next, now);
        }
        let bound = match self.is {
            Progress::InStep => BEHIND,
            Progress::Behind | Progress::Away => IN_STEP,
        };
        let progress = if now.since(self.lacks_since()) < bound {
            Progress::InStep
        } else if held || now.since(self.waits_since()) >= ADVANCES_WITHIN {
            Progress::Away
        } else {
            Progress::Behind
        };
        std::mem::replace(&mut self.is, progress) != progress
    }

    /// Since when the oldest entry that it lacks is committed.
    fn lacks_since(&self) -> Micros {
        let oldest = self.lacks.front();
        oldest.map_or(Micros::NEVER, |(_, since)| *since)
    }

    /// Since when it has not read the next entry.
    fn waits_since(&self) -> Micros {
        self.since.max(self.lacks_since())
    }

    /// When to look again. A program that is behind comes into step by what it does.
    pub fn deadline(&self) -> Micros {
        match self.is {
            Progress::InStep => self.lacks_since() + BEHIND,
            Progress::Behind => self.waits_since() + ADVANCES_WITHIN,
            Progress::Away => Micros::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress::{Away, Behind, InStep};

    /// Commits, next entries and what follows, by the time in ms.
    fn goes(steps: &[(u64, u64, u64, bool, Progress)]) -> OwnProgress {
        let mut own = OwnProgress::new();
        own.starts(Micros::from_ms(steps[0].0), Index(steps[0].1));
        for (ms, commit, next, held, is) in steps {
            own.look(Micros::from_ms(*ms), Index(*commit), Index(*next), *held);
            assert_eq!(own.is, *is, "after {ms} ms");
        }
        own
    }

    #[test]
    fn a_program_falls_behind_and_catches_up() {
        let mut own = goes(&[
            (1000, 10, 1, false, Behind),
            // It lacks entries that are just committed, then one that is 99 ms old, and 100 ms.
            (1010, 20, 11, false, InStep),
            (1109, 30, 19, false, InStep),
            (1110, 30, 19, false, Behind),
            (1133, 30, 21, false, InStep),
        ]);
        assert_eq!(own.deadline(), Micros::from_ms(1209));
        own.look(Micros::from_ms(1134), Index(30), Index(31), false);
        assert_eq!(own.deadline(), Micros::NEVER, "it lacks nothing");
    }

    #[test]
    fn a_program_that_is_given_nothing_is_away() {
        goes(&[
            (1000, 10, 5, true, Away),
            (1100, 10, 6, false, Behind),
            (2099, 10, 6, false, Behind),
            (2100, 10, 6, false, Away),
            (2200, 10, 11, false, InStep),
            // Nothing has come for long, and then something that it does not read at once.
            (9000, 11, 11, false, InStep),
            (9100, 11, 11, false, Behind),
            (10_000, 11, 11, false, Away),
        ]);
    }
}

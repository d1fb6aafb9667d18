//! Writes pages at a rate, as clients say by `WRITER` and the command line by `plover.writer`.

use crate::start::REGIONS;

/// Pages written in one turn: a turn must not keep clients waiting.
const PAGES_A_TURN: u64 = 1024;
const PAGE_BYTES: u64 = 4096;

/// The new content of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One word: how often the page was written. Two guests that write equally often have equal pages.
    Count,
    /// One word: the time-stamp counter. Two guests never have equal pages.
    Clock,
    /// The whole page, with how often it was written.
    Fill,
}

impl Pattern {
    /// The pattern of this name.
    pub fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"count" => Some(Self::Count),
            b"clock" => Some(Self::Clock),
            b"fill" => Some(Self::Fill),
            _ => None,
        }
    }
}

/// The writer and its memory.
pub struct Writer {
    memory: [(u64, u64); REGIONS],
    /// Pages a second; 0 is off.
    rate: u64,
    /// So many pages, spread over all memory, are written one after the other, and again.
    pages: u64,
    pattern: Pattern,
    begun_us: Option<u64>,
    /// Since then.
    written: u64,
}

impl Writer {
    /// One that is off.
    pub fn new(memory: [(u64, u64); REGIONS]) -> Self {
        Self {
            memory,
            rate: 0,
            pages: 0,
            pattern: Pattern::Count,
            begun_us: None,
            written: 0,
        }
    }

    /// Pages it may write to.
    pub fn memory_pages(&self) -> u64 {
        let bytes = self.memory.iter().map(|(from, to)| to - from);
        bytes.sum::<u64>() / PAGE_BYTES
    }

    /// Pages written since it was set.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Begins to write `rate` pages a second.
    pub fn set(&mut self, rate: u64, pages: u64, pattern: Pattern) {
        (self.rate, self.pages, self.pattern) = (rate, pages, pattern);
        (self.begun_us, self.written) = (None, 0);
    }

    /// Writes what is due. Returns the microseconds to the next page.
    pub fn write_due(&mut self, now_us: u64) -> u64 {
        if self.rate == 0 || self.pages == 0 {
            return u64::MAX;
        }
        let begun_us = *self.begun_us.get_or_insert(now_us);
        let due = now_us.saturating_sub(begun_us).saturating_mul(self.rate) / 1_000_000;
        let end = due.min(self.written + PAGES_A_TURN);
        while self.written < end {
            self.write(self.written % self.pages, self.written / self.pages + 1);
            self.written += 1;
        }
        if self.written < due {
            return 0;
        }
        let next_us = (self.written + 1).saturating_mul(1_000_000) / self.rate + 1;
        (begun_us + next_us).saturating_sub(now_us)
    }

    fn write(&self, page: u64, round: u64) {
        let mut offset = page * (self.memory_pages() / self.pages) * PAGE_BYTES;
        let Some(address) = self.memory.iter().find_map(|(from, to)| {
            let inside = offset < to - from;
            let address = from + offset;
            if !inside {
                offset -= to - from;
            }
            inside.then_some(address)
        }) else {
            return;
        };
        let (words, value) = match self.pattern {
            Pattern::Count => (1, round),
            Pattern::Clock => (1, crate::clock::count()),
            Pattern::Fill => (PAGE_BYTES as usize / 8, round),
        };
        let at = address as *mut u64;
        for word in 0..words {
            // SAFETY: the page lies in memory that the machine has said to be usable, that is mapped, and that
            // nothing else in this guest uses.
            unsafe { at.add(word).write_volatile(value) };
        }
    }
}

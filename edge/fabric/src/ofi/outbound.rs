//! What we write into one ring of the peer: which bytes are under way, which may be reused.
//!
//! The writer keeps a copy of the peer's ring in registered memory (libfabric sends from memory
//! that must not change meanwhile). Records are put into the copy; a flush posts the range that
//! grew since the last one as **one** write with immediate data, or two around the ring's end.
//!
//! ```text
//!        released            posted               tail
//!           │  writes under way │ put, not posted   │
//!   ┌───────▼───────────────────▼───────────────────▼──────────┐
//!   │ free  │ w0 │ w1 │   w2    │                   │   free   │
//!   └──────────────────────────────────────────────────────────┘
//! ```
//!
//! Space is *released* when the peer has consumed it **and** the provider has reported the write
//! complete. The first is the protocol's condition, the second libfabric's: until then it may
//! still read the bytes. Completion is never waited for and proves nothing about the peer.
//!
//! **Selective signalling** (APUS §2): with a provider that completes writes in order only some
//! ask for a report, which then stands for all before them. Without that order each one has to
//! ask; the reports go to a queue that wakes nobody either way.
//!
//! **The window.** At most [`WINDOW`] writes are under way. What is put meanwhile waits and then
//! goes together, so the queues on both sides stay bounded, however small the records.

use super::doorbell::{Doorbell, Mark};
use super::native::{Run, Traits};
use crate::ring::{Capacity, Position, PutError, RingWriter, Salt, record_bytes};
use std::collections::VecDeque;

/// Writes under way at most. A quarter of the completion queues, which also take credits.
pub(super) const WINDOW: usize = 256;
/// Writes without a report in a row, with an ordered provider.
const UNSIGNALLED_MAX: u32 = 31;

/// The writing end of one ring.
#[derive(Debug)]
pub(super) struct Outbound {
    capacity: Capacity,
    writer: RingWriter,
    posted: Position,
    window: VecDeque<Write>,
    next_sequence: u64,
    /// Up to where the peer has consumed.
    credited: Position,
    /// Up to where writes are complete.
    completed: Position,
    ordered: bool,
    inject_bytes: usize,
    write_bytes: usize,
    unsignalled: u32,
    unsignalled_bytes: usize,
    /// The largest record that was refused since there was room.
    refused: Option<usize>,
}

#[derive(Debug)]
struct Write {
    sequence: u64,
    end: Position,
    completed: bool,
}

/// How a run is to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The provider copies it at once; it is complete when taken.
    Inject,
    /// With a number; `signalled` asks for a report.
    Write { sequence: u64, signalled: bool },
}

/// The next thing to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub run: Run,
    pub mode: Mode,
    end: Position,
}

impl Outbound {
    pub fn new(capacity: Capacity, salt: Salt, traits: &Traits) -> Self {
        let start = Position(0);
        // Doorbells count in units of 8 bytes, so runs must be cut there.
        let largest = usize::try_from(traits.write_bytes).unwrap_or(usize::MAX);
        Self {
            capacity,
            writer: RingWriter::new(capacity, salt),
            posted: start,
            window: VecDeque::with_capacity(WINDOW),
            next_sequence: 1,
            credited: start,
            completed: start,
            ordered: traits.ordered,
            inject_bytes: traits.inject_bytes,
            write_bytes: largest / 8 * 8,
            unsignalled: 0,
            unsignalled_bytes: 0,
            refused: None,
        }
    }

    /// Puts one record behind the last one: calls `copy(offset, bytes)` for the pieces.
    pub fn put(&mut self, record: &[u8], copy: impl FnMut(usize, &[u8])) -> Result<(), PutError> {
        let put = self.writer.put(record, copy);
        if put == Err(PutError::Full) {
            self.refused = self.refused.max(Some(record.len()));
        }
        put
    }

    /// Whether something was put that is not posted.
    pub fn has_unposted(&self) -> bool {
        self.posted < self.writer.tail()
    }

    /// Whether reports of completed writes are worth picking up: someone waits for room, or the
    /// window is half full.
    pub fn wants_completions(&self) -> bool {
        self.completed < self.posted && (self.refused.is_some() || self.window.len() >= WINDOW / 2)
    }

    /// Whether any write may still be reported.
    pub fn is_under_way(&self) -> bool {
        self.completed < self.posted
    }

    /// What to post next; none if all is posted or the window is full.
    pub fn next(&self) -> Option<Step> {
        if !self.has_unposted() || self.window.len() >= WINDOW {
            return None;
        }
        let offset = self.capacity.offset(self.posted);
        let unposted = self.writer.tail().since(self.posted) as usize;
        let bytes = unposted
            .min(self.capacity.bytes() - offset)
            .min(self.write_bytes);
        let end = Position(self.posted.0 + bytes as u64);
        // A report stands for all before it, so that one is due also when what follows a write
        // without one would not need any itself.
        let unsignalled = self.unsignalled_bytes + bytes;
        let due = self.unsignalled >= UNSIGNALLED_MAX || unsignalled >= self.capacity.bytes() / 8;
        let mode = if bytes <= self.inject_bytes && !(due && self.unsignalled > 0) {
            Mode::Inject
        } else {
            Mode::Write {
                sequence: self.next_sequence,
                signalled: !self.ordered || due,
            }
        };
        let run = Run {
            offset,
            bytes,
            immediate: Doorbell::written(end),
        };
        Some(Step { run, mode, end })
    }

    /// The provider has no inject: nothing is injected from now on.
    pub fn forgo_inject(&mut self) {
        self.inject_bytes = 0;
    }

    /// The provider took `step`, which [`next`](Self::next) returned last.
    pub fn posted(&mut self, step: Step) {
        let bytes = step.end.since(self.posted) as usize;
        self.posted = step.end;
        match step.mode {
            Mode::Write {
                signalled: true, ..
            } => {
                (self.unsignalled, self.unsignalled_bytes) = (0, 0);
            }
            Mode::Inject if self.unsignalled == 0 => {}
            Mode::Inject | Mode::Write { .. } => {
                self.unsignalled += 1;
                self.unsignalled_bytes += bytes;
            }
        }
        self.window.push_back(Write {
            sequence: self.next_sequence,
            end: step.end,
            completed: step.mode == Mode::Inject,
        });
        self.next_sequence += 1;
    }

    /// The write `sequence` was reported complete.
    pub fn completed(&mut self, sequence: u64) {
        for write in &mut self.window {
            if write.sequence == sequence || self.ordered && write.sequence < sequence {
                write.completed = true;
            }
        }
    }

    /// The peer says up to where it has consumed. One that says less than before, as happens
    /// where writes overtake each other, or more than there is, changes nothing.
    pub fn credit(&mut self, mark: Mark) {
        if let Some(head) = mark.between(self.credited, self.posted) {
            self.credited = head;
        }
    }

    /// Releases what can be; `true` if that makes room for what was refused.
    pub fn release(&mut self) -> bool {
        let done = self.window.iter().take_while(|write| write.completed);
        if let Some(last) = done.last() {
            self.completed = last.end;
        }
        while let Some(first) = self.window.front() {
            if !first.completed || first.end > self.credited {
                break;
            }
            self.window.pop_front();
        }
        let released = self.credited.min(self.completed);
        // Both only grow and lie below the tail, so the writer agrees.
        let agreed = self.writer.credit(released);
        assert_eq!(agreed, Ok(()), "released what was not written");
        match self.refused {
            Some(bytes) if self.writer.free() >= record_bytes(bytes) => {
                self.refused = None;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn traits(ordered: bool, inject_bytes: usize) -> Traits {
        Traits {
            name: "test".to_owned(),
            inject_bytes,
            write_bytes: 1 << 20,
            key_bytes: 8,
            ordered,
            immediate_bytes: 4,
        }
    }

    fn outbound(ring: usize, ordered: bool, inject: usize) -> Outbound {
        let capacity = Capacity::new(ring).unwrap();
        Outbound::new(capacity, Salt(1), &traits(ordered, inject))
    }

    fn credit(outbound: &mut Outbound, to: Position) {
        let Doorbell::Read(mark) = Doorbell::decode(Doorbell::read(to)) else {
            panic!("another kind");
        };
        outbound.credit(mark);
    }

    /// Posts all that can be posted.
    fn flush(outbound: &mut Outbound) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = outbound.next() {
            outbound.posted(step);
            steps.push(step);
        }
        steps
    }

    #[test]
    fn one_turn_is_one_write() {
        let mut outbound = outbound(4096, true, 0);
        for _ in 0..10 {
            outbound.put(&[7; 40], |_, _| ()).unwrap();
        }
        let steps = flush(&mut outbound);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].run.bytes, 10 * record_bytes(40));
    }

    #[test]
    fn space_needs_both_the_report_and_the_credit() {
        for ordered in [false, true] {
            let mut outbound = outbound(1024, ordered, 0);
            let record = [7; 200];
            while outbound.put(&record, |_, _| ()).is_ok() {}
            let steps = flush(&mut outbound);
            let Mode::Write {
                sequence,
                signalled,
            } = steps[0].mode
            else {
                panic!("injected");
            };
            assert!(signalled, "half a ring asks for a report");
            credit(&mut outbound, steps[0].end);
            assert!(!outbound.release(), "not complete yet");
            assert!(outbound.wants_completions());
            outbound.completed(sequence);
            assert!(outbound.release(), "room for what was refused");
            assert!(!outbound.release(), "said once");
            assert!(outbound.put(&record, |_, _| ()).is_ok());
        }
    }

    #[test]
    fn the_window_is_bounded_and_what_waits_goes_together() {
        let mut outbound = outbound(1 << 20, false, 64);
        for _ in 0..WINDOW + 50 {
            outbound.put(b"x", |_, _| ()).unwrap();
            flush(&mut outbound);
        }
        assert_eq!(outbound.window.len(), WINDOW);
        assert!(outbound.has_unposted());
        let all = outbound.posted;
        credit(&mut outbound, all);
        outbound.release();
        assert_eq!(flush(&mut outbound).len(), 1, "the rest is one write");
    }

    #[test]
    fn a_credit_of_nonsense_changes_nothing() {
        let mut outbound = outbound(1024, true, 1024);
        outbound.put(&[1; 100], |_, _| ()).unwrap();
        flush(&mut outbound);
        credit(&mut outbound, Position(4096));
        outbound.release();
        assert_eq!(outbound.credited, Position(0));
    }

    proptest! {
        /// Whatever the order of reports and credits: never more than the ring under way, every
        /// byte posted once and in order, and when all is answered the ring is empty again.
        #[test]
        fn accounts_stay_balanced(
            ordered: bool,
            inject in 0usize..100,
            turns in prop::collection::vec((1usize..300, 0usize..4, 0u8..4), 1..200),
        ) {
            let mut outbound = outbound(2048, ordered, inject);
            let mut next_offset = 0;
            let mut reports: Vec<u64> = Vec::new();
            let mut peer = Position(0);
            for (bytes, records, action) in turns {
                for _ in 0..records {
                    let _ = outbound.put(&vec![0; bytes], |_, _| ());
                }
                for step in flush(&mut outbound) {
                    prop_assert_eq!(step.run.offset, next_offset % 2048);
                    next_offset += step.run.bytes;
                    peer = step.end;
                    if let Mode::Write { sequence, signalled: true } = step.mode {
                        reports.push(sequence);
                    }
                }
                match action {
                    0 => if let Some(sequence) = reports.pop() { outbound.completed(sequence) },
                    1 => credit(&mut outbound, peer),
                    2 => { reports.drain(..).for_each(|sequence| outbound.completed(sequence)); }
                    _ => {}
                }
                outbound.release();
                prop_assert!(outbound.writer.tail().since(outbound.credited) <= 2048);
            }
            reports.drain(..).for_each(|sequence| outbound.completed(sequence));
            let all = outbound.posted;
            credit(&mut outbound, all);
            outbound.release();
            // Of an ordered provider's last writes some may never be reported.
            let kept = 2048 - outbound.writer.free();
            prop_assert!(kept < 2048 / 8, "{} bytes are kept", kept);
            prop_assert!(ordered || kept == 0);
        }
    }
}

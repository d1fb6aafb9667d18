//! The writing end of one ring of the peer: which bytes are under way, which may be reused.
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
//! **Reports.** Small writes are *injected*: the provider copies them at once, and they need no report.
//! Each other one asks for a report (APUS §2 asks for few, which takes writes that complete in order;
//! libfabric 2 no longer promises that). The reports go to a queue that wakes nobody.
//!
//! **The window.** At most [`WINDOW`] writes are under way. Records that are put meanwhile wait and then
//! go together, so the queues on both sides stay bounded, however small the records.

use super::doorbell::{Doorbell, Mark};
use super::native::{Run, Traits};
use crate::ring::{Capacity, Position, RingWriter, Salt};
use std::collections::VecDeque;

/// Writes under way at most. A quarter of the completion queues, which also take credits.
pub const WINDOW: usize = 256;

/// The writing end of one ring.
#[derive(Debug)]
pub struct Outbound {
    capacity: Capacity,
    pub writer: RingWriter,
    posted: Position,
    window: VecDeque<Write>,
    /// The number of the next write; those in the window have the numbers before it.
    next_sequence: u64,
    /// Up to where the peer has consumed.
    credited: Position,
    /// Up to where writes are complete.
    completed: Position,
    inject_bytes: usize,
    write_bytes: usize,
}

#[derive(Debug)]
struct Write {
    end: Position,
    completed: bool,
}

/// The next thing to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub run: Run,
    /// The provider copies it at once, and it is complete when taken; otherwise it is reported.
    pub inject: bool,
    pub sequence: u64,
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
            inject_bytes: traits.inject_bytes as usize,
            write_bytes: largest / 8 * 8,
        }
    }

    /// Whether something was put that is not posted.
    pub fn has_unposted(&self) -> bool {
        self.posted < self.writer.tail()
    }

    /// Whether reports of completed writes are worth picking up: a caller waits for room, or the
    /// window is half full.
    pub fn wants_completions(&self) -> bool {
        self.completed < self.posted
            && (self.writer.is_refusing() || self.window.len() >= WINDOW / 2)
    }

    /// Whether any write may still be reported.
    pub fn is_under_way(&self) -> bool {
        self.completed < self.posted
    }

    /// The next step; none if all is posted or the window is full.
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
        let run = Run {
            offset,
            bytes,
            immediate: Doorbell::written(end),
        };
        Some(Step {
            run,
            inject: bytes <= self.inject_bytes,
            sequence: self.next_sequence,
            end,
        })
    }

    /// The provider has no inject: nothing is injected from now on.
    pub fn forgo_inject(&mut self) {
        self.inject_bytes = 0;
    }

    /// The provider took `step`, which [`next`](Self::next) returned last.
    pub fn posted(&mut self, step: Step) {
        self.posted = step.end;
        self.window.push_back(Write {
            end: step.end,
            completed: step.inject,
        });
        self.next_sequence += 1;
    }

    /// The write `sequence` was reported complete.
    pub fn completed(&mut self, sequence: u64) {
        let first = self.next_sequence - self.window.len() as u64;
        let write = sequence.checked_sub(first);
        if let Some(write) = write.and_then(|index| self.window.get_mut(index as usize)) {
            write.completed = true;
        }
    }

    /// The peer says up to where it has consumed. One that says less than before, as happens
    /// where writes overtake each other, or more than there is, changes nothing.
    pub fn credit(&mut self, mark: Mark) {
        if let Some(head) = mark.between(self.credited, self.posted) {
            self.credited = head;
        }
    }

    /// Releases the space that can be used again.
    pub fn release(&mut self) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outbound(ring: usize, inject_bytes: usize) -> Outbound {
        let capacity = Capacity::new(ring).unwrap();
        let traits = Traits {
            inject_bytes: inject_bytes as u64,
            write_bytes: 1 << 20,
            ..Traits::NONE
        };
        Outbound::new(capacity, Salt(1), &traits)
    }

    fn put(outbound: &mut Outbound, record: &[u8]) -> bool {
        outbound.writer.put(record, |_, _| ())
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
    fn space_needs_both_the_report_and_the_credit() {
        let mut outbound = outbound(1024, 0);
        let record = [7; 200];
        while put(&mut outbound, &record) {}
        let steps = flush(&mut outbound);
        credit(&mut outbound, steps[0].end);
        outbound.release();
        assert!(!outbound.writer.has_room_again(), "not complete yet");
        assert!(outbound.wants_completions());
        outbound.completed(steps[0].sequence);
        outbound.release();
        assert!(outbound.writer.has_room_again());
        assert!(!outbound.writer.has_room_again(), "said once");
        assert!(put(&mut outbound, &record));
    }

    #[test]
    fn the_window_is_bounded_and_what_waits_goes_together() {
        let mut outbound = outbound(1 << 20, 64);
        for _ in 0..WINDOW + 50 {
            assert!(put(&mut outbound, b"x"));
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
    fn an_impossible_credit_changes_nothing() {
        let mut outbound = outbound(1024, 1024);
        assert!(put(&mut outbound, &[1; 100]));
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
            inject in 0usize..100,
            turns in prop::collection::vec((1usize..300, 0usize..4, 0u8..4), 1..200),
        ) {
            let mut outbound = outbound(2048, inject);
            let mut next_offset = 0;
            let mut reports: Vec<u64> = Vec::new();
            let mut peer = Position(0);
            for (bytes, records, action) in turns {
                for _ in 0..records {
                    let _ = put(&mut outbound, &vec![0; bytes]);
                }
                for step in flush(&mut outbound) {
                    prop_assert_eq!(step.run.offset, next_offset % 2048);
                    next_offset += step.run.bytes;
                    peer = step.end;
                    if !step.inject {
                        reports.push(step.sequence);
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
            prop_assert_eq!(outbound.writer.free(), 2048);
        }
    }
}

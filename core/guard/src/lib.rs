//! Held outputs: released or discarded, never dropped.
//!
//! Output commit (Strom and Yemini; PLOVER §3.2): what the guest sends must not reach a client
//! before the state behind it is safe on another replica. The guard is where it waits.
//!
//! ```text
//!            collect                seal (the guest is paused)        release
//!  guest ───────────▶ open slot ───────────────────────▶ HeldSlot ───────────▶ clients
//!                         ▲                                  │ discard
//!                         └────────── reopen (sync failed) ──┤──────────▶ nothing
//! ```
//!
//! A [`HeldSlot`] is an obligation: dropping one that was neither released nor discarded is a
//! bug that loses a client's answer, so it panics, in release builds too.

use plover_types::{Frame, SyncNo};

/// The outputs of one slot, after the guest was paused at its end.
#[derive(Debug)]
#[must_use = "a held slot must be released, discarded or reopened"]
pub struct HeldSlot {
    slot: SyncNo,
    frames: Vec<Frame>,
    settled: bool,
}

impl HeldSlot {
    /// The syncvm that ends this slot.
    pub fn slot(&self) -> SyncNo {
        self.slot
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it holds no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The state behind these outputs is safe: hands them out for sending.
    pub fn release(mut self) -> Vec<Frame> {
        self.settled = true;
        std::mem::take(&mut self.frames)
    }

    /// The state behind these outputs was replaced: nobody must ever see them. Returns how
    /// many there were.
    pub fn discard(mut self) -> usize {
        self.settled = true;
        self.frames.len()
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        assert!(
            self.settled || std::thread::panicking(),
            "slot {} dropped with {} outputs neither released nor discarded",
            self.slot,
            self.frames.len()
        );
    }
}

/// The outputs of the slot that is running.
#[derive(Debug)]
pub struct Guard {
    frames: Vec<Frame>,
    bytes: usize,
    bytes_max: usize,
}

impl Guard {
    /// A guard that asks for a sync once it holds `bytes_max` bytes, and drops what comes when
    /// it holds twice that: no sync may be possible for long (no quorum, or `hold` while solo),
    /// and memory must stay bounded. A frame lost here is lost as on any network; the guest
    /// sends it again.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            frames: Vec::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Holds what the guest has sent. Returns how many frames it had to drop.
    pub fn collect(&mut self, frames: impl IntoIterator<Item = Frame>) -> usize {
        let mut dropped = 0;
        for frame in frames {
            if self.bytes >= self.bytes_max.saturating_mul(2) {
                dropped += 1;
                continue;
            }
            self.bytes += frame.0.len();
            self.frames.push(frame);
        }
        dropped
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether it holds so much that a sync is due.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Ends the slot: everything collected so far belongs to the syncvm `slot`.
    pub fn seal(&mut self, slot: SyncNo) -> HeldSlot {
        self.bytes = 0;
        HeldSlot {
            slot,
            frames: std::mem::take(&mut self.frames),
            settled: false,
        }
    }

    /// The syncvm failed: its outputs wait again, ahead of younger ones.
    pub fn reopen(&mut self, mut held: HeldSlot) {
        held.settled = true;
        let mut frames = std::mem::take(&mut held.frames);
        self.bytes += frames.iter().map(|f| f.0.len()).sum::<usize>();
        frames.append(&mut self.frames);
        self.frames = frames;
    }

    /// Hands out everything: this replica's own state is the only one and explains it.
    pub fn release_all(&mut self) -> Vec<Frame> {
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    /// Forgets everything: the state behind it is given up. Returns how many frames.
    pub fn discard_all(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.frames).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u8) -> Frame {
        Frame(vec![n; 60])
    }

    #[test]
    fn outputs_of_a_failed_sync_stay_held_and_in_order() {
        let mut guard = Guard::new(1000);
        guard.collect([frame(1), frame(2)]);
        let held = guard.seal(SyncNo(1));
        guard.collect([frame(3)]);
        guard.reopen(held);
        assert_eq!(
            guard.seal(SyncNo(2)).release(),
            [frame(1), frame(2), frame(3)]
        );
        assert!(guard.is_empty());
    }

    #[test]
    #[should_panic(expected = "neither released nor discarded")]
    fn a_dropped_output_is_noticed() {
        let mut guard = Guard::new(1000);
        guard.collect([frame(1)]);
        drop(guard.seal(SyncNo(7)));
    }

    #[test]
    fn memory_is_bounded_when_no_sync_comes() {
        let mut guard = Guard::new(100);
        let dropped: usize = (0..100).map(|n| guard.collect([frame(n)])).sum();
        assert_eq!(dropped + guard.len(), 100);
        assert_eq!(
            guard.release_all()[0],
            frame(0),
            "the oldest are kept, in order"
        );
        assert_eq!(
            guard.collect([frame(1)]),
            0,
            "an emptied guard takes frames again"
        );
    }

    #[test]
    fn a_full_guard_asks_for_a_sync() {
        let mut guard = Guard::new(100);
        guard.collect([frame(1)]);
        assert!(!guard.is_full());
        guard.collect([frame(2)]);
        assert!(guard.is_full());
        guard.discard_all();
        assert!(!guard.is_full());
    }
}

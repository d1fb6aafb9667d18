//! The outputs of the slot that is running.

use crate::held::HeldSlot;
use plover_types::{Frame, Index, Micros, OutputNo, SyncNo};
use std::collections::BTreeMap;

/// A frame that waits.
#[derive(Debug)]
pub(crate) struct Output {
    pub since: Micros,
    pub follows: Index,
    pub frame: Frame,
}

/// Frames that leave before the sync that ends their slot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// In the order in which the guest has sent them.
    pub frames: Vec<Frame>,
    /// When the oldest of them began to wait.
    pub since: Option<Micros>,
    /// The last entry of the log that one of them follows from.
    pub follows: Index,
}

/// Frames that wait, by their numbers, so in the order in which the guest has sent them.
pub(crate) type Outputs = BTreeMap<OutputNo, Output>;

/// The outputs of the slot that is running.
#[derive(Debug)]
pub struct Guard {
    outputs: Outputs,
    next: OutputNo,
    bytes: usize,
    /// Bytes of slots that have ended and whose outputs have not left.
    sealed_bytes: usize,
    bytes_max: usize,
}

impl Guard {
    /// A guard that asks for a sync once it holds `bytes_max` bytes. At twice that, held slots included, it drops
    /// further frames, so that memory stays bounded while no sync is possible (no quorum, or `hold` while
    /// solo). Losing a frame here is like losing it on a network: the guest sends it again.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            outputs: Outputs::new(),
            next: OutputNo(0),
            bytes: 0,
            sealed_bytes: 0,
            bytes_max,
        }
    }

    /// Whether [`Self::hold`] would keep a frame.
    pub fn has_room(&self) -> bool {
        self.bytes + self.sealed_bytes < self.bytes_max.saturating_mul(2)
    }

    /// Holds a frame that the guest has sent, after it was fed the log up to `follows`. Returns its number, or `None`
    /// if the guard is full and the frame was dropped.
    pub fn hold(&mut self, now: Micros, follows: Index, frame: Frame) -> Option<OutputNo> {
        if !self.has_room() {
            return None;
        }
        let no = self.next;
        self.next = OutputNo(no.0 + 1);
        self.bytes += frame.0.len();
        let output = Output {
            since: now,
            follows,
            frame,
        };
        self.outputs.insert(no, output);
        Some(no)
    }

    /// The number that the next frame gets.
    pub fn next_no(&self) -> OutputNo {
        self.next
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// When the oldest frame began to wait.
    pub fn oldest_since(&self) -> Option<Micros> {
        self.outputs.values().next().map(|output| output.since)
    }

    /// Whether it holds enough that a sync is due.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Ends the slot: everything that waits belongs to the syncvm `slot`.
    pub fn seal(&mut self, slot: SyncNo) -> HeldSlot {
        self.sealed_bytes += std::mem::take(&mut self.bytes);
        HeldSlot::new(slot, std::mem::take(&mut self.outputs))
    }

    /// The outputs of a slot that this guard has sealed. They do not count as such any more.
    fn unseal(&mut self, held: HeldSlot) -> Outputs {
        let outputs = held.into_outputs();
        let bytes: usize = outputs.values().map(|it| it.frame.0.len()).sum();
        self.sealed_bytes = self.sealed_bytes.saturating_sub(bytes);
        outputs
    }

    /// The state behind these outputs is safe: hands them out for sending.
    pub fn release(&mut self, held: HeldSlot) -> Vec<Frame> {
        frames_of(self.unseal(held))
    }

    /// The state behind these outputs was replaced, so no client may see them. Returns how many there
    /// were.
    pub fn discard(&mut self, held: HeldSlot) -> usize {
        self.unseal(held).len()
    }

    /// The syncvm failed: its outputs wait again, before younger ones.
    pub fn reopen(&mut self, held: HeldSlot) {
        for (no, output) in self.unseal(held) {
            self.bytes += output.frame.0.len();
            self.outputs.insert(no, output);
        }
    }

    /// Hands out the frames with these rising numbers, because the secondary's state explains them.
    /// Skips numbers of frames that have left.
    pub fn take(&mut self, numbers: &[OutputNo]) -> Taken {
        debug_assert!(numbers.is_sorted(), "the numbers rise");
        let mut taken = Taken {
            frames: Vec::with_capacity(numbers.len()),
            ..Taken::default()
        };
        for no in numbers {
            let Some(output) = self.outputs.remove(no) else {
                continue;
            };
            self.bytes -= output.frame.0.len();
            taken.since.get_or_insert(output.since);
            taken.follows = taken.follows.max(output.follows);
            taken.frames.push(output.frame);
        }
        taken
    }

    /// The frames from this number on, in order.
    pub fn from(&self, no: OutputNo) -> impl Iterator<Item = (OutputNo, &Frame)> {
        let rest = self.outputs.range(no..);
        rest.map(|(no, output)| (*no, &output.frame))
    }

    /// Forgets the frames before this number, because the leader has sent the same to clients.
    /// Returns how many bytes they had.
    pub fn forget_before(&mut self, no: OutputNo) -> usize {
        let before = self.bytes;
        while let Some(first) = self.outputs.first_entry().filter(|it| *it.key() < no) {
            self.bytes -= first.remove().frame.0.len();
        }
        before - self.bytes
    }

    /// Hands out everything, because this replica's state is the only one left.
    pub fn release_all(&mut self) -> Vec<Frame> {
        self.bytes = 0;
        frames_of(std::mem::take(&mut self.outputs))
    }

    /// Forgets everything, because the state behind it is given up. Returns how many frames.
    pub fn discard_all(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.outputs).len()
    }
}

fn frames_of(outputs: Outputs) -> Vec<Frame> {
    outputs.into_values().map(|output| output.frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u8) -> Frame {
        Frame(vec![n; 60])
    }

    fn hold(guard: &mut Guard, numbers: impl IntoIterator<Item = u8>) -> usize {
        let held = numbers
            .into_iter()
            .map(|n| guard.hold(Micros(n.into()), Index(n.into()), frame(n)));
        held.filter(Option::is_none).count()
    }

    #[test]
    fn outputs_of_a_failed_sync_stay_held_and_in_order() {
        let mut guard = Guard::new(1000);
        hold(&mut guard, [1, 2]);
        let held = guard.seal(SyncNo(1));
        hold(&mut guard, [3]);
        guard.reopen(held);
        assert_eq!(guard.oldest_since(), Some(Micros(1)));
        let held = guard.seal(SyncNo(2));
        assert_eq!(guard.release(held), [frame(1), frame(2), frame(3)]);
        assert!(guard.is_empty());
    }

    #[test]
    #[should_panic(expected = "neither released nor discarded")]
    fn a_dropped_output_is_noticed() {
        let mut guard = Guard::new(1000);
        hold(&mut guard, [1]);
        drop(guard.seal(SyncNo(7)));
    }

    #[test]
    fn memory_is_bounded_when_no_sync_comes() {
        let mut guard = Guard::new(100);
        let dropped = hold(&mut guard, 0..100);
        assert_eq!(dropped + guard.len(), 100);
        assert_eq!(
            guard.release_all()[0],
            frame(0),
            "the oldest are kept, in order"
        );
        assert_eq!(
            hold(&mut guard, [1]),
            0,
            "an emptied guard takes frames again"
        );
    }

    /// A sync may take long, and the guest sends meanwhile.
    #[test]
    fn the_outputs_of_a_held_slot_take_room_until_they_are_settled() {
        let mut guard = Guard::new(100);
        let settle: [fn(&mut Guard, HeldSlot); 2] = [
            |guard, held| assert_eq!(guard.release(held).len(), 4),
            |guard, held| assert_eq!(guard.discard(held), 4),
        ];
        for settle in settle {
            assert_eq!(hold(&mut guard, 0..5), 1);
            let held = guard.seal(SyncNo(1));
            assert!(!guard.is_full(), "nothing of the next slot waits");
            assert_eq!(hold(&mut guard, [5]), 1);
            guard.reopen(held);
            assert!(guard.is_full() && !guard.has_room());
            let held = guard.seal(SyncNo(2));
            settle(&mut guard, held);
            assert!(guard.has_room() && guard.is_empty());
        }
    }

    #[test]
    fn a_full_guard_asks_for_a_sync() {
        let mut guard = Guard::new(100);
        hold(&mut guard, [1]);
        assert!(!guard.is_full());
        hold(&mut guard, [2]);
        assert!(guard.is_full());
        guard.discard_all();
        assert!(!guard.is_full());
    }

    #[test]
    fn an_output_taken_early_no_longer_waits_and_makes_room() {
        let mut guard = Guard::new(100);
        hold(&mut guard, [0, 1, 2]);
        assert!(guard.is_full());
        let taken = guard.take(&[OutputNo(0), OutputNo(2), OutputNo(9)]);
        let expected = Taken {
            frames: vec![frame(0), frame(2)],
            since: Some(Micros(0)),
            follows: Index(2),
        };
        assert_eq!(taken, expected);
        assert!(!guard.is_full());
        assert_eq!(guard.oldest_since(), Some(Micros(1)));
        let held = guard.seal(SyncNo(1));
        assert_eq!(guard.release(held), [frame(1)]);
    }

    #[test]
    fn outputs_that_clients_have_are_forgotten_from_the_front() {
        let mut guard = Guard::new(1000);
        hold(&mut guard, [0, 1, 2]);
        assert_eq!(guard.forget_before(OutputNo(2)), 120);
        let rest: Vec<_> = guard.from(OutputNo(0)).map(|(no, _)| no).collect();
        assert_eq!(rest, [OutputNo(2)]);
        assert_eq!(guard.from(guard.next_no()).count(), 0);
        assert_eq!(guard.discard_all(), 1);
    }
}

//! The outputs of a slot that has ended.

use crate::guard::Output;
use plover_types::{Frame, SyncNo};

/// The outputs of one slot, after the guest was paused at its end.
#[derive(Debug)]
#[must_use = "a held slot must be released, discarded or reopened"]
pub struct HeldSlot {
    slot: SyncNo,
    outputs: Vec<Output>,
    settled: bool,
}

impl HeldSlot {
    pub(crate) fn new(slot: SyncNo, outputs: Vec<Output>) -> Self {
        Self {
            slot,
            outputs,
            settled: false,
        }
    }

    /// The outputs, for a guard that goes on holding them.
    pub(crate) fn into_outputs(mut self) -> Vec<Output> {
        self.settled = true;
        std::mem::take(&mut self.outputs)
    }

    /// The syncvm that ends this slot.
    pub fn slot(&self) -> SyncNo {
        self.slot
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.outputs.len()
    }

    /// Whether it holds no frame.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The state behind these outputs is safe: hands them out for sending.
    pub fn release(self) -> Vec<Frame> {
        let outputs = self.into_outputs();
        outputs.into_iter().map(|output| output.frame).collect()
    }

    /// The state behind these outputs was replaced, so no client may see them. Returns how many there
    /// were.
    pub fn discard(self) -> usize {
        self.into_outputs().len()
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        assert!(
            self.settled || std::thread::panicking(),
            "slot {} dropped with {} outputs neither released nor discarded",
            self.slot,
            self.outputs.len()
        );
    }
}

//! The outputs of a slot that has ended.

use crate::guard::Outputs;
use plover_types::SyncNo;

/// The outputs of one slot, after the guest was paused at its end.
#[derive(Debug)]
#[must_use = "a held slot must be released, discarded or reopened"]
pub struct HeldSlot {
    slot: SyncNo,
    outputs: Outputs,
    settled: bool,
}

impl HeldSlot {
    pub(crate) fn new(slot: SyncNo, outputs: Outputs) -> Self {
        Self {
            slot,
            outputs,
            settled: false,
        }
    }

    /// The outputs, for the guard that has sealed them.
    pub(crate) fn into_outputs(mut self) -> Outputs {
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

//! Console output of the guest, on its way to operators (docs/decisions/0024).
//!
//! ```text
//!           print           the pause of a syncvm          synced
//!  guest ─────────▶ this slot ──────────────▶ of the syncvm ──────▶ operators
//!                    ▲  │                          │
//!                    │  └ forget: the secondary's   │
//!                    └──────────────────────────────┘ failed
//! ```
//!
//! Output that an operator has seen must be explained by the state that survives, as with clients. So the
//! replica that shows console output holds it as the guard holds frames.

use plover_types::SyncNo;

/// Bytes held at most; beyond that the oldest are dropped. `console.log` has them.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Console output that was not shown yet.
#[derive(Debug, Default)]
pub(super) struct Printed {
    slot: Vec<u8>,
    /// The output of a syncvm that is not over.
    cut: Option<(SyncNo, Vec<u8>)>,
}

impl Printed {
    /// The guest has printed.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.slot.extend_from_slice(bytes);
        let over = self.slot.len().saturating_sub(HELD_BYTES_MAX);
        self.slot.drain(..over);
    }

    /// The guest is paused for a syncvm, whose state includes all output so far.
    pub(super) fn cut(&mut self, sync: SyncNo) {
        self.reopen();
        self.cut = Some((sync, std::mem::take(&mut self.slot)));
    }

    /// The syncvm is acknowledged: returns the output that may be shown.
    pub(super) fn synced(&mut self, sync: SyncNo) -> Vec<u8> {
        let cut = self.cut.take_if(|(of, _)| *of == sync);
        cut.map_or_else(Vec::new, |(_, bytes)| bytes)
    }

    /// The syncvm has failed.
    pub(super) fn reopen(&mut self) {
        if let Some((_, mut bytes)) = self.cut.take() {
            bytes.append(&mut self.slot);
            self.slot = bytes;
        }
    }

    /// Returns all output: it may be shown.
    pub(super) fn take_all(&mut self) -> Vec<u8> {
        self.reopen();
        std::mem::take(&mut self.slot)
    }

    /// The state that has printed the output is gone.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_output_is_shown_with_its_syncvm() {
        let mut printed = Printed::default();
        printed.hold(b"one ");
        assert!(printed.synced(SyncNo(1)).is_empty(), "nothing is cut");
        printed.cut(SyncNo(2));
        printed.hold(b"two ");
        assert!(printed.synced(SyncNo(1)).is_empty(), "of another");
        assert_eq!(printed.synced(SyncNo(2)), b"one ");
        printed.cut(SyncNo(3));
        printed.hold(b"three");
        printed.reopen();
        assert!(printed.synced(SyncNo(3)).is_empty(), "it has failed");
        printed.cut(SyncNo(4));
        assert_eq!(printed.synced(SyncNo(4)), b"two three");
    }

    /// A secondary that takes over shows its own guest's output since the last sync; the leader has shown
    /// earlier output.
    #[test]
    fn a_replica_that_takes_over_shows_output_that_was_not_shown_yet() {
        let mut printed = Printed::default();
        printed.hold(b"shown by the leader");
        printed.forget();
        printed.hold(b"since");
        assert_eq!(printed.take_all(), b"since");
        printed.hold(b"a");
        printed.cut(SyncNo(1));
        printed.hold(b"b");
        assert_eq!(printed.take_all(), b"ab");
    }

    #[test]
    fn a_guest_that_never_stops_fills_no_memory() {
        let mut printed = Printed::default();
        (0..40).for_each(|i| printed.hold(&[i; HELD_BYTES_MAX / 16]));
        let all = printed.take_all();
        assert_eq!((all.len(), all.last()), (HELD_BYTES_MAX, Some(&39)));
    }
}

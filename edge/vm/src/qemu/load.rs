//! Loading device state, without translating the guest anew where that can be avoided.
//!
//! Under TCG, QEMU runs translations of the guest's code. A load throws all of them away, because
//! whoever loads state has written guest RAM behind QEMU's back, and translations of what was
//! overwritten are stale. After each sync the secondary then spent 22 ms of CPU time (measured; a
//! Redis guest answering pings) on translating the same kernel again, ten times what all else of a
//! sync takes.
//!
//! QEMU must forget what was translated from the pages that we wrote, and those are known. Where it
//! exports what is needed, the agent tells it those pages and has it leave out the rest (see
//! `plover-agent`). A kept translation is valid: it depends on the bytes it was made from, which
//! QEMU watches for its own writes and we report for ours, and on processor modes that are part of
//! its key. Where anything is in doubt, everything is translated anew.

use super::{Purpose, QemuVm};
use crate::device_state::with_serial_queue;
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use serde_json::json;

/// Guest RAM below here lies at the guest-physical address that is its offset in the RAM file, on
/// every machine type; above, there may be a hole for devices.
const IDENTITY_END: u32 = (2 << 30) / PAGE_BYTES as u32;
/// The exception: the old PC's video memory and firmware, 640 KiB to 1 MiB.
const LEGACY_HOLE: std::ops::Range<u32> = 0xa0..0x100;

/// What loading needs to remember.
pub(super) struct Loads {
    /// Whether translations can be kept at all: TCG, direct orders, and a QEMU that exports what the
    /// agent needs.
    pub(super) keeps_code: bool,
    /// Where QEMU has guest RAM.
    pub(super) ram_in_qemu: u64,
    /// Pages that we wrote since the last load.
    overwritten: PageSet,
}

impl Loads {
    pub(super) fn new(pages: u32) -> Self {
        Self {
            keeps_code: false,
            ram_in_qemu: 0,
            overwritten: PageSet::new(pages),
        }
    }

    /// Notes a page that we wrote.
    pub(super) fn overwrote(&mut self, page: PageNo) {
        self.overwritten.insert(page);
    }

    /// The overwritten pages as runs, if translations of all others may be kept.
    fn overwritten_runs(&self) -> Option<Vec<(u32, u32)>> {
        let simple = |page: PageNo| page.0 < IDENTITY_END && !LEGACY_HOLE.contains(&page.0);
        if !self.keeps_code || !self.overwritten.iter().all(simple) {
            return None;
        }
        let runs = self.overwritten.to_runs().0;
        (runs.len() <= plover_agent::RUNS_MAX).then_some(runs)
    }
}

impl QemuVm {
    /// Begins to load `state`. The order stays open until QEMU has answered the load itself.
    pub(super) fn begin_load(&mut self, state: Vec<u8>) {
        self.orders.opened(Purpose::Load);
        let (state, serial) = with_serial_queue(state);
        if let Err(error) = self.state_file.write(&state) {
            self.orders.closed(Purpose::Load);
            return self.failed("load", &error.to_string());
        }
        if self.direct {
            let runs = self.loads.overwritten_runs();
            tracing::debug!(kept = runs.is_some(), "loading device state");
            let given = self.order_link.load(runs.as_deref(), serial);
            return self.order_given(given);
        }
        // The load uses the preparation up, whether it succeeds or not.
        self.armed = false;
        let arguments = json!({ "filename": self.state_file_name() });
        self.send(Purpose::Load, "xen-load-devices-state", arguments);
    }

    /// QEMU has answered the load.
    pub(super) fn load_ended(&mut self) {
        self.loads.overwritten.clear();
        if !self.direct {
            self.arm();
        }
    }
}

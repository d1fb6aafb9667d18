//! Loading device state, without translating the guest anew where that can be avoided.
//!
//! Under TCG, QEMU runs translations of the guest's code. A load throws all of them away, because
//! whoever loads state has written guest RAM behind QEMU's back, and translations of what was
//! overwritten are stale. After each sync the secondary then spent 22 ms of CPU time (measured; a
//! Redis guest answering pings) on translating the same kernel again, ten times what all else of a
//! sync takes.
//!
//! QEMU does this in one place, when it loads the section `cpu_common` of a vCPU, which holds two
//! words: whether the vCPU is halted, and its pending interrupts. Two guests that wait for work
//! usually agree on them. So:
//!
//! ```text
//!   LoadState(theirs)
//!      │ save our own state (0.5 ms)
//!      ▼
//!   all cpu_common sections equal? ──no──► load `theirs`: everything is translated anew
//!      │ yes: loading them would change nothing but throw translations away
//!      ▼
//!   the agent has QEMU forget what it translated from the pages that we overwrote
//!      ▼
//!   load `theirs` without those sections
//! ```
//!
//! A kept translation is valid: it depends on the bytes it was made from, which QEMU watches for
//! its own writes and the agent reports for ours, and on processor modes that are part of its key.
//! Where anything is in doubt, the whole state is loaded.

use super::{Purpose, QemuVm};
use crate::device_state::{with_serial_queue, without_cpu_common};
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use serde_json::{Value, json};

/// Guest RAM below here lies at the guest-physical address that is its offset in the RAM file, on
/// every machine type; above, there may be a hole for devices.
const IDENTITY_END: u32 = (2 << 30) / PAGE_BYTES as u32;
/// The exception: the old PC's video memory and firmware, 640 KiB to 1 MiB.
const LEGACY_HOLE: std::ops::Range<u32> = 0xa0..0x100;

/// What loading needs to remember.
pub(super) struct Loads {
    /// Whether translations can be kept at all: TCG, and a QEMU that exports what the agent needs.
    pub(super) keeps_code: bool,
    /// Where QEMU has guest RAM.
    pub(super) ram_in_qemu: u64,
    /// Pages that we wrote since the last load.
    overwritten: PageSet,
    /// Pages that the hypervisor wrote and a scan of ours has cleared: the next scan of the
    /// caller's tells them.
    cleared: PageSet,
    /// The state being loaded, and without its `cpu_common` sections while the agent is at work.
    state: Vec<u8>,
    reduced: Vec<u8>,
}

impl Loads {
    pub(super) fn new(pages: u32) -> Self {
        Self {
            keeps_code: false,
            ram_in_qemu: 0,
            overwritten: PageSet::new(pages),
            cleared: PageSet::new(pages),
            state: Vec::new(),
            reduced: Vec::new(),
        }
    }

    /// Notes a page that we wrote.
    pub(super) fn overwrote(&mut self, page: PageNo) {
        self.overwritten.insert(page);
    }

    /// Moves what our own scan has cleared into the caller's.
    pub(super) fn give_back_cleared(&mut self, dirty: &mut PageSet) {
        dirty.union_with(&self.cleared);
        self.cleared.clear();
    }

    /// The overwritten pages as runs, if the agent can be told of them.
    fn runs(&self) -> Option<Vec<(u32, u32)>> {
        let simple = |page: PageNo| page.0 < IDENTITY_END && !LEGACY_HOLE.contains(&page.0);
        let runs = self.overwritten.to_runs().0;
        let all_simple = self.overwritten.iter().all(simple);
        (all_simple && runs.len() <= plover_agent::RUNS_MAX).then_some(runs)
    }
}

impl QemuVm {
    /// Begins to load `state`. The order stays open until QEMU has answered the load itself.
    pub(super) fn begin_load(&mut self, state: Vec<u8>) {
        self.orders.opened(Purpose::Load);
        self.loads.state = with_serial_queue(state);
        if self.loads.keeps_code {
            self.save(Purpose::OwnState);
        } else {
            self.load_whole();
        }
    }

    /// Our own state is saved: decides how much of the other one to load.
    pub(super) fn own_state_saved(&mut self, result: Result<Value, String>) {
        let own = result.ok().and_then(|_| self.state_file.read().ok());
        let reduced = own.and_then(|own| without_cpu_common(&self.loads.state, &own));
        let (Some(reduced), Some(runs)) = (reduced, self.loads.runs()) else {
            return self.load_whole();
        };
        self.loads.reduced = reduced;
        if runs.is_empty() {
            return self.load_reduced();
        }
        if let Err(error) = self.agent.invalidate(self.loads.ram_in_qemu, &runs) {
            tracing::debug!(%error, "the agent takes no list of pages; all is translated anew");
            self.load_whole();
        }
    }

    /// The agent has had QEMU forget what it translated from overwritten pages, or failed to.
    pub(super) fn invalidated(&mut self, status: i32) {
        if status != 0 {
            return self.load_whole();
        }
        // It did so by writing them, which is no news: they hold what we wrote.
        if let Some(tracker) = &mut self.tracker {
            if let Err(error) = tracker.scan(&mut self.loads.cleared) {
                self.orders.closed(Purpose::Load);
                return self.failed("load", &error.to_string());
            }
            self.loads.cleared.subtract(&self.loads.overwritten);
        }
        self.load_reduced();
    }

    fn load_reduced(&mut self) {
        tracing::debug!("loading device state; translations are kept");
        let state = std::mem::take(&mut self.loads.reduced);
        self.load(&state);
    }

    fn load_whole(&mut self) {
        tracing::debug!("loading device state whole");
        let state = std::mem::take(&mut self.loads.state);
        self.load(&state);
    }

    fn load(&mut self, state: &[u8]) {
        if let Err(error) = self.state_file.write(state) {
            self.orders.closed(Purpose::Load);
            return self.failed("load", &error.to_string());
        }
        // The load uses the preparation up, whether it succeeds or not.
        self.armed = false;
        let arguments = json!({ "filename": self.state_file_name() });
        self.send(Purpose::Load, "xen-load-devices-state", arguments);
    }

    /// QEMU has answered the load.
    pub(super) fn load_ended(&mut self) {
        self.loads.overwritten.clear();
        self.loads.state = Vec::new();
        self.loads.reduced = Vec::new();
        self.arm();
    }
}

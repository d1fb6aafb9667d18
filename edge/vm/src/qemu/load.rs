//! Loading device state, keeping TCG's translations where possible.
//!
//! Under TCG, QEMU runs translations of the guest's code. A load drops all of them, because guest RAM
//! was written behind QEMU's back and translations of overwritten code are stale. So after each sync the
//! secondary spent 22 ms of CPU time on translating the same kernel again (measured; a Redis guest
//! answering pings), ten times the rest of a sync.
//!
//! QEMU must drop only the translations of pages that we wrote, and we know these. If QEMU exports what is
//! needed, the agent tells it those pages and makes it keep the rest (see `plover-agent`). A kept
//! translation is valid: it depends on the bytes it was made from (QEMU watches its own writes to them,
//! and we report ours) and on processor modes, which are part of its key. In any doubt all translations
//! are dropped.

use super::power::{Life, monotonic};
use super::{Purpose, QemuVm};
use crate::device_state::{with_serial_queue, with_zeros_of_cpus};
use plover_types::{DeviceState, Micros, PAGE_BYTES, PageNo, PageSet};

/// Up to here the guest-physical address of a page is its offset in the RAM file, on every machine type.
/// Above, there may be a hole for devices.
const IDENTITY_END: u32 = (2 << 30) / PAGE_BYTES as u32;
/// The exception: the old PC's video memory and firmware, 640 KiB to 1 MiB.
const LEGACY_HOLE: std::ops::Range<u32> = 0xa0..0x100;

/// State of loads.
pub(super) struct Loads {
    /// Whether translations can be kept at all: TCG, and a QEMU that exports what the
    /// agent needs.
    pub(super) keeps_code: bool,
    /// Pages that we wrote since the last load.
    overwritten: PageSet,
    /// The machine's power in the state that is being loaded.
    life: Life,
    /// If its guest stands still for an operator: since when, by this host's `CLOCK_MONOTONIC`.
    stands_since: Option<Micros>,
}

impl Loads {
    pub(super) fn new(pages: u32) -> Self {
        Self {
            keeps_code: false,
            overwritten: PageSet::new(pages),
            life: Life::default(),
            stands_since: None,
        }
    }

    /// Notes that we wrote a page.
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
    pub(super) fn begin_load(&mut self, state: DeviceState) {
        self.orders.opened(Purpose::Load);
        let mut bytes = state.bytes;
        let Some(life) = Life::take_from(&mut bytes) else {
            self.orders.closed(Purpose::Load);
            return self.failed(
                "load",
                "the state does not say whether its machine has power",
            );
        };
        // The clocks of a guest that stands still stand since then.
        let mut stopped_at = state.stopped_at;
        if let Some(stood) = life.stood {
            stopped_at = stopped_at.since(stood);
        }
        let known = |at: &Micros| *at > Micros::ZERO;
        let since = Some(stopped_at).filter(known).unwrap_or_else(monotonic);
        self.loads.stands_since = life.stood.map(|_| since);
        self.loads.life = life;
        // The caller has given the disks these sizes.
        super::disks::take_sizes(&mut bytes);
        let (bytes, serial) = with_serial_queue(with_zeros_of_cpus(bytes));
        if let Err(error) = self.state_file.write(&bytes) {
            self.orders.closed(Purpose::Load);
            return self.failed("load", &error.to_string());
        }
        let runs = self.loads.overwritten_runs();
        tracing::debug!(kept = runs.is_some(), "loading device state");
        let given = self.order_link.load(runs.as_deref(), serial, stopped_at);
        self.order_given(given);
    }

    /// The machine has the power of the state that was loaded, and its operator's orders hold here.
    pub(super) fn take_life(&mut self) {
        self.orders.power = self.loads.life.power;
        self.orders.reboots = self.loads.life.reboots;
        self.orders.stands_since = self.loads.stands_since;
    }

    /// QEMU has answered the load.
    pub(super) fn load_ended(&mut self) {
        self.loads.overwritten.clear();
    }
}

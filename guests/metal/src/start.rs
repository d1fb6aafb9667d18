//! The machine's description of itself at the start: the command line and the memory (Xen's PVH protocol).

use crate::writer::Pattern;
use core::ffi::CStr;
use smoltcp::wire::Ipv4Cidr;

/// At the beginning of the description.
const MAGIC: u32 = 0x336e_c578;
/// An entry of memory that may be used.
const USABLE: u32 = 1;
/// The image ends before it, and `boot.S` maps up to the other (README.md has the table).
const FREE_FROM: u64 = 32 << 20;
const FREE_TO: u64 = 17 << 30;
/// Regions of memory that are kept: below 4 GiB, and above.
pub const REGIONS: usize = 2;

/// Used where the command line does not say the counter's rate. Times are then wrong by the difference.
const TSC_KHZ: u64 = 2_500_000;

#[repr(C)]
struct Info {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    cmdline: u64,
    rsdp: u64,
    memory_map: u64,
    memory_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct Entry {
    address: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

/// The parts of it that this guest uses.
pub struct Start {
    cmdline: &'static str,
    free: [(u64, u64); REGIONS],
}

impl Start {
    /// Reads the description.
    ///
    /// # Safety
    /// The firmware has put one at `address`, and it is still there.
    pub unsafe fn read(address: u32) -> Self {
        // SAFETY: the caller's condition, for this and for what the description points to.
        unsafe {
            let info = &*(address as *const Info);
            assert!(
                info.magic == MAGIC && info.version >= 1,
                "the machine's description at {address:#x} is none of PVH's version 1"
            );
            let cmdline = match info.cmdline {
                0 => "",
                at => CStr::from_ptr(at as *const _).to_str().unwrap_or(""),
            };
            let entries = core::slice::from_raw_parts(
                info.memory_map as *const Entry,
                info.memory_entries as usize,
            );
            let mut free = [(0, 0); REGIONS];
            let usable = entries.iter().filter(|entry| entry.kind == USABLE);
            let kept = usable.filter_map(|entry| {
                let from = entry.address.max(FREE_FROM).next_multiple_of(4096);
                let to = (entry.address + entry.bytes).min(FREE_TO) & !4095;
                (to > from).then_some((from, to))
            });
            free.iter_mut().zip(kept).for_each(|(to, it)| *to = it);
            Self { cmdline, free }
        }
    }

    /// The value of `name=` on the command line.
    fn value(&self, name: &str) -> Option<&'static str> {
        let mut words = self.cmdline.split_ascii_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The rate of the time-stamp counter.
    pub fn tsc_khz(&self) -> u64 {
        let said = self.value("tsc_early_khz").and_then(|khz| khz.parse().ok());
        said.unwrap_or(TSC_KHZ)
    }

    /// The guest's address, as `plover.ip` says it.
    pub fn ip(&self) -> Option<Ipv4Cidr> {
        self.value("plover.ip")?.parse().ok()
    }

    /// Pages a second, pages and pattern that are written from the start, as `plover.writer` says it.
    pub fn writer(&self) -> Option<(u64, u64, Pattern)> {
        let mut words = self.value("plover.writer")?.split(',');
        let rate = words.next()?.parse().ok()?;
        let pages = words.next()?.parse().ok()?;
        let pattern = Pattern::named(words.next()?.as_bytes())?;
        Some((rate, pages, pattern))
    }

    /// Memory that nothing uses: from, to.
    pub fn free_memory(&self) -> [(u64, u64); REGIONS] {
        self.free
    }
}

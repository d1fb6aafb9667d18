//! Finds the pages of devices' memory that were written: `PAGEMAP_SCAN` over QEMU's page tables. (Those of the machine's RAM:
//! `written`.)
//!
//! A scan under KVM unmaps this memory from the guest, whose next touch of each page is a fault.
//!
//! ```text
//!   vCPU or device of QEMU writes            plover
//!   ──────────────────────────────           ───────────────────────────────────────────
//!   page is write-protected                  ioctl(/proc/QEMU/pagemap, PAGEMAP_SCAN):
//!     │ first write: a fault that the          every page that is not write-protected
//!     │ kernel resolves by itself               1. is reported (PAGE_IS_WRITTEN)
//!     ▼ (asynchronous mode)                     2. is write-protected again
//!   page is writable until the next scan     in one atomic step for each page
//! ```
//!
//! The protection belongs to QEMU's mapping (a userfaultfd that the agent made). Writes through any
//! other mapping are not seen. That is right for `plover`'s own: it only writes what the other side
//! already has.
//!
//! A scan clears as it reports, so only the caller knows the reported pages from then on. A scan that
//! fails half-way has already added the pages that it cleared.

use crate::VmError;
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use rustix::fd::{AsRawFd, OwnedFd};
use std::ffi::c_long;

#[cfg(test)]
mod tests;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 0xc060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;

/// Regions that one call can return: 96 KiB. A slot rarely dirties more runs; then the scan takes
/// another call.
const REGIONS: usize = 4096;

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The kernel's `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The written-pages tracker of one range of one process.
pub(crate) struct DirtyTracker {
    pagemap: OwnedFd,
    /// The last copy of the userfaultfd: tracking ends when it closes.
    _userfaultfd: OwnedFd,
    start: u64,
    bytes: u64,
    /// The number of the range's first page.
    first: PageNo,
    regions: Vec<Region>,
}

impl DirtyTracker {
    /// A tracker of `start..start + bytes` in process `pid`, which `userfaultfd` protects and whose first page is `first`.
    pub(crate) fn new(
        pid: u32,
        userfaultfd: OwnedFd,
        start: u64,
        bytes: usize,
        first: PageNo,
    ) -> Result<Self, VmError> {
        let path = format!("/proc/{pid}/pagemap");
        let pagemap = std::fs::File::open(&path).map_err(|source| VmError::Io {
            what: format!("opening {path}"),
            source,
        })?;
        Ok(Self {
            pagemap: pagemap.into(),
            _userfaultfd: userfaultfd,
            start,
            bytes: bytes as u64,
            first,
            regions: vec![Region::default(); REGIONS],
        })
    }

    /// Adds the pages written since the last scan to `dirty`, and protects them again.
    pub(crate) fn scan(&mut self, dirty: &mut PageSet) -> Result<(), VmError> {
        let last = u64::from(self.first.0) + self.bytes / PAGE_BYTES as u64;
        assert!(u64::from(dirty.capacity()) >= last);
        let (start, first) = (self.start, self.first.0);
        let page = |address: u64| first + ((address - start) / PAGE_BYTES as u64) as u32;
        let (mut from, end) = (self.start, self.start + self.bytes);
        while from < end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC,
                start: from,
                end,
                vec: self.regions.as_mut_ptr() as u64,
                vec_len: self.regions.len() as u64,
                category_mask: PAGE_IS_WRITTEN,
                return_mask: PAGE_IS_WRITTEN,
                ..ScanArgument::default()
            };
            // SAFETY: the argument is a pm_scan_arg of the size it states, and `vec` points to
            // `vec_len` page_regions that nothing else uses during the call.
            let found =
                unsafe { libc::ioctl(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
            let result = usize::try_from(found).map_err(|_| std::io::Error::last_os_error());
            // The kernel fills in `walk_end` and the regions also when it was interrupted.
            let found = match result {
                Ok(found) => found,
                Err(source) if source.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(VmError::Io {
                        what: "scanning for written pages".into(),
                        source,
                    });
                }
            };
            for region in &self.regions[..found.min(REGIONS)] {
                assert!(
                    start <= region.start && region.end <= end,
                    "the kernel reported memory outside of what was asked"
                );
                dirty.insert_run(page(region.start), page(region.end));
            }
            assert!(
                argument.walk_end > from,
                "a scan that does not advance would never end"
            );
            from = argument.walk_end;
        }
        Ok(())
    }
}

/// A step of setting the mechanism up, and why it failed.
type Failure = (&'static str, std::io::Error);

fn failed(error: VmError) -> Failure {
    match error {
        VmError::Io { source, .. } => ("PAGEMAP_SCAN", source),
        other => ("PAGEMAP_SCAN", std::io::Error::other(other.to_string())),
    }
}

/// A tracker of memory of this process.
fn track_here(ram: &crate::ram::Ram) -> Result<DirtyTracker, Failure> {
    /// Only this function uses these calls; their numbers are kernel ABI.
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
    const FEATURES: u64 = (1 << 12) | (1 << 13) | (1 << 15);
    const USER_MODE_ONLY: c_long = 1;

    let last = std::io::Error::last_os_error;
    // SAFETY: no pointers are passed.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_userfaultfd,
            c_long::from(libc::O_CLOEXEC) | USER_MODE_ONLY,
        )
    };
    if fd < 0 {
        return Err(("userfaultfd", last()));
    }
    // SAFETY: the kernel has just made this descriptor for us alone.
    let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
    let start = ram
        .find_in(std::process::id(), 0..ram.bytes() as u64)
        .map_err(|e| ("/proc/self/maps", std::io::Error::other(e.to_string())))?;
    let bytes = ram.bytes() as u64;

    let mut api = [0xaa, FEATURES, 0];
    let mut register = [start, bytes, 2, 0];
    let mut protect = [start, bytes, 1];
    let steps: [(&'static str, u64, *mut u64); 3] = [
        ("UFFD_FEATURE_WP_ASYNC", UFFDIO_API, api.as_mut_ptr()),
        ("UFFDIO_REGISTER", UFFDIO_REGISTER, register.as_mut_ptr()),
        (
            "UFFDIO_WRITEPROTECT",
            UFFDIO_WRITEPROTECT,
            protect.as_mut_ptr(),
        ),
    ];
    for (name, request, argument) in steps {
        // SAFETY: each argument is an array of the size and layout that its request reads and
        // writes (struct uffdio_api, uffdio_register, uffdio_writeprotect); the range is `ram`.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } < 0 {
            return Err((name, last()));
        }
    }
    DirtyTracker::new(std::process::id(), fd, start, ram.bytes(), PageNo(0)).map_err(failed)
}

/// Tries the mechanism on memory of this process: create, protect, write, scan. `Err` names the step
/// that failed.
pub(crate) fn try_here() -> Result<(), Failure> {
    let mut ram = crate::ram::Ram::new(4 * PAGE_BYTES)
        .map_err(|e| ("memfd", std::io::Error::other(e.to_string())))?;
    let mut tracker = track_here(&ram)?;
    let mut scan = || {
        let mut dirty = PageSet::new(4);
        let scanned = tracker.scan(&mut dirty).map_err(failed);
        scanned.map(|()| dirty.iter().map(|p| p.0).collect::<Vec<_>>())
    };
    scan()?;
    ram.write(PageNo(2), &[1; PAGE_BYTES]);
    let (first, second) = (scan()?, scan()?);
    if first != [2] || !second.is_empty() {
        let text = format!("wrote page 2, scans reported {first:?} and then {second:?}");
        return Err(("PAGEMAP_SCAN", std::io::Error::other(text)));
    }
    Ok(())
}

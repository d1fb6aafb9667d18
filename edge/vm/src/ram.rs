//! Guest RAM, as `plover` sees it: anonymous shared memory that QEMU maps too.
//!
//! The guest writes to this memory at any time, so no Rust reference into it may ever exist: the
//! compiler assumes that referenced memory does not change. Everything goes through raw copies of whole
//! pages, whose bounds are checked here. A copy made while the guest runs may be torn. The caller must
//! pause the guest first, or copy the page again later (it is dirty, so the next scan reports it).
//!
//! Single numbers that a program in the guest shares with `plover` are atomics.
//!
//! There is no file to clean up: the memory is a memfd, and QEMU opens it as
//! `/proc/self/fd/N`.

use crate::VmError;
use plover_disk::holes;
use plover_types::{PAGE_BYTES, PageNo};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory whose pages one call unmaps: some 1 ms.
const UNMAPPED_AT_ONCE: usize = 16 << 20;

/// The guest's memory, mapped shared and writable for as long as this lives.
pub(crate) struct Ram {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: `base` is a mapping that belongs to this value alone and is not tied to a thread; all
// access through it is by raw copies, which other threads and processes may race with by design.
unsafe impl Send for Ram {}
// SAFETY: as above; `&self` methods only read guest memory, and promise nothing about tearing.
unsafe impl Sync for Ram {}

impl Ram {
    /// New memory of `bytes`, all zero; nothing is allocated until it is written.
    pub(crate) fn new(bytes: usize) -> Result<Self, VmError> {
        assert!(
            bytes > 0 && bytes % PAGE_BYTES == 0,
            "guest RAM of {bytes} bytes"
        );
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("plover-ram", flags)
            .map_err(VmError::io("creating the guest's memory (memfd)"))?;
        ftruncate(&fd, bytes as u64).map_err(VmError::io("sizing the guest's memory"))?;
        // A QEMU that the guest has taken over could shrink it otherwise, and the next copy would end this process
        // with SIGBUS.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(VmError::io("sealing the guest's memory"))?;
        // SAFETY: a fresh mapping at an address the kernel chooses replaces no other mapping.
        let base = unsafe {
            mmap(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )
        }
        .map_err(VmError::io("mapping the guest's memory"))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap does not return null");
        Ok(Self { fd, base, bytes })
    }

    /// The memory's descriptor, to pass to QEMU.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memory as a file.
    pub(crate) fn file(&self) -> std::io::Result<std::fs::File> {
        Ok(self.fd.try_clone()?.into())
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Size in pages.
    pub(crate) fn pages(&self) -> u32 {
        (self.bytes / PAGE_BYTES) as u32
    }

    /// The page's address. Asserts that it lies in the guest.
    fn page(&self, page: PageNo) -> NonNull<u8> {
        let offset = page.0 as usize * PAGE_BYTES;
        assert!(
            offset + PAGE_BYTES <= self.bytes,
            "page {} outside a guest of {} pages",
            page.0,
            self.pages()
        );
        // SAFETY: the assertion keeps `offset..offset + PAGE_BYTES` inside the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Copies a page out.
    pub(crate) fn read(&self, page: PageNo, to: &mut [u8]) {
        assert_eq!(to.len(), PAGE_BYTES, "a page is copied whole");
        let from = self.page(page);
        // SAFETY: `from` is valid for PAGE_BYTES, `to` is exactly as long, and the two do not
        // overlap: `to` is a Rust slice, and none ever refers to guest memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), PAGE_BYTES) }
    }

    /// Copies a page in.
    pub(crate) fn write(&mut self, page: PageNo, from: &[u8]) {
        assert_eq!(from.len(), PAGE_BYTES, "a page is copied whole");
        let to = self.page(page);
        // SAFETY: as in `read`, with the roles exchanged.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), PAGE_BYTES) }
    }

    /// Copies bytes out, which may be torn. Panics outside the guest.
    pub(crate) fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.bytes, "{at} is outside the guest");
        // SAFETY: the assertion keeps the range inside the mapping; `to` is as long, and no Rust slice refers to guest
        // memory, so the two do not overlap.
        unsafe {
            let from = self.base.add(at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len());
        }
    }

    /// Reads a number of the guest's in one piece, before all that is read after it. Panics outside the guest, and where
    /// `at` is no multiple of 8.
    pub(crate) fn load(&self, at: usize) -> u64 {
        u64::from_le(self.number(at).load(Ordering::Acquire))
    }

    /// Writes a number for the guest in one piece. Panics as [`Self::load`] does.
    pub(crate) fn store(&self, at: usize, number: u64) {
        self.number(at).store(number.to_le(), Ordering::Release);
    }

    /// Reads a number that is shared in this way and sets it to 0. Panics as [`Self::load`] does.
    pub(crate) fn take(&self, at: usize) -> u64 {
        let number = self.number(at);
        // Most are 0, and to write costs more than to read.
        if number.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        u64::from_le(number.swap(0, Ordering::Acquire))
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        assert!(
            at % 8 == 0 && at + 8 <= self.bytes,
            "{at} is no number of the guest's"
        );
        // SAFETY: the assertion keeps the number inside the mapping, which is page-aligned and outlives the reference;
        // an atomic may change under a reference, whoever changes it.
        unsafe { AtomicU64::from_ptr(self.base.add(at).as_ptr().cast::<u64>()) }
    }

    /// The first page at or after `page` that may not be zero, or the number of pages.
    pub(crate) fn first_data(&self, page: PageNo) -> u32 {
        holes::first_data(&self.fd, self.bytes as u64, page.0)
    }

    /// The first run of pages at or after `page` that may not be zero; `None` if there is none. Lets a
    /// reader skip memory that was never written, which reading would allocate.
    pub(crate) fn next_data(&self, page: PageNo) -> Option<(u32, u32)> {
        holes::next_data(&self.fd, self.bytes as u64, page.0)
    }

    /// Where process `pid` has these bytes of the memory mapped, in one piece.
    pub(crate) fn find_in(&self, pid: u32, part: Range<u64>) -> Result<u64, VmError> {
        let path = format!("/proc/{pid}/maps");
        let text = std::fs::read_to_string(&path).map_err(|source| VmError::Io {
            what: format!("reading {path}"),
            source,
        })?;
        let stat = fstat(&self.fd).map_err(VmError::io("inspecting the guest's memory"))?;
        find_mapping(&text, stat.st_ino, part).ok_or_else(|| {
            VmError::Unsupported(format!(
                "QEMU (process {pid}) has not mapped the guest's memory in one piece: this QEMU \
                 is unlike any that Plover knows; use a distribution's QEMU 7.2 or newer"
            ))
        })
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // At once, it would keep all other threads of this process from any change of their memory meanwhile: the loop stood still
        // for 240 ms at the end of a guest of 4 GiB.
        for at in (0..self.bytes).step_by(UNMAPPED_AT_ONCE) {
            let bytes = UNMAPPED_AT_ONCE.min(self.bytes - at);
            // SAFETY: the range is within the mapping, into which no pointer is left.
            let _ = unsafe { madvise(base.byte_add(at), bytes, Advice::LinuxDontNeed) };
        }
        // SAFETY: the mapping was made by `new` with this address and length and is unmapped
        // only here; no pointer into it outlives this value.
        let unmapped = unsafe { munmap(base, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Where the bytes `part` of the plover memfd with `inode` are mapped, by the text of a `/proc/PID/maps`. Pieces that
/// follow each other both in memory and in the file are one.
fn find_mapping(maps: &str, inode: u64, part: Range<u64>) -> Option<u64> {
    // Where the last pieces begin in memory and in the file, and where they end in memory.
    let mut joined = (0, 0, 0);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(_), Some(offset), Some(_), Some(node), Some(name)) = (
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
        ) else {
            continue;
        };
        if node.parse() != Ok(inode) || !name.starts_with("/memfd:plover-ram") {
            continue;
        }
        let (start, end) = range.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let offset = u64::from_str_radix(offset, 16).ok()?;
        let (first, from, last) = joined;
        joined = if last == start && offset.checked_sub(from) == Some(start - first) {
            (first, from, end)
        } else {
            (start, offset, end)
        };
        let (first, from, last) = joined;
        if from <= part.start && part.end <= from + (last - first) {
            return Some(first + (part.start - from));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_copy_and_holes_are_seen() {
        let mut ram = Ram::new(8 * PAGE_BYTES).unwrap();
        assert_eq!(ram.next_data(PageNo(0)), None);
        ram.write(PageNo(3), &[7; PAGE_BYTES]);
        assert_eq!(ram.next_data(PageNo(0)), Some((3, 4)));
        let firsts = [0, 3, 4, 8].map(|page| ram.first_data(PageNo(page)));
        assert_eq!(firsts, [3, 3, 8, 8]);
        assert_eq!(ram.next_data(PageNo(4)), None);
        assert_eq!(ram.next_data(PageNo(8)), None);
        let mut page = [1; PAGE_BYTES];
        ram.read(PageNo(3), &mut page);
        assert_eq!(page, [7; PAGE_BYTES]);
        ram.read(PageNo(7), &mut page);
        assert_eq!(page, [0; PAGE_BYTES]);
        let whole = 0..ram.bytes() as u64;
        let here = ram.find_in(std::process::id(), whole).unwrap();
        assert_eq!(here, ram.base.as_ptr() as u64);
    }

    #[test]
    fn nobody_shrinks_it() {
        let ram = Ram::new(2 * PAGE_BYTES).unwrap();
        let shrunk = ftruncate(ram.fd(), PAGE_BYTES as u64);
        assert_eq!(shrunk, Err(rustix::io::Errno::PERM));
    }

    #[test]
    #[should_panic(expected = "outside a guest of 2 pages")]
    fn a_page_outside_the_guest_panics() {
        Ram::new(2 * PAGE_BYTES)
            .unwrap()
            .read(PageNo(2), &mut [0; PAGE_BYTES]);
    }

    #[test]
    fn a_mapping_in_two_pieces_is_joined() {
        let maps = "\
7f0000000000-7f0000002000 rw-s 00000000 00:01 77 /memfd:plover-ram (deleted)
7f0000002000-7f0000004000 rw-s 00002000 00:01 77 /memfd:plover-ram (deleted)
7f0000008000-7f0000009000 rw-s 00004000 00:01 77 /memfd:plover-ram (deleted)
7f0000009000-7f000000a000 rw-s 00000000 00:01 78 /memfd:plover-ram (deleted)
garbage
7fff-  x";
        let find = |inode, part| find_mapping(maps, inode, part);
        assert_eq!(find(77, 0..0x4000), Some(0x7f00_0000_0000));
        assert_eq!(find(77, 0x1000..0x4000), Some(0x7f00_0000_1000));
        assert_eq!(find(77, 0x4000..0x5000), Some(0x7f00_0000_8000));
        assert_eq!(find(77, 0..0x5000), None, "the memory between is another's");
        assert_eq!(find(77, 0x4000..0x6000), None);
        assert_eq!(find(79, 0..0x1000), None);
    }
}

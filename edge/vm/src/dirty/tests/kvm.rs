//! A guest under KVM: its memory stays mapped through a scan, but for the pages that were written.
//!
//! The guest is a few instructions in 64-bit ring 3, which run natively even where KVM emulates a guest's kernel.
//! KVM counts the pages that it has mapped.

use super::{DirtyTracker, scan, tracker};
use crate::ram::Ram;
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_stats_desc, kvm_stats_header,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use plover_types::{PAGE_BYTES, PageNo};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Where the page tables lie: one for each level, the last with pages of 2 MiB.
const TABLES: [u64; 3] = [0x1000, 0x2000, 0x3000];
const CODE: u64 = 0x4000;
/// Present, writable, for users, accessed, dirty.
const ENTRY: u64 = 0x67;
const LARGE: u64 = 0x80;

/// Reads a byte of each of `rdi` pages from `rsi` on, tells the host, and begins again.
const TOUCH: [u8; 28] = [
    0x48, 0x89, 0xf9, // mov rcx, rdi
    0x48, 0x89, 0xf3, // mov rbx, rsi
    0x8a, 0x03, // next: mov al, [rbx]
    0x48, 0x81, 0xc3, 0x00, 0x10, 0x00, 0x00, // add rbx, 4096
    0x48, 0xff, 0xc9, // dec rcx
    0x75, 0xf2, // jnz next
    0x66, 0xba, 0xf4, 0x00, // mov dx, 0xf4
    0xee, // out dx, al
    0xeb, 0xe5, // jmp 0
    0x90,
];

struct Guest {
    vcpu: VcpuFd,
    vm: VmFd,
}

impl Guest {
    /// `None` where there is no KVM.
    fn new(ram: &mut Ram) -> Option<Self> {
        let kvm = Kvm::new().ok()?;
        let vm = kvm.create_vm().ok()?;
        let at = ram
            .find_in(std::process::id(), 0..ram.bytes() as u64)
            .unwrap();
        let bytes = ram.bytes() as u64;
        let region = kvm_userspace_memory_region {
            memory_size: bytes,
            userspace_addr: at,
            ..Default::default()
        };
        // SAFETY: the memory is mapped here, and `guest_on` returns it before the guest, so that it is dropped later.
        unsafe { vm.set_user_memory_region(region) }.unwrap();

        let mut page = |at: u64, words: &[u64]| {
            let mut bytes = [0; PAGE_BYTES];
            for (to, word) in bytes.chunks_mut(8).zip(words) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            ram.write(PageNo((at / PAGE_BYTES as u64) as u32), &bytes);
        };
        page(TABLES[0], &[TABLES[1] | ENTRY]);
        page(TABLES[1], &[TABLES[2] | ENTRY]);
        let large: Vec<u64> = (0..bytes >> 21)
            .map(|at| (at << 21) | ENTRY | LARGE)
            .collect();
        page(TABLES[2], &large);
        let mut code = [0; PAGE_BYTES];
        code[..TOUCH.len()].copy_from_slice(&TOUCH);
        ram.write(PageNo((CODE / PAGE_BYTES as u64) as u32), &code);

        let vcpu = vm.create_vcpu(0).unwrap();
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
        vcpu.set_cpuid2(&cpuid).unwrap();
        let mut special = vcpu.get_sregs().unwrap();
        special.cr0 = 0x8000_0033; // paging, protection
        special.cr3 = TABLES[0];
        special.cr4 = 0x20; // physical address extension
        special.efer = 0xd01; // long mode, no-execute, system calls
        let segment = |selector, type_, l| kvm_segment {
            limit: 0xffff_ffff,
            selector,
            type_,
            dpl: 3,
            s: 1,
            present: 1,
            g: 1,
            l,
            db: 1 - l,
            ..Default::default()
        };
        special.cs = segment(0x33, 11, 1);
        special.ss = segment(0x2b, 3, 0);
        (special.ds, special.es) = (special.ss, special.ss);
        (special.fs, special.gs) = (special.ss, special.ss);
        vcpu.set_sregs(&special).unwrap();
        let regs = kvm_regs {
            rip: CODE,
            rflags: 0x3002, // ring 3 may use ports
            rdi: u64::from(ram.pages()),
            rsi: 0,
            ..Default::default()
        };
        vcpu.set_regs(&regs).unwrap();
        Some(Self { vcpu, vm })
    }

    /// Lets the guest read every page once. False if this KVM cannot run it.
    fn touch(&mut self) -> bool {
        match self.vcpu.run() {
            Ok(VcpuExit::IoOut(0xf4, _)) => true,
            other => {
                eprintln!("skipped: this KVM does not run the guest: {other:?}");
                false
            }
        }
    }

    /// The pages of 4 KiB that KVM has mapped into the guest.
    fn mapped(&self) -> u64 {
        // SAFETY: no pointer is passed, and the descriptor that is returned is ours alone.
        let stats = unsafe {
            let fd = libc::ioctl(self.vm.as_raw_fd(), KVM_GET_STATS_FD);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        let word = |at: usize| {
            let mut bytes = [0; 4];
            stats.read_exact_at(&mut bytes, at as u64).unwrap();
            u32::from_le_bytes(bytes) as usize
        };
        let header = |field| word(field);
        let name_bytes = header(std::mem::offset_of!(kvm_stats_header, name_size));
        let count = header(std::mem::offset_of!(kvm_stats_header, num_desc));
        let descriptions = header(std::mem::offset_of!(kvm_stats_header, desc_offset));
        let data = header(std::mem::offset_of!(kvm_stats_header, data_offset));
        let size = size_of::<kvm_stats_desc>();
        let value = |name: &str| {
            let found = (0..count).map(|n| descriptions + n * (size + name_bytes));
            let named = |at: &usize| {
                let mut bytes = vec![0; name_bytes];
                stats.read_exact_at(&mut bytes, (at + size) as u64).unwrap();
                bytes.split(|byte| *byte == 0).next() == Some(name.as_bytes())
            };
            let at = found.into_iter().find(named).expect(name);
            let offset = word(at + std::mem::offset_of!(kvm_stats_desc, offset));
            let mut bytes = [0; 8];
            stats
                .read_exact_at(&mut bytes, (data + offset) as u64)
                .unwrap();
            u64::from_le_bytes(bytes)
        };
        value("pages_4k") + 512 * value("pages_2m")
    }
}

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;

/// Memory of at most 1 GiB that is all there, its tracker, and a guest on it. `None` where that cannot be.
fn guest_on(mib: usize, by_runs: bool) -> Option<(Ram, DirtyTracker, Guest)> {
    let mut ram = Ram::new(mib << 20).unwrap();
    for page in 0..ram.pages() {
        ram.write(PageNo(page), &[0; PAGE_BYTES]);
    }
    let mut tracker = tracker(&ram, by_runs)?;
    let guest = Guest::new(&mut ram);
    if guest.is_none() {
        eprintln!("skipped: no KVM");
    }
    let mut guest = guest?;
    scan(&mut tracker, ram.pages());
    guest.touch().then_some((ram, tracker, guest))
}

#[test]
fn a_scan_unmaps_only_what_was_written() {
    let Some((mut ram, mut tracker, mut guest)) = guest_on(64, true) else {
        return;
    };
    let before = guest.mapped();
    let pages = ram.pages();
    assert!(before > u64::from(pages) / 2, "only {before} are mapped");
    let written = [1000, 5000, 5001, 16000];
    for page in written {
        ram.write(PageNo(page), &[1; PAGE_BYTES]);
    }
    assert_eq!(scan(&mut tracker, pages), written);
    let after = guest.mapped();
    // Pages of 2 MiB lose all of their mapping.
    let unmapped = before - after;
    assert!(
        unmapped <= 512 * written.len() as u64,
        "{before} were mapped, and {after} are left"
    );
    assert!(guest.touch());
    assert_eq!(guest.mapped(), before);
}

/// `cargo test --release -p plover-vm --lib costs_a_guest -- --ignored --nocapture`
#[test]
#[ignore = "measures, and asserts nothing"]
fn what_a_scan_costs_a_guest() {
    const WRITTEN: u32 = 200;
    for (mib, by_runs) in [64, 256, 1024]
        .into_iter()
        .flat_map(|m| [(m, false), (m, true)])
    {
        let Some((mut ram, mut tracker, mut guest)) = guest_on(mib, by_runs) else {
            return;
        };
        let (mut scans, mut touches) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            for each in 0..WRITTEN {
                let page = each * (ram.pages() / WRITTEN);
                ram.write(PageNo(page), &[1; PAGE_BYTES]);
            }
            let begun = Instant::now();
            scan(&mut tracker, ram.pages());
            scans.push(begun.elapsed());
            let begun = Instant::now();
            guest.touch();
            touches.push(begun.elapsed());
        }
        scans.sort_unstable();
        touches.sort_unstable();
        eprintln!(
            "{mib} MiB, by runs {by_runs}: scan {:?} ({:?} to {:?}), then the guest touches all pages in {:?} ({:?} to {:?})",
            scans[2], scans[0], scans[4], touches[2], touches[0], touches[4]
        );
    }
}

//! Loading states of a guest that was stopped while its processor took an exception, under KVM.
//!
//! The guest is 72 bytes of 32-bit code, which every KVM runs. It counts, and raises exceptions while it is told to, so
//! that it is often stopped in the middle of one.

use crate::common::{GUEST_MAC, Guest, have_kvm, sync};
use plover_types::{PAGE_BYTES, PageNo};
use plover_vm::{Accel, Boot, Machine, QemuConfig, VmCommand, VmEvent};
use std::path::Path;
use std::time::Duration;

/// ```text
///   start:    cli
///             mov  esp, 0x108000
///             lgdt [gdtr]
///             jmp  8:flat
///   flat:     mov  ax, 16
///             mov  ds, ax
///             mov  ss, ax
///             lidt [idtr]
///   again:    inc  dword [0x102000]
///             cmp  dword [0x103000], 0
///             je   again
///   raise:    ud2
///   handler:  pop  eax                 ; where the exception was
///             add  esp, 8
///             cmp  eax, raise
///             je   again
///             inc  dword [0x102004]    ; an exception of an instruction that raises none
///             jmp  again
///   gdtr:     dw 23, gdt
///   idtr:     dw 55, idt
///   gdt:      0, code, data
///   idt:      0 (6 times), a gate to the handler
/// ```
const CODE: &[u8] = &[
    0xfa, 0xbc, 0x00, 0x80, 0x10, 0x00, 0x0f, 0x01, 0x15, 0x48, 0x00, 0x10, 0x00, 0xea, 0x14, 0x00,
    0x10, 0x00, 0x08, 0x00, 0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xd0, 0x0f, 0x01, 0x1d, 0x4e,
    0x00, 0x10, 0x00, 0xff, 0x05, 0x00, 0x20, 0x10, 0x00, 0x83, 0x3d, 0x00, 0x30, 0x10, 0x00, 0x00,
    0x74, 0xf1, 0x0f, 0x0b, 0x58, 0x83, 0xc4, 0x08, 0x3d, 0x32, 0x00, 0x10, 0x00, 0x74, 0xe4, 0xff,
    0x05, 0x04, 0x20, 0x10, 0x00, 0xeb, 0xdc, 0x00, 0x17, 0x00, 0x58, 0x00, 0x10, 0x00, 0x37, 0x00,
    0x70, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00,
];
const GDT: [u64; 3] = [0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// To 0x100034.
const GATE: u64 = 0x0010_8e00_0008_0034;
const LOADED_AT: u32 = 0x10_0000;
/// Two words: how often the loop ran, and exceptions of instructions that raise none.
const COUNTS: PageNo = PageNo(0x102);
/// A word: whether exceptions are raised.
const RAISES: PageNo = PageNo(0x103);
const LOADS: usize = 100;
/// Where a processor's saved fields have the number of an exception on its way.
const EXCEPTION_NUMBER: usize = 1165;

/// An ELF file that QEMU starts by Xen's PVH protocol: its code, and a note that says where it begins.
fn kernel() -> Vec<u8> {
    const HEADERS: u32 = 52 + 2 * 32;
    let mut code = CODE.to_vec();
    let gates = [0, 0, 0, 0, 0, 0, GATE];
    for entry in GDT.iter().chain(&gates) {
        code.extend(entry.to_le_bytes());
    }
    let mut note = Vec::new();
    for word in [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), LOADED_AT] {
        note.extend(word.to_le_bytes());
    }
    let (note_bytes, code_bytes) = (note.len() as u32, code.len() as u32);
    let code_at = HEADERS + note_bytes;

    let mut elf = b"\x7fELF\x01\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2, 0, 3, 0]);
    for word in [1, LOADED_AT, 52, 0, 0] {
        elf.extend(word.to_le_bytes());
    }
    for half in [52u16, 32, 2, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    let load = [
        1, code_at, LOADED_AT, LOADED_AT, code_bytes, code_bytes, 7, 4,
    ];
    let noted = [4, HEADERS, 0, 0, note_bytes, note_bytes, 4, 4];
    for word in load.iter().chain(&noted) {
        elf.extend(word.to_le_bytes());
    }
    assert_eq!(elf.len(), HEADERS as usize);
    [elf, note, code].concat()
}

fn words(guest: &Guest, page: PageNo) -> [u32; 2] {
    let mut bytes = [0; PAGE_BYTES];
    guest.vm.read_page(page, &mut bytes);
    [0, 4].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
}

fn let_raise(guest: &mut Guest, raises: bool) {
    let mut page = [0; PAGE_BYTES];
    page[0] = raises.into();
    guest.vm.write_page(RAISES, &page);
}

/// Lets a guest run until its loop has run `more` times.
fn run(guest: &mut Guest, more: u32) {
    let before = words(guest, COUNTS)[0];
    guest.order(VmCommand::Resume);
    while words(guest, COUNTS)[0].wrapping_sub(before) < more {
        guest.run_for(Duration::from_millis(1));
    }
}

fn start(kernel: &Path) -> Guest {
    let boot = Boot::Kernel {
        kernel: kernel.to_path_buf(),
        initrd: None,
        cmdline: String::new(),
    };
    let mut guest = Guest::start(QemuConfig {
        machine: Machine::Microvm,
        accel: Accel::Kvm,
        mem_mib: 64,
        ..QemuConfig::new(boot, GUEST_MAC)
    });
    run(&mut guest, 10);
    guest
}

#[test]
fn an_exception_is_not_loaded_again_with_the_next_state() {
    if !have_kvm() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kernel");
    std::fs::write(&file, kernel()).unwrap();
    let (mut a, mut b) = (start(&file), start(&file));
    sync(&mut a, &mut b, true);
    for n in 0..LOADS {
        // Often in the middle of an exception.
        let_raise(&mut a, true);
        run(&mut a, 10);
        sync(&mut a, &mut b, false);
        // In none.
        for guest in [&mut a, &mut b] {
            let_raise(guest, false);
        }
        run(&mut a, 10);
        sync(&mut a, &mut b, false);
        run(&mut b, 10);
        let [_, strange] = words(&b, COUNTS);
        assert_eq!(strange, 0, "exceptions that nothing raised, after load {n}");
    }
}

/// A state that is only half loaded would be noticed when it is too late.
#[test]
fn a_state_whose_processor_kvm_refuses_is_an_error() {
    if !have_kvm() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kernel");
    std::fs::write(&file, kernel()).unwrap();
    let mut guest = start(&file);
    guest.order(VmCommand::Pause);
    let state = guest.save();
    let mut bad = state.clone();
    let name = b"\x03cpu\0\0\0\0\0\0\0\x0c";
    let section = bad.windows(name.len()).position(|bytes| bytes == name);
    let number = section.unwrap() + name.len() + EXCEPTION_NUMBER;
    bad[number..number + 4].copy_from_slice(&40u32.to_be_bytes());
    guest.vm.command(VmCommand::LoadState(bad.into()));
    match guest.event() {
        VmEvent::Failed { command, error } => {
            assert_eq!(command, "load");
            assert!(error.contains("Invalid argument"), "{error}");
        }
        // Newer ones of QEMU look at KVM's answer themselves, and end.
        VmEvent::Died(why) => return assert!(why.contains("Invalid argument"), "{why}"),
        other => panic!("{other:?}"),
    }
    guest.order(VmCommand::LoadState(state.into()));
    run(&mut guest, 10);
}

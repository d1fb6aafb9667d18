//! The serial console across a sync: the UART's content is part of the state.
//!
//! Two programs of a few bytes stand for a guest that reads its console and one that does not. The
//! machine type is the one whose devices are not reset before a load.

use crate::common::{Guest, assert_equal, sync};
use plover_vm::{Accel, Boot, Machine, QemuConfig, VmCommand};
use std::io::Write;
use std::time::Duration;

/// Switches the UART's queues on and prints `!`:
///
/// ```text
///         mov  dx, 0x3fa      ; FIFO control
///         mov  al, 0xc1   ; on, a trigger at 14 bytes
///         out  dx, al
///         mov  dx, 0x3f8      ; data
///         mov  al, '!'
///         out  dx, al
/// ```
const HELLO: &[u8] = &[
    0x66, 0xba, 0xfa, 0x03, 0xb0, 0xc1, 0xee, 0x66, 0xba, 0xf8, 0x03, 0xb0, b'!', 0xee,
];

/// ```text
///  again: mov  dx, 0x3fd      ; line status
///         in   al, dx
///         test al, 1          ; has something been received?
///         jz   again
///         mov  dx, 0x3f8
///         in   al, dx
///         out  dx, al
///         jmp  again
/// ```
const ECHO: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf7, 0x66, 0xba, 0xf8, 0x03, 0xec, 0xee, 0xeb,
    0xef,
];

/// `jmp $`: never reads.
const DEAF: &[u8] = &[0xeb, 0xfe];

/// QEMU's UART takes no more bytes once its queue is filled up to the trigger.
const QUEUE: &[u8; 14] = b"0123456789abcd";

/// An ELF file whose PVH note (the boot protocol of `microvm` for anything but Linux) makes QEMU enter
/// `code`, in 32-bit mode, where it is loaded.
fn kernel(code: &[u8]) -> Vec<u8> {
    const LOAD_AT: u32 = 0x10_0000;
    const CODE_AT: u32 = 0x100;
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let size = code.len() as u32;
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x03\0".to_vec();
    // Version, entry, where the program headers are, no sections, no flags.
    file.extend(words(&[1, LOAD_AT, 52, 0, 0]));
    // Sizes of this header and of a program header; two of those.
    file.extend([52, 0, 32, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    // PT_LOAD, executable; PT_NOTE.
    file.extend(words(&[1, CODE_AT, LOAD_AT, LOAD_AT, size, size, 5, 4]));
    file.extend(words(&[4, 116, 0, 0, 20, 20, 4, 4]));
    // The note: lengths of name and value, XEN_ELFNOTE_PHYS32_ENTRY.
    file.extend(words(&[4, 4, 18]));
    file.extend(b"Xen\0");
    file.extend(words(&[LOAD_AT]));
    file.resize(CODE_AT as usize, 0);
    file.extend(code);
    // QEMU looks for other formats' marks in the first pages.
    file.resize(8192, 0);
    file
}

fn start(program: &[u8]) -> Guest {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&kernel(&[HELLO, program].concat())).unwrap();
    let boot = Boot::Kernel {
        kernel: file.path().into(),
        initrd: None,
        cmdline: String::new(),
    };
    let mut guest = Guest::start(QemuConfig {
        machine: Machine::Microvm,
        accel: Accel::Tcg,
        mem_mib: 64,
        ..QemuConfig::new(boot, crate::common::GUEST_MAC)
    });
    guest.order(VmCommand::Resume);
    guest.wait_console("!");
    guest.console.clear();
    guest
}

/// Bytes that a guest has not read belong to the state that a sync replaces. Once they stayed in the
/// UART's queue. With the queue full, the guest never got console input again; otherwise it got them
/// before newly typed bytes.
#[test]
fn a_load_leaves_nothing_unread_of_the_state_before() {
    for unread in [QUEUE.len(), 3] {
        let mut a = start(ECHO);
        let mut b = start(DEAF);
        b.vm.console_write(&QUEUE[..unread]);
        while !b.vm.consumed_all() {
            b.run_for(Duration::from_millis(5));
        }
        sync(&mut a, &mut b, true);
        assert_equal(&a, &b);

        b.order(VmCommand::Resume);
        b.vm.console_write(b"typed");
        b.wait_console("d");
        assert_eq!(b.console, "typed");
    }
}

//! Loading device state: its effect on a guest, and remains of the state before.

use crate::common::{Guest, assert_equal, linux, sync};
use plover_types::{PAGE_BYTES, PageNo};
use plover_vm::{Accel, Machine, QemuConfig, VmCommand, VmEvent};
use std::time::Duration;

fn config() -> QemuConfig {
    QemuConfig {
        accel: Accel::Tcg,
        ..linux(Machine::Microvm, 1)
    }
}

/// A bad state is an error and drops later orders. The guest does not run on it.
#[test]
fn a_bad_state_is_refused() {
    let mut guest = Guest::boot(config());
    guest.order(VmCommand::Pause);
    guest
        .vm
        .command(VmCommand::LoadState(b"no state at all\0".to_vec().into()));
    guest.vm.command(VmCommand::Resume);
    match guest.event() {
        VmEvent::Failed { command, error } => {
            assert_eq!(command, "load");
            assert!(error.contains("Not a migration stream"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    guest.run_for(Duration::from_millis(50));
    assert!(
        guest.events.is_empty(),
        "the resume behind it was dropped: {:?}",
        guest.events
    );
    // QEMU has survived it: it takes the next state.
    let state = guest.save();
    guest.order(VmCommand::LoadState(state.into()));
    guest.order(VmCommand::Resume);
    guest.wait_ping(7);
}

/// A guest that has set up its NIC's queues is synced to one that has not, and then sets them up again.
/// A secondary may be ahead of its leader while both boot. Its NIC must then count from zero, although QEMU
/// alone would count on.
#[test]
fn a_nic_starts_anew_where_the_state_has_none() {
    let driver = "cd /sys/bus/virtio/drivers/virtio_net; nic=$(ls -d /sys/bus/virtio/devices/*); \
                  nic=${nic##*/}";
    let mut behind = Guest::boot(config());
    let mut ahead = Guest::boot(config());
    ahead.wait_ping(1);
    behind.type_line(&format!("{driver}; echo $nic >unbind; echo gone$((1+1))"));
    behind.wait_console("gone2");
    sync(&mut behind, &mut ahead, true);
    assert_equal(&behind, &ahead);
    ahead.order(VmCommand::Resume);
    ahead.type_line(
        "echo $nic >bind; ip address add 10.77.0.100/24 dev eth0; ip link set eth0 up; \
         echo back$((1+1))",
    );
    ahead.wait_console("back2");
    ahead.wait_ping(2);
    // A load refuses a state in which a device and its guest count differently; this one is taken.
    sync(&mut ahead, &mut behind, true);
    behind.order(VmCommand::Resume);
    behind.wait_ping(3);
}

/// A guest is synced to another one that has not begun to boot, or has just begun, and then boots. The
/// firmware's own memory is synced too, so it finds its devices.
#[test]
fn a_guest_boots_where_another_has_begun_to() {
    let mut behind = Guest::start(config());
    let mut ahead = Guest::boot(config());
    ahead.wait_ping(1);
    // Times at which the other guest has not begun, is in its firmware, and runs its kernel.
    for (n, millis) in [0, 100, 400].into_iter().enumerate() {
        if millis > 0 {
            behind.order(VmCommand::Resume);
            behind.run_for(Duration::from_millis(millis));
        }
        let mut fresh = Guest::start(config());
        for guest in [&mut ahead, &mut fresh] {
            sync(&mut behind, guest, true);
            guest.console.clear();
            guest.order(VmCommand::Resume);
            guest.wait_console("plover-guest: ready");
            guest.wait_ping(n as u16 + 2);
        }
    }
}

/// A load under TCG keeps QEMU's translations, except those of overwritten pages. A program that counts
/// up is changed in memory to count down, and must then do so.
#[test]
fn code_that_was_overwritten_is_translated_anew() {
    const SIGNATURE: [u8; 8] = *b"plover:)";
    /// The loop's place in the file, and so in its page.
    const LOOP: usize = 0x89;
    const INC: [u8; 3] = [0x48, 0xff, 0x05];
    const DEC: [u8; 3] = [0x48, 0xff, 0x0d];
    // A whole ELF program at 0x400000: one segment, writable and executable, three pages long. It stores
    // the signature and then counts in its third page, for ever.
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0x40_0078u64, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 7, 0, 0, 0]);
    for word in [0, 0x40_0000, 0x40_0000, 0x92, 0x3000, 0x1000u64] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend([0x48, 0xb8]); // mov rax, signature
    elf.extend(SIGNATURE);
    elf.extend([0x48, 0x89, 0x05, 0x7f, 0x1f, 0, 0]); // mov [0x402008], rax
    assert_eq!(elf.len(), LOOP);
    elf.extend(INC); // inc qword [0x402000]
    elf.extend([0x70, 0x1f, 0, 0, 0xeb, 0xf7]); // jmp to the inc
    let typed: String = elf.iter().map(|byte| format!("\\x{byte:02x}")).collect();

    let mut guest = Guest::boot(config());
    guest.type_line(&format!(
        "printf '{typed}' >/tmp/count && chmod +x /tmp/count && echo ok$((1+1))"
    ));
    guest.wait_console("ok2");
    guest.type_line("/tmp/count & usleep 200000; echo up$((1+1))");
    guest.wait_console("up2");
    guest.order(VmCommand::Pause);
    let state = guest.save();

    let mut page = [0; PAGE_BYTES];
    let (mut counters, mut codes) = (Vec::new(), 0);
    for number in (0..guest.vm.layout().pages()).map(PageNo) {
        guest.vm.read_page(number, &mut page);
        if page[8..16] == SIGNATURE && page[..8] != [0; 8] {
            counters.push(number);
        }
        if page[LOOP..LOOP + 3] == INC && page[0x7a..0x82] == SIGNATURE {
            page[LOOP..LOOP + 3].copy_from_slice(&DEC);
            guest.vm.write_page(number, &page);
            codes += 1;
        }
    }
    assert!(codes > 0, "the program is nowhere in memory");
    let [counter] = counters[..] else {
        panic!("counters: {counters:?}")
    };
    let count = |guest: &Guest| {
        let mut page = [0; PAGE_BYTES];
        guest.vm.read_page(counter, &mut page);
        u64::from_le_bytes(std::array::from_fn(|byte| page[byte]))
    };
    // The state is loaded onto the guest that it was saved from, so only the code is different.
    guest.order(VmCommand::LoadState(state.into()));
    let before = count(&guest);
    guest.order(VmCommand::Resume);
    while count(&guest).abs_diff(before) < 1000 {
        guest.run_for(Duration::from_millis(5));
    }
    guest.order(VmCommand::Pause);
    let after = count(&guest);
    assert!(
        after < before,
        "the old code still runs: {before} to {after}"
    );
}

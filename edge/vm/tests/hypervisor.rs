//! What a hypervisor can do to us: die, lack a symbol, shut down, and swallow frames.

mod common;

use common::{Guest, assert_equal, have_qemu, linux, ping, pong, sync};
use plover_types::{Frame, PAGE_BYTES, PageNo, PageSet};
use plover_vm::{Accel, Machine, QemuConfig, QemuVm, VmCommand, VmEvent};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

fn config(machine: Machine) -> QemuConfig {
    QemuConfig {
        accel: Accel::Tcg,
        ..linux(machine, 1)
    }
}

/// A guest that is killed is reported as dead, once, by a readable `wait_fd`, also when orders are
/// open; its process and its descriptors are gone.
#[test]
fn a_killed_qemu_is_noticed_at_once() {
    if !have_qemu() {
        return;
    }
    let mut guest = Guest::start(config(Machine::Microvm));
    guest.order(VmCommand::Resume);
    let pid = guest.vm.pid().expect("it lives");
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    guest.vm.command(VmCommand::Pause);
    match guest.event() {
        VmEvent::Died(how) => assert!(how.contains("signal: 9"), "{how}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(guest.vm.pid(), None);
    guest.vm.command(VmCommand::Resume);
    guest.run_for(Duration::from_millis(20));
    assert!(
        guest.events.is_empty(),
        "nothing is heard of the dead: {:?}",
        guest.events
    );
    assert!(
        rustix::process::test_kill_process(pid).is_err(),
        "it was waited for"
    );
    // Whoever still asks gets an answer.
    guest.vm.feed(&ping(1, 9));
    guest.vm.console_write(b"x");
    let _ = guest
        .vm
        .scan_dirty(&mut PageSet::new(guest.vm.layout().pages()));
}

/// What QEMU says on its way down is in the report.
#[test]
fn the_reason_of_a_failed_start_is_told() {
    if !have_qemu() {
        return;
    }
    let mut bad = config(Machine::Microvm);
    bad.boot = plover_vm::Boot::Kernel {
        kernel: "/nonexistent/kernel".into(),
        initrd: None,
        cmdline: String::new(),
    };
    let mut vm = QemuVm::spawn(bad).expect("QEMU itself starts");
    let died = first_event(&mut vm);
    assert!(
        died.contains("exit status: 1") && died.contains("/nonexistent/kernel"),
        "{died}"
    );
}

/// A QEMU without the symbol: here a shell, which has no such symbol either.
#[test]
fn a_qemu_without_the_symbol_is_told_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qemu");
    std::fs::write(&path, "#!/bin/sh\nwhile :; do :; done\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    let bad = QemuConfig {
        qemu: Some(path),
        ..config(Machine::Microvm)
    };
    let mut vm = QemuVm::spawn(bad).expect("the script starts");
    let died = first_event(&mut vm);
    assert!(
        died.contains("does not export yank_register_instance"),
        "{died}"
    );
}

fn first_event(vm: &mut QemuVm) -> String {
    let mut events = Vec::new();
    while events.is_empty() {
        vm.poll(&mut events);
        std::thread::sleep(Duration::from_millis(1));
    }
    match &events[..] {
        [VmEvent::Died(how)] => how.clone(),
        other => panic!("{other:?}"),
    }
}

/// 500 frames fed to a guest that stands come back, all and in order, and QEMU saw none.
#[test]
fn frames_fed_to_a_standing_guest_come_back_whole() {
    if !have_qemu() {
        return;
    }
    let mut guest = Guest::start(config(Machine::Microvm));
    let frames: Vec<Frame> = (0..500).map(|n| ping(n, 1000)).collect();
    for frame in &frames {
        assert!(guest.vm.feed(frame));
    }
    guest.run_for(Duration::from_millis(50));
    assert!(!guest.vm.consumed_all());
    let mut back = Vec::new();
    back.extend(guest.vm.take_unconsumed().frames);
    assert!(guest.vm.consumed_all());
    assert_eq!(back, frames);
}

/// Many frames, with pauses in the middle of them. Each frame is answered by the guest, or taken
/// back; none is both, and none is neither.
#[test]
fn pauses_lose_no_frame_and_feed_none_twice() {
    /// Unanswered frames at any time. More than 256 fill the guest's ring (see `nic`), and more
    /// than about 150 answers at once are too many for the guest's own ICMP socket.
    const OPEN: usize = 100;
    if !have_qemu() {
        return;
    }
    let mut guest = Guest::boot(config(Machine::Microvm));
    guest.wait_ping(60_000);
    guest.run_for(Duration::from_millis(200));
    guest.sent.clear();
    let mut next = 0u16;
    let mut back = Vec::new();
    let answered = |guest: &Guest| -> Vec<u16> {
        guest
            .sent
            .iter()
            .filter_map(pong)
            .filter(|n| *n < 60_000)
            .collect()
    };
    for round in 0..40u64 {
        guest.introduce();
        for _ in 0..60 {
            assert!(guest.vm.feed(&ping(next, 56)), "{next} was refused");
            next += 1;
        }
        guest.run_for(Duration::from_micros(round % 10 * 100));
        guest.order(VmCommand::Pause);
        let before = back.len();
        back.extend(guest.vm.take_unconsumed().frames);
        // Fed again by the one who took them, every other time.
        if round % 2 == 0 {
            for frame in back.drain(before..) {
                assert!(guest.vm.feed(&frame));
            }
        }
        back.retain(|frame| number(frame).is_some());
        guest.order(VmCommand::Resume);
        let begin = Instant::now();
        while usize::from(next) - answered(&guest).len() - back.len() > OPEN - 60 {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "round {round}: frames were lost"
            );
            guest.collect(Duration::from_millis(100));
        }
    }
    // All that is still on its way is answered before this one is.
    guest.wait_answer(60_001);
    let answered = answered(&guest);
    let taken: Vec<u16> = back.iter().filter_map(number).collect();
    let all: BTreeSet<u16> = answered.iter().chain(&taken).copied().collect();
    eprintln!(
        "{next} frames: {} answered, {} taken back",
        answered.len(),
        taken.len()
    );
    assert_eq!(answered.len() + taken.len(), all.len(), "none is both");
    assert_eq!(all.len(), usize::from(next), "none is neither");
}

/// The number of an echo request.
fn number(frame: &Frame) -> Option<u16> {
    let bytes = &frame.0;
    let request = bytes.len() >= 42 && bytes[12..14] == [8, 0] && bytes[34] == 8;
    request.then(|| u16::from_be_bytes([bytes[40], bytes[41]]))
}

/// A guest that powers off or reboots stops, and that is told once; it does not run on.
#[test]
fn a_guest_that_ends_itself_is_told() {
    if !have_qemu() {
        return;
    }
    // (A reboot on microvm takes Linux a minute, unless its command line says reboot=t.)
    for (machine, how) in [
        (Machine::Microvm, "poweroff -f"),
        (Machine::Q35, "reboot -f"),
    ] {
        let mut guest = Guest::boot(config(machine));
        guest.type_line(how);
        guest.expect(VmEvent::GuestShutdown);
        guest.run_for(Duration::from_millis(100));
        assert!(guest.events.is_empty(), "{:?}", guest.events);
        assert!(
            guest.vm.pid().is_some(),
            "the hypervisor stays for the operator to look at"
        );
    }
}

/// A bad state is an error, drops the orders behind it, and the guest does not run on it.
#[test]
fn a_bad_state_is_refused() {
    if !have_qemu() {
        return;
    }
    let mut guest = Guest::boot(config(Machine::Microvm));
    guest.order(VmCommand::Pause);
    guest
        .vm
        .command(VmCommand::LoadState(b"no state at all".to_vec()));
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
    // And QEMU survived it: the next state is taken.
    let state = guest.save();
    guest.order(VmCommand::LoadState(state));
    guest.order(VmCommand::Resume);
    guest.wait_ping(7);
}

/// A guest that has set up its NIC's queues is made what another is that has not, and sets them up
/// again, as a secondary does that is ahead of its leader while they boot: its NIC counts on from
/// nothing of before, which QEMU alone would have it do.
#[test]
fn a_nic_starts_anew_where_the_state_has_none() {
    if !have_qemu() {
        return;
    }
    let driver = "cd /sys/bus/virtio/drivers/virtio_net; nic=$(ls -d /sys/bus/virtio/devices/*); \
                  nic=${nic##*/}";
    let mut behind = Guest::boot(config(Machine::Microvm));
    let mut ahead = Guest::boot(config(Machine::Microvm));
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
    // A state in which a device and its guest count differently is refused.
    sync(&mut ahead, &mut behind, true);
    behind.order(VmCommand::Resume);
    behind.wait_ping(3);
}

/// A guest is made what another is that has not begun to boot, or has just begun, and boots: also
/// what firmware keeps in memory of its own is the other's, so it finds its devices.
#[test]
fn a_guest_boots_where_another_has_begun_to() {
    if !have_qemu() {
        return;
    }
    let mut behind = Guest::start(config(Machine::Microvm));
    let mut ahead = Guest::boot(config(Machine::Microvm));
    ahead.wait_ping(1);
    // Not at all; a little; the kernel runs.
    for (n, millis) in [0, 100, 400].into_iter().enumerate() {
        if millis > 0 {
            behind.order(VmCommand::Resume);
            behind.run_for(Duration::from_millis(millis));
        }
        let mut fresh = Guest::start(config(Machine::Microvm));
        for guest in [&mut ahead, &mut fresh] {
            sync(&mut behind, guest, true);
            guest.console.clear();
            guest.order(VmCommand::Resume);
            guest.wait_console("plover-guest: ready");
            guest.wait_ping(n as u16 + 2);
        }
    }
}

/// Pause and save in one go, which is how a leader syncs.
#[test]
fn orders_may_be_given_back_to_back() {
    if !have_qemu() {
        return;
    }
    for monitor_only in [false, true] {
        back_to_back(QemuConfig {
            monitor_only,
            ..config(Machine::Q35)
        });
    }
}

fn back_to_back(config: QemuConfig) {
    let mut guest = Guest::boot(config);
    for order in [
        VmCommand::Pause,
        VmCommand::SaveState,
        VmCommand::Resume,
        VmCommand::Pause,
    ] {
        guest.vm.command(order);
    }
    guest.expect(VmEvent::Paused);
    let VmEvent::StateSaved(state) = guest.event() else {
        panic!("no state")
    };
    guest.expect(VmEvent::Resumed);
    guest.expect(VmEvent::Paused);
    for order in [
        VmCommand::Reset,
        VmCommand::LoadState(state),
        VmCommand::Resume,
    ] {
        guest.vm.command(order);
    }
    guest.expect(VmEvent::ResetDone);
    guest.expect(VmEvent::StateLoaded);
    guest.expect(VmEvent::Resumed);
}

/// An idle guest uses little CPU time and a busy one all of it.
#[test]
fn cpu_time_tells_idle_from_busy() {
    if !have_qemu() {
        return;
    }
    let mut guest = Guest::boot(config(Machine::Microvm));
    let used = |guest: &mut Guest| {
        let before = guest.vm.cpu_time();
        guest.run_for(Duration::from_millis(400));
        guest.vm.cpu_time() - before
    };
    let idle = used(&mut guest);
    guest.type_line("while :; do :; done");
    guest.run_for(Duration::from_millis(100));
    let busy = used(&mut guest);
    eprintln!("in 400 ms: idle {idle:?}, busy {busy:?}");
    assert!(busy > idle * 3, "idle {idle:?}, busy {busy:?}");
}

/// A load under TCG keeps what QEMU has translated, but not of pages that were overwritten: a
/// program that counts up is changed in memory to count down, and then must do so.
#[test]
fn code_that_was_overwritten_is_translated_anew() {
    const SIGNATURE: [u8; 8] = *b"plover:)";
    /// Where the loop stands in the file, and so in its page.
    const LOOP: usize = 0x89;
    const INC: [u8; 3] = [0x48, 0xff, 0x05];
    const DEC: [u8; 3] = [0x48, 0xff, 0x0d];
    if !have_qemu() {
        return;
    }
    // A whole ELF program at 0x400000: one segment, writable and executable, three pages long.
    // It stores the signature and then counts in its third page, for ever.
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

    let mut guest = Guest::boot(config(Machine::Microvm));
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
    // Onto the very state it was saved from: nothing but the code is different.
    guest.order(VmCommand::LoadState(state));
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

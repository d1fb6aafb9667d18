//! Faults of a hypervisor: it dies, lacks a symbol, shuts down, or swallows frames.

use crate::common::{Guest, linux, ping, pong, sync};
use plover_types::{Frame, PageSet};
use plover_vm::{Accel, AtEnd, GuestEnd, Machine, QemuConfig, QemuVm, VmCommand, VmEvent};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

fn config(machine: Machine) -> QemuConfig {
    QemuConfig {
        accel: Accel::Tcg,
        ..linux(machine, 1)
    }
}

/// A killed guest is reported as dead, once, by a readable `wait_fd`, also when orders are open. Its
/// process and its descriptors are gone.
#[test]
fn a_killed_qemu_is_noticed_at_once() {
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
    // Later calls do not fail.
    guest.vm.feed(&[ping(1, 9)]);
    guest.vm.console_write(b"x");
    let mut written = PageSet::new(guest.vm.layout().pages());
    let _ = guest.vm.scan_dirty(&mut written);
}

/// QEMU's last error output is in the report.
#[test]
fn a_failed_start_reports_its_reason() {
    let mut bad = config(Machine::Microvm);
    bad.boot = plover_vm::Boot::Kernel {
        kernel: "/nonexistent/kernel".into(),
        initrd: None,
        cmdline: String::new(),
    };
    let mut vm = QemuVm::spawn(bad, None).expect("QEMU itself starts");
    let died = first_event(&mut vm);
    assert!(
        died.contains("exit status: 1") && died.contains("/nonexistent/kernel"),
        "{died}"
    );
}

/// A QEMU without the symbol: here a shell, which has no such symbol either.
#[test]
fn a_qemu_without_the_symbol_is_refused_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qemu");
    std::fs::write(&path, "#!/bin/sh\nwhile :; do :; done\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    let bad = QemuConfig {
        qemu: Some(path),
        ..config(Machine::Microvm)
    };
    let mut vm = QemuVm::spawn(bad, None).expect("the script starts");
    let died = first_event(&mut vm);
    assert!(died.contains("does not export all functions"), "{died}");
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

/// Feeds many frames, with pauses in between. Each frame is either answered by the guest or taken back,
/// never both.
#[test]
fn pauses_lose_no_frame_and_feed_none_twice() {
    /// Unanswered frames at any time. More than 256 fill the guest's ring (see `nic`), and more
    /// than about 150 answers at once are too many for the guest's own ICMP socket.
    const OPEN: usize = 100;
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
            assert_eq!(guest.vm.feed(&[ping(next, 56)]), 1, "{next} was refused");
            next += 1;
        }
        guest.run_for(Duration::from_micros(round % 10 * 100));
        guest.order(VmCommand::Pause);
        let before = back.len();
        back.extend(guest.vm.take_unconsumed().frames);
        // In every other round the frames are fed again.
        if round % 2 == 0 {
            for frame in back.drain(before..) {
                assert_eq!(guest.vm.feed(&[frame]), 1);
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
    // The guest answers all earlier frames before this one.
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

/// TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 and TUN_F_TSO_ECN.
const ALL_OFFLOADS: u32 = 15;

#[test]
fn offloads_are_what_the_guests_driver_takes() {
    for offloads in [true, false] {
        let config = QemuConfig {
            offloads,
            ..config(Machine::Microvm)
        };
        let mut guest = Guest::boot(config);
        guest.wait_ping(1);
        let taken = if offloads { ALL_OFFLOADS } else { 0 };
        assert_eq!(guest.vm.offloads(0), taken);
    }
}

fn ended(how: GuestEnd, then: AtEnd) -> VmEvent {
    VmEvent::GuestEnded { how, then }
}

/// A guest that powers off is off, also where its state is loaded, until it is started.
#[test]
fn a_guest_that_powers_off_is_off_until_it_is_started() {
    let mut guest = Guest::boot(config(Machine::Microvm));
    guest.type_line("poweroff -f");
    guest.expect(ended(GuestEnd::PowerOff, AtEnd::Destroy));
    guest.run_for(Duration::from_millis(100));
    assert!(guest.events.is_empty(), "{:?}", guest.events);
    assert!(guest.vm.is_off());
    assert_eq!(guest.vm.feed(&[ping(1, 9)]), 1, "it is dropped");
    guest.order(VmCommand::Pause);
    guest.order(VmCommand::Resume);
    assert!(guest.vm.is_off(), "a syncvm does not switch it on");
    guest.console.clear();
    guest.vm.command(VmCommand::Start);
    guest.wait_boot();
    assert!(!guest.vm.is_off());
    guest.wait_ping(2);
}

/// The two copies end when each of them ends; the leader's state decides.
#[test]
fn a_syncvm_carries_whether_the_guest_is_off() {
    for machine in [Machine::Microvm, Machine::Q35] {
        let [mut a, mut b] = [0, 1].map(|_| Guest::boot(config(machine)));
        b.type_line("poweroff -f");
        b.expect(ended(GuestEnd::PowerOff, AtEnd::Destroy));
        b.run_for(Duration::from_millis(100));
        sync(&mut a, &mut b, true);
        a.order(VmCommand::Resume);
        b.order(VmCommand::Resume);
        assert!(!b.vm.is_off());
        b.wait_ping(3);
        a.type_line("poweroff -f");
        a.expect(ended(GuestEnd::PowerOff, AtEnd::Destroy));
        a.run_for(Duration::from_millis(100));
        sync(&mut a, &mut b, false);
        b.order(VmCommand::Resume);
        assert!(b.vm.is_off());
        b.console.clear();
        b.vm.command(VmCommand::Start);
        b.wait_boot();
    }
}

/// A guest may end while the order to pause it is on its way. QEMU says so on another socket than that of the answer.
#[test]
fn a_guest_that_ends_as_it_is_paused_takes_the_others_state() {
    let [mut a, mut b] = [0, 1].map(|_| Guest::boot(config(Machine::Microvm)));
    a.type_line("poweroff -f");
    a.expect(ended(GuestEnd::PowerOff, AtEnd::Destroy));
    a.run_for(Duration::from_millis(100));
    b.type_line("poweroff -f");
    // Nobody looks at `b` until QEMU has said both.
    std::thread::sleep(Duration::from_secs(3));
    b.vm.command(VmCommand::Pause);
    std::thread::sleep(Duration::from_millis(100));
    while b.event() != VmEvent::Paused {}
    b.run_for(Duration::from_millis(100));
    b.events.clear();
    a.order(VmCommand::Pause);
    let state = a.save();
    b.order(VmCommand::LoadState(state.into()));
    b.order(VmCommand::Resume);
    assert!(b.vm.is_off());
    b.console.clear();
    b.vm.command(VmCommand::Start);
    b.wait_boot();
}

/// An operator pauses a guest. It stands over syncvms, also where its state is loaded, until it is let go on.
#[test]
fn a_guest_that_an_operator_pauses_stands_until_it_is_let_go_on() {
    let [mut a, mut b] = [0, 1].map(|_| Guest::boot(config(Machine::Microvm)));
    a.wait_ping(1);
    a.vm.command(VmCommand::Stand);
    a.run_for(Duration::from_millis(200));
    assert!(a.vm.stands() && a.events.is_empty(), "{:?}", a.events);
    a.sent.clear();
    assert_eq!(a.vm.feed(&[ping(2, 9)]), 1);
    a.run_for(Duration::from_millis(300));
    assert!(!a.sent.iter().any(|frame| pong(frame) == Some(2)));
    assert!(a.vm.consumed_all(), "a syncvm does not wait for it");
    sync(&mut a, &mut b, true);
    a.order(VmCommand::Resume);
    b.order(VmCommand::Resume);
    assert!(a.vm.stands() && b.vm.stands());
    b.sent.clear();
    b.vm.feed(&[ping(3, 9)]);
    b.run_for(Duration::from_millis(300));
    assert!(!b.sent.iter().any(|frame| pong(frame) == Some(3)));
    for guest in [&mut a, &mut b] {
        guest.vm.command(VmCommand::GoOn);
        guest.wait_ping(4);
        assert!(!guest.vm.stands());
    }
    sync(&mut a, &mut b, false);
    b.order(VmCommand::Resume);
    b.wait_ping(5);
}

/// A hard reset boots the guest again, whatever `on_reboot` says; so does a power-off after an order to reboot,
/// whatever `on_poweroff` says.
#[test]
fn an_operator_resets_and_reboots_a_guest() {
    let mut config = config(Machine::Microvm);
    config.ends.on_reboot = AtEnd::Destroy;
    let mut guest = Guest::boot(config);
    guest.console.clear();
    guest.vm.command(VmCommand::HardReset);
    guest.wait_boot();
    guest.wait_ping(1);
    guest.vm.command(VmCommand::Reboot);
    guest.order(VmCommand::Pause);
    guest.order(VmCommand::Resume);
    assert!(guest.vm.reboots());
    guest.console.clear();
    guest.type_line("poweroff -f");
    guest.expect(ended(GuestEnd::PowerOff, AtEnd::Restart));
    guest.wait_boot();
    assert!(!guest.vm.reboots() && !guest.vm.is_off());
    guest.vm.command(VmCommand::Reboot);
    guest.vm.command(VmCommand::PowerButton);
    // Orders are given one after the other.
    guest.order(VmCommand::Pause);
    assert!(!guest.vm.reboots(), "the button alone takes the order back");
}

#[test]
fn a_guest_that_crashes_boots_again() {
    let mut guest = Guest::boot(config(Machine::Q35));
    guest.type_line("echo c > /proc/sysrq-trigger");
    guest.expect(ended(GuestEnd::Crash, AtEnd::Restart));
    guest.wait_boot();
}

#[test]
fn a_guest_that_reboots_boots_again() {
    // (A reboot on microvm takes Linux a minute, unless its command line says reboot=t.)
    let mut guest = Guest::boot(config(Machine::Q35));
    guest.type_line("reboot -f");
    guest.expect(VmEvent::GuestReset);
    guest.wait_boot();
}

/// Pause and save are ordered back to back, as a leader does in a sync.
#[test]
fn orders_may_be_given_back_to_back() {
    let mut guest = Guest::boot(config(Machine::Q35));
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
        VmCommand::LoadState(state.into()),
        VmCommand::Resume,
    ] {
        guest.vm.command(order);
    }
    guest.expect(VmEvent::ResetDone);
    guest.expect(VmEvent::StateLoaded);
    guest.expect(VmEvent::Resumed);
}

/// An idle guest mostly has no work and uses little CPU time. A busy one always has work, and its clocks
/// advance. On a busy host neither gets the CPU when it wants, so times are not compared.
#[test]
fn cpu_time_and_work_tell_idle_from_busy() {
    let mut guest = Guest::boot(config(Machine::Microvm));
    let samples_with_work = |guest: &mut Guest| {
        let sample = |_| {
            guest.run_for(Duration::from_millis(4));
            guest.vm.has_work()
        };
        (0..100).map(sample).filter(|work| *work).count()
    };
    let idle = samples_with_work(&mut guest);
    guest.type_line("while :; do :; done");
    guest.run_for(Duration::from_millis(100));
    let before = guest.vm.cpu_time();
    let busy = samples_with_work(&mut guest);
    assert!(
        idle < 90 && busy > 90,
        "of 100 samples: idle {idle}, busy {busy}"
    );
    while guest.vm.cpu_time() - before < Duration::from_millis(50) {
        guest.run_for(Duration::from_millis(10));
    }
}

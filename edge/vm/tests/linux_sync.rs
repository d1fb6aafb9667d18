//! Two running Linux guests, synced twenty times under load. The whole memory is compared each time.
//!
//! The load makes the two diverge as much as possible: racing threads (their result depends on every
//! switch), a steady writer, Redis, and pings at different moments. Each sync must leave every page
//! equal, and after the last one the overwritten guest must go on as the other one would.

use crate::common::{Guest, Synced, assert_equal, linux, linux_of, ping, sync};
use plover_types::{PAGE_BYTES, PageNo};
use plover_vm::trial::differing;
use plover_vm::{Machine, NicModel, QemuConfig, VmCommand};
use std::time::Duration;

const SYNCS: u16 = 20;
/// For machines that differ from another one in a device.
const SYNCS_OF_A_DEVICE: u16 = 10;

fn synced_guests_are_equal(machine: Machine, vcpus: u32) {
    // Under KVM where it runs Linux, else under TCG.
    guests_are_equal(linux(machine, vcpus), SYNCS);
}

fn guests_are_equal(config: QemuConfig, syncs: u16) {
    let (machine, vcpus) = (config.machine, config.vcpus);
    let mut a = Guest::boot(config.clone());
    // The secondary has run too, to another point, so the first sync overwrites all of it.
    let mut b = Guest::start(config);
    b.order(VmCommand::Resume);
    b.run_for(Duration::from_millis(300));
    sync(&mut a, &mut b, true);
    assert_equal(&a, &b);
    a_difference_is_found(&a, &mut b);
    for guest in [&mut a, &mut b] {
        guest.order(VmCommand::Resume);
        guest.wait_ping(1);
        guest.type_line("racey -n 0 & plover-load 150 50 & echo load $((40+2))");
        guest.wait_console("load 42");
    }

    let mut sums = [0u64; 4];
    for round in 0..syncs {
        for guest in [&mut a, &mut b] {
            guest.introduce();
            for n in 0..5 {
                guest.vm.feed(&[ping(round * 10 + n, 900)]);
            }
            guest.run_for(Duration::from_millis(40));
        }
        let Synced {
            dirty_a,
            dirty_b,
            divergent,
            state_bytes,
        } = sync(&mut a, &mut b, false);
        assert_equal(&a, &b);
        for (sum, new) in sums
            .iter_mut()
            .zip([dirty_a, dirty_b, divergent, state_bytes as u32])
        {
            *sum += u64::from(new);
        }
        a.order(VmCommand::Resume);
        b.order(VmCommand::Resume);
    }
    let [dirty_a, dirty_b, divergent, state] = sums.map(|sum| sum / u64::from(syncs));
    eprintln!(
        "{machine}, {vcpus} vCPU, {:?}: mean of {syncs} syncs: dirty {dirty_a} and {dirty_b}, \
         divergent {divergent} pages, state {state} bytes",
        a.vm.accel()
    );
    assert!(dirty_a > 150 && divergent > 0, "the load was none");

    // The first guest dies. The second goes on alone.
    a.vm.kill();
    b.wait_ping(60_000);
    b.type_line("echo alive $((6*7)); cat /proc/loadavg; tail -n 1 /tmp/racey.out");
    b.wait_console("alive 42");
    b.type_line("dmesg | grep -ciE 'bug:|stall|hung' ; echo end $((1+1))");
    b.wait_console("end 2");
    assert!(
        b.console.contains("\n0\r\n"),
        "the kernel complains: {}",
        b.console
    );
}

/// One byte of one page is enough.
fn a_difference_is_found(a: &Guest, b: &mut Guest) {
    let page = PageNo(a.vm.layout().pages() / 2);
    let mut content = [0; PAGE_BYTES];
    a.vm.read_page(page, &mut content);
    content[PAGE_BYTES - 1] ^= 1;
    b.vm.write_page(page, &content);
    assert!(differing(a, b).iter().eq([page]));
    content[PAGE_BYTES - 1] ^= 1;
    b.vm.write_page(page, &content);
    assert_equal(a, b);
}

#[test]
fn synced_guests_are_equal_on_microvm_with_one_vcpu() {
    synced_guests_are_equal(Machine::Microvm, 1);
}

#[test]
fn synced_guests_are_equal_on_microvm_with_two_vcpus() {
    synced_guests_are_equal(Machine::Microvm, 2);
}

#[test]
fn synced_guests_are_equal_on_q35_with_one_vcpu() {
    synced_guests_are_equal(Machine::Q35, 1);
}

#[test]
fn synced_guests_are_equal_on_q35_with_two_vcpus() {
    synced_guests_are_equal(Machine::Q35, 2);
}

#[test]
fn synced_guests_are_equal_on_pc_with_one_vcpu() {
    synced_guests_are_equal(Machine::Pc, 1);
}

/// Cards for guests without virtio's driver.
fn synced_guests_are_equal_with(machine: Machine, model: NicModel) {
    let mut config = linux_of("cards", machine, 1);
    config.nics[0].model = model;
    guests_are_equal(config, SYNCS_OF_A_DEVICE);
}

#[test]
fn synced_guests_are_equal_with_a_card_that_windows_knows() {
    synced_guests_are_equal_with(Machine::Q35, NicModel::E1000e);
}

#[test]
fn synced_guests_are_equal_with_a_card_of_older_systems() {
    synced_guests_are_equal_with(Machine::Pc, NicModel::E1000);
}

#[test]
fn synced_guests_are_equal_with_the_card_that_all_systems_know() {
    synced_guests_are_equal_with(Machine::Pc, NicModel::Rtl8139);
}

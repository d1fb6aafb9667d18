//! The channel to the agent in the guest across syncs: the state of its port and queues is part of the devices' state.

use crate::common::{Guest, assert_equal, linux_of, sync};
use plover_vm::{Machine, QemuConfig, VmCommand};
use std::time::Duration;

const SYNCS: u32 = 20;

/// Gives the agent a request that only answers for this number, after the byte that makes it forget half a request.
fn ask(guest: &mut Guest, number: u32) {
    guest.agent.clear();
    let request =
        format!("{{\"execute\":\"guest-sync-delimited\",\"arguments\":{{\"id\":{number}}}}}\n");
    let bytes = [&[0xff], request.as_bytes()].concat();
    guest.vm.agent_write(&bytes);
}

fn answers(guest: &Guest, number: u32) -> bool {
    let answer = format!("{{\"return\": {number}}}\n");
    String::from_utf8_lossy(&guest.agent).ends_with(&answer)
}

fn wait_for_answer(guest: &mut Guest, number: u32) {
    for _ in 0..200 {
        if answers(guest, number) {
            return;
        }
        guest.collect(Duration::from_millis(100));
    }
    let unread = guest.vm.agent_take_unread();
    panic!(
        "no answer to {number}, but {:?}; unread: {:?}",
        String::from_utf8_lossy(&guest.agent),
        String::from_utf8_lossy(&unread)
    );
}

/// Both agents get the same requests, answer them across syncs, and the secondary's answers when the leader's is gone.
fn an_agent_answers_across_syncs(machine: Machine) {
    let config = QemuConfig {
        agent: true,
        ..linux_of("agent", machine, 1)
    };
    let mut a = Guest::boot(config.clone());
    // Its port has not been opened by its guest when the first sync opens it.
    let mut b = Guest::start(config);
    b.order(VmCommand::Resume);
    b.run_for(Duration::from_millis(300));
    ask(&mut a, 1_000);
    wait_for_answer(&mut a, 1_000);
    sync(&mut a, &mut b, true);
    assert_equal(&a, &b);
    for round in 0..SYNCS {
        for guest in [&mut a, &mut b] {
            guest.order(VmCommand::Resume);
            ask(guest, round);
            // In every other round the sync comes while the agents are at work.
            if round % 2 == 0 {
                wait_for_answer(guest, round);
            }
        }
        sync(&mut a, &mut b, false);
        assert_equal(&a, &b);
        // Both sides drop what was not read.
        for guest in [&mut a, &mut b] {
            guest.vm.agent_take_unread();
        }
    }
    a.vm.kill();
    b.order(VmCommand::Resume);
    ask(&mut b, 2_000);
    wait_for_answer(&mut b, 2_000);
}

#[test]
fn an_agent_answers_across_syncs_on_microvm() {
    an_agent_answers_across_syncs(Machine::Microvm);
}

#[test]
fn an_agent_answers_across_syncs_on_q35() {
    an_agent_answers_across_syncs(Machine::Q35);
}

//! The paper's Racey check (PLOVER §6.1): two threads that race without locks make the two guests differ
//! in every slot. After each syncvm both memories must be equal all the same.

use anyhow::Result;
use plover_lab::options::Options;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::script::{COMPARED, equal_slots_of_divergent_guests};
use plover_lab_proof::{overlay, prove, role};
use std::io::Write;

/// Slots of `vsmr` to compare.
const SLOTS: usize = 60;

/// Checkpoints to compare: fewer, because each carries all that was written, raced or not.
const CHECKPOINTS: usize = 15;

fn race(lab: &mut Experiment, slots: usize) -> Result<()> {
    let leader = lab.lab().find(&role("leader"))?;
    let mut console = lab.lab().control(leader).console()?;
    console.write_all(b"racey -n 0 &\n")?;
    equal_slots_of_divergent_guests(lab, slots)
}

#[test]
fn racing_threads_leave_equal_memories() {
    race_under("t-racey", "vsmr", SLOTS);
}

/// The leader's guest goes on before its dirty pages are sent, and writes the same pages again
/// meanwhile. The pages must be sent as they were at the cut.
#[test]
fn checkpoints_of_a_guest_that_goes_on_are_whole() {
    race_under("t-racey-remus", "remus-25", CHECKPOINTS);
}

fn race_under(name: &str, policy: &str, slots: usize) {
    let overlay = overlay(COMPARED);
    let options = Options {
        policy: policy.parse().expect("there is such a policy"),
        vcpus: Some(2),
        // Less to hash.
        mem_mib: Some(128),
        overlay: Some(overlay.to_path_buf()),
        ..Options::default()
    };
    prove(name, options, |lab| race(lab, slots));
}

//! Every policy under the faults that `vsmr` is put to in `faults.rs`. The one rule for all of
//! them: no acknowledged write is lost, no connection is reset, never two replicas send as the
//! guest.
//!
//! A lab takes its time to boot a guest, so every run of the tests takes one policy of each kind
//! and the faults that tell most about it. All policies under all faults, by hand:
//!
//! ```text
//! ./x test -p plover-lab-proof --test policies -- --ignored
//! ```

use anyhow::Result;
use plover_lab::experiment::Experiment;
use plover_lab::options::{Options, PolicyName};
use plover_lab::{Fault, Target};
use plover_lab_proof::{prove, recover, role};
use plover_policy::PRESETS;
use plover_syncvm::Phase;
use std::time::Duration;

fn under(policy: &str) -> Options {
    Options {
        policy: policy.parse().expect("there is such a policy"),
        ..Options::default()
    }
}

fn the_leader_dies(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, leader)
}

fn the_secondary_dies(lab: &mut Experiment) -> Result<()> {
    let (secondary, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, secondary)
}

fn the_leader_dies_in(lab: &mut Experiment, phase: Phase) -> Result<()> {
    let name = serde_json::to_value(phase)?;
    let (leader, at) = lab.crash_in_phase(&role("leader"), name.as_str().unwrap_or_default())?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, leader)
}

fn the_leader_stands_still(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Stop, &role("leader"))?;
    lab.progress().sleep(Duration::from_secs(3))?;
    lab.strike(Fault::Continue, &Target::Replica(leader))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_for_part(leader)?;
    lab.wait_until_protected_again(at)
}

fn the_leader_is_cut_off(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Cut { from: None }, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    let (_, healed) = lab.strike(Fault::Heal, &Target::Replica(leader))?;
    lab.wait_for_part(leader)?;
    lab.wait_for_answers(healed)?;
    lab.wait_until_protected()
}

/// The phases of a sync in which its leader does something or waits, by what the secondary does.
fn phases(policy: PolicyName) -> &'static [Phase] {
    use plover_policy::{Secondary, Sent};
    let axes = match policy {
        PolicyName::Preset(preset) => (preset.policy.secondary, preset.policy.sent),
        PolicyName::None => return &[],
    };
    if axes == (Secondary::Runs, Sent::AllOfPrimary) {
        // Nothing is hashed.
        &[Phase::Exchange, Phase::Transfer, Phase::Apply]
    } else if axes.0 == Secondary::Waits {
        &[
            Phase::Pause,
            Phase::Copy,
            Phase::Transfer,
            Phase::Apply,
            Phase::Release,
        ]
    } else {
        &[Phase::Hash, Phase::Transfer, Phase::Apply]
    }
}

/// A secondary whose guest waits takes over from its last checkpoint. The machine with PCI, since
/// its devices are the ones that could mind being loaded for the first time so late.
#[test]
fn a_guest_that_waited_goes_on() {
    let options = Options {
        machine: Some("q35".into()),
        ..under("remus-25")
    };
    prove("t-remus", options, |lab| {
        the_leader_dies(lab)?;
        the_secondary_dies(lab)?;
        // By a leader that has waited itself, while its guest runs and the pages travel.
        the_leader_dies_in(lab, Phase::Transfer)
    });
}

#[test]
fn a_guest_with_connections_in_free_order_goes_on() {
    prove("t-plan1", under("plan1"), |lab| {
        the_leader_dies(lab)?;
        the_leader_dies_in(lab, Phase::Apply)
    });
}

/// Waits until the leader has sent outputs that only a match let go.
fn outputs_match(lab: &mut Experiment) -> Result<()> {
    lab.wait("outputs go out on a match", |lab| {
        let status = lab.lab().status();
        let totals = status
            .leader()
            .and_then(|leader| leader.sync.more.get("totals"));
        Ok(totals.is_some_and(|totals| totals["matched"].as_u64() > Some(0)))
    })
}

/// What a client has seen before any sync, the secondary's guest has sent as well.
#[test]
fn a_guest_whose_outputs_are_matched_goes_on() {
    prove("t-hybrid", under("hybrid"), |lab| {
        outputs_match(lab)?;
        the_leader_dies(lab)?;
        outputs_match(lab)?;
        the_secondary_dies(lab)?;
        outputs_match(lab)?;
        the_leader_dies_in(lab, Phase::Apply)
    });
}

/// COLO, at the points of its figure 4: between a match and the next (A to C), and within a
/// checkpoint (D), before and after its end mark.
#[test]
fn a_guest_in_coarse_grained_lockstep_goes_on() {
    prove("t-colo", under("colo"), |lab| {
        outputs_match(lab)?;
        the_leader_dies(lab)?;
        outputs_match(lab)?;
        the_leader_dies_in(lab, Phase::Transfer)?;
        outputs_match(lab)?;
        the_leader_dies_in(lab, Phase::Apply)
    });
}

#[test]
fn a_guest_that_is_saved_at_each_output_goes_on() {
    prove("t-adaptive", under("adaptive-remus"), |lab| {
        the_leader_is_cut_off(lab)
    });
}

#[test]
#[ignore = "minutes: every policy under every fault"]
fn every_policy_survives_every_fault() {
    for preset in PRESETS.iter().filter(|p| p.policy.check().is_ok()) {
        let options = under(preset.name);
        let phases = phases(options.policy);
        prove("t-policy", options, |lab| {
            the_leader_dies(lab)?;
            the_secondary_dies(lab)?;
            for phase in phases {
                the_leader_dies_in(lab, *phase)?;
            }
            the_leader_stands_still(lab)?;
            the_leader_is_cut_off(lab)
        });
    }
}

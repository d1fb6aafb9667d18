//! Every policy under the faults of `faults.rs`. One rule holds for all of them: no acknowledged write
//! is lost, no connection is reset, never two replicas send as the guest.
//!
//! Booting a guest takes time, so every run of the tests takes one policy of each kind and the most
//! telling faults. To run all policies under all faults:
//!
//! ```text
//! ./x test -p plover-lab-proof policies:: -- --ignored
//! ```

use anyhow::{Result, ensure};
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_lab_proof::crash::Moment;
use plover_lab_proof::load::Pressure;
use plover_lab_proof::script::{
    ClockReading, outputs_match, phases, the_leader_dies, the_leader_dies_in,
    the_leader_is_cut_off, the_secondary_dies, the_secondary_rests, three_survive, two_survive,
};
use plover_lab_proof::{overlay, prove, prove_under, recover, role, wait_for, with_lab};
use plover_policy::PRESETS;
use plover_syncvm::Phase;
use std::time::Duration;

fn under(policy: &str) -> Options {
    Options {
        policy: policy.parse().expect("there is such a policy"),
        ..Options::default()
    }
}

/// A secondary whose guest waits takes over from its last checkpoint. The machine has PCI, because its
/// devices are the most likely to fail when they are loaded for the first time so late.
#[test]
fn a_guest_that_waited_goes_on() {
    let options = Options {
        machine: Some("q35".into()),
        ..under("remus-25")
    };
    prove("t-remus", options, |lab| {
        the_leader_dies(lab)?;
        the_secondary_dies(lab)?;
        // A leader that waited itself before dies while its guest runs and the pages travel.
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

/// PLOVER itself: no output leaves before its sync. The guest stands for a third of the time, and does not
/// notice.
#[test]
fn a_guest_whose_outputs_wait_for_a_sync_goes_on() {
    let pressure = Pressure {
        writes_per_second: 300,
        ..Pressure::default()
    };
    prove_under(pressure, "t-vsmr", under("vsmr"), |lab| {
        let clock = ClockReading::take(lab)?;
        lab.progress().sleep(Duration::from_secs(5))?;
        the_leader_dies(lab)?;
        the_secondary_dies(lab)?;
        the_leader_dies_in(lab, Phase::Transfer)?;
        clock.goes_on(lab, Duration::from_millis(500))
    });
}

/// Clients know connections that no sync has seen by the leader's sequence numbers and clock. The next
/// leader's guest has others. If it sent its own timestamps, every second such connection would stand
/// still.
#[test]
fn connections_go_on_that_no_sync_has_seen() {
    let overlay = overlay("[policy]\nmatched_max_ms = 60000\nunmatched_max_ms = 20000\n");
    let options = Options {
        overlay: Some(overlay.to_path_buf()),
        ..under("hybrid")
    };
    prove("t-unseen", options, |lab| {
        // Mostly the only sync is that of the join, before the guest has booted. On a busy machine an
        // output may have been late, and a sync has then seen the connections.
        let syncs = lab.lab().status().leader().map(|leader| leader.sync.count);
        eprintln!("syncs before the kill: {syncs:?}");
        the_leader_dies(lab)
    });
}

/// COLO. The leader dies in each area of COLO's figure 4: an output of the leader's guest alone (A), of both and not released
/// (B), half released (C), and a checkpoint before its end mark (D). `Phase::Apply` is after the end mark. The other faults
/// are the default policy's in `faults.rs`, and COLO's own with two replicas below.
#[test]
fn a_guest_in_coarse_grained_lockstep_goes_on() {
    prove("t-colo", under("colo"), |lab| {
        outputs_match(lab)?;
        the_leader_dies_in(lab, Phase::Apply)?;
        for area in ["a", "b", "c", "d"] {
            outputs_match(lab)?;
            let (leader, at) = lab.crash_at(&role("leader"), &Moment::Area(area))?;
            lab.wait_for_failover(leader, at)?;
            lab.wait_until_protected_again(at)?;
            recover(lab, leader)?;
        }
        Ok(())
    });
}

/// A secondary whose guest rests takes over, between two syncs and within one. It rests at the latest in a trial.
#[test]
fn a_guest_that_rests_now_and_then_goes_on() {
    prove("t-semi", under("hybrid-semi"), |lab| {
        the_secondary_rests(lab)?;
        the_leader_dies(lab)?;
        the_secondary_rests(lab)?;
        the_secondary_dies(lab)?;
        for phase in [Phase::Exchange, Phase::Apply] {
            the_secondary_rests(lab)?;
            the_leader_dies_in(lab, phase)?;
        }
        Ok(())
    });
}

fn two_under(policy: &str) -> Options {
    Options {
        replicas: Some(2),
        ..under(policy)
    }
}

#[test]
fn two_replicas_that_checkpoint_go_on_without_each_other() {
    prove("t-two-remus", two_under("remus-25"), |lab| {
        two_survive(lab, &[Phase::Copy, Phase::Transfer, Phase::Apply])
    });
}

/// The other phases are above: with three replicas under `colo`, and with two under `remus-25`.
#[test]
fn two_replicas_in_lockstep_go_on_without_each_other() {
    prove("t-two-colo", two_under("colo"), |lab| {
        two_survive(lab, &[Phase::Exchange])
    });
}

/// With two replicas, a cut makes two leaders. After it one leads, with the higher view, and the other
/// one's guest is gone.
#[test]
fn two_replicas_are_one_again_after_a_cut() {
    one_again_after_a_cut("remus-25");
}

fn one_again_after_a_cut(policy: &str) {
    let work = |lab: &mut Lab, progress: &Progress| -> Result<()> {
        let mut traces = lab.traces();
        let first = lab.find(&role("leader"))?;
        lab.fault(Fault::Cut { from: None }, first)?;
        wait_for(progress, "both serve", || {
            let status = lab.status();
            Ok(status.replicas.iter().all(|replica| replica.serving))
        })?;
        let table = lab.status().to_string();
        ensure!(table.contains("Warning: two replicas"), "{table}");
        lab.fault(Fault::Heal, first)?;
        lab.wait_until_settled(&mut traces, progress, Duration::from_secs(90))?;
        let status = lab.status();
        let roles: Vec<&str> = status.replicas.iter().map(|r| r.role.as_str()).collect();
        ensure!(
            roles.contains(&"leader") && roles.contains(&"secondary"),
            "{status}"
        );
        let leader = lab.find(&role("leader"))?;
        ensure!(leader != first, "the lower view leads\n{status}");
        ensure!(lab.guest_answers(Duration::from_secs(10)), "no answer");
        Ok(())
    };
    with_lab("t-two-cut", two_under(policy), work).expect("one again");
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
        let policy = options.policy;
        prove("t-policy", options, |lab| three_survive(lab, policy));
    }
}

#[test]
#[ignore = "minutes: every policy that two replicas may have, under every fault"]
fn two_replicas_survive_every_fault() {
    for preset in PRESETS.iter().filter(|p| p.policy.check_pair().is_ok()) {
        let options = two_under(preset.name);
        let phases = phases(options.policy);
        prove("t-two", options, |lab| two_survive(lab, phases));
        one_again_after_a_cut(preset.name);
    }
}

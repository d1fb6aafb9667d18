//! The short form of `./x chaos`: random faults, one after another and two at a time.

use plover_lab::options::PolicyName;
use plover_lab_proof::chaos::schedule::{Kind, Role, Schedule, Step};
use plover_lab_proof::chaos::{self, Plan};
use plover_lab_proof::{Turn, program, progress};
use std::mem::{Discriminant, discriminant};

/// Found by looking at 12 million seeds for one that needs few steps.
const SEED: u64 = 9_659_014;
const STEPS: u64 = 17;
/// No machine needs so long for them.
const MINUTES: u64 = 20;

#[test]
fn what_clients_see_under_random_faults_is_linearizable() {
    let _turn = Turn::wait();
    let plan = Plan {
        name: "t-chaos",
        program: program().to_owned(),
        policy: PolicyName::default(),
        minutes: MINUTES,
        seed: SEED,
        only: Vec::new(),
        steps: Some(STEPS),
        overlay: None,
    };
    let progress = progress();
    let report = chaos::run(&plan, &progress).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.violation.is_none(), "{report}");
    assert!(report.checked.answered > 0, "{report}");
    assert_eq!(report.rows.len() as u64, STEPS, "{report}");
}

fn is_dead(step: &Step, role: Role) -> bool {
    let mut strikes = step.strikes.iter().filter(|it| it.role == role);
    strikes.any(|it| matches!(it.kind, Kind::Kill | Kind::Crash))
}

/// A change of the schedule asks for another seed.
#[test]
fn the_seed_breaks_a_leader_in_every_way() {
    let steps: Vec<Step> = Schedule::new(SEED).take(STEPS as usize).collect();
    let (leader, witness) = (Role::Leader, Role::Witness);
    let strikes = steps.iter().flat_map(|step| &step.strikes);
    let ways = strikes.filter(|it| it.role == leader);
    let ways: Vec<Discriminant<Kind>> = ways.map(|it| discriminant(&it.kind)).collect();
    for kind in [
        Kind::Kill,
        Kind::Crash,
        Kind::Stop,
        Kind::HangQemu,
        Kind::HangDisk,
        Kind::FillState,
        Kind::Cut,
        Kind::CutFrom(witness),
        Kind::OneWay(witness),
        Kind::Mute,
        Kind::Flap { each_ms: 0 },
        Kind::Unplug,
    ] {
        assert!(ways.contains(&discriminant(&kind)), "{kind:?}");
    }
    for role in [leader, Role::Secondary, witness] {
        assert!(steps.iter().any(|step| is_dead(step, role)), "{role:?}");
    }
    let lost = |step: &Step| is_dead(step, leader) && is_dead(step, witness);
    assert!(steps.iter().any(lost), "a majority with the leader");
    let reboots = steps.iter().filter(|step| step.reboot);
    assert!(reboots.clone().count() >= 2 && reboots.clone().any(|it| !it.strikes.is_empty()));
}

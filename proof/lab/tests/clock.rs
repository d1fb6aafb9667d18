//! The guest's clock while leaders die (docs/decisions/0037).

use anyhow::{Result, ensure};
use plover_lab::options::Options;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::prove;
use plover_lab_proof::redis::Connection;
use plover_lab_proof::script::the_leader_dies;
use plover_policy::PRESETS;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time that each guest runs, and the leaders that are killed meanwhile.
const SPAN: Duration = Duration::from_secs(600);
const KILLS: u32 = 10;

/// The most that the guest's clock may fall behind the host's, or run ahead, in millionths.
const PPM_MAX: f64 = 200.0;

/// Questions of which the one counts that was answered first.
const READINGS: u32 = 60;

/// The guest's time, halfway between a question and its answer.
struct Reading {
    at: Instant,
    guest: Duration,
    /// From the question to its answer.
    took: Duration,
}

fn read(lab: &Experiment) -> Result<Reading> {
    let (client, service) = (lab.lab().topology().client(), lab.lab().service());
    let mut redis = client.run(|| Ok(Connection::open(service, Duration::from_secs(10))?))?;
    let mut best: Option<Reading> = None;
    for _ in 0..READINGS {
        let asked = Instant::now();
        let guest = redis.time()?;
        let took = asked.elapsed();
        if best.as_ref().is_none_or(|best| took < best.took) {
            let at = asked + took / 2;
            best = Some(Reading { at, guest, took });
        }
        sleep(Duration::from_millis(50));
    }
    Ok(best.expect("it was read"))
}

fn clock_over_failovers(lab: &mut Experiment) -> Result<()> {
    let first = read(lab)?;
    for kill in 1..=KILLS {
        let due = SPAN / (KILLS + 1) * kill;
        while first.at.elapsed() < due {
            lab.progress().sleep(Duration::from_millis(100))?;
        }
        the_leader_dies(lab)?;
    }
    while first.at.elapsed() < SPAN {
        lab.progress().sleep(Duration::from_millis(100))?;
    }
    let last = read(lab)?;
    let passed = (last.at - first.at).as_secs_f64();
    let behind = passed - (last.guest.as_secs_f64() - first.guest.as_secs_f64());
    let ppm = -behind / passed * 1e6;
    lab.progress().say(format!(
        "{KILLS} leaders killed in {passed:.0} s: the guest's clock is {:.1} ms behind, {ppm:.0} ppm, exact to {:.1} ms",
        behind * 1e3,
        (first.took + last.took).as_secs_f64() / 2.0 * 1e3
    ));
    ensure!(ppm.abs() < PPM_MAX, "{ppm:.0} ppm");
    Ok(())
}

#[test]
#[ignore = "ten minutes for each policy"]
fn clocks_keep_up_under_every_policy() {
    for preset in PRESETS.iter().filter(|it| it.policy.check().is_ok()) {
        eprintln!("policy {}", preset.name);
        let options = Options {
            policy: preset.name.parse().expect("there is such a policy"),
            ..Options::default()
        };
        prove("t-clock", options, clock_over_failovers);
    }
}

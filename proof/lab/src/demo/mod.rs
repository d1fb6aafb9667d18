//! The demo: a guest outlives two of its hosts, and its clients keep their connections.
//!
//! ```text
//!  lab up ─▶ clients write ─▶ kill the leader ─▶ the witness becomes the new secondary
//!                                                             │
//!  audit ◀─ the clients stop ◀─ protected ◀─ kill the new leader ◀─ the first comes back
//! ```
//!
//! The result is good only if every acknowledged write is there, no connection was reset, and
//! the switch never saw two hosts send as the guest.

mod report;
mod timeline;

pub use report::{Failover, Report};

use crate::experiment::Experiment;
use crate::load::Pressure;
use crate::served::Served;
use anyhow::Result;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::state::LabName;
use plover_lab::up::is_interruption;
use plover_lab::{Fault, Target};
use plover_types::SplitMix64;
use std::path::PathBuf;
use std::time::Duration;
use timeline::Timeline;

/// The kill comes at a random time between these, and so anywhere in a slot: some hundred slots pass in
/// that time.
const MOMENT_MS: (u64, u64) = (3000, 6000);

/// Runs the demo in a lab called `demo` whose daemons run `program`. With `dash`, `plover dash` shows it, and goes on after
/// its end as long as what is returned lives.
///
/// # Errors
/// The lab cannot be made, something does not happen in time, or Ctrl-C. A lost write is not an error:
/// the [`Report`] says so.
pub fn run(program: PathBuf, dash: bool, progress: &Progress) -> Result<(Report, Option<Served>)> {
    let name = "demo".parse().unwrap_or_default();
    play(name, Fault::Kill, program, dash, progress)
}

/// The same in a lab of another name, without a page, and with a fault that ends the leader.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    name: LabName,
    fault: Fault,
    program: PathBuf,
    progress: &Progress,
) -> Result<Report> {
    Ok(play(name, fault, program, false, progress)?.0)
}

fn play(
    name: LabName,
    fault: Fault,
    program: PathBuf,
    dash: bool,
    progress: &Progress,
) -> Result<(Report, Option<Served>)> {
    let options = Options {
        name,
        program: Some(program),
        ..Options::default()
    };
    let mut experiment = Experiment::begin(&options, Pressure::default(), progress)?;
    let page = match dash {
        true => Some(show(&experiment)?),
        false => None,
    };
    let failovers = script(&mut experiment, fault).inspect_err(|error| {
        if !is_interruption(error) {
            experiment.keep_evidence();
        }
    })?;
    let seconds = progress.elapsed().as_secs();
    let verdict = experiment.finish()?;
    Ok((Report::new(failovers, verdict, seconds), page))
}

/// Shows the lab on a page.
fn show(experiment: &Experiment) -> Result<Served> {
    let page = Served::start(experiment.lab(), "dash")?;
    let url = page.url();
    experiment.progress().say(format!("see it live at {url}"));
    Ok(page)
}

fn script(experiment: &mut Experiment, fault: Fault) -> Result<Vec<Failover>> {
    let mut random = SplitMix64::new(plover_lab::trace::now_us());
    let (first, killed) = fail_over(experiment, fault, &mut random)?;
    experiment.restart(killed)?;
    let (second, _) = fail_over(experiment, fault, &mut random)?;
    // Some more writes under the last pair of replicas, for the audit.
    experiment.progress().sleep(Duration::from_secs(1))?;
    Ok(vec![first, second])
}

/// Kills the leader at a random moment, and waits until the guest is protected again.
fn fail_over(
    experiment: &mut Experiment,
    fault: Fault,
    random: &mut SplitMix64,
) -> Result<(Failover, u8)> {
    let moment = Duration::from_millis(random.range(MOMENT_MS.0, MOMENT_MS.1));
    experiment.progress().sleep(moment)?;
    let (killed, fault_us) = experiment.strike(fault, &Target::Role("leader".into()))?;
    experiment.wait_for_failover(killed, fault_us)?;
    // Measured before anything else can keep the clients waiting.
    let gap = experiment.gap(fault_us)?;
    let since_ms = gap.first_reply_us.saturating_sub(fault_us) / 1000;
    experiment.progress().say(format!(
        "the clients are answered again, {since_ms} ms after the kill, over the same connections"
    ));
    experiment.wait_until_protected_again(fault_us)?;
    let timeline = Timeline::of(experiment.events(), killed, fault_us, gap);
    Ok((Failover::new(timeline), killed))
}

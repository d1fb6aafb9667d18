//! `./x bench failover --switchover`: the clients' gap when the lead is moved with nothing at fault.
//!
//! One lab under the load of the demo, and one move after the other at random moments. The gap is the longest time
//! without an answer on any connection, from the command on. For comparison the same is measured around moments at
//! which nothing happens. The run ends with the audit of every acknowledged write.

use crate::children::spoken_progress;
use crate::lab::{name, plover};
use crate::machine::Machine;
use crate::stats::Sample;
use anyhow::{Result, ensure};
use plover_lab::operate;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::{Experiment, Verdict};
use plover_lab_proof::load::Pressure;
use plover_lab_proof::role;
use plover_types::SplitMix64;
use std::time::Duration;

/// Between two moves, ms: some dozens of slots.
const REST_MS: (u64, u64) = (1000, 2000);

/// How long clients are watched after a move.
const WATCHED: Duration = Duration::from_millis(500);

pub(super) fn run(moves: u32) -> Result<()> {
    let options = Options {
        name: name(),
        program: Some(plover()),
        ..Options::default()
    };
    let progress = spoken_progress();
    let mut lab = Experiment::begin(&options, Pressure::default(), &progress)?;
    let mut figures = Figures::default();
    let done = measure_all(&mut lab, moves, &progress, &mut figures);
    let verdict = done.and_then(|()| lab.finish());
    // The figures are printed even if the run fails.
    if !figures.gaps.all.is_empty() {
        figures.print(moves, verdict.as_ref().ok());
    }
    let verdict = verdict?;
    ensure!(verdict.is_good(), "the audit failed: {verdict:?}");
    Ok(())
}

fn measure_all(
    lab: &mut Experiment,
    moves: u32,
    progress: &Progress,
    figures: &mut Figures,
) -> Result<()> {
    let mut random = SplitMix64::new(now_us());
    for _ in 0..moves {
        lab.wait_until_protected()?;
        let rest = Duration::from_millis(random.range(REST_MS.0, REST_MS.1));
        progress.sleep(rest)?;
        let at = now_us();
        progress.sleep(WATCHED)?;
        figures.nothing.take(lab, at)?;
        let control = lab.lab().control(lab.lab().find(&role("leader"))?);
        let at = now_us();
        let switched = operate::switch_over(&control, None)?;
        progress.sleep(WATCHED)?;
        lab.wait_for_answers(at)?;
        figures.gaps.take(lab, at)?;
        figures.unprotected += u32::from(!switched.protected);
    }
    Ok(())
}

/// The figures of all moves.
#[derive(Default)]
struct Figures {
    gaps: Gaps,
    /// Around moments at which nothing happens.
    nothing: Gaps,
    unprotected: u32,
}

impl Figures {
    fn print(&self, moves: u32, verdict: Option<&Verdict>) {
        println!("{}", Machine::this("as chosen by the lab"));
        let audit = verdict.map(|verdict| &verdict.audit);
        let audit = audit.map_or_else(
            || "the acknowledged writes were not read back".into(),
            |audit| {
                format!(
                    "{} acknowledged writes, {} lost, {} connections reset",
                    audit.acked,
                    audit.lost,
                    audit.resets.len()
                )
            },
        );
        let moved = self.gaps.all.len();
        println!("\nthe lead was moved {moved} of {moves} times under load; {audit}");
        println!("not protected right after a move: {}", self.unprotected);
        self.gaps.print("a move");
        self.nothing.print("nothing happens");
    }
}

/// The clients' side of it.
#[derive(Default)]
struct Gaps {
    all: Sample,
    slowest: Sample,
}

impl Gaps {
    fn take(&mut self, lab: &Experiment, since_us: u64) -> Result<()> {
        let gap = lab.gap(since_us)?;
        self.all.push(gap.silence_us as f64 / 1000.0);
        self.slowest.push(gap.slowest_us as f64 / 1000.0);
        Ok(())
    }

    fn print(&self, what: &str) {
        for (name, sample) in [("client gap", &self.all), ("slowest client", &self.slowest)] {
            let (low, high) = sample.spread();
            let median = sample.median();
            println!("{what:<16} {name:<16} {median:>8.1} ms ({low:.1} to {high:.1})");
        }
    }
}

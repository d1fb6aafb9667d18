//! The measurements, written to disk at once, so that a run that is killed can go on.
//!
//! One JSON object a line. The first describes the run: its plan, and a checksum of the program under
//! test, because figures of two programs make no run. A line that was being written when the machine
//! died is dropped.

use super::figures::Figures;
use super::plan::Plan;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The result of one workload under one policy in one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub round: u32,
    pub workload: String,
    pub policy: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured(Box<Figures>),
    /// It could not be measured: the reason, in the words of the program that refused.
    Missing(String),
}

/// The file.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
    file: File,
    pub runs: Vec<Run>,
}

impl State {
    /// A new file, or with `go_on` an old one of the same plan and program.
    pub fn open(path: &Path, plan: &Plan, program: &Path, go_on: bool) -> Result<Self> {
        let what = || format!("cannot write {}", path.display());
        let bytes = fs::read(program)
            .with_context(|| format!("cannot read the program {}", program.display()))?;
        let head = json!({"plan": plan, "program": crc32c::crc32c(&bytes)});
        let old = fs::read_to_string(path).unwrap_or_default();
        let runs = match go_on {
            true => runs_of(&old, &head),
            false => Vec::new(),
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(what)?;
        }
        // The kept runs are written to a new file, which replaces the old one when it is whole.
        let new = path.with_extension("new");
        let mut text = format!("{head}\n");
        for run in &runs {
            text += &format!("{}\n", serde_json::to_value(run)?);
        }
        fs::write(&new, text).with_context(what)?;
        fs::rename(&new, path).with_context(what)?;
        Ok(Self {
            path: path.to_owned(),
            file: File::options().append(true).open(path).with_context(what)?,
            runs,
        })
    }

    /// Keeps a run.
    pub fn add(&mut self, run: Run) -> Result<()> {
        let line = format!("{}\n", serde_json::to_value(&run)?);
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.runs.push(run);
        Ok(())
    }

    /// Whether this cell is measured in this round.
    pub fn has(&self, round: u32, workload: &str, policy: &str) -> bool {
        self.runs.iter().any(|run| {
            (run.round, run.workload.as_str(), run.policy.as_str()) == (round, workload, policy)
                && matches!(run.outcome, Outcome::Measured(_))
        })
    }
}

/// The measurements in a file of the run that `head` describes. Cells that could not be measured then
/// are tried again.
fn runs_of(text: &str, head: &Value) -> Vec<Run> {
    let mut lines = text.lines();
    let first = lines
        .next()
        .and_then(|line| serde_json::from_str(line).ok());
    if first.as_ref() != Some(head) {
        return Vec::new();
    }
    let runs = lines.map_while(|line| serde_json::from_str::<Run>(line).ok());
    runs.filter(|run| matches!(run.outcome, Outcome::Measured(_)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::super::plan::tests::plan;
    use super::*;

    fn run(round: u32, outcome: Outcome) -> Run {
        Run {
            round,
            workload: "redis".into(),
            policy: "vsmr".into(),
            outcome,
        }
    }

    #[test]
    fn a_killed_run_goes_on_and_a_changed_one_begins_anew() {
        let folder = std::env::temp_dir().join(format!("bench-state-{}", std::process::id()));
        let (path, program) = (folder.join("runs"), folder.join("program"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(&program, "one").unwrap();
        let open = |plan: &Plan, go_on| State::open(&path, plan, &program, go_on).unwrap();

        let mut state = open(&plan(&[]), true);
        let measured = run(1, Outcome::Measured(Box::new(figures(10.0))));
        state.add(measured.clone()).unwrap();
        state.add(run(2, Outcome::Missing("no".into()))).unwrap();
        drop(state);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"round\":3,\"workl");
        fs::write(&path, text).unwrap();

        let state = open(&plan(&[]), true);
        assert_eq!(state.runs, [measured]);
        assert!(state.has(1, "redis", "vsmr"));
        assert!(!state.has(2, "redis", "vsmr") && !state.has(1, "redis", "none"));
        assert_eq!(
            open(&plan(&[]), true).runs.len(),
            1,
            "what was kept is kept again"
        );
        assert!(
            open(&plan(&["redis"]), true).runs.is_empty(),
            "another plan"
        );

        open(&plan(&[]), true)
            .add(run(1, Outcome::Measured(Box::new(figures(1.0)))))
            .unwrap();
        fs::write(&program, "two").unwrap();
        assert!(open(&plan(&[]), true).runs.is_empty(), "another program");
        open(&plan(&[]), true)
            .add(run(1, Outcome::Measured(Box::new(figures(1.0)))))
            .unwrap();
        assert!(
            open(&plan(&[]), false).runs.is_empty(),
            "asked to begin anew"
        );
        fs::remove_dir_all(folder).unwrap();
    }
}

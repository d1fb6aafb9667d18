//! The figures of a run so far, kept in a file, so that a run that was ended can go on.
//!
//! ```text
//!   run.jsonl    what was asked for, of which program      a line
//!                a series of one round, with its figures   a line each, as they are done
//! ```
//!
//! Figures of two programs, or of two ways to measure, are not put together: such a file is refused. A
//! series that was cut short is measured again as a whole. If a run was ended between two series, their
//! ratio compares two moments; a round has few such ratios.

use super::measured::Measured;
use super::plan::{Load, Plan, Setup};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The settings that must be the same for figures to belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Heading {
    /// The program's bytes in short.
    program: u32,
    warm_up_ms: u64,
    span_ms: u64,
    disk: PathBuf,
    cores_kept_awake: bool,
    /// Setups and loads, in words.
    series: Vec<String>,
}

/// One series of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub setup: Setup,
    pub round: usize,
    pub loads: Vec<(Load, Measured)>,
}

/// The file of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    path: PathBuf,
    file: File,
}

impl Progress {
    /// Begins a run's file in `folder`. The file of an earlier run is overwritten.
    pub fn begin(
        folder: &Path,
        plan: &Plan,
        (disk, cores_kept_awake): (&Path, bool),
    ) -> Result<Self> {
        let heading = heading(plan, disk, cores_kept_awake)?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(NAME);
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut progress = Self { path, file };
        progress.write(&heading)?;
        Ok(progress)
    }

    /// Goes on with the run whose file is in `folder`. Returns the series that it has done.
    pub fn resume(
        folder: &Path,
        plan: &Plan,
        (disk, cores_kept_awake): (&Path, bool),
    ) -> Result<(Self, Vec<Done>)> {
        let path = folder.join(NAME);
        let text = fs::read_to_string(&path).with_context(|| {
            let path = path.display();
            format!("no run was left to go on with ({path}): leave out --resume")
        })?;
        let (found, done) =
            parse(&text).with_context(|| format!("{} is no run's file", path.display()))?;
        ensure!(
            found == heading(plan, disk, cores_kept_awake)?,
            "the run in {} is of another program or was asked for with other options: give the \
             same, or leave out --resume to begin anew",
            path.display()
        );
        let mut progress = Self::begin(folder, plan, (disk, cores_kept_awake))?;
        for done in &done {
            progress.write(done)?;
        }
        Ok((progress, done))
    }

    /// Notes a series that is done.
    pub fn note(&mut self, done: &Done) -> Result<()> {
        self.write(done)
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        // In one write, so that being killed leaves at most the last line torn.
        let line = serde_json::to_string(line)? + "\n";
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// The run is over and its report written.
    pub fn finish(self) -> Result<()> {
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

const NAME: &str = "run.jsonl";

/// The content of a file. A last line without its end was being written, and is dropped.
fn parse(text: &str) -> Result<(Heading, Vec<Done>)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let heading = serde_json::from_str(lines.next().context("it is empty")?)?;
    let done = lines.map(serde_json::from_str);
    Ok((heading, done.collect::<Result<_, _>>()?))
}

fn heading(plan: &Plan, disk: &Path, cores_kept_awake: bool) -> Result<Heading> {
    let me = std::env::current_exe().context("cannot find this program's own file")?;
    let program = fs::read(&me).with_context(|| format!("cannot read {}", me.display()))?;
    let series = plan.series.iter().map(|series| {
        let loads: Vec<_> = series.loads.iter().map(Load::to_string).collect();
        format!("{}: {}", series.setup, loads.join("; "))
    });
    Ok(Heading {
        program: crc32c::crc32c(&program),
        warm_up_ms: plan.warm_up.as_millis() as u64,
        span_ms: plan.span.as_millis() as u64,
        disk: disk.to_owned(),
        cores_kept_awake,
        series: series.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::FabricKind;
    use super::*;

    fn done(plan: &Plan, round: usize) -> Done {
        let series = &plan.series[round];
        let figures = |load: &Load| (*load, Measured::default());
        Done {
            setup: series.setup,
            round,
            loads: series.loads.iter().map(figures).collect(),
        }
    }

    #[test]
    fn a_run_goes_on_where_it_was_ended() {
        let name = format!("plover-bench-progress-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let plan = Plan::quick(&[FabricKind::Shm]);
        let how = (Path::new("/a/disk"), true);
        assert!(
            Progress::resume(&folder, &plan, how).is_err(),
            "nothing yet"
        );
        let mut progress = Progress::begin(&folder, &plan, how).unwrap();
        progress.note(&done(&plan, 0)).unwrap();
        progress.note(&done(&plan, 1)).unwrap();
        // Killed while it wrote.
        progress.file.write_all(b"{\"setup\":").unwrap();
        drop(progress);

        let other = (Path::new("/a/disk"), false);
        let refused = Progress::resume(&folder, &plan, other).unwrap_err();
        assert!(refused.to_string().contains("other options"), "{refused}");
        let mut longer = plan.clone();
        longer.rounds += 1;
        let (mut progress, found) = Progress::resume(&folder, &longer, how).unwrap();
        assert_eq!(
            found,
            [done(&plan, 0), done(&plan, 1)],
            "more rounds are welcome"
        );
        progress.note(&done(&plan, 2)).unwrap();
        drop(progress);
        let (progress, found) = Progress::resume(&folder, &plan, how).unwrap();
        assert_eq!(found.len(), 3, "and what was torn is gone");
        progress.finish().unwrap();
        assert!(Progress::resume(&folder, &plan, how).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}

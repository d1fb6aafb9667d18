//! The result of a drill: what clients saw of each thing that was done.

use crate::experiment::Verdict;
use serde::Serialize;
use std::fmt;

/// What clients saw of one thing.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The thing.
    pub name: &'static str,
    /// When it began, in µs on the clock of the traces.
    #[serde(skip)]
    pub begun_us: u64,
    /// How long it took until the guest was protected and nothing of it was left to do.
    pub took_us: u64,
    /// The longest time in which no client had an answer.
    pub silence_us: u64,
    /// The longest time in which one connection had no answer.
    pub slowest_us: u64,
    /// Writes that were acknowledged meanwhile.
    pub requests: u64,
    /// Those of them that were not there in the end.
    pub lost: u64,
    /// Connections that were reset meanwhile.
    pub resets: usize,
    /// How often one replica alone held the guest because the host that was worked on had left the in-sync set; `None` if
    /// a host was dead anyway.
    pub alone: Option<usize>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, in {:.1} s; no client had an answer for {} ms, one for {} ms",
            self.name,
            self.took_us as f64 / 1e6,
            self.silence_us / 1000,
            self.slowest_us / 1000
        )
    }
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// What was done, in its order.
    pub rows: Vec<Row>,
    /// Writes that were acknowledged in the whole round.
    pub acked_writes: u64,
    /// Those of them that were not there in the end.
    pub lost_writes: u64,
    /// Connections that were reset.
    pub resets: usize,
    /// Frames that a host sent as the guest out of turn.
    pub two_senders: u64,
    #[serde(skip)]
    verdict: Verdict,
}

impl Round {
    /// Lost writes are counted in the row in which they were acknowledged.
    pub(super) fn new(mut rows: Vec<Row>, verdict: Verdict) -> Self {
        for acked_us in &verdict.audit.lost_acked_us {
            let row = rows.iter_mut().rfind(|row| row.begun_us <= *acked_us);
            if let Some(row) = row {
                row.lost += 1;
            }
        }
        Self {
            rows,
            acked_writes: verdict.audit.acked,
            lost_writes: verdict.audit.lost,
            resets: verdict.audit.resets.len(),
            two_senders: verdict.senders.out_of_turn,
            verdict,
        }
    }

    /// Whether nothing was lost, no connection was reset, there was one sender at a time, and no planned work left one
    /// replica alone.
    pub fn is_good(&self) -> bool {
        self.verdict.is_good() && self.rows.iter().all(|row| row.alone.unwrap_or(0) == 0)
    }
}

/// All rounds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// They end with the first one that is not good.
    pub rounds: Vec<Round>,
}

impl Report {
    /// Whether every round was good.
    pub fn is_good(&self) -> bool {
        !self.rounds.is_empty() && self.rounds.iter().all(Round::is_good)
    }

    /// `./x drill --json` prints it as its last line.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({"ok": self.is_good(), "rounds": self.rounds})
    }

    /// The rows of one name, of all rounds.
    fn of(&self, name: &str) -> Vec<&Row> {
        let rows = self.rounds.iter().flat_map(|round| &round.rows);
        rows.filter(|row| row.name == name).collect()
    }
}

/// The table and the verdict. "alone" is [`Row::alone`].
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<&str> = Vec::new();
        for row in self.rounds.iter().flat_map(|round| &round.rows) {
            if !names.contains(&row.name) {
                names.push(row.name);
            }
        }
        writeln!(
            f,
            "\n{:<28} {:>5} {:>22} {:>22} {:>20} {:>9} {:>5} {:>6} {:>5}",
            "step", "times", "gap", "slowest client", "took", "requests", "lost", "resets", "alone"
        )?;
        for name in names {
            let rows = self.of(name);
            let sum = |of: fn(&Row) -> u64| rows.iter().map(|row| of(row)).sum::<u64>();
            writeln!(
                f,
                "{name:<28} {:>5} {:>22} {:>22} {:>20} {:>9} {:>5} {:>6} {:>5}",
                rows.len(),
                spread(&rows, |row| row.silence_us as f64 / 1e3, 0, "ms"),
                spread(&rows, |row| row.slowest_us as f64 / 1e3, 0, "ms"),
                spread(&rows, |row| row.took_us as f64 / 1e6, 1, "s"),
                sum(|row| row.requests),
                sum(|row| row.lost),
                sum(|row| row.resets as u64),
                rows.iter()
                    .filter_map(|row| row.alone)
                    .reduce(|a, b| a + b)
                    .map_or_else(|| "-".into(), |times| times.to_string()),
            )?;
        }
        let sum = |of: fn(&Round) -> u64| self.rounds.iter().map(of).sum::<u64>();
        writeln!(
            f,
            "\n{} rounds; {} acknowledged writes read back: {} lost; {} connections reset; {} frames sent out of turn",
            self.rounds.len(),
            sum(|round| round.acked_writes),
            sum(|round| round.lost_writes),
            sum(|round| round.resets as u64),
            sum(|round| round.two_senders),
        )?;
        for audit in self.rounds.iter().map(|round| &round.verdict.audit) {
            for reset in &audit.resets {
                writeln!(f, "  {reset}")?;
            }
            for key in &audit.lost_keys {
                writeln!(f, "  lost: {key}")?;
            }
        }
        f.write_str(match self.is_good() {
            true => "nothing was lost",
            false => "FAILED",
        })
    }
}

/// The median with the least and the greatest; the number alone if there is one.
fn spread(rows: &[&Row], of: impl Fn(&Row) -> f64, decimals: usize, unit: &str) -> String {
    let mut values: Vec<f64> = rows.iter().map(|row| of(row)).collect();
    values.sort_by(f64::total_cmp);
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    match &values[..] {
        [] | [_] => format!("{median:.decimals$} {unit}"),
        [least, .., most] => {
            format!("{median:.decimals$} ({least:.decimals$} to {most:.decimals$}) {unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Audit;
    use crate::senders::Senders;
    use plover_lab::control::SyncStatus;

    fn row(name: &'static str, begun_us: u64, silence_us: u64) -> Row {
        Row {
            name,
            begun_us,
            took_us: 1_500_000,
            silence_us,
            slowest_us: 2 * silence_us,
            requests: 10,
            lost: 0,
            resets: 0,
            alone: Some(0),
        }
    }

    fn round(lost_acked_us: Vec<u64>) -> Round {
        let verdict = Verdict {
            audit: Audit {
                acked: 20,
                lost: lost_acked_us.len() as u64,
                lost_acked_us,
                ..Audit::default()
            },
            senders: Senders {
                frames: 1,
                order: vec![0],
                ..Senders::default()
            },
            sync: SyncStatus::default(),
        };
        Round::new(vec![row("a", 100, 30_000), row("b", 200, 80_000)], verdict)
    }

    #[test]
    fn a_lost_write_is_told_in_its_row() {
        let good = Report {
            rounds: vec![round(vec![]), round(vec![])],
        };
        assert!(good.is_good() && good.to_string().contains("nothing was lost"));
        let bad = Report {
            rounds: vec![round(vec![]), round(vec![150, 199, 201])],
        };
        let lost: Vec<u64> = bad.rounds[1].rows.iter().map(|row| row.lost).collect();
        assert_eq!(lost, [2, 1]);
        assert!(!bad.is_good() && bad.to_string().ends_with("FAILED"));
        assert_eq!(bad.json()["rounds"][1]["rows"][0]["lost"], 2);
        assert_eq!(bad.json()["ok"], false);
        assert!(!Report::default().is_good());
    }

    #[test]
    fn work_that_leaves_one_replica_alone_is_not_good() {
        let mut alone = round(vec![]);
        alone.rows[0].alone = None;
        assert!(alone.is_good(), "a host is dead");
        alone.rows[0].alone = Some(1);
        assert!(!alone.is_good());
    }

    #[test]
    fn the_table_has_medians_and_spreads() {
        let mut rounds = vec![round(vec![]), round(vec![]), round(vec![])];
        rounds[1].rows[0].silence_us = 90_000;
        rounds[2].rows[0].silence_us = 31_000;
        let text = Report { rounds }.to_string();
        let line = text.lines().find(|line| line.starts_with("a ")).unwrap();
        assert!(line.contains("31 (30 to 90) ms"), "{line}");
        assert!(line.ends_with("30     0      0     0"), "{line}");
    }
}

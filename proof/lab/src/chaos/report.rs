//! The result: a line a step, a table by fault, and one line that says whether all was well.

use crate::load::Gap;
use plover_register_proof::check::Checked;
use std::collections::BTreeMap;
use std::fmt;

/// One step that went well.
#[derive(Clone, Debug)]
pub struct Row {
    /// The step.
    pub number: u64,
    /// Its faults.
    pub what: String,
    /// The replicas that they hit.
    pub replicas: Vec<u8>,
    /// The times without an answer; none for a reboot.
    pub gap: Option<Gap>,
    /// From the first fault until the guest was protected for good; `None` if it always was.
    pub protected_us: Option<u64>,
    /// From the healing until every replica had its part and every client an answer.
    pub whole_us: u64,
    /// Answers to clients that were checked.
    pub answered: usize,
}

/// The words behind "step N: ".
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.replicas.is_empty() {
            let ids: Vec<String> = self.replicas.iter().map(u8::to_string).collect();
            write!(f, "hit replica {}; ", ids.join(" and "))?;
        }
        match self.gap {
            Some(gap) => write!(
                f,
                "no client had an answer for {} ms, one for {} ms; ",
                gap.silence_us / 1000,
                gap.slowest_us / 1000
            )?,
            None => f.write_str("the guest booted; ")?,
        }
        match self.protected_us {
            Some(us) => write!(f, "protected after {:.1} s, ", us as f64 / 1e6)?,
            None => f.write_str("always protected, ")?,
        }
        write!(
            f,
            "whole {:.1} s after healing; ",
            self.whole_us as f64 / 1e6
        )?;
        match self.answered {
            0 => f.write_str("a new history begins"),
            count => write!(f, "{count} answers are linearizable"),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The steps that went well.
    pub rows: Vec<Row>,
    /// What was checked.
    pub checked: Checked,
    /// The violation that has ended the run.
    pub violation: Option<String>,
}

impl Report {
    /// One of no steps.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            rows: Vec::new(),
            checked: Checked::default(),
            violation: None,
        }
    }
}

/// The table and the verdict.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in &self.rows {
            kinds.entry(&row.what).or_default().push(row);
        }
        writeln!(
            f,
            "\n{:<58} {:>5} {:>9} {:>9} {:>10} {:>8}",
            "faults", "times", "gap", "slowest", "protected", "whole"
        )?;
        for (what, rows) in kinds {
            let worst =
                |of: &dyn Fn(&Row) -> Option<u64>| rows.iter().filter_map(|row| of(row)).max();
            let silence = worst(&|row| Some(row.gap?.silence_us));
            let slowest = worst(&|row| Some(row.gap?.slowest_us));
            let protected = worst(&|row| row.protected_us);
            let whole = worst(&|row| Some(row.whole_us));
            writeln!(
                f,
                "{what:<58} {:>5} {:>9} {:>9} {:>10} {:>8}",
                rows.len(),
                milliseconds(silence),
                milliseconds(slowest),
                seconds(protected),
                seconds(whole)
            )?;
        }
        let Checked {
            answered,
            ambiguous,
            longest,
        } = self.checked;
        writeln!(
            f,
            "the worst of each. gap: no client had an answer; slowest: one client; protected: after the first fault; \
             whole: after healing\n"
        )?;
        if let Some(violation) = &self.violation {
            writeln!(f, "VIOLATION\n{violation}\n")?;
        }
        let verdict = match self.violation {
            None => "no violation",
            Some(_) => "A VIOLATION",
        };
        write!(
            f,
            "seed {}: {verdict}; {} steps were survived, {answered} answers are linearizable ({ambiguous} requests without \
             an answer, at most {longest} operations in a part)",
            self.seed,
            self.rows.len()
        )
    }
}

fn milliseconds(us: Option<u64>) -> String {
    us.map_or_else(|| "-".into(), |us| format!("{} ms", us / 1000))
}

fn seconds(us: Option<u64>) -> String {
    us.map_or_else(|| "-".into(), |us| format!("{:.1} s", us as f64 / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_worst_of_each_fault() {
        let row = |number, silence_us, protected_us| Row {
            number,
            what: "kill leader".into(),
            replicas: vec![0],
            gap: Some(Gap {
                silence_us,
                slowest_us: 2 * silence_us,
                ..Gap::default()
            }),
            protected_us,
            whole_us: 1_500_000,
            answered: 10,
        };
        let mut report = Report::new(7);
        report.rows = vec![row(1, 200_000, Some(300_000)), row(2, 150_000, None)];
        let said = report.to_string();
        let line = said
            .lines()
            .find(|line| line.starts_with("kill leader"))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "kill", "leader", "2", "200", "ms", "400", "ms", "0.3", "s", "1.5", "s",
        ];
        assert_eq!(words, expected);
        assert!(said.ends_with("0 operations in a part)") && said.contains("seed 7: no violation"));
        report.violation = Some("lost".into());
        let said = report.to_string();
        assert!(said.contains("VIOLATION\nlost") && said.contains("seed 7: A VIOLATION"));
    }
}

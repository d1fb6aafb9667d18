//! The outcome of a trial.

use serde::Serialize;
use std::fmt;

/// A fault, and for how long clients had no answer.
#[derive(Clone, Debug, Serialize)]
pub struct Gap {
    /// The fault, and the replica that it hit.
    pub fault: String,
    /// The longest time without an answer around it, in ms.
    pub ms: u64,
}

/// The outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program.
    pub program: &'static str,
    /// Acknowledged writes, and how many of them are lost.
    pub acknowledged: usize,
    /// See [`Self::acknowledged`].
    pub lost: usize,
    /// Answers that were not what they should be.
    pub wrong: Vec<String>,
    /// How often clients connected.
    pub connections: usize,
    /// The faults.
    pub gaps: Vec<Gap>,
    /// Answered operations on keys that several clients write and read; nothing for a program without such keys.
    pub operations: Option<usize>,
    /// The histories that no order explains.
    pub violation: Option<String>,
    /// Keys whose value is not the same in all programs.
    pub differing: Vec<String>,
    /// What `plover run status` notes in the end, for each replica: differences that the check has found.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether everything is as promised.
    pub fn is_good(&self) -> bool {
        self.acknowledged > 0
            && self.lost == 0
            && self.wrong.is_empty()
            && self.operations != Some(0)
            && self.violation.is_none()
            && self.differing.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "audit of {}", self.program)?;
        writeln!(
            f,
            "  {} acknowledged writes read back: {} lost",
            self.acknowledged, self.lost
        )?;
        writeln!(
            f,
            "  clients connected {} times; without an answer",
            self.connections
        )?;
        for gap in &self.gaps {
            writeln!(f, "    {:6} ms  {}", gap.ms, gap.fault)?;
        }
        match (&self.violation, self.operations) {
            (Some(violation), _) => writeln!(f, "  {violation}")?,
            (None, Some(0)) => writeln!(f, "  no operation on a shared key was answered")?,
            (None, Some(count)) => {
                writeln!(f, "  {count} operations on shared keys: linearizable")?;
            }
            (None, None) => {}
        }
        for wrong in self.wrong.iter().take(5) {
            writeln!(f, "  {wrong}")?;
        }
        for note in &self.notes {
            writeln!(f, "  noted: {note}")?;
        }
        match self.differing.first() {
            None => write!(f, "  all three programs hold the same data"),
            Some(key) => write!(
                f,
                "  {} keys are NOT the same in all three programs, such as {key}",
                self.differing.len()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_answer_or_registers_without_answers_are_not_good() {
        let good = Report {
            program: "redis",
            acknowledged: 100,
            lost: 0,
            wrong: Vec::new(),
            connections: 4,
            gaps: Vec::new(),
            operations: Some(9),
            violation: None,
            differing: Vec::new(),
            notes: Vec::new(),
        };
        let without_registers = Report {
            operations: None,
            ..good.clone()
        };
        assert!(good.is_good() && without_registers.is_good());
        let silent = Report {
            operations: Some(0),
            ..good.clone()
        };
        let wrong = Report {
            wrong: vec!["r-1: a wrong answer: \"OK\" is no number".into()],
            ..good
        };
        assert!(!silent.is_good() && !wrong.is_good());
    }
}

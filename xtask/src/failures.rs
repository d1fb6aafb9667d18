//! The failures of a long run of tests, told again at its end.

use crate::run::{Cargo, Result};
use anyhow::Context;
use std::io::{BufRead, BufReader, Read, Write};

/// Lines of a failed test's output that are repeated, from its end.
const LINES_MAX: usize = 100;

/// The failures of one or more runs of `cargo test`.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    tests: Vec<(String, Vec<String>)>,
    /// The test whose output is being printed.
    is_printed: bool,
}

impl Failures {
    /// Runs a `cargo test`, shows what it prints and keeps what failed tests had to say. `false` if it failed.
    pub(crate) fn watch(&mut self, tests: Cargo) -> Result<bool> {
        let mut child = tests.piped()?;
        self.show(child.stdout.take().expect("it is piped"))?;
        Ok(child.wait().context("cannot wait for cargo")?.success())
    }

    /// Shows what tests print, and keeps what failed ones had to say.
    pub(crate) fn show(&mut self, output: impl Read) -> Result<()> {
        let mut shown = std::io::stdout();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("cannot read what the tests print")?;
            shown.write_all(&line)?;
            shown.write_all(b"\n")?;
            self.take(&String::from_utf8_lossy(&line));
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        let name = line.strip_prefix("---- ");
        let name = name.and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = name {
            self.tests.push((name.to_owned(), Vec::new()));
            self.is_printed = true;
        } else if line == "failures:" {
            self.is_printed = false;
        } else if self.is_printed {
            let (_, lines) = self.tests.last_mut().expect("its name came before");
            lines.push(line.to_owned());
        }
    }

    /// Says again which tests failed, and the end of what each printed.
    pub(crate) fn repeat(&self) {
        for (name, lines) in &self.tests {
            let lines = lines.join("\n");
            let lines: Vec<&str> = lines.trim().lines().collect();
            let left_out = lines.len().saturating_sub(LINES_MAX);
            eprintln!("\nx: {name} failed:");
            if left_out > 0 {
                eprintln!("    ({left_out} lines before are above)");
            }
            for line in &lines[left_out..] {
                eprintln!("    {line}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_print_is_kept() {
        let mut failures = Failures::default();
        let output = "running 2 tests\ntest a ... FAILED\ntest b::c ... FAILED\n\nfailures:\n\n\
                      ---- a stdout ----\nhalf\nwhole\n\n---- b::c stdout ----\nof b\n\n\n\
                      failures:\n    a\n    b::c\n\ntest result: FAILED.";
        for line in output.lines() {
            failures.take(line);
        }
        let names: Vec<_> = failures.tests.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["a", "b::c"]);
        assert_eq!(failures.tests[0].1, ["half", "whole", ""]);
        assert_eq!(failures.tests[1].1, ["of b", "", ""]);
    }
}

//! The last lines of this replica's log, kept in memory for `plover logs`.
//!
//! A service's log is in the journal of its host. The lines are kept here as well, so that an operator of any host
//! can read the logs of all, over the links that the replicas have anyway.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most lines that are kept, and the most bytes of them.
const LINES_MAX: usize = 10_000;
const BYTES_MAX: usize = 1 << 20;

/// A longer line is cut.
const LINE_BYTES_MAX: usize = 4 << 10;

/// The most bytes of lines in one answer. Answers travel between replicas beside their records.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// The last lines of a log. Clones are the same log. Write formatted lines to it, without colours.
#[derive(Clone, Debug, Default)]
pub struct RecentLog(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<String>,
    bytes: usize,
    /// How many lines there have been before the kept ones.
    gone: u64,
    /// A line whose end has not been written yet.
    rest: Vec<u8>,
}

/// The lines that an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The last ones, so many.
    Last(u64),
    /// Those after the first so many that this process has logged.
    After {
        /// The process of which they were counted.
        process: u32,
        /// How many.
        count: u64,
    },
}

impl RecentLog {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to an operator, who asks again with `process` and `next` until `more` is false.
    pub(crate) fn answer(&self, wanted: Wanted) -> Value {
        let (lines, process) = (self.lines(), std::process::id());
        let end = lines.gone + lines.kept.len() as u64;
        let from = match wanted {
            Wanted::Last(count) => end.saturating_sub(count),
            Wanted::After { process: of, count } if of == process && count <= end => count,
            // The process has been started again.
            Wanted::After { .. } => 0,
        };
        let from = from.max(lines.gone);
        let (mut next, mut bytes, mut taken) = (from, 0, Vec::new());
        for line in lines.kept.iter().skip((from - lines.gone) as usize) {
            bytes += line.len();
            if bytes > ANSWER_BYTES_MAX {
                break;
            }
            taken.push(line.as_str());
            next += 1;
        }
        json!({"process": process, "next": next, "more": next < end, "lines": taken})
    }
}

impl Lines {
    fn keep(&mut self, line: &[u8]) {
        let cut = &line[..line.len().min(LINE_BYTES_MAX)];
        let line = String::from_utf8_lossy(cut).into_owned();
        self.bytes += line.len();
        self.kept.push_back(line);
        while self.kept.len() > LINES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            self.gone += 1;
        }
    }
}

impl Write for RecentLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines();
        lines.rest.extend_from_slice(bytes);
        while let Some(end) = lines.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = lines.rest.drain(..=end).collect();
            lines.keep(&line[..end]);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(answer: &Value) -> Vec<&str> {
        let lines = answer["lines"].as_array().expect("lines");
        lines.iter().filter_map(Value::as_str).collect()
    }

    fn after(answer: &Value) -> Wanted {
        Wanted::After {
            process: answer["process"].as_u64().unwrap() as u32,
            count: answer["next"].as_u64().unwrap(),
        }
    }

    #[test]
    fn the_last_lines_are_told_and_then_those_that_follow() {
        let mut log = RecentLog::default();
        log.write_all(b"one\ntwo\nthr").unwrap();
        let first = log.answer(Wanted::Last(1));
        assert_eq!(lines(&first), ["two"]);
        assert_eq!(lines(&log.answer(after(&first))), Vec::<&str>::new());
        log.write_all(b"ee\n").unwrap();
        assert_eq!(lines(&log.answer(after(&first))), ["three"]);
        let restarted = Wanted::After {
            process: 0,
            count: 2,
        };
        assert_eq!(lines(&log.answer(restarted)), ["one", "two", "three"]);
    }

    #[test]
    fn a_long_log_is_bounded_and_told_in_parts() {
        let mut log = RecentLog::default();
        for number in 0..LINES_MAX + 5 {
            log.write_all(format!("{number:>100}\n").as_bytes())
                .unwrap();
        }
        log.write_all(&[b'x'; 2 * LINE_BYTES_MAX]).unwrap();
        log.write_all(b"\n").unwrap();
        let mut answer = log.answer(Wanted::Last(u64::MAX));
        let first = lines(&answer)[0].trim().parse::<usize>().unwrap();
        let mut seen = lines(&answer).len();
        while answer["more"] == true {
            answer = log.answer(after(&answer));
            seen += lines(&answer).len();
        }
        assert_eq!(
            lines(&answer).last().map(|line| line.len()),
            Some(LINE_BYTES_MAX)
        );
        assert_eq!(first + seen, LINES_MAX + 6, "none is left out");
        assert!(seen <= LINES_MAX && log.lines().bytes <= BYTES_MAX);
    }
}

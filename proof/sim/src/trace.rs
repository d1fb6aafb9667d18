//! The trace of a run: lines that are printed, kept for a report, or only summed up.

use crate::rng::mix;
use plover_types::Micros;
use std::collections::VecDeque;
use std::fmt::Arguments;

/// How the lines of a trace are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// There are none. This is the fastest.
    #[default]
    Off,
    /// They are summed up, to compare two runs, and the last ones are kept for a report.
    Sum,
    /// They are printed, and summed up.
    Print,
}

/// Lines that a report shows.
const TAIL_LINES: usize = 60;

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    mode: TraceMode,
    sum: u64,
    tail: VecDeque<String>,
}

impl Trace {
    /// An empty trace.
    pub fn new(mode: TraceMode) -> Self {
        Self {
            mode,
            sum: 0,
            tail: VecDeque::new(),
        }
    }

    /// Whether lines are wanted at all.
    pub fn is_on(&self) -> bool {
        self.mode != TraceMode::Off
    }

    /// Adds a line.
    pub fn line(&mut self, now: Micros, what: Arguments<'_>) {
        let line = format!("{:>12} {what}", format!("{now}"));
        for chunk in line.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.sum = mix(self.sum, u64::from_le_bytes(word));
        }
        if self.mode == TraceMode::Print {
            println!("{line}");
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    /// A digest of all lines.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The last lines.
    pub fn into_tail(self) -> Vec<String> {
        self.tail.into()
    }
}

/// Adds a line to a world's trace, if lines are wanted.
#[macro_export]
macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_on() {
            let now = $world.plan.now();
            $world.trace.line(now, format_args!($($what)*));
        }
    };
}
pub use trace;

//! Every state of a small group that a few steps can reach.
//!
//! ```text
//!            propose            timeout             deliver              forget
//!   state -> on a leader   ->   any process,   ->   any record,   ->     any process loses
//!                               any time            any order            its memory
//! ```
//!
//! The model is the core that runs in production, three of it, between rings that are sets: what
//! was written may arrive in any order, twice (within a bound), or never, and a record that is
//! not delivered within the bound is a record that was lost. A process that takes no step is a
//! process that crashed.
//!
//! Time is abstract: each process has its own clock, which jumps to its next deadline when that
//! times out, whenever the checker likes. So the clocks of two processes say nothing about each
//! other, and what holds here holds without any assumption about time. (The lease is such an
//! assumption, so it is no property of the model but of the simulator.)
//!
//! States are told apart by their [`mod@print`]; the checker is `stateright`, breadth first.

mod group;
mod print;
mod process;

pub use group::{Act, Bounds, Broken, Group, State};

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt;
use std::time::{Duration, Instant};

/// What the checker found.
#[derive(Debug)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Steps taken, those to known states included.
    pub steps: usize,
    /// The longest chain of steps that was taken.
    pub depth: usize,
    /// The states that the steps may lead to were all looked at, down to the bound.
    pub complete: bool,
    /// The names of properties that were broken, each with the steps that break it.
    pub broken: Vec<(&'static str, Vec<String>)>,
    /// The names of moments that were reached.
    pub reached: Vec<&'static str>,
    /// How long it took.
    pub span: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.complete { "all" } else { "not all" };
        writeln!(
            f,
            "{} states, {} steps, {all} paths of up to {} steps, {:.1} s",
            self.states,
            self.steps,
            self.depth,
            self.span.as_secs_f64()
        )?;
        writeln!(f, "reached: {}", self.reached.join("; "))?;
        for (name, steps) in &self.broken {
            writeln!(f, "BROKEN {name}, by {}", steps.join(", "))?;
        }
        Ok(())
    }
}

/// Explores `group` within its bounds, or for so long as `patience` lasts.
pub fn explore(group: Group, patience: Duration) -> Report {
    let begun = Instant::now();
    let watched: Vec<_> = group.properties();
    let checker = group
        .checker()
        // With more than one the search is not quite breadth first, and a state may first be
        // reached by so long a path that what follows it lies out of bounds.
        .threads(1)
        .timeout(patience)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut broken = Vec::new();
    let mut reached = Vec::new();
    for (name, path) in checker.discoveries() {
        let property = watched.iter().find(|property| property.name == name);
        if property.is_some_and(|property| property.expectation.discovery_is_failure()) {
            let steps = path.into_actions();
            broken.push((name, steps.iter().map(|act| format!("{act:?}")).collect()));
        } else {
            reached.push(name);
        }
    }
    reached.sort_unstable();
    Report {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        // The checker counts states on a path, and the first took no step.
        depth: checker.max_depth() - 1,
        complete: begun.elapsed() < patience,
        broken,
        reached,
        span: begun.elapsed(),
    }
}

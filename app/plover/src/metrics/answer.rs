//! The answers of this host's replicas to one scrape.

use crate::target::Target;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a replica may take to answer. Prometheus itself waits for 10 s by default.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A replica's answer.
#[derive(Debug)]
pub struct Answer {
    /// `None` if it did not answer in time.
    pub status: Option<Value>,
    pub took: Duration,
}

impl Answer {
    fn of(target: &Target) -> Self {
        let began = Instant::now();
        let status = target.ask(|control| control.request(&json!({"op": "status"})));
        Self {
            status: status.ok(),
            took: began.elapsed(),
        }
    }
}

/// Asks all of them at the same time, so that one that hangs delays no other.
pub fn ask_all(targets: &[Target]) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(|| Answer::of(target)))
            .collect();
        let answer = |thread: std::thread::ScopedJoinHandle<'_, Answer>| {
            let silent = Answer {
                status: None,
                took: ANSWER_WITHIN,
            };
            thread.join().unwrap_or(silent)
        };
        threads.into_iter().map(answer).collect()
    })
}

//! The answers of this host's replicas to one scrape.

use crate::target::{Target, Targets};
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How long a replica may take to answer. Prometheus itself waits for 10 s by default.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A replica's answer.
#[derive(Debug)]
pub struct Answer {
    pub from: Arc<Target>,
    /// `None` if it did not answer in time.
    pub status: Option<Value>,
    pub took: Duration,
}

impl Answer {
    fn of(target: &Arc<Target>) -> Self {
        let began = Instant::now();
        let status = target.ask(|control| control.request(&json!({"op": "status"})));
        Self {
            from: Arc::clone(target),
            status: status.ok(),
            took: began.elapsed(),
        }
    }
}

/// The answers to all scrapes. The replicas are asked once at a time, however many scrapes there are.
#[derive(Debug, Default)]
pub struct Answers {
    /// The last answers, and when they were complete.
    last: Mutex<Option<(Instant, Arc<Vec<Answer>>)>>,
}

impl Answers {
    /// Asks all replicas. A scrape that has waited while they were asked for another one gets the same answers.
    pub fn of(&self, targets: &Targets) -> Arc<Vec<Answer>> {
        let came = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((complete, answers)) if came < *complete => Arc::clone(answers),
            _ => {
                let answers = Arc::new(ask_all(&targets.now(ANSWER_WITHIN)));
                *last = Some((Instant::now(), Arc::clone(&answers)));
                answers
            }
        }
    }
}

/// Asks all of them at the same time, so that one that hangs delays no other.
fn ask_all(targets: &[Arc<Target>]) -> Vec<Answer> {
    thread::scope(|scope| {
        let threads: Vec<_> = targets
            .iter()
            .map(|target| {
                let asks = thread::Builder::new().spawn_scoped(scope, move || Answer::of(target));
                (target, asks)
            })
            .collect();
        // No thread is to be had when the host is short of tasks or memory.
        let answer =
            |(target, thread): (&Arc<Target>, io::Result<ScopedJoinHandle<'_, Answer>>)| {
                let joined = thread.ok().and_then(|thread| thread.join().ok());
                joined.unwrap_or_else(|| Answer {
                    from: Arc::clone(target),
                    status: None,
                    took: ANSWER_WITHIN,
                })
            };
        threads.into_iter().map(answer).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_that_waits_gets_the_answers_to_the_one_before() {
        let answers = Answers::default();
        let nobody = Targets::Named(Vec::new());
        let first = answers.of(&nobody);
        assert!(
            !Arc::ptr_eq(&first, &answers.of(&nobody)),
            "one that comes later asks anew"
        );
        let waited = thread::scope(|scope| {
            let mut last = answers.last.lock().unwrap();
            let waits = scope.spawn(|| answers.of(&nobody));
            // Later than the thread can come.
            let complete = Instant::now() + Duration::from_secs(3600);
            *last = Some((complete, Arc::clone(&first)));
            drop(last);
            waits.join().unwrap()
        });
        assert!(Arc::ptr_eq(&first, &waited));
    }
}

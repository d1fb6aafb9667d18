//! All guests of the cluster, as `plover fleet status` shows them.
//!
//! ```text
//!   a question      the page gets
//!   is answered ──▶ the answer
//!   fails       ──▶ the last answer with its age, and why
//!   hangs       ──▶ the last answer with its age, and that it hangs
//! ```
//!
//! A question that hangs is not given up. It ends when Pacemaker goes on or is gone, and then the next one is asked.

use super::{age_ms, lock};
use crate::fleet::FleetStatus;
use anyhow::Result;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The time between two questions. The cluster's own knowledge of guests on other hosts is up to 10 s old anyway.
pub const ASK_EVERY: Duration = Duration::from_secs(2);

/// A question that takes longer is a trouble. `crm_mon` takes less than a second; a replica of this host that hangs, three.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// The last answer, and why there is no newer one.
#[derive(Debug, Default)]
pub struct Fleet(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    heard: Option<Heard>,
    /// When the question that has no answer yet was asked.
    asked: Option<Instant>,
    /// Why the last question failed, if it did.
    trouble: Option<String>,
}

/// An answer.
#[derive(Debug)]
struct Heard {
    /// When the question was asked: a late answer may be as old as that.
    at: Instant,
    status: FleetStatus,
}

impl Fleet {
    /// Asks, and keeps the answer.
    pub fn look(&self, now: Instant, ask: impl FnOnce() -> Result<FleetStatus>) {
        lock(&self.0).asked = Some(now);
        let answer = ask().map_err(|error| format!("{error:#}"));
        lock(&self.0).learn(now, answer);
    }

    /// All guests, how old that is, and why it is not newer.
    pub fn to_json(&self, now: Instant) -> Value {
        let known = lock(&self.0);
        let heard = known.heard.as_ref();
        json!({
            "age_ms": heard.map(|heard| age_ms(heard.at, now)),
            "trouble": known.trouble(now),
            "guests": heard.map_or(json!([]), |heard| json!(heard.status)),
        })
    }
}

impl Known {
    fn learn(&mut self, at: Instant, answer: Result<FleetStatus, String>) {
        self.asked = None;
        let trouble = match answer {
            Ok(status) => {
                self.heard = Some(Heard { at, status });
                None
            }
            Err(why) => Some(why),
        };
        if trouble.is_some() != self.trouble.is_some() {
            match &trouble {
                Some(why) => tell!("plover: the cluster does not answer: {why}"),
                None => tell!("plover: the cluster answers again"),
            }
        }
        self.trouble = trouble;
    }

    fn trouble(&self, now: Instant) -> Option<String> {
        let hangs = |asked: Instant| now.saturating_duration_since(asked) > ANSWER_WITHIN;
        if self.asked.is_some_and(hangs) {
            let seconds = ANSWER_WITHIN.as_secs();
            return Some(format!(
                "crm_mon has not answered within {seconds} s: `crm_mon -1` on this host shows whether Pacemaker hangs"
            ));
        }
        self.trouble.clone()
    }
}

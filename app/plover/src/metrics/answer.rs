//! Asking the replicas of this host.

use plover_lab::control::Control;
use plover_node::ReplicaConfig;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a replica may take to answer. Prometheus itself waits for 10 s by default.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A replica of this host.
#[derive(Debug)]
pub struct Target {
    pub guest: String,
    pub replica: String,
    control: Control,
    /// Why it last did not answer.
    silent: Mutex<Option<String>>,
}

/// Its answer.
#[derive(Debug)]
pub struct Answer {
    /// `None` if it did not answer in time.
    pub status: Option<Value>,
    pub took: Duration,
}

impl Target {
    pub fn of(config: &ReplicaConfig) -> Self {
        Self {
            guest: config.group.name.clone(),
            replica: config.group.me.to_string(),
            control: Control::in_run_dir(&config.paths.run_dir).within(ANSWER_WITHIN),
            silent: Mutex::default(),
        }
    }

    fn ask(&self) -> Answer {
        let began = Instant::now();
        let answer = self.control.request(&json!({"op": "status"}));
        let took = began.elapsed();
        let status = match answer {
            Ok(status) => {
                self.tell(None);
                Some(status)
            }
            Err(error) => {
                self.tell(Some(error.to_string()));
                None
            }
        };
        Answer { status, took }
    }

    /// Logs that the replica answers no more, or answers again, and nothing while that stays the same.
    fn tell(&self, silent: Option<String>) {
        let mut last = self
            .silent
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if silent.is_some() != last.is_some() {
            let (guest, replica) = (&self.guest, &self.replica);
            match &silent {
                Some(why) => eprintln!("plover: guest {guest}, replica {replica}: {why}"),
                None => eprintln!("plover: guest {guest}, replica {replica} answers again"),
            }
        }
        *last = silent;
    }
}

/// Asks all of them at the same time, so that one that hangs delays no other.
pub fn ask_all(targets: &[Target]) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(|| target.ask()))
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

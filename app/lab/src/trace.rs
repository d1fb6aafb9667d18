//! Reading the replicas' traces.
//!
//! A trace is a file of one JSON object a line, flushed line by line, so it holds what a replica did
//! until the microsecond in which it was killed. All replicas of a lab run on one machine and stamp
//! their lines with its monotonic clock, so their traces, and the moments that the lab's own commands
//! note, can be put into one timeline.

use crate::growing::Growing;
use plover_types::ReplicaSet;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Now, on the clock of the traces, in µs.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TraceEvent {
    /// The time, on the machine's monotonic clock.
    pub mono_us: u64,
    /// The replica.
    pub replica: u8,
    /// The kind of event: `role`, `suspected`, `elected`, `serving`, `in_sync`, `protected` …
    pub what: String,
    /// All other fields.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl TraceEvent {
    /// The number in field `key`.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.more.get(key)?.as_u64()
    }

    /// The text in field `key`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.more.get(key)?.as_str()
    }

    /// The event in words for a progress line, if it is worth one.
    pub fn in_words(&self) -> Option<String> {
        let me = format!("replica {}", self.replica);
        let peer = || {
            self.number("peer")
                .map_or_else(|| "?".into(), |id| id.to_string())
        };
        let why = || self.text("why").unwrap_or("?");
        Some(match self.what.as_str() {
            "suspected" => format!("{me} suspects the leader"),
            "elected" => format!("{me} is elected"),
            "serving" => format!("{me} leads and faces the clients"),
            "role" if self.text("to") == Some("witness") => format!("{me} is witness"),
            "join_begun" => format!("{me} copies the guest to replica {}", peer()),
            "join_opened" if self.more.get("warm") == Some(&Value::Bool(true)) => {
                format!("replica {} goes on from its warm copy", peer())
            }
            "join_round" => format!(
                "copy, round {}: {} MiB",
                self.number("round").unwrap_or(0),
                self.number("pages").unwrap_or(0).div_ceil(256)
            ),
            "warm" => format!("replica {} has a warm copy", peer()),
            "death_reported" => format!("{me} is told that the process of replica {} died", peer()),
            "peer" if self.more.get("alive") == Some(&Value::Bool(false)) => {
                format!("replica {} does not answer {me}", peer())
            }
            "peer" if self.more.contains_key(AGAIN) => {
                format!("replica {} answers {me} again", peer())
            }
            "in_sync" => {
                let gone = self.number(GONE)?;
                format!(
                    "in sync: {}, no longer {}",
                    members(self.number("in_sync")?),
                    members(gone)
                )
            }
            "join_failed" => format!("the copy to replica {} failed: {}", peer(), why()),
            "protected" => format!("protected: replica {} is in step", peer()),
            "guest_lost" => format!("{me} has lost its guest: {}", why()),
            // A group that has never run is empty, and about to boot its guest.
            "group_empty" if self.more.get("fresh") == Some(&Value::Bool(true)) => return None,
            "group_empty" => format!("{me}: no replica holds the guest's state any more"),
            _ => return None,
        })
    }
}

/// Added to an event `peer`: the peer had not answered before.
const AGAIN: &str = "again";

/// Added to an event `in_sync`: the replicas that the set has lost, as a bit mask.
const GONE: &str = "gone";

/// The replicas of a bit mask.
fn members(mask: u64) -> String {
    ReplicaSet(mask as u16).in_words()
}

/// The state after the earlier events: some events are changes, and say only the state that they lead to.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The newest in-sync set, as a bit mask, and its place in the log.
    in_sync: Option<(u64, u64)>,
    /// The peers that do not answer: who says so, and the peer.
    silent: BTreeSet<(u8, u64)>,
}

impl Known {
    /// Learns from an event, and adds to it what follows from earlier ones.
    fn learn(&mut self, event: &mut TraceEvent) {
        match event.what.as_str() {
            "peer" => {
                let Some(peer) = event.number("peer") else {
                    return;
                };
                let key = (event.replica, peer);
                if event.more.get("alive") == Some(&Value::Bool(false)) {
                    self.silent.insert(key);
                } else if self.silent.remove(&key) {
                    event.more.insert(AGAIN.into(), true.into());
                }
            }
            "in_sync" => {
                let Some((set, at)) = event.number("in_sync").zip(event.number("at")) else {
                    return;
                };
                let before = self.in_sync;
                // Every replica tells of each set, and one that was away tells of old ones.
                if before.is_some_and(|(_, newest)| at <= newest) {
                    return;
                }
                self.in_sync = Some((set, at));
                let gone = before.map_or(0, |(before, _)| before & !set);
                if gone != 0 {
                    event.more.insert(GONE.into(), gone.into());
                }
            }
            // A new generation of the group counts its entries from 1 again.
            "group_empty" => self.in_sync = None,
            _ => {}
        }
    }
}

/// Reads traces while they grow.
#[derive(Clone, Debug)]
pub struct Tail {
    files: Vec<Growing>,
    known: Known,
}

impl Tail {
    /// Reads these files from their beginning. They need not exist yet.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            files: paths.into_iter().map(Growing::new).collect(),
            known: Known::default(),
        }
    }

    /// The events since the last call, in the order of time.
    pub fn take(&mut self) -> Vec<TraceEvent> {
        // A replica that is killed while it writes leaves half a line, to which it appends when
        // it comes back: such a line is no event.
        let event = |line: &[u8]| serde_json::from_slice::<TraceEvent>(line).ok();
        let mut events = Vec::new();
        for file in &mut self.files {
            events.extend(
                file.take(false)
                    .split(|byte| *byte == b'\n')
                    .filter_map(event),
            );
        }
        events.sort_by_key(|event| event.mono_us);
        for event in &mut events {
            self.known.learn(event);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn append(path: &PathBuf, text: &str) {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn silent_peers_and_smaller_in_sync_sets_are_told_once() {
        let mut known = Known::default();
        let mut told = |line: &str| {
            let mut event: TraceEvent = serde_json::from_str(line).unwrap();
            known.learn(&mut event);
            event.in_words()
        };
        let mut peer = |alive: bool| {
            told(&format!(
                r#"{{"mono_us":1,"replica":1,"what":"peer","peer":0,"alive":{alive}}}"#
            ))
        };
        assert_eq!(peer(true), None, "the first answer is no news");
        assert_eq!(peer(false).unwrap(), "replica 0 does not answer replica 1");
        assert_eq!(peer(true).unwrap(), "replica 0 answers replica 1 again");
        let mut set = |replica: u8, set: u16, at: u64| {
            told(&format!(
                r#"{{"mono_us":1,"replica":{replica},"what":"in_sync","in_sync":{set},"at":{at}}}"#
            ))
        };
        assert_eq!(set(0, 1, 3), None);
        assert_eq!(set(0, 3, 9), None, "it grows: that has words of its own");
        assert_eq!(
            set(1, 2, 40).unwrap(),
            "in sync: replica 1, no longer replica 0"
        );
        assert_eq!(set(2, 2, 40), None);
        assert_eq!(set(0, 1, 3), None);
        assert_eq!(members(6), "replicas 1, 2");
    }

    #[test]
    fn traces_are_merged_while_they_grow() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["0", "1"].map(|name| dir.path().join(name));
        let mut tail = Tail::new(paths.clone());
        assert!(tail.take().is_empty());
        append(
            &paths[0],
            "{\"mono_us\":30,\"replica\":0,\"what\":\"serving\",\"view\":16}\n{\"mo",
        );
        append(
            &paths[1],
            "{\"mono_us\":20,\"replica\":1,\"what\":\"role\",\"to\":\"witness\"}\n",
        );
        let events = tail.take();
        assert_eq!(
            events.iter().map(|e| e.mono_us).collect::<Vec<_>>(),
            [20, 30]
        );
        assert_eq!(events[0].in_words().unwrap(), "replica 1 is witness");
        assert_eq!(events[1].number("view"), Some(16));
        append(
            &paths[0],
            "no_us\":40,\"replica\":0,\"what\":\"protected\",\"peer\":1}\n",
        );
        assert_eq!(
            tail.take()[0].in_words().unwrap(),
            "protected: replica 1 is in step"
        );
        // Killed in the middle of a line, then started again.
        append(
            &paths[0],
            "{\"mono_us\":50,\"repl{\"mono_us\":60,\"replica\":0,\"what\":\"a\"}\n",
        );
        append(&paths[0], "{\"mono_us\":70,\"replica\":0,\"what\":\"b\"}\n");
        assert_eq!(
            tail.take().iter().map(|e| e.mono_us).collect::<Vec<_>>(),
            [70]
        );
        // A new file.
        std::fs::write(&paths[0], "{\"mono_us\":80,\"replica\":0,\"what\":\"c\"}\n").unwrap();
        assert_eq!(
            tail.take().iter().map(|e| e.mono_us).collect::<Vec<_>>(),
            [80]
        );
    }
}

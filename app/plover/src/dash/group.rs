//! A group, as its replicas on this host tell it.

use super::history::{Failovers, History};
use super::{age_ms, lock, unix_ms};
use crate::target::Target;
use plover_lab::logs::{self, Source, ToldLog};
use plover_lab::status::GroupStatus;
use plover_node::ReplicaConfig;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a replica of this host may take to tell where its group stands. It waits a second for the others itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The lines of the replicas' logs that are shown.
const LINES: usize = 50;

/// A group with one replica on this host; in a lab, with several.
#[derive(Debug)]
pub struct Group {
    name: String,
    /// The hosts' addresses, by the ids of their replicas.
    hosts: BTreeMap<u8, String>,
    doors: Vec<Target>,
    /// The replicas' logs, read as far as `Known::lines` has them.
    logs: Mutex<BTreeMap<u8, ToldLog>>,
    known: Mutex<Known>,
}

/// The knowledge of one group.
#[derive(Debug, Default)]
struct Known {
    heard: Option<Heard>,
    /// The place of the door that answered last.
    door: usize,
    /// Why no door answers, if none does.
    trouble: Option<String>,
    /// When each replica last answered, and the role that it had then.
    replicas: BTreeMap<u8, (Instant, String)>,
    history: History,
    failovers: Failovers,
    /// The last lines of all logs, each with its replica.
    lines: VecDeque<(u8, String)>,
}

/// An answer.
#[derive(Debug)]
struct Heard {
    at: Instant,
    status: GroupStatus,
}

impl Group {
    /// The groups of these configurations, in the order of the first of each.
    pub fn all_of(configs: &[ReplicaConfig]) -> Vec<Arc<Self>> {
        let mut groups: Vec<Self> = Vec::new();
        for config in configs {
            let door = Target::of(config, ANSWER_WITHIN);
            match groups.iter_mut().find(|it| it.name == door.guest) {
                Some(group) => group.doors.push(door),
                None => groups.push(Self {
                    name: door.guest.clone(),
                    hosts: hosts(config),
                    doors: vec![door],
                    logs: Mutex::default(),
                    known: Mutex::default(),
                }),
            }
        }
        groups.into_iter().map(Arc::new).collect()
    }

    /// Asks where the group stands and what its replicas have logged since, and keeps the answers.
    pub fn look(&self) {
        let door = self.known().door;
        let (asked, answer) = self.ask(door);
        let answer = self.known().learn(asked, answer, Instant::now());
        if let Some(answering) = answer {
            self.read_logs(asked, &answering);
        }
    }

    fn read_logs(&self, door: usize, answering: &[u8]) {
        let control = self.doors[door].control();
        let mut logs = lock(&self.logs);
        let taken = answering.iter().map(|id| {
            let new = || ToldLog::of(control, *id, LINES);
            let log = logs.entry(*id).or_insert_with(new);
            log.through(control);
            // One that has just become silent is asked again when it answers.
            (*id, log.take(true).unwrap_or_default())
        });
        let merged = logs::merge(taken.collect());
        let lines = &mut self.known().lines;
        lines.extend(merged);
        while lines.len() > LINES {
            lines.pop_front();
        }
    }

    /// Asks the door that answered last, and the others only if it does not answer or knows no leader that serves.
    fn ask(&self, first: usize) -> (usize, Result<GroupStatus, String>) {
        let mut best = None;
        let mut silent = None;
        for place in (0..self.doors.len()).map(|n| (first + n) % self.doors.len()) {
            match self.doors[place].ask(GroupStatus::ask) {
                Ok(status) if status.leader().is_some_and(|leader| leader.serving) => {
                    return (place, Ok(status));
                }
                Ok(status) => best = best.or(Some((place, Ok(status)))),
                Err(why) => silent = silent.or(Some(why.to_string())),
            }
        }
        best.unwrap_or_else(|| (first, Err(silent.unwrap_or_default())))
    }

    /// Its name, its state and the age of that.
    pub fn in_short(&self, now: Instant) -> Value {
        let known = self.known();
        json!({
            "name": self.name,
            "state": known.state(),
            "age_ms": known.heard.as_ref().map(|heard| age_ms(heard.at, now)),
            "trouble": known.trouble,
        })
    }

    /// All that is known of it, with the points of its history after the one with this number.
    pub fn in_full(&self, now: Instant, after: u64) -> Value {
        let known = self.known();
        let replicas = known.replicas.iter().map(|(id, (at, role))| {
            let heard = json!({"age_ms": age_ms(*at, now), "role": role});
            (id.to_string(), heard)
        });
        let heard = known.heard.as_ref();
        json!({
            "name": self.name,
            "state": known.state(),
            "age_ms": heard.map(|heard| age_ms(heard.at, now)),
            "trouble": known.trouble,
            "hosts": self.hosts.iter().map(|(id, host)| (id.to_string(), json!(host))).collect::<Map<_, _>>(),
            "status": heard.map(|heard| json!(heard.status)),
            "leader": heard.and_then(|heard| Some(heard.status.leader()?.id)),
            "sentences": heard.map_or(Vec::new(), |heard| heard.status.sentences()),
            "heard": replicas.collect::<Map<_, _>>(),
            "failovers": known.failovers.to_json(),
            "points": known.history.after(after),
            "log": known.lines.iter().map(|(id, line)| json!({"id": id, "line": line})).collect::<Vec<_>>(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Known {
    /// Keeps an answer, and returns the replicas that have answered.
    fn learn(
        &mut self,
        door: usize,
        answer: Result<GroupStatus, String>,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let mut answering = None;
        match answer {
            Ok(status) => {
                let replicas = status.replicas.iter().filter(|it| it.answers());
                for replica in replicas.clone() {
                    let role = replica.role.clone();
                    self.replicas.insert(replica.id, (now, role));
                }
                answering = Some(replicas.map(|it| it.id).collect());
                self.door = door;
                self.trouble = None;
                self.failovers.learn(&status, unix_ms());
                self.heard = Some(Heard { at: now, status });
            }
            Err(why) => self.trouble = Some(why),
        }
        let status = match (&self.heard, &self.trouble) {
            (Some(heard), None) => Some(&heard.status),
            _ => None,
        };
        self.history.add(status, unix_ms());
        answering
    }

    /// The state of the guest in a word.
    fn state(&self) -> &'static str {
        match (&self.heard, &self.trouble) {
            (Some(heard), None) => state(&heard.status),
            _ => "unknown",
        }
    }
}

/// `protected`, `unprotected`, or `unreplicated` by its policy.
pub fn state(status: &GroupStatus) -> &'static str {
    match (status.policy.as_str(), status.protected) {
        ("none", _) => "unreplicated",
        (_, true) => "protected",
        (_, false) => "unprotected",
    }
}

fn hosts(config: &ReplicaConfig) -> BTreeMap<u8, String> {
    let replicas = config.group.replica.iter();
    let host = |address: std::net::SocketAddr| address.ip().to_string();
    replicas.map(|it| (it.id, host(it.address))).collect()
}

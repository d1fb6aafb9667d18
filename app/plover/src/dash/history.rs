//! The last quarter of an hour of a group: a point for each time that it was asked, and its failovers.
//!
//! Replicas count from their start. A point has the figures of the time since the point before it, from the counters
//! of one leader at both; where the leader is another one, or has been started anew, there are none.

use super::group::state;
use plover_lab::status::{GroupStatus, ReplicaStatus};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// A quarter of an hour of points, one a second.
const POINTS_MAX: usize = 900;

/// The failovers that are kept.
const FAILOVERS_MAX: usize = 50;

const MICROS_A_SECOND: f64 = 1e6;

#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Value>,
    /// How many points there have been.
    count: u64,
    last: Option<Counters>,
}

/// A leader's counters, by their place in its status.
const COUNTED: [&str; 10] = [
    "/inputs",
    "/outputs/released",
    "/outputs/held_us_total",
    "/sync/totals/count",
    "/sync/totals/slot_us",
    "/sync/totals/pause_us",
    "/sync/totals/dirty",
    "/sync/totals/divergent",
    "/traffic/log_bytes_out",
    "/traffic/bulk_bytes_out",
];

#[derive(Clone, Copy, Debug)]
struct Counters {
    /// The replica and its process.
    of: (u8, Option<u32>),
    mono_us: u64,
    values: [u64; COUNTED.len()],
}

impl Counters {
    fn of(leader: &ReplicaStatus) -> Option<Self> {
        let mut values = [0; COUNTED.len()];
        for (value, at) in values.iter_mut().zip(COUNTED) {
            let said = match at.strip_prefix("/sync/") {
                Some(at) => within(&leader.sync.more, at),
                None => within(&leader.more, &at[1..]),
            };
            *value = said?.as_u64()?;
        }
        Some(Self {
            of: (leader.id, leader.plover_pid),
            mono_us: leader.more.get("mono_us")?.as_u64()?,
            values,
        })
    }

    /// The figures of the time since `before`: frames a second, and means of what ended in that time.
    fn since(&self, before: &Self) -> Option<Value> {
        let span_us = self
            .mono_us
            .checked_sub(before.mono_us)
            .filter(|us| *us > 0)?;
        if self.of != before.of {
            return None;
        }
        let mut grown = [0.0; COUNTED.len()];
        for ((grown, now), before) in grown.iter_mut().zip(self.values).zip(before.values) {
            *grown = now.checked_sub(before)? as f64;
        }
        let [
            inputs,
            outputs,
            held_us,
            syncs,
            slot_us,
            pause_us,
            dirty,
            divergent,
            log_bytes,
            bulk_bytes,
        ] = grown;
        let a_second = |count: f64| count * MICROS_A_SECOND / span_us as f64;
        let mean = |sum: f64, count: f64| (count > 0.0).then(|| sum / count);
        Some(json!({
            "inputs_per_s": a_second(inputs),
            "outputs_per_s": a_second(outputs),
            "output_wait_us": mean(held_us, outputs),
            "slot_us": mean(slot_us, syncs),
            "pause_us": mean(pause_us, syncs),
            "dirty": mean(dirty, syncs),
            "divergent": mean(divergent, syncs),
            "sent_bytes_per_s": a_second(log_bytes + bulk_bytes),
        }))
    }
}

/// The value at `at`, such as `outputs/released`.
fn within<'a>(object: &'a serde_json::Map<String, Value>, at: &str) -> Option<&'a Value> {
    match at.split_once('/') {
        Some((key, rest)) => object.get(key)?.pointer(&format!("/{rest}")),
        None => object.get(at),
    }
}

impl History {
    /// The group has been asked. `status`: its answer, if there was one.
    pub fn add(&mut self, status: Option<&GroupStatus>, unix_ms: u64) {
        let leader = status.and_then(GroupStatus::leader);
        let counters = leader.and_then(Counters::of);
        let figures = match (&counters, &self.last) {
            (Some(now), Some(before)) => now.since(before),
            _ => None,
        };
        self.last = counters;
        self.count += 1;
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        self.points.push_back(json!({
            "n": self.count,
            "unix_ms": unix_ms,
            "state": status.map_or("unknown", state),
            "leader": leader.map(|leader| leader.id),
            "copy_behind_bytes": status.and_then(copy_behind),
            "figures": figures,
        }));
    }

    /// The points after the one with this number.
    pub fn after(&self, number: u64) -> Vec<&Value> {
        let first = self.count - self.points.len() as u64;
        // A number that was never given is of another process.
        let known = if number > self.count { 0 } else { number };
        let skip = known.saturating_sub(first) as usize;
        self.points.iter().skip(skip).collect()
    }
}

/// The part that a copy of the guest, from one replica to another, still lacks.
fn copy_behind(status: &GroupStatus) -> Option<u64> {
    let mut replicas = status.replicas.iter();
    replicas.find_map(|replica| within(&replica.more, "copy/bytes_behind")?.as_u64())
}

/// The takeovers of replicas, as they tell them, the newest last.
#[derive(Debug, Default)]
pub struct Failovers {
    seen: VecDeque<Failover>,
    /// Each replica's word on its last takeover, which it tells for as long as it runs: longer than the takeover is kept here.
    told: BTreeMap<u8, Value>,
    /// The replica that led when the group was last asked; `None` before that.
    leader: Option<u8>,
    has_looked: bool,
}

#[derive(Debug)]
struct Failover {
    by: u8,
    from: Option<u8>,
    unix_ms: u64,
    /// The replica's word on it.
    said: Value,
    protection: Protection,
}

/// When two replicas held the guest's state after a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    /// Not yet.
    Awaited,
    /// Found so after this time, in ms.
    Within(u64),
    /// It was before the first question, or another failover came first.
    NotSeen,
}

impl Failovers {
    /// Takes the takeovers from a status.
    pub fn learn(&mut self, status: &GroupStatus, unix_ms: u64) {
        let mut takeovers: Vec<_> = status.replicas.iter().filter_map(takeover).collect();
        takeovers.sort_by_key(|(_, _, ago_ms)| std::cmp::Reverse(*ago_ms));
        for (replica, said, ago_ms) in takeovers {
            if self.told.get(&replica.id) != Some(said) {
                self.told.insert(replica.id, said.clone());
                self.add(replica.id, said, unix_ms.saturating_sub(ago_ms));
            }
        }
        let leader = status.leader();
        if let (Some(last), Some(leader)) = (self.seen.back_mut(), leader) {
            let is_awaited = last.protection == Protection::Awaited && last.by == leader.id;
            if is_awaited && status.protected {
                last.protection = Protection::Within(unix_ms.saturating_sub(last.unix_ms));
            }
        }
        self.leader = leader.map(|leader| leader.id).or(self.leader);
        self.has_looked = true;
    }

    fn add(&mut self, by: u8, said: &Value, unix_ms: u64) {
        for before in &mut self.seen {
            if before.protection == Protection::Awaited {
                before.protection = Protection::NotSeen;
            }
        }
        if self.seen.len() == FAILOVERS_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(Failover {
            by,
            from: self.leader.filter(|from| *from != by),
            unix_ms,
            said: said.clone(),
            protection: if self.has_looked {
                Protection::Awaited
            } else {
                Protection::NotSeen
            },
        });
    }

    pub fn to_json(&self) -> Vec<Value> {
        let failovers = self.seen.iter().map(|it| {
            json!({
                "by": it.by,
                "from": it.from,
                "unix_ms": it.unix_ms,
                "how": it.said["how"],
                "noticed_us": it.said["noticed_us"],
                "elected_us": it.said["elected_us"],
                "serving_us": it.said["serving_us"],
                "protected_within_ms": match it.protection {
                    Protection::Within(ms) => Some(ms),
                    _ => None,
                },
                "protection_awaited": it.protection == Protection::Awaited,
            })
        });
        failovers.collect()
    }
}

/// The last takeover of a replica, and how many ms ago it served.
fn takeover(replica: &ReplicaStatus) -> Option<(&ReplicaStatus, &Value, u64)> {
    let said = replica
        .more
        .get("last_failover")
        .filter(|it| it.is_object())?;
    let now_us = replica.more.get("mono_us")?.as_u64()?;
    let ago_us = now_us.saturating_sub(said["mono_us"].as_u64()?);
    Some((replica, said, ago_us / 1000))
}

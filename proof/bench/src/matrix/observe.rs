//! The replicas' counters, read before and after a client loaded the guest.
//!
//! ```text
//!  lab status, /proc ─▶ Snapshot ┐
//!        … the client …          ├─▶ Window: syncs, pages, bytes, phases, CPU time, waits
//!  lab status, /proc ─▶ Snapshot ┘
//! ```
//!
//! Replicas count since their start and report when they read their counters, so a window is exact even
//! if the status request is late. Counters that a release does not have are left out.

use crate::lab::Lab;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Clock ticks of `/proc/PID/stat` a second: 100 on every Linux that runs Plover.
const TICKS_PER_S: f64 = 100.0;

/// Bytes of copies, which keep a witness warm or make a new secondary. They are no part of a sync, and
/// their rate is configured, so they are shown by themselves (docs/decisions/0015).
pub(super) const COPY: &str = "copy";

/// The bytes of syncs, by purpose.
const PARTS_OF_SYNCS: [&str; 4] = ["digests", "subpage_hashes", "pages", "device"];

/// All counters at one moment.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    leader: Value,
    /// Each replica's id, role and processes. The counters below are theirs.
    replicas: Vec<String>,
    /// CPU seconds since their start, by role and program.
    cpu_s: BTreeMap<String, f64>,
    /// Bytes that all replicas sent, by lane. For the bulk lane also the bytes of each [`COPY`] and of
    /// each of [`PARTS_OF_SYNCS`].
    sent: BTreeMap<String, u64>,
}

/// The changes between two moments.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Window {
    /// Its length.
    pub seconds: f64,
    /// Slots that ended.
    pub syncs: u64,
    /// Sums over all syncs: `slot_us`, `pause_us`, `dirty`, `same`, `divergent` and the replica's other
    /// sums.
    pub sums: BTreeMap<String, f64>,
    /// Time in each phase, summed, µs.
    pub phases_us: BTreeMap<String, f64>,
    /// The pause that 99 of the last 100 syncs kept below.
    pub pause_us_p99: Option<f64>,
    /// Bytes sent between replicas, by purpose.
    pub bytes: BTreeMap<String, f64>,
    /// CPU seconds by role and program.
    pub cpu_s: BTreeMap<String, f64>,
    /// Frames that went out to clients.
    pub outputs: u64,
    /// How long they had waited, summed, µs.
    pub held_us: f64,
    /// The longest wait of 99 of the last 100.
    pub held_us_p99: Option<f64>,
}

impl Window {
    /// Bytes sent for the log and the syncs, which the papers' systems send, too.
    pub fn bytes_of_protection(&self) -> f64 {
        let counts = |(kind, _): &(&String, &f64)| *kind != COPY;
        let kept = self.bytes.iter().filter(counts);
        kept.map(|(_, bytes)| bytes).sum()
    }
}

impl Snapshot {
    /// Asks the lab.
    pub fn take(lab: &Lab) -> Result<Self> {
        let status = lab.status()?;
        Self::of(&status, cpu_seconds)
    }

    /// # Errors
    /// Nobody leads, or a replica does not answer: without its counters the sums would be too small.
    fn of(status: &Value, cpu_seconds: impl Fn(u64) -> Option<f64>) -> Result<Self> {
        let replicas = status["replicas"]
            .as_array()
            .context("a lab without replicas")?;
        let leader = replicas.iter().find(|replica| replica["role"] == "leader");
        let leader = leader.context("nobody leads the lab")?.clone();
        let (mut cpu_s, mut sent) = (BTreeMap::new(), BTreeMap::new());
        let mut who = Vec::new();
        for replica in replicas {
            let role = replica["role"].as_str().unwrap_or("unknown");
            let (id, plover, qemu) = (&replica["id"], &replica["plover_pid"], &replica["qemu_pid"]);
            ensure!(
                !matches!(role, "down" | "stopped" | "silent"),
                "replica {id} is {role}: its counters are missing"
            );
            who.push(format!(
                "replica {id} is {role}, plover {plover}, QEMU {qemu}"
            ));
            for program in ["plover", "qemu"] {
                let pid = replica[format!("{program}_pid")].as_u64();
                if let Some(seconds) = pid.and_then(&cpu_seconds) {
                    *cpu_s.entry(format!("{role} {program}")).or_insert(0.0) += seconds;
                }
            }
            for part in ["log", "bulk", COPY].into_iter().chain(PARTS_OF_SYNCS) {
                let bytes = replica["more"]["traffic"][format!("{part}_bytes_out")].as_u64();
                *sent.entry(part.to_owned()).or_insert(0) += bytes.unwrap_or(0);
            }
        }
        Ok(Self {
            leader,
            replicas: who,
            cpu_s,
            sent,
        })
    }

    /// The changes since `before`.
    ///
    /// # Errors
    /// Another replica leads, or the same one in another view, or a replica has another role or another
    /// process: its counters cannot be compared with those of before.
    pub fn since(&self, before: &Self) -> Result<Window> {
        let who = |at: &Value| {
            (
                at["id"].clone(),
                at["view"].clone(),
                at["plover_pid"].clone(),
            )
        };
        ensure!(
            who(&self.leader) == who(&before.leader),
            "the leader changed while this was measured: replica {} in view {}, then replica {} in \
             view {}",
            before.leader["id"],
            before.leader["view"],
            self.leader["id"],
            self.leader["view"]
        );
        ensure!(
            self.replicas == before.replicas,
            "a replica changed while this was measured: {}; then {}",
            before.replicas.join("; "),
            self.replicas.join("; ")
        );
        let moment = |at: &Self| at.leader["more"]["mono_us"].as_f64();
        let (from, to) = moment(before)
            .zip(moment(self))
            .context("the leader does not say when it looked: it is of another release")?;
        let totals = |at: &Self, name: Option<&str>| {
            let totals = &at.leader["sync"]["totals"];
            numbers(name.map_or(totals, |name| &totals[name]))
        };
        let grown = |name| difference(&totals(self, name), &totals(before, name));
        let mut sums = grown(None);
        let syncs = sums.remove("count").unwrap_or(0.0) as u64;
        let outputs = difference(
            &numbers(&self.leader["more"]["outputs"]),
            &numbers(&before.leader["more"]["outputs"]),
        );
        let last = |value: &Value| value.as_f64().filter(|_| syncs > 0);
        Ok(Window {
            seconds: (to - from) / 1e6,
            syncs,
            bytes: self.bytes_since(before),
            phases_us: grown(Some("phases_us")),
            pause_us_p99: last(&self.leader["sync"]["pause_us_p99"]),
            cpu_s: difference(&self.cpu_s, &before.cpu_s),
            outputs: outputs.get("released").copied().unwrap_or(0.0) as u64,
            held_us: outputs.get("held_us_total").copied().unwrap_or(0.0),
            held_us_p99: self.leader["more"]["outputs"]["held_us_p99"].as_f64(),
            sums,
        })
    }

    /// The bytes of the log, of syncs by purpose, and the rest of the bulk lane.
    fn bytes_since(&self, before: &Self) -> BTreeMap<String, f64> {
        let sent = |lane: &str| {
            let sent = |at: &Self| at.sent.get(lane).copied().unwrap_or(0);
            sent(self).saturating_sub(sent(before)) as f64
        };
        let (log, bulk, copy) = (sent("log"), sent("bulk"), sent(COPY));
        let parts = PARTS_OF_SYNCS.map(|part| (part.to_owned(), sent(part)));
        let mut bytes = BTreeMap::from(parts);
        let known: f64 = bytes.values().sum();
        bytes.insert("log".into(), log);
        bytes.insert(COPY.into(), copy);
        bytes.insert("other".into(), (bulk - copy - known).max(0.0));
        bytes
    }
}

/// The numbers among an object's values.
fn numbers(object: &Value) -> BTreeMap<String, f64> {
    let pairs = object.as_object().into_iter().flatten();
    pairs
        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
        .collect()
}

fn difference(
    after: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    let grown = |(name, value): (&String, &f64)| {
        let from = before.get(name).copied().unwrap_or(0.0);
        (name.clone(), value - from)
    };
    after.iter().map(grown).collect()
}

/// CPU time that a process has used, in user and in kernel mode.
fn cpu_seconds(pid: u64) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(view: u64, at: u64, syncs: u64) -> Value {
        let replica = |id: u64, role: &str| {
            json!({
                "id": id, "role": role, "view": view, "plover_pid": 100 + id,
                "qemu_pid": if role == "witness" { Value::Null } else { json!(200 + id) },
                "sync": {"pause_us_p99": 9, "totals": {
                    "count": syncs, "dirty": syncs * 10,
                    "phases_us": {"scan": syncs * 7},
                }},
                "more": {
                    "mono_us": at,
                    "traffic": {
                        "log_bytes_out": at / 1000,
                        "bulk_bytes_out": syncs * 5000,
                        "copy_bytes_out": syncs * 500,
                        "pages_bytes_out": syncs * 4000,
                    },
                    "outputs": {"released": syncs * 3, "held_us_total": syncs * 300, "held_us_p99": 200},
                },
            })
        };
        json!({"replicas": [replica(0, "secondary"), replica(1, "leader"), replica(2, "witness")]})
    }

    #[test]
    fn a_window_is_the_difference() {
        let before = Snapshot::of(&status(3, 1_000_000, 50), |_| Some(1.0)).unwrap();
        let after =
            Snapshot::of(&status(3, 3_000_000, 90), |pid| Some(pid as f64 / 100.0)).unwrap();
        let window = after.since(&before).unwrap();
        assert_eq!((window.seconds, window.syncs), (2.0, 40));
        assert_eq!(window.sums["dirty"], 400.0);
        assert_eq!(window.phases_us["scan"], 280.0);
        assert_eq!(window.bytes["pages"], 3.0 * 160_000.0);
        assert_eq!(window.bytes["log"], 3.0 * 2000.0, "of all three replicas");
        assert_eq!(window.bytes["copy"], 3.0 * 20_000.0);
        assert_eq!(window.bytes["other"], 3.0 * 20_000.0);
        assert_eq!(
            window.bytes_of_protection(),
            window.bytes.values().sum::<f64>() - 60_000.0
        );
        assert_eq!((window.outputs, window.held_us), (120, 12_000.0));
        assert_eq!(window.cpu_s.len(), 5, "a witness has no QEMU");
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(window.cpu_s["leader plover"], 0.01));
        assert!(close(window.cpu_s["secondary qemu"], 1.0));
    }

    #[test]
    fn another_view_is_another_measurement() {
        let before = Snapshot::of(&status(3, 1, 50), |_| None).unwrap();
        let after = Snapshot::of(&status(4, 2, 50), |_| None).unwrap();
        let error = after.since(&before).unwrap_err().to_string();
        assert!(error.contains("the leader changed"), "{error}");
        assert!(Snapshot::of(&json!({"replicas": []}), |_| None).is_err());
    }

    #[test]
    fn a_replica_that_is_silent_or_another_one_voids_the_window() {
        let before = Snapshot::of(&status(3, 1, 50), |_| None).unwrap();
        let changed = |change: fn(&mut Value)| {
            let mut after = status(3, 2, 60);
            change(&mut after["replicas"][2]);
            Snapshot::of(&after, |_| None).and_then(|after| after.since(&before))
        };
        assert!(changed(|_| ()).is_ok());
        let silent = changed(|it| it["role"] = "silent".into()).unwrap_err();
        assert_eq!(
            silent.to_string(),
            "replica 2 is silent: its counters are missing"
        );
        let changes: [fn(&mut Value); 2] = [
            |it| it["role"] = "joining".into(),
            |it| it["plover_pid"] = 7.into(),
        ];
        for change in changes {
            let error = changed(change).unwrap_err().to_string();
            assert!(error.contains("a replica changed"), "{error}");
        }
    }

    #[test]
    fn this_process_has_used_some_time() {
        assert!(cpu_seconds(std::process::id().into()).is_some());
        assert!(cpu_seconds(u64::MAX).is_none());
    }
}

//! The costs of syncs and the waits of outputs, for the status.
//!
//! Medians cover a recent window, so that `plover status` shows the present. Sums and histograms run from
//! the start, so that two readings give the exact figures of the time between.

use crate::histogram::Histogram;
use plover_replica::Note;
use plover_syncvm::{Phase, SyncReport};
use plover_types::Micros;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Syncs that the medians look back over.
const WINDOW: usize = 512;

/// Releases that the quantiles of the outputs' wait look back over.
const RELEASES: usize = 4096;

/// A number of a sync's report.
type Figure = fn(&SyncReport) -> u64;

/// The figures that are summed over all syncs, with their names in the status.
const SUMMED: [(&str, Figure); 16] = [
    ("count", |_| 1),
    ("slot_us", |r| r.slot.0),
    ("pause_us", |r| r.pause.0),
    ("dirty", |r| u64::from(r.union)),
    ("dirty_leader", |r| u64::from(r.dirty_leader)),
    ("dirty_secondary", |r| u64::from(r.dirty_secondary)),
    ("same", |r| u64::from(r.same)),
    ("divergent", |r| u64::from(r.divergent)),
    ("subpages", |r| u64::from(r.subpages)),
    ("subpages_compared", |r| u64::from(r.subpages_compared)),
    ("bytes_hashes", |r| r.bytes_hashes),
    ("bytes_pages", |r| r.bytes_pages),
    ("bytes_device", |r| r.bytes_device),
    ("outputs", |r| u64::from(r.outputs)),
    ("matched", |r| u64::from(r.matched)),
    ("clean", |r| u64::from(r.clean)),
];

#[derive(Debug, Default)]
pub(crate) struct SyncMetrics {
    sums: [u64; SUMMED.len()],
    phases: [u64; Phase::ALL.len()],
    pause: Histogram,
    slot: Histogram,
    /// Syncs by the reason that ended the slot. The core names about ten reasons.
    reasons: BTreeMap<String, u64>,
    window: VecDeque<SyncReport>,
}

impl SyncMetrics {
    pub fn add(&mut self, report: SyncReport) {
        for (sum, (_, value)) in self.sums.iter_mut().zip(SUMMED) {
            *sum += value(&report);
        }
        for (sum, phase) in self.phases.iter_mut().zip(report.phases) {
            *sum += phase.0;
        }
        self.pause.add(report.pause);
        self.slot.add(report.slot);
        match self.reasons.get_mut(&report.reason) {
            Some(count) => *count += 1,
            None => drop(self.reasons.insert(report.reason.clone(), 1)),
        }
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(report);
    }

    /// The status' `sync` object. Durations in µs, pages and bytes per sync; medians over the
    /// last 512 syncs; `count`, `totals` and the histograms since the start.
    pub fn to_json(&self) -> Value {
        let median = |value: Figure| self.quantile(0.5, value);
        let (mut phases, mut phase_sums) = (Map::new(), Map::new());
        for (place, phase) in Phase::ALL.iter().enumerate() {
            let values = self.window.iter().map(|r| r.phases[place].0).collect();
            if let Value::String(name) = json!(phase) {
                phase_sums.insert(name.clone(), json!(self.phases[place]));
                phases.insert(name, json!(quantile(values, 0.5)));
            }
        }
        let mut totals: Map<String, Value> = SUMMED
            .iter()
            .zip(self.sums)
            .map(|((name, _), sum)| ((*name).to_owned(), json!(sum)))
            .collect();
        totals.insert("phases_us".into(), phase_sums.into());
        totals.insert("reasons".into(), json!(self.reasons));
        let mut reasons = Map::new();
        for report in &self.window {
            let count = reasons
                .get(&report.reason)
                .and_then(Value::as_u64)
                .unwrap_or(0);
            reasons.insert(report.reason.clone(), json!(count + 1));
        }
        json!({
            "count": totals["count"],
            "pause_us_p50": median(|r| r.pause.0),
            "pause_us_p99": self.quantile(0.99, |r| r.pause.0),
            "slot_us_p50": median(|r| r.slot.0),
            "dirty": median(|r| u64::from(r.union)),
            "dirty_leader": median(|r| u64::from(r.dirty_leader)),
            "dirty_secondary": median(|r| u64::from(r.dirty_secondary)),
            "same": median(|r| u64::from(r.same)),
            "divergent": median(|r| u64::from(r.divergent)),
            "bytes": median(|r| r.bytes_hashes + r.bytes_pages + r.bytes_device),
            "outputs": median(|r| u64::from(r.outputs)),
            "phases_us_p50": phases,
            "reasons": reasons,
            "totals": totals,
            "pause_histogram": self.pause.to_json(),
            "slot_histogram": self.slot.to_json(),
        })
    }

    fn quantile(&self, q: f64, value: Figure) -> u64 {
        quantile(self.window.iter().map(value).collect(), q)
    }
}

/// How long the leader's outputs wait between the guest and the clients.
///
/// The guard is a queue, so ages are assigned first in, first out. A policy that releases out of turn
/// changes which frame has which age, not the mean.
#[derive(Debug, Default)]
pub(crate) struct HeldOutputs {
    /// When waiting frames were reported, and how many.
    waiting: VecDeque<(Micros, usize)>,
    /// Ages of released frames, and how many had that age.
    window: VecDeque<(u64, usize)>,
    ages: Histogram,
}

impl HeldOutputs {
    /// The guest has sent frames.
    pub fn hold(&mut self, now: Micros, frames: usize) {
        if frames > 0 {
            self.waiting.push_back((now, frames));
        }
    }

    /// The guard was full: the youngest frames are lost.
    pub fn lose(&mut self, mut frames: usize) {
        while let Some((_, last)) = self.waiting.back_mut().filter(|_| frames > 0) {
            let lost = frames.min(*last);
            frames -= lost;
            *last -= lost;
            if *last == 0 {
                self.waiting.pop_back();
            }
        }
    }

    /// Frames went out, the oldest first. Frames that this replica took over with its role were not
    /// counted when they were sent, and have no age.
    pub fn release(&mut self, now: Micros, mut frames: usize) {
        while let Some((since, first)) = self.waiting.front_mut().filter(|_| frames > 0) {
            let out = frames.min(*first);
            let age = now.since(*since).0;
            frames -= out;
            *first -= out;
            if *first == 0 {
                self.waiting.pop_front();
            }
            self.ages.add_times(Micros(age), out as u64);
            if self.window.len() == RELEASES {
                self.window.pop_front();
            }
            self.window.push_back((age, out));
        }
    }

    /// This replica no longer faces clients, so it will not release the frames that it holds.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    /// The status' `outputs` object: frames released, the sum and the histogram of their waits since the
    /// start, quantiles of the last releases, and the age of the oldest frame that waits.
    pub fn to_json(&self, now: Micros) -> Value {
        let oldest = self.waiting.front().map(|(since, _)| now.since(*since).0);
        json!({
            "oldest_us": oldest.unwrap_or(0),
            "released": self.ages.count(),
            "held_us_total": self.ages.sum_us(),
            "held_histogram": self.ages.to_json(),
            "held_us_p50": self.quantile(0.5),
            "held_us_p99": self.quantile(0.99),
        })
    }

    fn quantile(&self, q: f64) -> u64 {
        let mut ages: Vec<_> = self.window.iter().copied().collect();
        ages.sort_unstable();
        let frames: usize = ages.iter().map(|(_, frames)| frames).sum();
        let mut below = (frames as f64 * q) as usize;
        for (age, frames) in ages {
            if below < frames {
                return age;
            }
            below -= frames;
        }
        0
    }
}

/// Failures since the start, counted from the brain's notes.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Copies of the guest to another replica.
    pub copies: u64,
    pub syncs: u64,
    /// Guests of this replica that were lost.
    pub guests: u64,
}

impl Failures {
    pub fn note(&mut self, note: &Note) {
        match note {
            Note::JoinFailed { .. } => self.copies += 1,
            Note::SyncFailed { .. } => self.syncs += 1,
            Note::GuestLost { .. } => self.guests += 1,
            _ => {}
        }
    }
}

fn quantile(mut values: Vec<u64>, q: f64) -> u64 {
    values.sort_unstable();
    let place = ((values.len() as f64 - 1.0) * q).round().max(0.0) as usize;
    values.get(place).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_look_back_over_the_window_only() {
        let mut metrics = SyncMetrics::default();
        assert_eq!(metrics.to_json()["pause_us_p50"], 0, "no sync yet");
        for pause in 0..2000 {
            metrics.add(SyncReport {
                pause: Micros(pause),
                ..SyncReport::default()
            });
        }
        let json = metrics.to_json();
        assert_eq!(json["count"], 2000);
        assert_eq!(json["pause_us_p50"], 2000 - 256);
    }

    #[test]
    fn totals_forget_nothing() {
        let mut metrics = SyncMetrics::default();
        let mut report = SyncReport {
            slot: Micros(7),
            union: 3,
            bytes_pages: 4096,
            ..SyncReport::default()
        };
        report.phases[3] = Micros(5);
        report.reason = "quiet".into();
        for _ in 0..1000 {
            metrics.add(report.clone());
        }
        let json = metrics.to_json();
        let totals = &json["totals"];
        assert_eq!(totals["count"], 1000);
        assert_eq!(totals["slot_us"], 7000);
        assert_eq!(totals["dirty"], 3000);
        assert_eq!(totals["bytes_pages"], 4_096_000);
        assert_eq!(totals["phases_us"]["scan"], 5000);
        assert_eq!(totals["reasons"]["quiet"], 1000);
        assert_eq!(json["slot_histogram"]["sum_us"], 7000);
        assert_eq!(json["slot_histogram"]["counts"][0], 1000);
    }

    #[test]
    fn outputs_age_from_the_guest_to_the_clients() {
        let mut held = HeldOutputs::default();
        held.hold(Micros(100), 3);
        held.hold(Micros(200), 2);
        held.lose(1);
        held.release(Micros(300), 2);
        assert_eq!(held.to_json(Micros(350))["oldest_us"], 250);
        held.release(Micros(400), 9);
        let json = held.to_json(Micros(500));
        assert_eq!(json["oldest_us"], 0, "none waits");
        assert_eq!(json["held_histogram"]["counts"][2], 4);
        assert_eq!(json["released"], 4, "one was lost");
        assert_eq!(json["held_us_total"], 200 + 200 + 300 + 200);
        assert_eq!(
            (&json["held_us_p50"], &json["held_us_p99"]),
            (&json!(200), &json!(300))
        );
    }

    #[test]
    fn outputs_left_by_another_role_have_no_age() {
        let mut held = HeldOutputs::default();
        held.hold(Micros(1), 5);
        held.forget();
        held.release(Micros(1000), 5);
        held.lose(5);
        assert_eq!(held.to_json(Micros(1000))["released"], 0);
        assert_eq!(held.to_json(Micros(1000))["held_us_p99"], 0);
    }
}

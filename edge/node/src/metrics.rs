//! What the last syncs cost, for the status.

use plover_syncvm::{Phase, SyncReport};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Syncs that the medians look back over.
const WINDOW: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct SyncMetrics {
    count: u64,
    bytes: u64,
    outputs: u64,
    window: VecDeque<SyncReport>,
}

impl SyncMetrics {
    pub fn add(&mut self, report: SyncReport) {
        self.count += 1;
        self.bytes += report.bytes_hashes + report.bytes_pages + report.bytes_device;
        self.outputs += u64::from(report.outputs);
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(report);
    }

    /// The status' `sync` object. Durations in µs, pages and bytes per sync; medians over the
    /// last 512 syncs, `count`, `bytes_total` and `outputs_total` since the start.
    pub fn to_json(&self) -> Value {
        let median = |value: fn(&SyncReport) -> u64| self.quantile(0.5, value);
        let mut phases = Map::new();
        for (place, phase) in Phase::ALL.iter().enumerate() {
            let values = self.window.iter().map(|r| r.phases[place].0).collect();
            if let Value::String(name) = json!(phase) {
                phases.insert(name, json!(quantile(values, 0.5)));
            }
        }
        let mut reasons = Map::new();
        for report in &self.window {
            let count = reasons
                .get(&report.reason)
                .and_then(Value::as_u64)
                .unwrap_or(0);
            reasons.insert(report.reason.clone(), json!(count + 1));
        }
        json!({
            "count": self.count,
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
            "bytes_total": self.bytes,
            "outputs_total": self.outputs,
        })
    }

    fn quantile(&self, q: f64, value: fn(&SyncReport) -> u64) -> u64 {
        quantile(self.window.iter().map(value).collect(), q)
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
    use plover_types::Micros;

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
}

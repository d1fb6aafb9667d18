//! The demo's result, as text and as JSON.

use super::timeline::Timeline;
use crate::experiment::Verdict;
use plover_lab::control::SyncStatus;
use plover_lab::status::milliseconds;
use serde::Serialize;
use std::fmt;

/// The demo's result; `./x demo --json` prints it as its last line.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether no write was lost, no connection was reset, and only one replica at a time sent as the
    /// guest.
    pub ok: bool,
    /// Writes that the guest acknowledged.
    pub acked_writes: u64,
    /// Acknowledged writes that were not there afterwards.
    pub lost_writes: u64,
    /// Connections that were lost.
    pub resets: usize,
    /// Frames that a replica sent as the guest out of turn.
    pub two_senders: u64,
    /// Frames sent as the guest that the capture saw.
    pub captured_frames: u64,
    /// Frames that the capture missed.
    pub captured_missed: u64,
    /// The failovers.
    pub failovers: Vec<Failover>,
    /// Medians of the leader that led most syncs.
    pub sync: SyncStatus,
    /// How long it all took.
    pub seconds: u64,
    #[serde(skip)]
    complaints: Vec<String>,
    #[serde(skip)]
    senders: Vec<u8>,
}

/// One failover, in ms.
#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// The fault.
    pub fault: &'static str,
    /// From the fault to the first suspicion.
    pub detect_ms: f64,
    /// From the first suspicion to the election.
    pub elect_ms: f64,
    /// From the election until the new leader faced the clients.
    pub serve_ms: f64,
    /// The longest time in which no client had an answer.
    pub client_gap_ms: f64,
    /// The longest time in which one connection had no answer.
    pub slowest_connection_ms: f64,
    /// From the fault until a new secondary protected the guest.
    pub reprotect_ms: f64,
    #[serde(skip)]
    timeline: Timeline,
}

impl Failover {
    /// Computes the spans from the moments of a timeline.
    pub(super) fn new(timeline: Timeline) -> Self {
        let elected = timeline.elected_us.unwrap_or_default();
        let suspected = timeline.suspected_us.unwrap_or(elected).min(elected);
        let serving = timeline.serving_us.unwrap_or(elected);
        Self {
            fault: "kill-leader",
            detect_ms: ms(suspected),
            elect_ms: ms(elected - suspected),
            serve_ms: ms(serving.saturating_sub(elected)),
            client_gap_ms: ms(timeline.silence_us),
            slowest_connection_ms: ms(timeline.slowest_us),
            reprotect_ms: ms(timeline.protected_us.unwrap_or_default()),
            timeline,
        }
    }
}

/// In ms with one decimal. More would mean nothing.
fn ms(us: u64) -> f64 {
    (us as f64 / 100.0).round() / 10.0
}

impl Report {
    pub(super) fn new(failovers: Vec<Failover>, verdict: Verdict, seconds: u64) -> Self {
        let (audit, senders) = (&verdict.audit, &verdict.senders);
        let mut complaints: Vec<String> = audit.resets.clone();
        complaints.extend(audit.lost_keys.iter().map(|key| format!("lost: {key}")));
        Self {
            ok: verdict.is_good(),
            acked_writes: audit.acked,
            lost_writes: audit.lost,
            resets: audit.resets.len(),
            two_senders: senders.out_of_turn,
            captured_frames: senders.frames,
            captured_missed: senders.missed,
            failovers,
            complaints,
            senders: senders.order.clone(),
            sync: verdict.sync,
            seconds,
        }
    }
}

/// The text at the end of the demo.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, failover) in self.failovers.iter().enumerate() {
            writeln!(f, "\nfailover {}", number + 1)?;
            for (at_us, text) in failover.timeline.lines() {
                writeln!(f, "  {:>7} ms  {text}", at_us / 1000)?;
            }
        }
        let senders: Vec<String> = self
            .senders
            .iter()
            .map(|id| format!("replica {id}"))
            .collect();
        writeln!(f, "\naudit")?;
        writeln!(
            f,
            "  {} acknowledged writes read back: {} lost",
            self.acked_writes, self.lost_writes
        )?;
        writeln!(f, "  connections reset: {}", self.resets)?;
        writeln!(
            f,
            "  {} frames seen from the guest, sent by {}; {} out of turn{}",
            self.captured_frames,
            senders.join(", then "),
            self.two_senders,
            if self.captured_missed > 0 {
                " (AND SOME WERE MISSED)"
            } else {
                ""
            }
        )?;
        for complaint in &self.complaints {
            writeln!(f, "  {complaint}")?;
        }
        let sync = &self.sync;
        writeln!(
            f,
            "\n{} syncs; medians: slot {}, pause {}, {} dirty pages, {} of them the same on both \
             sides, {} KiB sent",
            sync.count,
            milliseconds(sync.slot_us_p50),
            milliseconds(sync.pause_us_p50),
            sync.dirty,
            sync.same,
            sync.bytes / 1024
        )?;
        let outcome = if self.ok {
            "nothing was lost"
        } else {
            "FAILED"
        };
        writeln!(f, "{outcome}, in {} s", self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Audit;
    use crate::senders::Senders;

    fn verdict() -> Verdict {
        Verdict {
            audit: Audit {
                acked: 100,
                ..Audit::default()
            },
            senders: Senders {
                frames: 9,
                order: vec![0, 1],
                ..Senders::default()
            },
            sync: SyncStatus::default(),
        }
    }

    #[test]
    fn one_lost_write_or_reset_or_second_sender_is_a_failure() {
        assert!(Report::new(vec![], verdict(), 1).ok);
        let mut lost = verdict();
        lost.audit.lost = 1;
        let mut reset = verdict();
        reset.audit.resets.push("connection 3: reset".into());
        let mut two = verdict();
        two.senders.out_of_turn = 1;
        let mut blind = verdict();
        blind.senders.missed = 1;
        let mut idle = verdict();
        idle.audit.acked = 0;
        for bad in [lost, reset, two, blind, idle] {
            let report = Report::new(vec![], bad, 1);
            assert!(!report.ok && report.to_string().contains("FAILED"));
        }
    }

    #[test]
    fn the_json_has_the_promised_shape() {
        let timeline = Timeline {
            suspected_us: Some(150_000),
            elected_us: Some(210_000),
            serving_us: Some(215_000),
            silence_us: 260_040,
            protected_us: Some(5_000_000),
            ..Timeline::default()
        };
        let report = Report::new(vec![Failover::new(timeline)], verdict(), 60);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["ok"], true);
        assert_eq!(
            (json["acked_writes"].as_u64(), json["lost_writes"].as_u64()),
            (Some(100), Some(0))
        );
        assert_eq!(json["resets"], 0);
        let failover = &json["failovers"][0];
        assert_eq!(failover["fault"], "kill-leader");
        assert_eq!(failover["detect_ms"], 150.0);
        assert_eq!(failover["elect_ms"], 60.0);
        assert_eq!(failover["client_gap_ms"], 260.0);
        assert_eq!(failover["reprotect_ms"], 5000.0);
        assert!(json["sync"]["pause_us_p50"].is_u64());
        assert!(report.to_string().contains("210 ms  replica"));
    }
}

//! The moments of a failover, from the traces and from the client.

use crate::load::Gap;
use plover_lab::trace::TraceEvent;

/// One failover. Moments are µs after the fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The replica that was killed.
    pub killed: u8,
    /// The replica that took over.
    pub leader: Option<u8>,
    /// The first suspicion. A closed connection may raise it sooner than silence.
    pub suspected_us: Option<u64>,
    /// The election.
    pub elected_us: Option<u64>,
    /// The new leader faces the clients.
    pub serving_us: Option<u64>,
    /// The first acknowledgement after the silence.
    pub first_reply_us: u64,
    /// The longest silence of all connections together.
    pub silence_us: u64,
    /// The silence of the connection that waited longest.
    pub slowest_us: u64,
    /// A new secondary protects the guest.
    pub protected_us: Option<u64>,
    /// The id of that secondary.
    pub secondary: Option<u64>,
}

impl Timeline {
    /// Puts it together from all events and the client's silences.
    pub fn of(events: &[TraceEvent], killed: u8, fault_us: u64, gap: Gap) -> Self {
        let after = |what: &str| {
            events
                .iter()
                .find(|event| event.mono_us > fault_us && event.what == what)
        };
        let since = |event: Option<&TraceEvent>| event.map(|event| event.mono_us - fault_us);
        Self {
            killed,
            leader: after("serving").map(|event| event.replica),
            suspected_us: since(after("suspected")),
            elected_us: since(after("elected")),
            serving_us: since(after("serving")),
            first_reply_us: gap.first_reply_us.saturating_sub(fault_us),
            silence_us: gap.silence_us,
            slowest_us: gap.slowest_us,
            protected_us: since(after("protected")),
            secondary: after("protected").and_then(|event| event.number("peer")),
        }
    }

    /// The lines of the report, in the order of time.
    pub fn lines(&self) -> Vec<(u64, String)> {
        let who = |id: Option<u8>| id.map_or_else(|| "?".into(), |id| id.to_string());
        let leader = who(self.leader);
        let mut lines = vec![(
            0,
            format!("replica {} killed: plover and QEMU", self.killed),
        )];
        let mut add = |at: Option<u64>, text: String| lines.extend(at.map(|at| (at, text)));
        add(self.suspected_us, "its loss is suspected".into());
        add(self.elected_us, format!("replica {leader} elected"));
        add(
            self.serving_us,
            format!("replica {leader} faces the clients"),
        );
        add(
            Some(self.first_reply_us),
            format!(
                "first reply to a client, after a silence of {} ms ({} ms on the connection that \
                 waited longest)",
                self.silence_us / 1000,
                self.slowest_us / 1000
            ),
        );
        let secondary = self
            .secondary
            .map_or_else(|| "?".into(), |id| id.to_string());
        add(
            self.protected_us,
            format!("protected again: replica {secondary} in step"),
        );
        lines.sort();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mono_us: u64, replica: u8, what: &str, more: serde_json::Value) -> TraceEvent {
        let more = more.as_object().cloned().unwrap_or_default();
        TraceEvent {
            mono_us,
            replica,
            what: what.into(),
            more,
        }
    }

    #[test]
    fn only_what_follows_the_fault_counts() {
        let none = serde_json::Value::Null;
        let events = [
            event(500, 0, "serving", none.clone()),
            event(600, 0, "protected", serde_json::json!({"peer": 1})),
            event(1150, 1, "suspected", none.clone()),
            event(1160, 2, "suspected", none.clone()),
            event(1200, 1, "elected", none.clone()),
            event(1210, 1, "serving", none),
            event(9000, 1, "protected", serde_json::json!({"peer": 2})),
        ];
        let gap = Gap {
            silence_us: 320,
            first_reply_us: 1300,
            slowest_us: 400,
            all_replied: true,
        };
        let timeline = Timeline::of(&events, 0, 1000, gap);
        assert_eq!(timeline.leader, Some(1));
        assert_eq!(timeline.suspected_us, Some(150));
        assert_eq!(
            (timeline.elected_us, timeline.serving_us),
            (Some(200), Some(210))
        );
        assert_eq!(
            (timeline.first_reply_us, timeline.protected_us),
            (300, Some(8000))
        );
        let lines = timeline.lines();
        assert_eq!(lines.len(), 6);
        assert!(lines.is_sorted());
        assert!(lines[5].1.contains("replica 2 in step"), "{lines:?}");
    }
}

//! How this replica last took over: the parts of its failover, for the status.

use plover_replica::Note;
use plover_types::Micros;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// A notice this old has nothing to do with an election.
const NOTICED_WITHIN: Micros = Micros::from_ms(10_000);

/// How the loss of the leader was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It was silent for this long.
    Silence(Micros),
    /// Its host has reported the death of its process.
    Report,
    /// It has handed over.
    HandedOver,
}

/// The moments of a takeover.
#[derive(Debug, Default)]
pub(super) struct Failover {
    noticed: Option<(Micros, Notice)>,
    elected: Option<Micros>,
    last: Value,
    by_silence: u64,
    by_report: u64,
    handed_over: u64,
}

impl Failover {
    /// Takes a note of the brain.
    pub fn note(&mut self, now: Micros, note: &Note, suspected_after: impl FnOnce() -> Micros) {
        match note {
            Note::Suspected { .. } => {
                let report = self
                    .noticed
                    .filter(|(at, how)| *how == Notice::Report && now.since(*at) < NOTICED_WITHIN);
                self.noticed = report.or(Some((now, Notice::Silence(suspected_after()))));
            }
            Note::DeathReported { .. } => self.noticed = Some((now, Notice::Report)),
            Note::Succeeds { .. } => self.noticed = Some((now, Notice::HandedOver)),
            Note::Elected { .. } => self.elected = Some(now),
            Note::Serving { .. } => self.serves(now),
            _ => {}
        }
    }

    /// The last takeover; null if this replica has taken over from nobody.
    pub fn last(&self) -> &Value {
        &self.last
    }

    /// How often this replica has taken over, by how the loss was noticed.
    pub fn counts(&self) -> Value {
        json!({
            "silence": self.by_silence,
            "reported": self.by_report,
            "handed_over": self.handed_over,
        })
    }

    fn serves(&mut self, now: Micros) {
        let noticed = self.noticed.take();
        let noticed = noticed.filter(|(at, _)| now.since(*at) < NOTICED_WITHIN);
        let (Some((noticed, how)), Some(elected)) = (noticed, self.elected.take()) else {
            return;
        };
        let (how, silence, count) = match how {
            Notice::Silence(span) => ("silence", Some(span.0), &mut self.by_silence),
            Notice::Report => ("reported", None, &mut self.by_report),
            Notice::HandedOver => ("handed over", None, &mut self.handed_over),
        };
        *count += 1;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        self.last = json!({
            "how": how,
            "mono_us": now.0,
            "unix_s": unix.map_or(0, |span| span.as_secs()),
            "noticed_us": silence,
            "elected_us": elected.since(noticed).0,
            "serving_us": now.since(elected).0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::View;

    #[test]
    fn a_failover_has_three_parts() {
        let view = View(17);
        let mut failover = Failover::default();
        let span = Micros::from_ms(75);
        failover.note(Micros::from_ms(1), &Note::Serving { view }, || span);
        assert_eq!(
            *failover.last(),
            Value::Null,
            "the first leader took over from nobody"
        );
        failover.note(Micros::from_ms(100), &Note::Suspected { view }, || span);
        failover.note(Micros::from_ms(112), &Note::Elected { view }, || span);
        failover.note(Micros::from_ms(115), &Note::Serving { view }, || span);
        let last = failover.last().clone();
        assert_eq!(last["how"], "silence");
        assert_eq!(last["noticed_us"], 75_000);
        assert_eq!(last["elected_us"], 12_000);
        assert_eq!(last["serving_us"], 3_000);
        failover.note(Micros::from_ms(200), &Note::Succeeds { view }, || span);
        failover.note(Micros::from_ms(204), &Note::Elected { view }, || span);
        failover.note(Micros::from_ms(206), &Note::Serving { view }, || span);
        assert_eq!(failover.last()["how"], "handed over");
        assert_eq!(failover.last()["noticed_us"], Value::Null);
        let counts = json!({"silence": 1, "reported": 0, "handed_over": 1});
        assert_eq!(failover.counts(), counts);
    }
}

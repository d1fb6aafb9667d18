//! How this replica last took over, and how it has lost the lead itself, for the status.

use plover_replica::{Note, OwnFault, Role};
use plover_types::{Micros, ReplicaId};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// How the loss of the leader was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// It was silent for this long.
    Silence(Micros),
    /// Its host has reported the death of its process.
    Report,
    /// It has handed over.
    HandedOver,
    /// It was told to end, and had said so. If its silence was noticed first, this is how long that was.
    Stopped(Option<Micros>),
}

/// The moments of a takeover.
#[derive(Debug, Default)]
pub(super) struct Failover {
    /// The leader that this replica follows.
    follows: Option<ReplicaId>,
    /// The other replica that led last, until this one serves. Without one, this replica takes over from nobody: the group has
    /// begun, or this replica led last itself.
    predecessor: Option<ReplicaId>,
    /// When and how the loss of the last leader was noticed first. Another leader that is followed ends that. An outage has no
    /// longest time: a witness may be away, or a host is yet to be fenced.
    noticed: Option<(Micros, Notice)>,
    elected: Option<Micros>,
    last: Value,
    by_silence: u64,
    by_report: u64,
    handed_over: u64,
    stopped: u64,
}

impl Failover {
    /// Takes a note of the brain. `has_stopped` tells whether a replica has said that it was told to end.
    pub fn note(
        &mut self,
        now: Micros,
        note: &Note,
        has_stopped: impl Fn(ReplicaId) -> bool,
        suspected_after: impl FnOnce() -> Micros,
    ) {
        match note {
            Note::Suspected { .. } => {
                let span = suspected_after();
                let how = match self.predecessor.is_some_and(has_stopped) {
                    true => Notice::Stopped(Some(span)),
                    false => Notice::Silence(span),
                };
                self.notice(now, how);
            }
            // The death of another follower is no loss of the leader.
            Note::DeathReported { peer } if self.follows == Some(*peer) => {
                let how = match has_stopped(*peer) {
                    true => Notice::Stopped(None),
                    false => Notice::Report,
                };
                self.notice(now, how);
            }
            Note::Succeeds { .. } => self.notice(now, Notice::HandedOver),
            Note::Elected { .. } => self.elected = Some(now),
            Note::Serving { .. } => self.serves(now),
            // The guest is lost. A guest that begins after that takes over from nobody.
            Note::GroupEmpty { .. } => {
                self.predecessor = None;
                self.noticed = None;
                self.elected = None;
            }
            _ => {}
        }
    }

    /// An event has been carried out, and this replica follows `leader`, if anyone.
    pub fn follow(&mut self, leader: Option<ReplicaId>) {
        self.follows = leader;
        if leader.is_some() {
            self.predecessor = leader;
            self.noticed = None;
            self.elected = None;
        }
    }

    fn notice(&mut self, now: Micros, how: Notice) {
        self.noticed.get_or_insert((now, how));
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
            "stopped": self.stopped,
        })
    }

    fn serves(&mut self, now: Micros) {
        let led_before = self.predecessor.take().is_some();
        let (Some((noticed, how)), Some(elected)) = (self.noticed.take(), self.elected.take())
        else {
            return;
        };
        if !led_before {
            return;
        }
        let (how, silence, count) = match how {
            Notice::Silence(span) => ("silence", Some(span.0), &mut self.by_silence),
            Notice::Report => ("reported", None, &mut self.by_report),
            Notice::HandedOver => ("handed over", None, &mut self.handed_over),
            Notice::Stopped(span) => ("stopped", span.map(|span| span.0), &mut self.stopped),
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

/// How this replica has lost the lead.
#[derive(Debug, Default)]
pub(super) struct LostLeads {
    /// This leader has given up the lead itself, and is about to lose it.
    gives_up: bool,
    deposed: u64,
    for_uplink: u64,
    for_hypervisor: u64,
    for_storage: u64,
}

impl LostLeads {
    /// Takes a note of the brain.
    pub fn note(&mut self, note: &Note) {
        match note {
            // Both faults may come at the same time. The lead is lost once.
            Note::Resigned { .. } if self.gives_up => {}
            Note::Resigned { why } => {
                self.gives_up = true;
                match why {
                    OwnFault::Uplink => self.for_uplink += 1,
                    OwnFault::Hypervisor => self.for_hypervisor += 1,
                    OwnFault::Storage => self.for_storage += 1,
                }
            }
            // An operator wants the handover, or the guest is gone.
            Note::HandedOver { .. } | Note::GuestLost { .. } => self.gives_up = true,
            Note::Elected { .. } => self.gives_up = false,
            Note::Role { to, .. } => {
                let gave_up = std::mem::take(&mut self.gives_up);
                self.deposed += u64::from(*to == Role::Deposed && !gave_up);
            }
            _ => {}
        }
    }

    /// How often others have deposed this leader.
    pub fn deposed(&self) -> u64 {
        self.deposed
    }

    /// How often this leader has handed over because of a fault of its host, by the fault.
    pub fn handovers(&self) -> Value {
        json!({
            "uplink": self.for_uplink,
            "hypervisor": self.for_hypervisor,
            "storage": self.for_storage,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::View;

    const SPAN: Micros = Micros::from_ms(75);

    fn note(failover: &mut Failover, ms: u64, note: &Note) {
        failover.note(Micros::from_ms(ms), note, |_| false, || SPAN);
    }

    #[test]
    fn a_failover_has_three_parts() {
        let view = View(17);
        let mut failover = Failover::default();
        note(&mut failover, 1, &Note::Serving { view });
        assert_eq!(
            *failover.last(),
            Value::Null,
            "the first leader took over from nobody"
        );
        failover.follow(Some(ReplicaId(0)));
        note(&mut failover, 100, &Note::Suspected { view });
        note(&mut failover, 112, &Note::Elected { view });
        note(&mut failover, 115, &Note::Serving { view });
        let last = failover.last().clone();
        assert_eq!(last["how"], "silence");
        assert_eq!(last["noticed_us"], 75_000);
        assert_eq!(last["elected_us"], 12_000);
        assert_eq!(last["serving_us"], 3_000);
        failover.follow(Some(ReplicaId(2)));
        note(&mut failover, 200, &Note::Succeeds { view });
        note(&mut failover, 204, &Note::Elected { view });
        note(&mut failover, 206, &Note::Serving { view });
        assert_eq!(failover.last()["how"], "handed over");
        assert_eq!(failover.last()["noticed_us"], Value::Null);
        let counts = json!({"silence": 1, "reported": 0, "handed_over": 1, "stopped": 0});
        assert_eq!(failover.counts(), counts);
    }

    /// A witness may be away, or a host is yet to be fenced.
    #[test]
    fn a_takeover_counts_however_long_it_takes() {
        let view = View(17);
        let mut failover = Failover::default();
        failover.follow(Some(ReplicaId(0)));
        note(&mut failover, 100, &Note::Suspected { view });
        failover.follow(None);
        note(&mut failover, 60_000, &Note::Suspected { view });
        failover.follow(None);
        note(&mut failover, 300_100, &Note::Elected { view });
        note(&mut failover, 300_103, &Note::Serving { view });
        assert_eq!(failover.last()["elected_us"], 300_000_000_u64);
        assert_eq!(failover.last()["serving_us"], 3_000);
        assert_eq!(failover.counts()["silence"], 1);
    }

    #[test]
    fn a_notice_ends_with_another_leader() {
        let view = View(17);
        let mut failover = Failover::default();
        failover.follow(Some(ReplicaId(0)));
        note(&mut failover, 100, &Note::Suspected { view });
        failover.follow(Some(ReplicaId(2)));
        note(&mut failover, 200, &Note::Elected { view });
        note(&mut failover, 201, &Note::Serving { view });
        assert_eq!(*failover.last(), Value::Null);
        assert_eq!(failover.counts()["silence"], 0);
    }

    #[test]
    fn only_a_report_of_the_leaders_death_is_a_notice() {
        let view = View(17);
        for (dead, how) in [(0, "reported"), (2, "silence")] {
            let mut failover = Failover::default();
            failover.follow(Some(ReplicaId(0)));
            let peer = ReplicaId(dead);
            note(&mut failover, 100, &Note::DeathReported { peer });
            failover.follow(None);
            note(&mut failover, 101, &Note::Suspected { view });
            note(&mut failover, 102, &Note::Elected { view });
            note(&mut failover, 103, &Note::Serving { view });
            assert_eq!(failover.last()["how"], how);
        }
    }

    #[test]
    fn a_leader_that_is_elected_again_has_taken_over_from_nobody() {
        let view = View(17);
        let mut failover = Failover::default();
        failover.follow(Some(ReplicaId(0)));
        for ms in [100, 200] {
            note(&mut failover, ms, &Note::Suspected { view });
            failover.follow(None);
            note(&mut failover, ms + 1, &Note::Elected { view });
            note(&mut failover, ms + 2, &Note::Serving { view });
            assert_eq!(failover.counts()["silence"], 1);
        }
    }

    #[test]
    fn a_guest_that_boots_after_a_total_loss_has_taken_over_from_nobody() {
        let view = View(17);
        let mut failover = Failover::default();
        failover.follow(Some(ReplicaId(0)));
        note(&mut failover, 100, &Note::Suspected { view });
        failover.follow(None);
        note(&mut failover, 200, &Note::GroupEmpty { fresh: false });
        note(&mut failover, 9_000_000, &Note::Elected { view });
        note(&mut failover, 9_000_001, &Note::Serving { view });
        assert_eq!(*failover.last(), Value::Null);
        assert_eq!(failover.counts()["silence"], 0);
    }

    /// Of two replicas neither hands over: the other one goes on when its process has ended.
    #[test]
    fn the_end_of_a_leader_that_was_told_to_end_counts_apart() {
        let view = View(17);
        let peer = ReplicaId(0);
        let (dead, silent) = (Note::DeathReported { peer }, Note::Suspected { view });
        for (noticed, span) in [(dead, None), (silent, Some(SPAN.0))] {
            for told in [0, 2] {
                let mut failover = Failover::default();
                failover.follow(Some(peer));
                let has_stopped = |it: ReplicaId| it.0 == told;
                failover.note(Micros::from_ms(100), &noticed, has_stopped, || SPAN);
                failover.follow(None);
                note(&mut failover, 101, &Note::Elected { view });
                note(&mut failover, 102, &Note::Serving { view });
                let was_told = told == peer.0;
                assert_eq!(failover.last()["how"] == "stopped", was_told);
                assert_eq!(failover.last()["noticed_us"], json!(span));
                assert_eq!(failover.counts()["stopped"], u64::from(was_told));
            }
        }
    }

    /// Switchovers and faults of a leader's host do not mean that it is suspected wrongly.
    #[test]
    fn a_leader_that_gives_up_its_lead_is_not_deposed() {
        let view = View(17);
        let role = |from, to| Note::Role { from, to, view };
        let deposed = || role(Role::Leader, Role::Deposed);
        let mut lost = LostLeads::default();
        lost.note(&deposed());
        assert_eq!(lost.deposed(), 1);
        let (uplink, hypervisor) = (OwnFault::Uplink, OwnFault::Hypervisor);
        let why = "killed".to_string();
        for given_up in [
            vec![Note::HandedOver { to: ReplicaId(1) }],
            vec![Note::GuestLost { why: why.clone() }],
            vec![Note::Resigned { why: uplink }],
            vec![
                Note::Resigned { why: hypervisor },
                Note::Resigned { why: uplink },
            ],
        ] {
            lost.note(&Note::Elected { view });
            given_up.iter().for_each(|note| lost.note(note));
            lost.note(&deposed());
        }
        assert_eq!(lost.deposed(), 1);
        assert_eq!(
            lost.handovers(),
            json!({"uplink": 1, "hypervisor": 1, "storage": 0})
        );
        // The guest was lost before this replica led.
        lost.note(&Note::GuestLost { why });
        lost.note(&Note::Elected { view });
        lost.note(&deposed());
        assert_eq!(lost.deposed(), 2);
    }
}

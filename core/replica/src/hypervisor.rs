//! The orders that this side's hypervisor has not answered, and the consequences of one that stands still.
//!
//! A hypervisor can stand still while its host lives: an image on a disk that hangs, a main loop that
//! waits. Every order to it is timed, and where none is due, a probe asks. An answer that is late says
//! who is at fault: this side.
//!
//! ```text
//!   leader, protected   stops leading, so that the secondary takes over
//!   leader, solo        waits: nobody else has the guest
//!   secondary           tells the leader, which goes on without it
//! ```
//!
//! Two replicas without a third do none of this: there, the word of one decides alone that it goes on without the
//! other (docs/decisions/0018), so it must not be given on a suspicion.
//!
//! Nobody gives a guest up because of a late answer: it is dropped, as ever, when an in-sync set without
//! this replica is agreed. So if both hypervisors stand still (a disk that they share), the guest goes on
//! where the first of them answers again.

use crate::api::{Action, Note, OwnFault};
use crate::canary::canary;
use crate::guest::Power;
use crate::phase::Phase;
use crate::replica::Replica;
use plover_syncvm::message::Body;
use plover_types::{Micros, View};

/// An order whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Pause,
    Resume,
    Save,
    Reset,
    Load,
    Probe,
    /// Not the hypervisor's: work on the guest's pages that has stood still for long.
    Pages,
}

impl Order {
    const ALL: [Self; 7] = [
        Self::Pause,
        Self::Resume,
        Self::Save,
        Self::Reset,
        Self::Load,
        Self::Probe,
        Self::Pages,
    ];

    /// The fault, in a person's words, if its answer is late.
    fn late(self) -> &'static str {
        match self {
            Self::Pause => "the hypervisor does not stop the vCPUs",
            Self::Resume => "the hypervisor does not let the vCPUs run",
            Self::Save => "the hypervisor does not save the devices' state",
            Self::Reset => "the hypervisor does not reset the devices",
            Self::Load => "the hypervisor does not load the devices' state",
            Self::Probe => "the hypervisor does not answer",
            Self::Pages => "the guest's pages cannot be read",
        }
    }
}

/// When the orders were given that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    since: [Option<Micros>; Order::ALL.len()],
    /// When the last answer came.
    heard: Micros,
    /// An answer is late, and that was said.
    is_late: bool,
    /// The view in which the leader was told so.
    told: Option<View>,
}

impl Unanswered {
    pub fn ordered(&mut self, order: Order, now: Micros) {
        self.since[order as usize].get_or_insert(now);
    }

    /// The hypervisor has answered an order.
    pub fn answered(&mut self, order: Order, now: Micros) {
        self.since[order as usize] = None;
        self.heard = now;
    }

    /// This process itself stood still for a while, so it cannot tell who is late.
    pub fn begin_anew(&mut self, now: Micros) {
        self.since.iter_mut().flatten().for_each(|at| *at = now);
    }

    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// The order that has waited longest, and since when.
    fn oldest(&self) -> Option<(Order, Micros)> {
        let open = Order::ALL.iter().zip(self.since);
        let open = open.filter_map(|(order, at)| Some((*order, at?)));
        open.min_by_key(|(_, at)| *at)
    }
}

impl Replica {
    /// How often a hypervisor that has nothing to answer is asked whether it is there.
    fn probe_period(&self) -> Micros {
        Micros(self.cx.config.hypervisor_timeout.0 / 4)
    }

    /// This process itself stood still for a while: nobody else was late meanwhile.
    pub(crate) fn begin_waits_anew(&mut self, now: Micros) {
        self.cx.guest.unanswered.begin_anew(now);
        if let Some((leader, _)) = self.leading() {
            leader.log_waits.begin_anew(now);
        }
    }

    /// Probes a hypervisor that was not heard of for a while, and acts when an answer is late.
    pub(crate) fn watch_hypervisor(&mut self) {
        let cx = &mut self.cx;
        if cx.is_pair() {
            return;
        }
        let stalls = matches!(&self.phase, Phase::Leader(leader) if leader.stalls_here(cx))
            && cx.jobs.are_open_to_lead();
        let unanswered = &mut cx.guest.unanswered;
        let timeout = cx.config.hypervisor_timeout;
        if stalls {
            unanswered.ordered(Order::Pages, cx.now - timeout);
        }
        let why = match unanswered.oldest() {
            Some((order, since)) if cx.now.since(since) >= timeout => order.late(),
            Some(_) => return,
            None => return self.hear_hypervisor(),
        };
        if !std::mem::replace(&mut unanswered.is_late, true) {
            let why = why.to_string();
            cx.note(Note::HypervisorLate { why });
        }
        match &mut self.phase {
            Phase::Leader(_) if canary!(cx, BlameSecondary) => {}
            Phase::Leader(leader) if leader.is_covered(cx) => {
                cx.hand_over(OwnFault::Hypervisor);
            }
            Phase::Secondary(_) if canary!(cx, HangInSilence) => {}
            Phase::Secondary(_) => {
                cx.group.core.set_abstains(true);
                let linked = |leader: &_| cx.peers.is_linked(*leader);
                let view = cx.group.view;
                if let Some(leader) = cx.group.leader.filter(linked) {
                    if cx.guest.unanswered.told.replace(view) != Some(view) {
                        let why = why.to_string();
                        cx.send_bulk(leader, Body::GuestLost { why });
                    }
                }
            }
            _ => {}
        }
    }

    /// All orders are answered.
    fn hear_hypervisor(&mut self) {
        let period = self.probe_period();
        let cx = &mut self.cx;
        let unanswered = &mut cx.guest.unanswered;
        if cx.guest.power == Power::Running && cx.now >= unanswered.heard + period {
            unanswered.ordered(Order::Probe, cx.now);
            cx.out.push(Action::Probe);
        }
        if std::mem::take(&mut unanswered.is_late) {
            cx.note(Note::HypervisorAnswers);
            self.abstain_if_at_fault();
        }
    }

    /// When an answer is late, or the next probe due.
    pub(crate) fn hypervisor_deadline(&self) -> Micros {
        let guest = &self.cx.guest;
        match guest.unanswered.oldest() {
            _ if self.cx.is_pair() => Micros::NEVER,
            Some(_) if guest.unanswered.is_late => Micros::NEVER,
            Some((_, since)) => since + self.cx.config.hypervisor_timeout,
            None if guest.power == Power::Running => guest.unanswered.heard + self.probe_period(),
            None => Micros::NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Event, Role};
    use crate::testing::{leader, secondary, sent_to_leader};
    use plover_policy::{Policy, Preset};

    /// After this, no answer is awaited any more.
    const LATE: Micros = Micros::from_ms(2_000);

    fn vsmr() -> Policy {
        Preset::find("vsmr").unwrap().policy
    }

    /// Ticks whenever something is due, as the node does. Returns what was asked for.
    fn run(replica: &mut Replica, until: Micros) -> Vec<Action> {
        let mut out = Vec::new();
        let mut now = Micros(2);
        while now < until {
            let watch = replica.apply(now, Event::Tick, &mut out);
            now = watch
                .deadline
                .max(now + Micros(1))
                .min(now + Micros::from_ms(20));
        }
        out
    }

    fn notes_late(actions: &[Action]) -> usize {
        let late = |action: &&Action| matches!(action, Action::Note(Note::HypervisorLate { .. }));
        actions.iter().filter(late).count()
    }

    #[test]
    fn a_solo_leader_waits_for_its_hypervisor() {
        let mut replica = leader(vsmr(), false);
        let out = run(&mut replica, LATE);
        assert_eq!(notes_late(&out), 1, "said once");
        assert_eq!(replica.role(), Role::Leader);
        assert!(!out.iter().any(|a| matches!(a, Action::KillGuest)));
        replica.apply(LATE, Event::Probed, &mut Vec::new());
        assert_eq!(replica.role(), Role::Leader, "and goes on when it answers");
    }

    #[test]
    fn a_secondary_tells_the_leader_once_and_keeps_its_guest() {
        let mut replica = secondary(vsmr());
        if let Some(peer) = replica.cx.peers.get_mut(crate::testing::LEADER) {
            peer.is_linked = true;
        }
        let mut out = run(&mut replica, LATE);
        assert!(
            !out.iter().any(|a| matches!(a, Action::KillGuest)),
            "{out:?}"
        );
        replica.cx.out.append(&mut out);
        let lost = |body: &Body| matches!(body, Body::GuestLost { .. });
        assert_eq!(sent_to_leader(&replica).into_iter().filter(lost).count(), 1);
    }

    #[test]
    fn a_hypervisor_that_answers_is_never_late() {
        let mut replica = leader(vsmr(), false);
        let mut out = Vec::new();
        for ms in 1..2_000 {
            replica.apply(Micros::from_ms(ms), Event::Probed, &mut out);
        }
        assert_eq!(notes_late(&out), 0);
    }

    #[test]
    fn a_process_that_stood_still_itself_blames_nobody() {
        let mut replica = leader(vsmr(), false);
        let mut out = Vec::new();
        replica.apply(Micros::from_ms(200), Event::Tick, &mut out);
        assert!(out.iter().any(|a| matches!(a, Action::Probe)), "{out:?}");
        replica.apply(Micros::from_ms(9_000), Event::Tick, &mut out);
        assert_eq!(notes_late(&out), 0);
    }
}

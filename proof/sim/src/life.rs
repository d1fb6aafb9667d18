//! Guests that end by themselves in the middle of something, and the operator who starts those that are off.
//!
//! A guest ends at random, at an input, or at a moment of the protocol, as a fault does that waits for one
//! (`faults`). Now and then a fault strikes right after.

use crate::faults::{Moment, Victim, sudden_kind};
use crate::guest::{Ends, GuestEnd};
use crate::hypervisor::Hypervisor;
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Note, OperatorInput, Role};
use plover_types::{Micros, ReplicaId};

/// The part of the seeds whose guests end.
const CHANCE: f64 = 0.4;

/// An operator who has found the guest off, and no leader to start it, looks again after this time.
const LOOKS_AGAIN_AFTER: Micros = Micros(300_000);

/// The group has forgotten a guest that has ended, or has not, after this time.
const LOOKED_AFTER: Micros = Micros(500_000);

/// How the guests of a seed live and end.
#[derive(Debug)]
pub(crate) struct Life {
    rng: Rng,
    ends: Option<Ends>,
    /// How often a guest ends at a moment of the protocol, and how often a fault follows an end.
    at_a_moment: f64,
    fault_after: f64,
    is_start_planned: bool,
}

impl Life {
    /// The lives of a seed's guests.
    pub fn draw(seed: u64, faults_alone: bool) -> Self {
        let mut rng = Stream::Life.of(seed);
        let ends = (!faults_alone && rng.chance(CHANCE)).then(|| Ends::draw(&mut rng));
        Self {
            ends,
            at_a_moment: rng.pick(&[0.0, 0.02, 0.1]),
            fault_after: rng.pick(&[0.0, 0.2]),
            is_start_planned: false,
            rng,
        }
    }

    /// How often the guests end, and what becomes of them.
    pub fn ends(&self) -> Ends {
        self.ends.unwrap_or_default()
    }
}

impl World {
    /// The replica notes something: perhaps a guest ends just then.
    pub(crate) fn end_at(&mut self, note: &Note) {
        let Some(moment) = Moment::of(note).filter(|_| self.life.ends.is_some()) else {
            return;
        };
        let often = moment.is_frequent();
        let chance = self.life.at_a_moment * if often { 0.1 } else { 1.0 };
        if self.plan.now() < self.scenario.faults.begin || !self.life.rng.chance(chance) {
            return;
        }
        let who = self.life.rng.pick(&self.scenario.members);
        let how = GuestEnd::draw(&mut self.life.rng);
        if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
            hypervisor.guest.end_soon(how);
        }
    }

    /// Counts what has become of the power of a replica's guest, and what it met.
    pub(crate) fn count_life(&mut self, who: ReplicaId) {
        let hypervisor = self.process_mut(who).hypervisor.as_mut();
        let happened = hypervisor.map_or_else(Vec::new, Hypervisor::take_happened);
        for what in happened {
            trace!(self, "{who}'s {what}");
            self.coverage.hit(what);
            if what.contains("boot") || what.contains("off") {
                self.count_end(who);
            }
        }
        let is_off = |hypervisor: &Hypervisor| hypervisor.is_off();
        let is_off = self.process(who).hypervisor.as_ref().is_some_and(is_off);
        if is_off && !self.life.is_start_planned {
            self.life.is_start_planned = true;
            let late = self.life.rng.micros((50_000, 1_500_000));
            self.plan.after(late, Happening::StartGuest);
        }
    }

    fn count_end(&mut self, who: ReplicaId) {
        let role = |id| self.process(id).replica.as_ref().map(|r| r.status().role);
        let leader = self.leader();
        let syncs = leader.is_some_and(|id| self.process(id).phase.is_some());
        let serves = |id| {
            self.process(id)
                .replica
                .as_ref()
                .is_some_and(|r| r.status().serving)
        };
        let joins = self
            .scenario
            .members
            .iter()
            .any(|id| role(*id) == Some(Role::Joining));
        let met = [
            (
                syncs && leader == Some(who),
                "guest: ends in a sync, the leader's",
            ),
            (
                syncs && role(who) == Some(Role::Secondary),
                "guest: ends in a sync, the secondary's",
            ),
            (joins, "guest: ends in a join"),
            (!leader.is_some_and(serves), "guest: ends in a failover"),
        ];
        for (_, what) in met.into_iter().filter(|(is_so, _)| *is_so) {
            self.coverage.hit(what);
        }
        if self.healed_at.is_some() || self.active_faults > 0 {
            return;
        }
        if self.is_calm() {
            self.invariants.one_fault.is_whole();
            self.plan.after(LOOKED_AFTER, Happening::LookAfterAnEnd);
        }
        if self.life.rng.chance(self.life.fault_after) {
            let kind = sudden_kind(&mut self.life.rng);
            let victim = self
                .life
                .rng
                .pick(&[Victim::Leader, Victim::Secondary, Victim::Myself]);
            let fault = self.aim_at(kind, victim, who);
            let late = self.life.rng.micros((0, 50_000));
            self.plan.after(late, Happening::Strike(fault, None));
        }
    }

    /// The operator starts a guest that is off.
    pub(crate) fn start_guest_again(&mut self) {
        self.life.is_start_planned = false;
        self.operate_start();
        let is_off = |h: &Hypervisor| h.is_off();
        let hypervisors = self.processes.iter().filter_map(|p| p.hypervisor.as_ref());
        if { hypervisors }.any(is_off) {
            self.life.is_start_planned = true;
            self.plan.after(LOOKS_AGAIN_AFTER, Happening::StartGuest);
        }
    }

    fn operate_start(&mut self) {
        let is_off = |h: &Hypervisor| h.is_off();
        let leader = self.leader();
        if let Some(leader) =
            leader.filter(|id| self.process(*id).hypervisor.as_ref().is_some_and(is_off))
        {
            self.give_input(leader, OperatorInput::Start);
        }
    }

    /// From now on no guest ends by itself.
    pub(crate) fn let_guests_live(&mut self) {
        let ends = &mut self.scenario.hypervisor.guest.ends;
        (ends.at_tick, ends.at_input) = (0.0, 0);
        for process in &mut self.processes {
            if let Some(hypervisor) = &mut process.hypervisor {
                hypervisor.guest.live_on();
            }
        }
        self.life.ends = None;
    }
}

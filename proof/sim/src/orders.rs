//! An operator's orders about the guest's power, in the middle of everything: pause, reset, reboot, shut down.
//!
//! The operator lets a paused guest go on after a while. Now and then a fault strikes right after an order. A
//! pause lasts until the operator ends it ([`crate::invariants::pause_lasts`]).

use crate::faults::AfterOrder;
use crate::hypervisor::Hypervisor;
use crate::invariants::operators_are_told::Given;
use crate::process::State;
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_policy::Input as InputOrder;
use plover_replica::{Event, NotTaken, OperatorInput, Ticket};
use plover_types::{Micros, ReplicaId};

/// The part of the seeds in which an operator gives such orders.
const CHANCE: f64 = 0.3;

/// After all faults the operator looks so often whether the guest stands.
const LOOKS_AGAIN_AFTER: Micros = Micros(300_000);

/// The operator's orders of a seed.
#[derive(Debug)]
pub(crate) struct Orders {
    rng: Rng,
    come: bool,
    /// The time between two orders.
    gap: (u64, u64),
    /// How often a fault follows.
    fault_after: f64,
    /// How many inputs were given, typed lines among them.
    given: u64,
}

impl Orders {
    /// The orders of a seed. Where faults strike alone the clients are to be answered, so none come there.
    pub fn draw(seed: u64, faults_alone: bool) -> Self {
        let mut rng = Stream::Orders.of(seed);
        Self {
            come: !faults_alone && rng.chance(CHANCE),
            gap: rng.pick(&[
                (20_000, 200_000),
                (100_000, 1_000_000),
                (500_000, 3_000_000),
            ]),
            fault_after: rng.pick(&[0.0, 0.1, 0.4]),
            given: 0,
            rng,
        }
    }

    /// Whether there are any.
    pub fn come(&self) -> bool {
        self.come
    }
}

impl World {
    /// The next order.
    pub(crate) fn order_power(&mut self) {
        if self.healed_at.is_some() {
            return self.let_guest_go_on();
        }
        let gap = self.orders.rng.micros(self.orders.gap);
        self.plan.after(gap, Happening::Order);
        let Some(leader) = self.leader() else { return };
        let input = if self.stands(leader) && self.orders.rng.chance(0.6) {
            OperatorInput::Unpause
        } else if self.orders.rng.chance(0.5) {
            OperatorInput::Pause
        } else {
            match self.orders.rng.range(0, 2) {
                0 => OperatorInput::Reset,
                1 => OperatorInput::Reboot,
                _ => OperatorInput::PowerButton,
            }
        };
        self.give_order(leader, input);
        if self.orders.rng.chance(self.orders.fault_after) {
            let next = AfterOrder::draw(&mut self.orders.rng, &self.scenario.members);
            self.strike_after_order(next);
        }
    }

    /// After all faults: whenever the guest stands, also because of an order that was still under way.
    fn let_guest_go_on(&mut self) {
        let leader = self.leader().filter(|leader| self.stands(*leader));
        if let Some(leader) = leader {
            self.give_order(leader, OperatorInput::Unpause);
        }
        self.plan.after(LOOKS_AGAIN_AFTER, Happening::Order);
    }

    fn give_order(&mut self, leader: ReplicaId, input: OperatorInput) {
        trace!(self, "OPERATOR orders {leader}: {input:?}");
        match input {
            OperatorInput::Pause => self.invariants.pause_lasts.ordered(),
            OperatorInput::Unpause => self.invariants.pause_lasts.ends(),
            _ => {}
        }
        self.give_input(leader, input);
    }

    /// An operator gives a replica an input.
    pub(crate) fn give_input(&mut self, to: ReplicaId, input: OperatorInput) {
        self.orders.given += 1;
        let ticket = Ticket(self.orders.given);
        let line = match &input {
            OperatorInput::Console(line) => Some(line.clone()),
            _ => None,
        };
        let given = Given {
            to: (to, self.process(to).incarnation),
            at: self.plan.now(),
            line,
        };
        self.invariants.operators.given(ticket, given);
        self.tell(to, Event::Operator { ticket, input });
    }

    /// A replica says what has become of an operator's input.
    pub(crate) fn operator_told(
        &mut self,
        who: ReplicaId,
        ticket: Ticket,
        result: Result<(), NotTaken>,
    ) {
        self.coverage.hit(match result {
            Ok(()) => "operator: an input is safe",
            Err(NotTaken::Unsure(_)) => "operator: an input may be lost with the lead",
            Err(_) => "operator: an input is refused",
        });
        let check = self.invariants.operators.told(who, ticket, result.is_ok());
        self.check(check);
    }

    /// The run is over.
    pub(crate) fn check_operators(&mut self) {
        let runs = |(who, incarnation): (ReplicaId, u64)| {
            let process = self.process(who);
            process.state == State::Up && process.incarnation == incarnation
        };
        let logs = self.scenario.policy().input != InputOrder::None;
        let log = logs.then_some(&self.invariants.log);
        let check = self.invariants.operators.over(self.plan.now(), runs, log);
        self.check(check);
    }

    fn stands(&self, who: ReplicaId) -> bool {
        let hypervisor = self.process(who).hypervisor.as_ref();
        hypervisor.is_some_and(Hypervisor::stands)
    }

    /// A leader's sync is over.
    pub(crate) fn look_at_pause(&mut self, who: ReplicaId) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let status = replica.status();
        let all = status.in_sync.iter().all(|member| self.stands(member));
        if status.serving && status.protected && all {
            self.invariants.pause_lasts.both_stand();
        }
        self.check_pause(who);
    }

    /// A leader serves.
    pub(crate) fn check_pause(&mut self, who: ReplicaId) {
        if self.leader() != Some(who) {
            return;
        }
        let hypervisor = self.process(who).hypervisor.as_ref();
        if hypervisor.is_none_or(Hypervisor::is_dead) {
            return;
        }
        let stands = self.stands(who);
        if self.invariants.pause_lasts.holds() && stands {
            self.coverage.hit("guest: stands while its leader serves");
        }
        let check = self.invariants.pause_lasts.leads(who, stands);
        self.check(check);
    }
}

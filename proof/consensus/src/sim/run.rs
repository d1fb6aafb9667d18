//! Running seeds of groups.

use super::CANARIES;
use super::world::{Options, World};
use apus::Canary;
use plover_sim::TraceMode;
use plover_sim::panics::without_panic;
use plover_sim::seeds::{Outcome, Simulation, option_of};

impl Simulation for Options {
    fn run(&self, seed: u64) -> Outcome {
        let mut world = World::new(seed, self);
        let ran = without_panic(|| world.run());
        let (violation, coverage) = (world.violation.take(), std::mem::take(&mut world.coverage));
        let passed = (world.plan.now(), world.plan.planned());
        Outcome::new(seed, ran.map(|()| violation), coverage, world.trace, passed)
    }

    fn traced(self, trace: TraceMode) -> Self {
        Self { trace, ..self }
    }

    fn healthy(self) -> Self {
        Self {
            canary: Canary::None,
            ..self
        }
    }

    fn words(&self) -> String {
        let mut words = format!("--group {}", option_of(&CANARIES, self.canary));
        if let Some(replicas) = self.replicas {
            words += &format!("--replicas {replicas} ");
        }
        words
    }
}

//! Leaders that die in the four areas of COLO's figure 4: the moments between sending, comparing
//! and releasing a packet.

use crate::faults::Fault;
use crate::rng::Rng;
use crate::streams::Stream;
use crate::world::World;
use plover_replica::{Area, Replica};
use plover_syncvm::Phase;
use plover_types::{ReplicaId, SyncNo};

/// The probability that a leader in the seed's area dies.
const CHANCE: f64 = 0.02;

/// The area in which the leaders of a seed die.
#[derive(Debug)]
pub struct Areas {
    area: Option<Area>,
    rng: Rng,
}

impl Areas {
    /// The area of a seed; most seeds have none.
    pub fn draw(seed: u64, faults_alone: bool) -> Self {
        let mut rng = Stream::Areas.of(seed);
        let area = rng.pick(&[Area::A, Area::B, Area::C, Area::D]);
        let area = (rng.chance(0.4) && !faults_alone).then_some(area);
        Self { area, rng }
    }
}

impl World {
    /// Whether the leader `who` is to die in this area now.
    fn dies_in(&mut self, who: ReplicaId, area: Area) -> bool {
        let calm = !self.scenario.faults.one_at_a_time || self.active_faults == 0;
        let begun = self.plan.now() >= self.scenario.faults.begin;
        let protected = |replica: &Replica| replica.status().protected;
        self.healed_at.is_none()
            && self.areas.area == Some(area)
            && calm
            && begun
            && self.process(who).replica.as_deref().is_some_and(protected)
            && self.areas.rng.chance(CHANCE)
    }

    fn die_in(&mut self, who: ReplicaId, name: &'static str) {
        self.coverage.hit(name);
        self.strike(Fault::Crash(who), None);
    }

    /// A replica has ended a turn in which its guest sent something.
    pub(crate) fn after_outputs(&mut self, who: ReplicaId) {
        let Some(leader) = self.process(who).replica.as_deref() else {
            return;
        };
        let heard = leader.heard();
        let waits = leader.awaits_a_match();
        // No newer report of the secondary's outputs is on its way.
        let is_new = self
            .running()
            .any(|(id, replica)| id != who && replica.said().is_some() && replica.said() == heard);
        if waits && is_new && self.dies_in(who, Area::A) {
            self.die_in(who, "area A: only the leader's guest has sent it");
        }
    }

    /// Outputs of `slot` are about to go out. Returns how many of the `frames` go out before the leader
    /// dies; `None` if it does not die.
    pub(crate) fn cut_short(
        &mut self,
        who: ReplicaId,
        slot: SyncNo,
        frames: usize,
    ) -> Option<usize> {
        let leader = self.process(who).replica.as_deref()?;
        if !leader.is_match(slot) {
            return None;
        }
        if self.dies_in(who, Area::B) {
            Some(0)
        } else if self.dies_in(who, Area::C) {
            Some(frames.div_ceil(2))
        } else {
            None
        }
    }

    /// The leader whose release was cut short dies.
    pub(crate) fn die_releasing(&mut self, who: ReplicaId, sent: usize) {
        let name = match sent {
            0 => "area B: both have sent it, none of it is out",
            _ => "area C: it is going out",
        };
        self.die_in(who, name);
    }

    /// A checkpoint has reached this phase.
    pub(crate) fn at_checkpoint(&mut self, who: ReplicaId, phase: Phase) {
        if !self.scenario.releases_on_match() {
            return;
        }
        let name = match phase {
            Phase::Transfer => "area D: before the end mark",
            Phase::Apply => "area D: after the end mark",
            _ => return,
        };
        if self.dies_in(who, Area::D) {
            self.die_in(who, name);
        }
    }
}

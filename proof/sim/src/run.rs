//! Running seeds of protected groups.

use crate::panics::without_panic;
use crate::seeds::{Outcome, Simulation, option_of};
use crate::trace::TraceMode;
use crate::world::{Options, World};
use plover_replica::Canary;

/// Bugs that can be put back, by name.
pub const CANARIES: [(&str, Canary); 30] = [
    ("swap-before-copy", Canary::SwapBeforeCopy),
    ("deaf-to-versions", Canary::DeafToVersions),
    ("vote-after-amnesia", Canary::VoteAfterAmnesia),
    ("release-before-ack", Canary::ReleaseBeforeAck),
    ("dirty-bits-lost", Canary::DirtyBitsLost),
    ("blame-secondary", Canary::BlameSecondary),
    ("hang-in-silence", Canary::HangInSilence),
    ("subpage-missed", Canary::SubpageMissed),
    ("ack-before-disks", Canary::AckBeforeDisks),
    ("release-without-match", Canary::ReleaseWithoutMatch),
    ("match-before-commit", Canary::MatchBeforeCommit),
    ("ignore-acks", Canary::IgnoreAcks),
    ("clean-before-ack", Canary::CleanBeforeAck),
    ("keep-early-streams", Canary::KeepEarlyStreams),
    ("trust-old-generation", Canary::TrustOldGeneration),
    ("warm-forgets-syncs", Canary::WarmForgetsSyncs),
    ("forget-numbers", Canary::ForgetNumbers),
    ("never-doubt", Canary::NeverDoubt),
    ("never-fence", Canary::NeverFence),
    ("old-fencing", Canary::OldFencing),
    ("clock-alone", Canary::ClockAlone),
    ("milestone-not-stored", Canary::MilestoneNotStored),
    ("join-at-once", Canary::JoinAtOnce),
    ("ignore-uplink", Canary::IgnoreUplink),
    ("reboot-ends-guest", Canary::RebootEndsGuest),
    ("commit-at-heartbeat", Canary::CommitAtHeartbeat),
    ("serve-alone", Canary::ServeAlone),
    ("replace-at-once", Canary::ReplaceAtOnce),
    ("forget-at-cut", Canary::ForgetAtCut),
    ("wake-without-inputs", Canary::WakeWithoutInputs),
];

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
        let mut words = option_of(&CANARIES, self.canary);
        // `--fencing` means two, and takes no other number.
        if self.replicas != Self::default().replicas && !self.fencing {
            words += &format!("--replicas {} ", self.replicas);
        }
        if self.cuts {
            words += "--cuts ";
        }
        if self.fencing {
            words += "--fencing ";
        }
        if let Some(preset) = self.policy {
            words += &format!("--policy {} ", preset.name);
        }
        if let Some(time) = self.faults_for {
            words += &format!("--minutes {} ", time.0 as f64 / 60e6);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_no_number_of_replicas_beside_fencing() {
        let pair = Options {
            replicas: 2,
            ..Options::default()
        };
        assert_eq!(pair.words(), "--replicas 2 ");
        let fenced = Options {
            fencing: true,
            ..pair
        };
        assert_eq!(fenced.words(), "--fencing ");
    }
}

//! Plots: sequences of faults that are harmless one by one and chosen to be harmful together. These
//! are the classic ways in which replicated systems lose data.

use crate::faults::Fault;
use crate::rng::Rng;
use plover_types::{Micros, ReplicaId};

/// The replicas that play the roles of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    /// Serves clients.
    pub leader: ReplicaId,
    /// Runs the guest in step.
    pub secondary: ReplicaId,
    /// Votes.
    pub witness: ReplicaId,
}

/// A plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plot {
    /// The leader goes on without its secondary, with the witness's acknowledgement. Then the
    /// witness forgets it, and the leader falls silent. Now the secondary, with an old state,
    /// and the witness, with none, are a majority.
    Amnesia,
    /// The leader is stopped for about as long as an election takes. When it wakes, it believes that
    /// it still leads.
    Sleeper,
    /// The leader dies, and its successor dies while it copies its guest to the next secondary.
    Succession,
    /// The leader hears all others, but none hears it; then the other way round.
    DeafAndDumb,
    /// The link between leader and secondary breaks again and again.
    BrokenRecord,
    /// The secondary is stopped until the leader has gone on without it. Then the leader dies, and
    /// the secondary wakes with an old state and a log that still names it in sync.
    LeftBehind,
}

/// All plots.
pub const PLOTS: [Plot; 5] = [
    Plot::Amnesia,
    Plot::Sleeper,
    Plot::Succession,
    Plot::DeafAndDumb,
    Plot::BrokenRecord,
];

/// The plots of groups of two.
pub const PLOTS_OF_PAIRS: [Plot; 4] = [
    Plot::Sleeper,
    Plot::Succession,
    Plot::LeftBehind,
    Plot::LeftBehind,
];

impl Plot {
    /// The name in the coverage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amnesia => "plot: amnesia",
            Self::Sleeper => "plot: sleeper",
            Self::Succession => "plot: succession",
            Self::DeafAndDumb => "plot: deaf and dumb",
            Self::BrokenRecord => "plot: broken record",
            Self::LeftBehind => "plot: left behind",
        }
    }
}

/// The faults of a plot: when each strikes, and for how long.
pub fn scenes(plot: Plot, cast: Cast, rng: &mut Rng) -> Vec<(Micros, Fault, Micros)> {
    let Cast {
        leader,
        secondary,
        witness,
    } = cast;
    let mut ms = |low: u64, high: u64| rng.micros((low * 1000, high * 1000));
    match plot {
        Plot::Amnesia => {
            // Longer than the timeout, so that the in-sync set without the secondary is committed.
            let parted = ms(120, 500);
            let late = parted + ms(1, 60);
            vec![
                (
                    Micros::ZERO,
                    Fault::Cut(leader, secondary),
                    parted + ms(0, 300),
                ),
                (parted, Fault::Crash(witness), ms(5, 50)),
                (late, Fault::Isolate(leader), ms(300, 1500)),
            ]
        }
        Plot::Sleeper => {
            let with_guest = ms(0, 1) > Micros(500);
            vec![(ms(0, 30), Fault::Stop(leader, with_guest), ms(80, 500))]
        }
        Plot::Succession => {
            let heir = ms(150, 1200);
            vec![
                (Micros::ZERO, Fault::Crash(leader), ms(20, 400)),
                (heir, Fault::Crash(secondary), ms(20, 400)),
            ]
        }
        Plot::DeafAndDumb => {
            let turn = ms(50, 600);
            vec![
                (Micros::ZERO, Fault::CutOneWay(leader, secondary), turn),
                (Micros::ZERO, Fault::CutOneWay(leader, witness), turn),
                (
                    turn + Micros(1),
                    Fault::CutOneWay(secondary, leader),
                    ms(50, 600),
                ),
                (
                    turn + Micros(1),
                    Fault::CutOneWay(witness, leader),
                    ms(50, 600),
                ),
            ]
        }
        Plot::BrokenRecord => {
            let breaks = (0..6).map(|_| (ms(0, 400), Fault::Reset(leader, secondary), ms(1, 5)));
            breaks.collect()
        }
        Plot::LeftBehind => {
            let death = ms(150, 600);
            vec![
                (
                    Micros::ZERO,
                    Fault::Stop(secondary, true),
                    death + ms(1, 200),
                ),
                (death, Fault::Crash(leader), ms(20, 1500)),
            ]
        }
    }
}

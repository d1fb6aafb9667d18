//! Replicated programs in simulated time: the brain (`plover-program`) of each replica on an agreed log, with
//! simulated programs, clients, disks and faults, from one seed.
//!
//! ```text
//!   clients ─► leader ─► agreed log ─┬─► brain ─► program 0 ─► replies, checked against the reference
//!                                    ├─► brain ─► program 1
//!                                    └─► brain ─► program 2
//! ```
//!
//! In half of the worlds a leader's program reads its clients itself, and what it reads is proposed then. Its
//! output, or its reads, wait for the commit. In some, connections outlive checkpoints, and in some of these a program
//! executes a request by what its connection has said first. In some, a program executes later than it reads, and gives up what it has
//! not executed when the connection ends.
//!
//! Consensus is simulated by what it promises, an agreed log of which a suffix may be lost with its leader:
//! that it keeps the promise is shown elsewhere (`proof/consensus`). A *reference* executes the committed log
//! at once, in order, without waiting for anything. The invariants:
//!
//! | name | what holds |
//! |---|---|
//! | `programs_agree` | a program's state is one that the reference has had, unless a fault has changed it |
//! | `replies_are_committed` | a client gets the reply that the reference gives |
//! | `trim_is_held` | the log is trimmed behind checkpoints only that a majority has on disk |
//! | `wrong_is_restored` | a program is restored for what it has sent only if it is wrong |
//! | `connections_end` | in the end programs have open only the connections of clients that are there |
//! | `heals` | when faults stop, every program runs, is up to date and right, and clients are served |

mod program;
mod world;

pub use world::{Options, REACHED, World};

use plover_program::Canary;
use plover_sim::TraceMode;
use plover_sim::panics::without_panic;
use plover_sim::seeds::{Outcome, Simulation, option_of};

/// Bugs that can be put back, by name.
pub const CANARIES: [(&str, Canary); 11] = [
    ("reply-before-commit", Canary::ReplyBeforeCommit),
    ("skip-entry", Canary::SkipEntry),
    ("lead-diverged", Canary::LeadDiverged),
    ("start-wrong", Canary::StartWrong),
    ("feed-together", Canary::FeedTogether),
    ("keep-connections", Canary::KeepConnections),
    ("trim-early", Canary::TrimEarly),
    ("stand-ahead", Canary::StandAhead),
    ("cut-unquiet", Canary::CutUnquiet),
    ("take-unanswered", Canary::TakeUnanswered),
    ("end-unanswered", Canary::EndUnanswered),
];

impl Simulation for Options {
    fn run(&self, seed: u64) -> Outcome {
        let mut world = World::new(seed, *self);
        let ran = without_panic(|| world.run());
        let (violation, coverage) = (world.violation.take(), std::mem::take(&mut world.coverage));
        let passed = (world.now, world.steps);
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
        format!("--programs {}", option_of(&CANARIES, self.canary))
    }
}

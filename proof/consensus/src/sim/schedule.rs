//! The happenings of the simulated world, in the order of its time.
//!
//! Two things at the same microsecond happen in the order in which they were planned, so that
//! a run depends on nothing but its seed.

use super::faults::Fault;
use plover_sim::timetable::Timetable;
use plover_types::{Incarnation, View};

/// Something that is going to happen. Hosts are named by their place, processes by how often
/// their host has started one.
#[derive(Debug)]
pub enum Happening {
    /// A core's deadline.
    Tick {
        /// Where.
        host: usize,
        /// Whose.
        process: u64,
    },
    /// A record reaches its ring.
    Arrival {
        /// The writer.
        from: usize,
        /// The ring's owner.
        to: usize,
        /// The record.
        bytes: Vec<u8>,
    },
    /// The oldest write of a promise is durable.
    StateStored {
        /// Where.
        host: usize,
        /// Whose.
        process: u64,
    },
    /// The sync under way is done.
    EntriesStored {
        /// Where.
        host: usize,
        /// Whose.
        process: u64,
    },
    /// An end learns that its link is up anew, or down.
    LinkNotice {
        /// The end.
        end: usize,
        /// The other end.
        peer: usize,
        /// Up or down.
        up: bool,
    },
    /// A host reports that this process of another one has died.
    DeathReported {
        /// Who is told.
        host: usize,
        /// The process.
        dead: Incarnation,
    },
    /// A leader has copied its guest to a peer.
    Copied {
        /// The leader.
        leader: usize,
        /// Its view.
        view: View,
        /// The peer.
        peer: usize,
        /// The peer's process.
        process: u64,
    },
    /// The first leader boots a guest in a group that has none.
    Bootstrap {
        /// Where.
        host: usize,
        /// Whose.
        process: u64,
    },
    /// Clients propose.
    Work,
    /// The operator looks at the group.
    Operator,
    /// The next fault comes.
    NextFault,
    /// A fault begins.
    Inject(Fault),
    /// A fault ends.
    Mend(Fault),
    /// A process starts again.
    Restart(usize),
    /// Every fault ends.
    Heal,
    /// Has the group recovered?
    Look,
    /// A follower is cut off from a healthy group.
    EncoreCut,
    /// The follower that was cut off is connected again.
    EncoreHeal,
    /// The follower that came back must have changed nothing.
    EncoreLook,
}

/// The plan.
pub type Schedule = Timetable<Happening>;

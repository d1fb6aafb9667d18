//! Faults, and when they come.
//!
//! Some faults come at random times. Others are injected at a point at which the protocol is in the
//! middle of something (an election, a recovery, a change of members): most bugs are there, and
//! random times rarely hit it.

use plover_sim::rng::Rng;
use plover_types::Micros;

/// A fault with its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies; its memory is lost, and of its disk what was not written.
    Crash(usize),
    /// And its disk is found damaged in the middle of the log.
    Damage(usize),
    /// And its disk is lost: it starts as if it had never run.
    Wipe(usize),
    /// The process stands still while its clock goes on.
    Pause(usize),
    /// Nothing passes between two hosts.
    Cut(usize, usize),
    /// Nothing passes from the first to the second.
    CutOneWay(usize, usize),
    /// Nothing passes between this host and any other.
    Isolate(usize),
    /// Nothing passes between the hosts of this mask and the others.
    Partition(u16),
    /// The way from the first to the second is slow.
    SlowWay(usize, usize),
    /// Stable storage is slow.
    SlowDisk(usize),
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// See [`Fault::Crash`].
    Crash,
    /// See [`Fault::Damage`].
    Damage,
    /// See [`Fault::Wipe`].
    Wipe,
    /// See [`Fault::Pause`].
    Pause,
    /// See [`Fault::Cut`].
    Cut,
    /// See [`Fault::CutOneWay`].
    CutOneWay,
    /// See [`Fault::Isolate`].
    Isolate,
    /// See [`Fault::Partition`].
    Partition,
    /// See [`Fault::SlowWay`].
    SlowWay,
    /// See [`Fault::SlowDisk`].
    SlowDisk,
}

/// All kinds; those that destroy come more often.
pub const KINDS: [Kind; 14] = [
    Kind::Crash,
    Kind::Crash,
    Kind::Crash,
    Kind::Damage,
    Kind::Wipe,
    Kind::Pause,
    Kind::Pause,
    Kind::Cut,
    Kind::CutOneWay,
    Kind::Isolate,
    Kind::Isolate,
    Kind::Partition,
    Kind::SlowWay,
    Kind::SlowDisk,
];

/// Kinds that have an effect at a given point.
const SUDDEN: [Kind; 7] = [
    Kind::Crash,
    Kind::Crash,
    Kind::Crash,
    Kind::Pause,
    Kind::Isolate,
    Kind::Cut,
    Kind::Partition,
];

/// A point of the protocol at which a fault can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A candidate has promised its own view.
    Electing,
    /// An election is won.
    Elected,
    /// A process has recovered its log.
    Recovered,
    /// A process starts.
    Started,
    /// A change of members is proposed.
    MembersProposed,
    /// A log loses its end to another's.
    Truncated,
    /// A follower installs a snapshot.
    Installed,
}

const MOMENTS: [Moment; 9] = [
    Moment::Electing,
    Moment::Elected,
    Moment::Elected,
    Moment::Recovered,
    Moment::Started,
    Moment::MembersProposed,
    Moment::MembersProposed,
    Moment::Truncated,
    Moment::Installed,
];

/// A fault injection point.
#[derive(Clone, Copy, Debug)]
pub struct FaultPoint {
    /// The point.
    pub moment: Moment,
    /// How often a fault is injected there, in thousandths.
    pub often: u64,
    /// The kind of fault.
    pub kind: Kind,
    /// On the host that is at this point; otherwise on the leader.
    pub myself: bool,
    /// How long after it.
    pub delay: (u64, u64),
}

impl FaultPoint {
    /// Some point.
    pub fn draw(chance: &mut Rng) -> Self {
        Self {
            moment: chance.pick(&MOMENTS),
            often: chance.pick(&[200, 500, 900]),
            kind: chance.pick(&SUDDEN),
            myself: chance.often(600),
            delay: chance.pick(&[(0, 300), (0, 3000), (1000, 20_000)]),
        }
    }
}

/// How long a fault lasts.
pub fn span_of(fault: Fault, chance: &mut Rng) -> Micros {
    let longest = match fault {
        Fault::Crash(_) | Fault::Damage(_) | Fault::Wipe(_) => {
            chance.pick(&[3_000, 60_000, 900_000])
        }
        // Around the timeout and well beyond it, to test the lease.
        Fault::Pause(_) => chance.pick(&[20_000, 120_000, 250_000, 900_000]),
        _ => chance.pick(&[60_000, 300_000, 1_200_000]),
    };
    chance.micros((1000, longest))
}

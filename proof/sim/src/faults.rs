//! Faults, and when they come.
//!
//! Some faults come at random moments. Others are *ambushes*: they wait until the protocol is in the
//! middle of something (a phase of a syncvm, a full copy, an election) and strike then. Most bugs
//! are at such moments, and random faults rarely hit them.

use crate::rng::Rng;
use plover_replica::{Note, Role};
use plover_syncvm::Phase;
use plover_types::{Micros, ReplicaId};

/// A fault with its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL: the process and its hypervisor vanish.
    Crash(ReplicaId),
    /// The same, and its disk is lost with it: it starts as if it had never run.
    Wipe(ReplicaId),
    /// SIGSTOP; if true, of its hypervisor too.
    Stop(ReplicaId, bool),
    /// The hypervisor dies.
    KillGuest(ReplicaId),
    /// The hypervisor alone stands still, as on a disk that hangs.
    HangGuest(ReplicaId),
    /// The host is told that it reaches no clients. Frames pass all the same: nothing may rest on this.
    LoseUplink(ReplicaId),
    /// The same, and no frames pass between the host and the clients.
    LoseTap(ReplicaId),
    /// Nothing passes between two replicas.
    Cut(ReplicaId, ReplicaId),
    /// Nothing passes from the first to the second.
    CutOneWay(ReplicaId, ReplicaId),
    /// Nothing passes between this replica and any other.
    Isolate(ReplicaId),
    /// A link breaks and comes back.
    Reset(ReplicaId, ReplicaId),
    /// A link is slow.
    Slow(ReplicaId, ReplicaId),
    /// The bulk ring of the first at the second has no room at times.
    FullRing(ReplicaId, ReplicaId),
    /// Stable storage is slow.
    SlowDisk(ReplicaId),
    /// Nothing that is written becomes durable.
    HangDisk(ReplicaId),
    /// The clients' bridge is slow to learn where the guest is.
    StaleBridge,
}

impl Fault {
    /// The replica that it hits, if it is one.
    pub fn victim(self) -> Option<ReplicaId> {
        match self {
            Self::Crash(who) | Self::Wipe(who) | Self::Stop(who, _) | Self::Isolate(who) => {
                Some(who)
            }
            Self::KillGuest(who) | Self::HangGuest(who) | Self::LoseUplink(who) => Some(who),
            Self::SlowDisk(who) | Self::HangDisk(who) | Self::LoseTap(who) => Some(who),
            Self::Cut(..) | Self::CutOneWay(..) | Self::Reset(..) | Self::Slow(..) => None,
            Self::FullRing(..) | Self::StaleBridge => None,
        }
    }

    /// Whether it is a fault of a link.
    pub fn is_of_links(self) -> bool {
        match self {
            Self::Cut(..) | Self::CutOneWay(..) | Self::Isolate(_) => true,
            Self::Reset(..) | Self::Slow(..) | Self::FullRing(..) => true,
            Self::Crash(_) | Self::Wipe(_) | Self::Stop(..) => false,
            Self::KillGuest(_) | Self::HangGuest(_) | Self::LoseUplink(_) => false,
            Self::SlowDisk(_) | Self::HangDisk(_) | Self::LoseTap(_) => false,
            Self::StaleBridge => false,
        }
    }
}

/// The replica that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The leader, or any replica if there is none.
    Leader,
    /// The secondary or the joining replica, or any replica if there is none.
    Secondary,
    /// Any replica.
    Anyone,
    /// The replica at which the moment has come.
    Myself,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// See [`Fault::Crash`].
    Crash,
    /// See [`Fault::Wipe`].
    Wipe,
    /// See [`Fault::Stop`].
    Stop,
    /// See [`Fault::KillGuest`].
    KillGuest,
    /// See [`Fault::HangGuest`].
    HangGuest,
    /// See [`Fault::LoseUplink`].
    LoseUplink,
    /// See [`Fault::LoseTap`].
    LoseTap,
    /// See [`Fault::Cut`].
    Cut,
    /// See [`Fault::CutOneWay`].
    CutOneWay,
    /// See [`Fault::Isolate`].
    Isolate,
    /// See [`Fault::Reset`].
    Reset,
    /// See [`Fault::Slow`].
    Slow,
    /// See [`Fault::FullRing`].
    FullRing,
    /// See [`Fault::SlowDisk`].
    SlowDisk,
    /// See [`Fault::HangDisk`].
    HangDisk,
    /// See [`Fault::StaleBridge`].
    StaleBridge,
}

/// All kinds; some are listed twice, so that they come more often.
const KINDS: [Kind; 18] = [
    Kind::Crash,
    Kind::Crash,
    Kind::Wipe,
    Kind::Stop,
    Kind::Stop,
    Kind::KillGuest,
    Kind::HangGuest,
    Kind::LoseUplink,
    Kind::Cut,
    Kind::CutOneWay,
    Kind::Isolate,
    Kind::Isolate,
    Kind::Reset,
    Kind::Slow,
    Kind::FullRing,
    Kind::SlowDisk,
    Kind::HangDisk,
    Kind::StaleBridge,
];

/// Kinds that strike at a given moment with some effect.
const SUDDEN: [Kind; 10] = [
    Kind::Crash,
    Kind::Crash,
    Kind::Crash,
    Kind::Stop,
    Kind::KillGuest,
    Kind::HangGuest,
    Kind::HangDisk,
    Kind::Cut,
    Kind::Isolate,
    Kind::Reset,
];

/// A moment of the protocol for which a fault can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// A phase of a syncvm on the leader.
    Phase(Phase),
    /// The secondary has applied a syncvm, or kept a checkpoint.
    Applied,
    /// The outputs of the two sides differ: a checkpoint is due.
    Differ,
    /// A full copy begins, or a round of it.
    Join,
    /// The leader is suspected.
    Suspected,
    /// An election is won.
    Elected,
    /// A new leader faces clients.
    Serving,
    /// A new in-sync set is committed.
    InSync,
    /// A replica starts to receive a full copy, or becomes a secondary.
    Role(Role),
    /// A leader hands over because an operator wants it.
    HandedOver,
}

/// The moments for which faults wait.
const MOMENTS: [Moment; 16] = [
    Moment::Phase(Phase::Pause),
    Moment::Phase(Phase::Scan),
    Moment::Phase(Phase::Hash),
    Moment::Phase(Phase::Transfer),
    Moment::Phase(Phase::Apply),
    Moment::Phase(Phase::Apply),
    Moment::Applied,
    Moment::Differ,
    Moment::Join,
    Moment::Suspected,
    Moment::Elected,
    Moment::Serving,
    Moment::InSync,
    Moment::InSync,
    Moment::Role(Role::Joining),
    Moment::Role(Role::Secondary),
];

impl Moment {
    /// The moment that a note reports.
    pub fn of(note: &Note) -> Option<Self> {
        Some(match note {
            Note::Applied { .. } | Note::Kept { .. } => Self::Applied,
            Note::OutputsDiffer { .. } => Self::Differ,
            // What hashing is to one policy, copying is to another, and to a third asking for the
            // other side's pages: the work before the transfer.
            Note::SyncPhase {
                phase: Phase::Copy | Phase::Exchange,
                ..
            } => Self::Phase(Phase::Hash),
            Note::SyncPhase { phase, .. } => Self::Phase(*phase),
            Note::JoinBegun { .. } | Note::JoinRound { .. } => Self::Join,
            Note::Suspected { .. } => Self::Suspected,
            Note::Elected { .. } => Self::Elected,
            Note::Serving { .. } => Self::Serving,
            Note::InSync { .. } => Self::InSync,
            Note::Role { to, .. } => Self::Role(*to),
            Note::HandedOver { .. } => Self::HandedOver,
            _ => return None,
        })
    }

    /// Whether a run has hundreds of them (syncvms), and not only a few (elections).
    pub fn is_frequent(self) -> bool {
        matches!(self, Self::Phase(_) | Self::Applied)
    }
}

/// A fault that waits for a moment.
#[derive(Clone, Copy, Debug)]
pub struct Ambush {
    /// The moment.
    pub moment: Moment,
    /// The probability that it strikes when the moment comes.
    pub chance: f64,
    /// The kind of fault.
    pub kind: Kind,
    /// The replica that it hits.
    pub victim: Victim,
    /// How long after the moment it strikes. Zero is in the middle of the replica's turn.
    pub delay: (u64, u64),
}

impl Ambush {
    fn draw(rng: &mut Rng) -> Self {
        let moment = rng.pick(&MOMENTS);
        Self {
            moment,
            chance: if moment.is_frequent() {
                rng.pick(&[0.01, 0.03, 0.1])
            } else {
                rng.pick(&[0.2, 0.5])
            },
            kind: rng.pick(&SUDDEN),
            victim: rng.pick(&[
                Victim::Myself,
                Victim::Myself,
                Victim::Leader,
                Victim::Secondary,
                Victim::Anyone,
            ]),
            delay: rng.pick(&[(0, 0), (0, 500), (0, 5000)]),
        }
    }
}

/// The faults of a seed.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// When the first may come.
    pub begin: Micros,
    /// When all of them end.
    pub heal: Micros,
    /// The time between two faults at random moments.
    pub gap: (u64, u64),
    /// One at a time: the next waits until the group is whole and protected again.
    pub one_at_a_time: bool,
    /// Links do not fail, and processes are stopped one at a time. A pair promises to survive that.
    pub links_hold: bool,
    /// An operator is at hand who lets an empty group begin a new generation at once.
    pub operator: bool,
    /// The faults that wait for a moment.
    pub ambushes: Vec<Ambush>,
}

impl FaultPlan {
    /// Draws the plan of a seed.
    pub fn draw(rng: &mut Rng, span: Micros) -> Self {
        let begin = rng.pick(&[0, 1_500_000, 1_500_000, 1_500_000]);
        let ambushes = rng.pick(&[0, 1, 2, 2, 3]);
        Self {
            begin: Micros(begin),
            heal: Micros(begin) + span,
            gap: rng.pick(&[
                (100_000, 900_000),
                (300_000, 3_000_000),
                (1_000_000, 6_000_000),
            ]),
            one_at_a_time: rng.chance(0.45),
            links_hold: false,
            operator: rng.chance(0.5),
            ambushes: (0..ambushes).map(|_| Ambush::draw(rng)).collect(),
        }
    }

    /// The ambushes that this note sets off.
    pub fn set_off(&self, note: &Note, rng: &mut Rng) -> Vec<Ambush> {
        let Some(moment) = Moment::of(note) else {
            return Vec::new();
        };
        let waiting = self
            .ambushes
            .iter()
            .filter(|ambush| ambush.moment == moment);
        waiting
            .filter(|ambush| rng.chance(ambush.chance))
            .copied()
            .collect()
    }
}

/// A kind that strikes at once.
pub fn sudden_kind(rng: &mut Rng) -> Kind {
    rng.pick(&SUDDEN)
}

/// A fault that strikes at once, soon after an operator's order.
#[derive(Clone, Copy, Debug)]
pub struct AfterOrder {
    /// Its kind.
    pub kind: Kind,
    /// The role that it hits.
    pub victim: Victim,
    /// The replica that `Victim::Myself` would mean.
    pub anyone: ReplicaId,
    /// How long after the order.
    pub late: Micros,
}

impl AfterOrder {
    /// A random one.
    pub fn draw(rng: &mut Rng, members: &[ReplicaId]) -> Self {
        let victims = [Victim::Leader, Victim::Secondary, Victim::Anyone];
        Self {
            kind: sudden_kind(rng),
            victim: rng.pick(&victims),
            anyone: rng.pick(members),
            late: rng.micros((0, 60_000)),
        }
    }
}

/// A kind for a random moment.
pub fn any_kind(rng: &mut Rng) -> Kind {
    rng.pick(&KINDS)
}

/// A fault of this kind that hits `victim`.
pub fn aim(kind: Kind, victim: ReplicaId, members: &[ReplicaId], rng: &mut Rng) -> Fault {
    let others: Vec<_> = members.iter().copied().filter(|id| *id != victim).collect();
    let Some(other) = (!others.is_empty()).then(|| rng.pick(&others)) else {
        return Fault::Stop(victim, true);
    };
    let (from, to) = if rng.chance(0.5) {
        (victim, other)
    } else {
        (other, victim)
    };
    match kind {
        Kind::Crash => Fault::Crash(victim),
        Kind::Wipe => Fault::Wipe(victim),
        Kind::Stop => Fault::Stop(victim, rng.chance(0.5)),
        Kind::KillGuest => Fault::KillGuest(victim),
        Kind::HangGuest => Fault::HangGuest(victim),
        Kind::LoseUplink => Fault::LoseUplink(victim),
        Kind::LoseTap => Fault::LoseTap(victim),
        Kind::Cut => Fault::Cut(victim, other),
        Kind::CutOneWay => Fault::CutOneWay(from, to),
        Kind::Isolate => Fault::Isolate(victim),
        Kind::Reset => Fault::Reset(victim, other),
        Kind::Slow => Fault::Slow(victim, other),
        Kind::FullRing => Fault::FullRing(from, to),
        Kind::SlowDisk => Fault::SlowDisk(victim),
        Kind::HangDisk => Fault::HangDisk(victim),
        Kind::StaleBridge => Fault::StaleBridge,
    }
}

/// How long a fault lasts.
pub fn span_of(fault: Fault, rng: &mut Rng) -> Micros {
    match fault {
        Fault::Crash(_) | Fault::Wipe(_) => rng.micros((20_000, 2_000_000)),
        // Around the timeout and well beyond it, to test the lease.
        Fault::Stop(..) => {
            let longest = rng.pick(&[120_000, 400_000, 3_000_000]);
            rng.micros((5_000, longest))
        }
        _ => {
            let longest = rng.pick(&[60_000, 500_000, 2_500_000]);
            rng.micros((5_000, longest))
        }
    }
}

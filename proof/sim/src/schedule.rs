//! The happenings of the simulated world, in the order of its time.
//!
//! Two things at the same microsecond happen in the order in which they were planned, so that
//! a run depends on nothing but its seed.

use crate::faults::Fault;
use crate::hypervisor::Due;
use crate::timetable::Timetable;
use plover_replica::JobId;
use plover_types::{Frame, Incarnation, Lane, Micros, ReplicaId};

/// Something that is going to happen.
#[derive(Debug)]
pub enum Happening {
    /// A replica's deadline, unless a sooner one was planned since.
    Tick(ReplicaId, u64),
    /// A replica wants a sample of its guest's activity.
    Sample(ReplicaId, u64),
    /// A record reaches the end of its lane.
    Arrival(Arrival),
    /// A way that was cut passes its stalled records.
    Mended(ReplicaId, ReplicaId),
    /// An end learns that its link is up anew, or down.
    LinkNotice {
        /// The end.
        end: ReplicaId,
        /// The other end.
        peer: ReplicaId,
        /// Which session of the link.
        session: u64,
        /// Up or down.
        up: bool,
    },
    /// A replica is told that this process of another one has died.
    DeathReported(ReplicaId, Incarnation),
    /// The fencing looks at both of a pair.
    Fence,
    /// This process of `who` is told that `peer` runs no more.
    SaidOff {
        /// The replica that is told.
        who: ReplicaId,
        /// The number of its process.
        number: u64,
        /// The other one.
        peer: ReplicaId,
        /// When it was seen, by the clock of `who`.
        seen_at: Micros,
    },
    /// Two replicas without a link try to connect.
    Connect(ReplicaId, ReplicaId),
    /// A link over which nothing passes is given up, if it is still that session.
    BreakLink(ReplicaId, ReplicaId, u64),
    /// An event of this replica's n-th hypervisor.
    Hypervisor(ReplicaId, u64, Due),
    /// A hypervisor's death is noticed.
    HypervisorDied(ReplicaId, u64),
    /// The oldest write under way of this process is durable.
    Stored(ReplicaId, u64),
    /// The oldest work on pages that this process waits for is done.
    Worked(ReplicaId, u64),
    /// The oldest of the reads for a copy that this process has put off.
    CopyRead(ReplicaId, u64),
    /// A scan of this replica's n-th hypervisor that was put off.
    Scan(ReplicaId, u64, JobId),
    /// Frames of clients reach a replica's TAP.
    Frames(ReplicaId, Vec<Frame>),
    /// The guest's frames reach the clients.
    Replies(Vec<Frame>),
    /// The clients' bridge learns behind which port the guest is.
    Learn(ReplicaId),
    /// A client sends its next request.
    Ask(u8),
    /// A client repeats a request that is not answered yet.
    AskAgain(u8, u32),
    /// The operator upgrades a replica, or takes one back.
    Upgrade,
    /// A fault strikes, for this long if the plan says.
    Strike(Fault, Option<Micros>),
    /// A fault ends.
    Mend(Fault),
    /// The next fault of the plan.
    Next,
    /// All hosts die at once.
    AllDie,
    /// A process starts again.
    Restart(ReplicaId),
    /// The operator looks at the group while faults go on.
    Operator,
    /// Lines are typed on the guest's console.
    Type,
    /// The operator plans work on a host.
    Plan,
    /// The operator orders something about the guest's power.
    Order,
    /// The operator replaces a host.
    Replace,
    /// The work is done: the host takes part again.
    Undrain(ReplicaId),
    /// The operator starts a guest that is off.
    StartGuest,
    /// A guest has ended by itself a while ago: is it still there?
    LookAfterAnEnd,
    /// Replies are counted, and again after the rest of the time.
    CountReplies(Micros),
    /// A secondary's hypervisor has stood still for a while: has the leader gone on without it?
    LookForHung {
        /// The secondary.
        secondary: ReplicaId,
        /// The leader of that time.
        leader: ReplicaId,
    },
    /// Every fault ends.
    Heal,
    /// Has the group recovered?
    Look,
}

/// A record under way.
#[derive(Debug)]
pub struct Arrival {
    /// The replica that wrote it.
    pub from: ReplicaId,
    /// The owner of the ring.
    pub to: ReplicaId,
    /// The lane of the ring.
    pub lane: Lane,
    /// Which session of the link.
    pub session: u64,
    /// The record.
    pub bytes: Vec<u8>,
}

/// The plan.
pub type Schedule = Timetable<Happening>;

//! Notes: a replica reports changes to people. Nothing rests on them.

use super::Role;
use plover_syncvm::SyncReport;
use plover_types::{Index, ReplicaId, ReplicaSet, SyncNo, View};
use serde::Serialize;

/// A fault of a leader's own host, for which it hands over by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnFault {
    /// Clients are not reached from this host: its TAP or its uplink is down.
    Uplink,
    /// The hypervisor, or a disk under it, does not answer in time.
    Hypervisor,
    /// The disk does not answer in time on which this replica keeps its promise and its log.
    Storage,
}

/// Things worth a line in the trace, with the moment at which they happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Note {
    /// This replica's role changed.
    Role {
        /// From.
        from: Role,
        /// To.
        to: Role,
        /// In this view.
        view: View,
    },
    /// The leader is silent; an election is being prepared.
    Suspected {
        /// The view whose leader is suspected.
        view: View,
    },
    /// The leader has resigned, and this replica stands for election.
    Succeeds {
        /// The view whose leader it was.
        view: View,
    },
    /// Won the election.
    Elected {
        /// The view.
        view: View,
    },
    /// Faces clients from here on.
    Serving {
        /// The view.
        view: View,
    },
    /// Resets the connections over which clients may have got clean replies that its guest has not sent
    /// (docs/decisions/0081).
    ConnectionsReset {
        /// How many.
        connections: usize,
    },
    /// A new in-sync set is committed.
    InSync {
        /// The set.
        in_sync: ReplicaSet,
        /// Where.
        at: Index,
    },
    /// A peer answers, or has stopped answering.
    Peer {
        /// The peer.
        peer: ReplicaId,
        /// Whether it answers.
        alive: bool,
    },
    /// The host of this replica says that its process has died.
    DeathReported {
        /// The replica.
        peer: ReplicaId,
    },
    /// A copy to a new secondary has begun.
    JoinBegun {
        /// The new secondary.
        peer: ReplicaId,
    },
    /// The new secondary stands ready; the first round follows, after comparing.
    JoinOpened {
        /// The new secondary.
        peer: ReplicaId,
        /// It goes on with a copy of this replica's pages that it has kept.
        warm: bool,
    },
    /// One round of it.
    JoinRound {
        /// The round, from 0.
        round: u32,
        /// Pages to copy in it.
        pages: u32,
    },
    /// It failed; another attempt follows.
    JoinFailed {
        /// The replica that was to join.
        peer: ReplicaId,
        /// Why.
        why: String,
    },
    /// The guest is protected: the in-sync set has two members.
    Protected {
        /// The secondary.
        peer: ReplicaId,
    },
    /// The machine of a copy's source has other parts than this side's, which may matter.
    MachineDiffers {
        /// This side's, in words.
        own: String,
        /// The source's.
        source: String,
    },
    /// A witness has all of this secondary's pages, but for those written lately.
    Warm {
        /// The witness.
        peer: ReplicaId,
    },
    /// A witness does not take a warm copy; it is asked again later.
    WarmRefused {
        /// The witness.
        peer: ReplicaId,
        /// Why.
        why: String,
    },
    /// The outputs of the two sides cannot all be matched; a sync follows.
    OutputsDiffer {
        /// Where, and how.
        why: String,
    },
    /// An output has waited for the secondary's guest to send the same for too long; a sync follows.
    OutputsUnmatched {
        /// The output that waits, and what it waits for.
        why: String,
    },
    /// A sync failed; its pages stay owed and its outputs held.
    SyncFailed {
        /// The syncvm.
        sync: SyncNo,
        /// Why.
        why: String,
    },
    /// A sync was acknowledged and its outputs released.
    Synced(Box<SyncReport>),
    /// The phase a running sync is in (for test hooks that strike in a given phase).
    SyncPhase {
        /// The syncvm.
        sync: SyncNo,
        /// The phase entered.
        phase: plover_syncvm::Phase,
    },
    /// The secondary has applied a syncvm: its memory equals the leader's at the cut.
    Applied {
        /// The syncvm.
        sync: SyncNo,
    },
    /// The secondary's guest waits, and has a checkpoint in its memory. [`Note::Applied`] follows
    /// if it takes over and has loaded the devices too.
    Kept {
        /// The sync.
        sync: SyncNo,
    },
    /// The guest that rested executes what was logged since its state: this replica leads.
    Wakes {
        /// The inputs.
        inputs: usize,
    },
    /// This side's guest is lost.
    GuestLost {
        /// Why.
        why: String,
    },
    /// This host has lost its way to the clients, or has it again.
    Uplink {
        /// Whether it has it.
        up: bool,
    },
    /// This leader hands over to a replica that is in step, because an operator wants it.
    HandedOver {
        /// The replica that is to lead.
        to: ReplicaId,
    },
    /// This leader hands over to a replica that is in step, because of a fault of its own host.
    Resigned {
        /// The fault.
        why: OwnFault,
    },
    /// A switchover was given up; this replica leads on.
    SwitchoverFailed {
        /// Why.
        why: String,
    },
    /// This host is drained, or not any more.
    Drained {
        /// Whether it is.
        drained: bool,
    },
    /// The members have changed.
    Members {
        /// Those that vote.
        voters: ReplicaSet,
        /// Those that are sent the log and do not vote.
        learners: ReplicaSet,
    },
    /// The group's version was raised: forms of it may be sent from now on.
    Version {
        /// The version.
        version: u8,
    },
    /// An order to change the members came to nothing.
    MembersRefused {
        /// Why.
        why: String,
    },
    /// This replica has left the group.
    Left,
    /// The hypervisor does not answer an order. It may yet.
    HypervisorLate {
        /// The order.
        why: String,
    },
    /// It answers again.
    HypervisorAnswers,
    /// Nobody holds the guest's state any more; serving has stopped.
    GroupEmpty {
        /// Whether the group has never run.
        fresh: bool,
    },
    /// A client's frames were dropped because the queue was full, like a NIC's.
    InputDropped {
        /// How many.
        frames: usize,
    },
    /// The guest's outputs were dropped because the guard was full and no sync could empty it.
    OutputDropped {
        /// How many.
        frames: usize,
    },
    /// A message was dropped: of another view, malformed, or out of place.
    Rejected {
        /// From whom.
        from: ReplicaId,
        /// Why.
        why: String,
    },
}

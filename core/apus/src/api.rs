//! The interface of the consensus core: events go in, commands come out.

use crate::entry::VOTERS_MAX;
use crate::{Configuration, Contradiction, DurableState, Entry, Members};
use plover_types::wire::Versions;
use plover_types::{Incarnation, Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// An event that the consensus core is told.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Time has passed.
    Tick,
    /// The versions that `peer` has told at a link which comes up next. Without it, `peer` is taken to understand
    /// everything, but no version is raised.
    Speaks {
        /// The other end.
        peer: ReplicaId,
        /// What it said.
        versions: Versions,
    },
    /// The fabric's link to `peer` came up (messages that were in flight before are lost) or went
    /// down.
    Link {
        /// The other end.
        peer: ReplicaId,
        /// Whether it is up.
        up: bool,
    },
    /// A peer wrote these bytes into this replica's ring.
    Received {
        /// The peer.
        from: ReplicaId,
        /// One whole record.
        bytes: &'a [u8],
    },
    /// This process of a peer has died on a host that lives: it does nothing any more. The caller
    /// knows it from that host. A report that is late, repeated or of an older process is ignored;
    /// one of a process that still runs breaks the lease.
    ProcessDied(Incarnation),
    /// The other one of a pair with [`Config::fencing`](crate::Config::fencing) runs no more: its host was powered off, or its
    /// process has ended. Ignored in other groups, and if something has come from it since `seen_at`, for then another
    /// process may run; or within the last timeout. A report that is ignored, or lost, is to be repeated while it is true.
    PeerOff {
        /// The other one.
        peer: ReplicaId,
        /// When the caller began to look, by the clock of this replica.
        seen_at: Micros,
    },
    /// Stable storage holds this state of [`Command::PersistState`].
    StatePersisted(DurableState),
    /// Stable storage holds every entry up to this viewstamp (disk mode only). The caller does not
    /// report this after a later [`Command::PersistEntries`] has cut that entry.
    EntriesPersisted(Viewstamp),
}

/// A command: the consensus core asks its caller to carry it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write these bytes into this replica's ring at `to`. They may be lost with the link or when
    /// the ring is full: the core repeats what matters. The caller learns of a new peer from the
    /// [`EntryKind::Members`](crate::EntryKind::Members) or the snapshot that names it.
    Write {
        /// The ring's owner.
        to: ReplicaId,
        /// One whole record.
        bytes: Vec<u8>,
    },
    /// Make this durable, then report [`Event::StatePersisted`]. Until then the core sends nothing
    /// that rests on the promise.
    PersistState(DurableState),
    /// Disk mode: the log after `after` now consists of these entries, and what was there is
    /// truncated. Make that durable, in the order of the commands, then report
    /// [`Event::EntriesPersisted`] with the last of them (with `after` if there is none).
    PersistEntries {
        /// The viewstamp before the first entry.
        after: Viewstamp,
        /// Given when the log begins anew at `after`: nothing that storage holds belongs to it, and
        /// this is the configuration there.
        anew: Option<Configuration>,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// This entry is committed. Entries are delivered once each, in order, without gaps except
    /// after [`Command::InstallSnapshot`]. A caller for which allocations matter gives the payload
    /// back ([`crate::Apus::recycle`]).
    Deliver(Entry),
    /// The log begins anew at `base`, because the entries before are gone from the leader's log:
    /// get the state at `base` from a peer. Entries up to `base` are not delivered here. A `base`
    /// of index 0 is the beginning of a new generation of the group (see
    /// [`crate::Apus::bootstrap`]), and deliveries start again at 1.
    InstallSnapshot {
        /// The last entry that the snapshot contains.
        base: Viewstamp,
        /// The configuration there.
        configuration: Configuration,
    },
    /// This replica leads `view`. The uncommitted tail of the merged log is committed and delivered
    /// first, then what is proposed from now on.
    Lead {
        /// The view.
        view: View,
    },
    /// This replica follows the leader of `view`, or no leader while an election runs.
    Follow {
        /// The highest view known.
        view: View,
        /// Its leader, once heard from.
        leader: Option<ReplicaId>,
    },
    /// The leader's view of a peer's liveness changed: the peer has (or has not) answered within
    /// the timeout.
    PeerAlive {
        /// The peer.
        peer: ReplicaId,
        /// Whether it answers.
        alive: bool,
    },
    /// A peer has said what no correct replica says. Its message was dropped: drop the link to it, and tell the operator.
    Refuse {
        /// The peer.
        peer: ReplicaId,
        /// What it has said.
        why: Contradiction,
    },
    /// The group has this version now, or a peer is linked that does not speak it: tell it at links from now on, and end
    /// the links to peers that do not speak it.
    Version(u8),
    /// Every replica has answered that it does not hold the guest (all that did were restarted, or
    /// the group never ran): no replica leads until `bootstrap` is called on the first leader.
    /// Reported once, and again only after it ceased to be true in between.
    GroupEmpty {
        /// No replica has ever run: then the group may begin without the operator's word.
        fresh: bool,
    },
}

/// Why a proposal was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Propose on the leader.
    #[error("this replica does not lead: propose on the leader")]
    NotLeader,
    /// The log holds `log_bytes_max`: wait for commits and a trim.
    #[error("the log is full: wait until entries are committed and trimmed")]
    LogFull,
    /// The payload cannot fit one message (`message_bytes_max`): split it before proposing.
    #[error("a payload of {0} bytes does not fit one message: split it")]
    TooLarge(usize),
    /// The members cannot change to these now; the reason says whether to wait.
    #[error("the group's members cannot change: {0}")]
    Members(MembersError),
}

/// Why [`Apus::bootstrap`](crate::Apus::bootstrap) would begin no new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// Bootstrap that replica instead.
    #[error("only the group's first leader begins a new generation: bootstrap replica {}", .0.0)]
    NotFirstLeader(ReplicaId),
    /// Start the replicas that are down. If all are up, one of them still holds the state, or an
    /// answer is still on its way.
    #[error(
        "not every replica has answered that it holds no state to go on from: start those that are \
         down, and try again in a moment"
    )]
    NotEmpty,
    /// It holds the state, or begins a generation already: wait.
    #[error("this replica leads or stands for election: wait")]
    Standing,
}

/// Why the group's members cannot change.
///
/// Majorities of two groups that differ by one voter always overlap, and nothing else prevents two
/// leaders while replicas do not agree yet on the members. Hence one voter at a time, and one
/// change after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Name 1 to 9 voters, and no replica as both voter and learner.
    #[error("a group has 1 to {VOTERS_MAX} voters, and no replica is voter and learner at once")]
    NoGroup,
    /// Add or remove one voter, wait until that is delivered, then change the next.
    #[error("only one voter may be added or removed at a time")]
    MoreThanOne,
    /// Take the replica out of the in-sync set first.
    #[error("of {}, which hold the guest, one would not vote any more: let another take its place first", .0.in_words())]
    InSync(ReplicaSet),
    /// The last change is not committed yet: wait for its delivery.
    #[error("the change before this one is not committed yet: wait")]
    ChangePending,
    /// The leader has committed nothing in its view yet: wait for the delivery of its no-op.
    #[error("the leader has committed nothing in its view yet: wait")]
    ViewTooYoung,
}

/// The phase of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It has forgotten what it accepted, and does not vote until it has recovered.
    Recovering,
    /// It accepts from the leader of its view.
    Following,
    /// It asks whether the others would elect it; its view is unchanged.
    PreVoting,
    /// It has promised its own new view and collects promises, then the best log.
    Electing,
    /// It leads.
    Leading,
}

/// The state of a core, for people and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its phase.
    pub phase: Phase,
    /// The highest promised view.
    pub view: View,
    /// The leader it follows, or itself.
    pub leader: Option<ReplicaId>,
    /// The in-sync set by the newest such entry in its log.
    pub in_sync: ReplicaSet,
    /// The group by the newest such entry in its log.
    pub members: Members,
    /// Last entry in the log.
    pub last: Viewstamp,
    /// Last committed entry that this replica knows of.
    pub commit: Index,
    /// Entries up to here have been reclaimed.
    pub base: Index,
    /// It has forgotten its log: the newest milestone that it may have acknowledged (`milestone`).
    pub forgot: Option<Viewstamp>,
    /// Payload bytes held.
    pub log_bytes: usize,
    /// Payload bytes that a leader's own storage has not confirmed. They fill the log, too, also when they are reclaimed.
    pub unstored_bytes: usize,
    /// The silence after which the leader is suspected at present.
    pub suspected_after: Micros,
    /// One of a pair was stopped for so long that the other may have gone on alone, and has not
    /// learned yet that it did not: it may not lead.
    pub doubts: bool,
    /// The other one of a pair with fencing: it is silent, and this replica waits until it is heard or known to be off.
    pub awaits_off: Option<ReplicaId>,
    /// The group's version, 0 if it has named none.
    pub version: u8,
    /// Messages that were refused: they did not decode, contradicted the log, or no correct replica sends them.
    pub rejected: u64,
}

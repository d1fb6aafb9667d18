//! What goes into the consensus core and what comes out of it.

use crate::entry::VOTERS_MAX;
use crate::{Configuration, DurableState, Entry, Members};
use plover_types::{Index, ReplicaId, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// What may happen to a consensus core.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Time has passed.
    Tick,
    /// The fabric's link to `peer` came up anew (whatever was in flight before is lost) or
    /// went down.
    Link {
        /// The other end.
        peer: ReplicaId,
        /// Whether it is up.
        up: bool,
    },
    /// `peer` wrote these bytes into our ring.
    Received {
        /// The writer.
        from: ReplicaId,
        /// One whole record.
        bytes: &'a [u8],
    },
    /// Stable storage holds the state of [`Command::PersistState`] with this view.
    StatePersisted(View),
    /// Stable storage holds every entry up to this viewstamp (disk mode only). Not to be said
    /// once a later [`Command::PersistEntries`] has cut that entry.
    EntriesPersisted(Viewstamp),
}

/// What the consensus core asks of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Write these bytes at the next place of our ring at `to`. May be lost with the link or
    /// when the ring is full; the core repeats what matters. A peer that the caller has no link
    /// to yet is learnt of from the [`EntryKind::Members`] that was delivered or jumped to.
    Write {
        /// The ring's owner.
        to: ReplicaId,
        /// One whole record.
        bytes: Vec<u8>,
    },
    /// Make this durable, then say [`Event::StatePersisted`]. Until then nothing that rests
    /// on the promise is sent.
    PersistState(DurableState),
    /// Disk mode: the log after `after` is now these entries (what stood there is
    /// truncated); make it durable, in the order of the commands, then say
    /// [`Event::EntriesPersisted`] with the last of them (with `after` if there is none).
    PersistEntries {
        /// The viewstamp before the first entry.
        after: Viewstamp,
        /// Given when the log begins anew at `after`: nothing of what storage holds is part of it,
        /// and this is who is who there.
        anew: Option<Configuration>,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// This entry is committed; entries are delivered once each, in order, without gaps
    /// except after [`Command::InstallSnapshot`]. Give the payload back ([`crate::Apus::recycle`]) where
    /// allocations matter.
    Deliver(Entry),
    /// The log was replaced from a peer's; entries up to `base` are not delivered here. With a
    /// `base` of index 0 a new generation of the guest begins (see [`crate::Apus::bootstrap`]) and
    /// deliveries start again at 1.
    InstallSnapshot {
        /// The last viewstamp that is skipped.
        base: Viewstamp,
        /// Who is who there.
        configuration: Configuration,
    },
    /// This replica leads `view`. The merged log's uncommitted tail will be committed and
    /// delivered first, then what is proposed from now on.
    Lead {
        /// The view.
        view: View,
    },
    /// This replica follows: the leader of `view`, or nobody yet while an election runs.
    Follow {
        /// The highest view known.
        view: View,
        /// Its leader, once heard from.
        leader: Option<ReplicaId>,
    },
    /// A peer's liveness as seen by the leader changed: it has (or has not) acknowledged
    /// anything within the timeout.
    PeerAlive {
        /// The peer.
        peer: ReplicaId,
        /// Whether it answers.
        alive: bool,
    },
    /// No replica of the group holds the guest (all that did were restarted, or the group
    /// never ran), by the word of every one of them: nobody may lead until `bootstrap` is called
    /// on the first leader. `fresh` is true when no replica has ever run, which needs no
    /// operator's word. Said once, and again only after it ceased to be true in between.
    GroupEmpty {
        /// Whether this is the first start of all.
        fresh: bool,
    },
}

/// Why a proposal was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Only the leader proposes.
    #[error("this replica does not lead")]
    NotLeader,
    /// The log holds `log_bytes_max`: wait for commits and a trim.
    #[error("the log is full")]
    LogFull,
    /// The payload cannot fit one message (`message_bytes_max`): split it before proposing.
    #[error("a payload of {0} bytes does not fit one message")]
    TooLarge(usize),
    /// The group cannot become that now; the reason says whether later may do.
    #[error("the group's members cannot change: {0}")]
    Members(MembersError),
}

/// Why no new generation of the group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// Say it to that replica.
    #[error("only the group's first leader begins one: say it to replica {0}")]
    NotFirstLeader(ReplicaId),
    /// Start the replicas that are down; if all are up, one of them still holds the state, or the
    /// last word of one is a moment away.
    #[error(
        "not every replica has said that it holds nothing to go on from: start those that are down, \
         and say it again in a moment"
    )]
    NotEmpty,
    /// It holds the state, or begins a generation already: wait.
    #[error("this replica leads, or stands for election")]
    Standing,
}

/// Why the group's members cannot change.
///
/// Majorities of two groups that differ by one voter always meet, and that is all that keeps
/// two leaders apart while replicas do not agree yet who belongs to the group. Hence one voter at
/// a time, and one change after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Not 1 to 9 voters, or somebody is voter and learner: ask for something else.
    #[error("a group has 1 to {VOTERS_MAX} voters, and nobody is voter and learner at once")]
    NoGroup,
    /// Add or remove one voter, wait until that is delivered, then the next.
    #[error("only one voter may come or go at a time")]
    MoreThanOne,
    /// The last change is not committed yet: wait for its delivery.
    #[error("the change before this one is not committed yet")]
    ChangePending,
    /// The leader has committed nothing in its view yet: wait for the delivery of its no-op.
    #[error("the leader's view has only just begun")]
    ViewTooYoung,
}

/// Where a core stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It has forgotten what it accepted and takes no part until it has recovered.
    Recovering,
    /// It accepts from the leader of its view.
    Following,
    /// It asks whether others would elect it (pre-vote); its view is unchanged.
    PreVoting,
    /// It has promised its own new view and collects promises, then the best log.
    Electing,
    /// It leads.
    Leading,
}

/// A snapshot for people and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Where it stands.
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
    /// Payload bytes held.
    pub log_bytes: usize,
    /// It was stopped for so long that the other one of a pair may have gone on without it, and has
    /// not been told yet that it has not: it may not lead.
    pub doubts: bool,
    /// Messages that did not decode or came from nowhere.
    pub rejected: u64,
}

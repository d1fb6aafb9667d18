//! What goes into the consensus core and what comes out of it.

use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// When an acknowledgement counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// An acceptor acknowledges what it holds in memory; memory is the log and recovery
    /// restores it from the others (design §6).
    #[default]
    Memory,
    /// An acceptor acknowledges what its stable storage holds.
    Disk,
}

/// What a log entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// Starts a view; carries nothing.
    Noop,
    /// Bytes of the application.
    App,
    /// From here on these are the in-sync set: the only replicas that may stand for election
    /// (`paxos_second`, PLOVER §4.2). In force as soon as a replica has the entry in its log.
    InSync(ReplicaSet),
    /// From here on these are the group's replicas. In force as soon as a replica has the entry
    /// in its log. The payload is the caller's, such as the addresses of newcomers.
    Members(Members),
}

/// Who belongs to the group, and as what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// They vote, and a majority of them commits; 1 to 9.
    pub voters: ReplicaSet,
    /// They are sent the log and count for nothing: replicas that catch up before they vote.
    pub learners: ReplicaSet,
}

impl Members {
    /// A group of voters alone.
    pub fn of(voters: ReplicaSet) -> Self {
        let learners = ReplicaSet::EMPTY;
        Self { voters, learners }
    }

    /// Voters and learners.
    pub fn all(self) -> ReplicaSet {
        ReplicaSet(self.voters.0 | self.learners.0)
    }

    /// How many voters are a majority.
    pub fn quorum(self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Whether a group can be this: voters enough and not too many, and nobody is both.
    pub(crate) fn are_sane(self) -> bool {
        (1..=VOTERS_MAX).contains(&self.voters.len()) && self.voters.0 & self.learners.0 == 0
    }
}

/// The most voters of a group.
pub(crate) const VOTERS_MAX: usize = 9;

/// Who is who at one place of the log: the newest words of [`EntryKind::InSync`] and
/// [`EntryKind::Members`] up to there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The in-sync set.
    pub in_sync: ReplicaSet,
    /// The group.
    pub members: Members,
}

impl Configuration {
    /// The configuration after an entry of this kind.
    pub fn note(&mut self, kind: EntryKind) {
        match kind {
            EntryKind::InSync(set) => self.in_sync = set,
            EntryKind::Members(members) => self.members = members,
            EntryKind::Noop | EntryKind::App => {}
        }
    }
}

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name and place.
    pub viewstamp: Viewstamp,
    /// What it is for.
    pub kind: EntryKind,
    /// The application's bytes, empty unless `kind` is [`EntryKind::App`].
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
}

/// The little that outlives a process: written at every promise of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableState {
    /// The highest view this replica has promised. It never accepts from an older one.
    pub promised: View,
    /// The view in which the present generation of the guest began, as far as it knew.
    #[serde(default)]
    pub generation: View,
    /// It had lost its log and had not recovered it yet: what its storage holds is not all that
    /// it has ever acknowledged.
    #[serde(default)]
    pub amnesiac: bool,
}

/// How a group is tuned.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The voters with which the group began, 1 to 9. The log has the last word
    /// ([`EntryKind::Members`]): a newcomer gives those that it is to join, and is none of them.
    pub members: ReplicaSet,
    /// The replica that leads first in a group that has never run, and its in-sync set.
    pub first_leader: ReplicaId,
    /// The log is all there is: no guest, no in-sync set. Every voter that has not forgotten its
    /// log may stand for election, and a group with [`Durability::Disk`] goes on by itself after
    /// all of it was restarted.
    pub any_voter_stands: bool,
    /// Two voters without a third to decide between them: each goes on alone when it hears nothing
    /// of the other, and a cut between them makes two leaders (see `pair`). Needs a guest, and
    /// exactly two members.
    pub pair: bool,
    /// The leader of four or more voters sends an entry at once only to as many backups as a
    /// majority needs, and to the others within an eighth of a heartbeat: less work an entry,
    /// fewer copies at first.
    pub quorum_selection: bool,
    /// The leader's heartbeat period.
    pub heartbeat: Micros,
    /// A follower suspects the leader after a silence of this long (paper: 100 ms). The
    /// randomised election timeout lies in `timeout..=2*timeout`; voters refuse while they
    /// have heard from a leader within `timeout`, which is also what the lease rests on.
    pub timeout: Micros,
    /// When an acknowledgement counts.
    pub durability: Durability,
    /// Payload bytes the log may hold before `propose` refuses.
    pub log_bytes_max: usize,
    /// Largest encoded message this core emits, bytes; what does not fit goes in several.
    pub message_bytes_max: usize,
    /// Seed of everything random: timeouts and nonces. Draw a new one at every start of a
    /// process, or messages meant for the generation before may be taken for answers in this one.
    pub seed: u64,
    /// A known bug to put back, so that the harness can be seen to catch it.
    #[doc(hidden)]
    pub canary: Canary,
}

/// Known bugs for testing the tests; never anything but `None` outside of them.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Canary {
    /// No bug.
    #[default]
    None,
    /// A restarted replica whose memory was its log votes with an empty log instead of
    /// recovering it first.
    VoteAfterAmnesia,
    /// An acceptor in disk mode acknowledges what only its memory holds.
    AcknowledgeBeforeDisk,
    /// Majorities are those of the group's first members, whatever the log says.
    FirstMembersForEver,
    /// A candidate leads with the votes of a majority of the group that its own log knew,
    /// though the log it merged names another.
    OldMajorityElects,
    /// A leader commits entries of older views by counting their copies.
    CountOldViews,
    /// A follower stands for election at once, without asking whether others would elect it.
    SkipPreVote,
    /// A replica that died as a new generation of the guest began takes the old generation's log on its disk
    /// for the new one's.
    TrustOldGeneration,
    /// A backup of a pair that was stopped for long trusts its guest as before.
    NeverDoubt,
    /// A leader of a pair takes its own standstill for the other's silence.
    ClockAlone,
}

/// What this replica knew when its process started.
#[derive(Clone, Debug)]
pub enum Start {
    /// The state directory is empty: this replica has never promised anything, or its disk
    /// was replaced. It joins once enough others have said what they promised.
    Fresh,
    /// It has run before, as something beside its storage tells, but the promise is lost, and the log
    /// with it. It joins like a fresh one; but a group in which somebody has run is not begun anew
    /// without the operator.
    PromiseLost {
        /// A view that it had promised at the least.
        least: View,
    },
    /// It has run before. With [`Durability::Disk`] `log` is what storage held (gapless,
    /// starting after `base`) and the replica is at once a full member, unless it has `forgotten`;
    /// with [`Durability::Memory`] the log is empty and it must recover before it votes.
    Restarted {
        /// The last durable state.
        durable: DurableState,
        /// The entries on disk, empty in memory mode.
        log: Vec<Entry>,
        /// The viewstamp before the first entry of `log`.
        base: Viewstamp,
        /// Who was who at `base`.
        configuration_at_base: Configuration,
        /// Storage has lost entries that it had confirmed (damage in the middle of the log): the
        /// replica keeps its promise, drops `log` and recovers like one whose memory was its log.
        /// To be said at every start until storage holds a state that is `amnesiac`.
        forgotten: bool,
    },
}

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

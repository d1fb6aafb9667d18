//! The configuration and the stored state with which a core starts.

use crate::{Canary, Configuration, Entry};
use plover_types::{Micros, ReplicaId, ReplicaSet, View, Viewstamp};
use serde::{Deserialize, Serialize};

/// When an entry counts as held by an acceptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// As soon as it is in memory. A replica that restarts recovers its log from the others.
    #[default]
    Memory,
    /// Once its stable storage holds it.
    Disk,
}

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The voters with which the group began, 1 to 9. Entries of the log change them
    /// ([`EntryKind::Members`](crate::EntryKind::Members)). A newcomer gives the voters of the group
    /// that it joins, without itself.
    pub members: ReplicaSet,
    /// The replica that leads first in a group that has never run; it alone is in sync then. When it has left the group,
    /// the voter with the lowest id takes its place.
    pub first_leader: ReplicaId,
    /// The log is all there is: no guest, no in-sync set. Every voter that has not forgotten its
    /// log may stand for election, and a group with [`Durability::Disk`] goes on by itself after
    /// all replicas were restarted.
    pub any_voter_stands: bool,
    /// Two voters without a third to decide between them: each goes on alone when the other is
    /// silent, and a cut between them makes two leaders (docs/decisions/0018). Needs a guest and
    /// exactly two members.
    pub pair: bool,
    /// Neither of a pair goes on alone before the other one is known to be off
    /// ([`Event::PeerOff`](crate::Event::PeerOff)), so a cut makes no two leaders
    /// (docs/decisions/0079).
    pub fencing: bool,
    /// The leader of four or more voters sends an entry at once only to as many backups as a
    /// majority needs, and to the others within an eighth of a heartbeat. An entry costs less work,
    /// and has fewer copies at first.
    pub quorum_selection: bool,
    /// The newest version of the wire forms that this replica speaks (see `version`).
    pub newest_version: u8,
    /// The leader's heartbeat period.
    pub heartbeat: Micros,
    /// A follower suspects the leader after a silence of this long at most (APUS §4: 100 ms), and sooner
    /// where the leader's messages come steadily (see `silence`). Let `span` be that silence. A follower
    /// stands for election a sixteenth of the timeout later, or, where others may stand as well, up to a quarter of `span`
    /// after that. A voter refuses a candidate while it has heard from a leader within
    /// `span`; the lease rests on that.
    pub timeout: Micros,
    /// A follower suspects the leader after a silence of this long at least. At most `timeout`; if it
    /// equals `timeout`, nothing is learned.
    pub timeout_min: Micros,
    /// How long a leader is listened to before its silences say how long the next one may be; about a
    /// hundred heartbeats.
    pub known_after: Micros,
    /// When an entry counts as held.
    pub durability: Durability,
    /// Payload bytes of the application that the log may hold before `propose` refuses.
    pub log_bytes_max: usize,
    /// The largest encoded message that this core sends, bytes. Entries that do not fit one message
    /// go in several.
    pub message_bytes_max: usize,
    /// Seed of everything random, timeouts and nonces; and the number of this process's
    /// [incarnation](plover_types::Incarnation). Draw a new one at every start of a process: with the
    /// old one it could take answers to the process before it for its own, and a report of that
    /// process's death for its own.
    pub seed: u64,
    /// A known bug that is put back, to test the tests.
    #[doc(hidden)]
    pub canary: Canary,
}

/// The state besides the log that outlives a process. It is written at every promise of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableState {
    /// The highest view this replica has promised. It never accepts from an older one.
    pub promised: View,
    /// The view in which the group's present generation began, as far as it knew.
    #[serde(default)]
    pub generation: View,
    /// It had lost its log and not recovered it yet: its storage lacks entries that it has
    /// acknowledged.
    #[serde(default)]
    pub amnesiac: bool,
    /// The newest milestone that this replica has acknowledged, or a newer one: with it, a replica
    /// that has forgotten its log may vote (see `milestone`). None if it is not known, or not kept.
    #[serde(default)]
    pub milestone: Option<Viewstamp>,
    /// The group's version (see `version`), 0 if it is not known.
    #[serde(default)]
    pub version: u8,
}

/// The state that a process finds when it starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// The state directory is empty: this replica has never promised anything, or its disk was
    /// replaced. It joins once enough others have reported what they promised.
    Fresh,
    /// It has run before, as the caller knows from elsewhere, but its promise and log are lost. It
    /// joins like a fresh one, but its group does not begin anew without the operator.
    PromiseLost {
        /// It had promised this view or a later one.
        least: View,
    },
    /// It has run before. With [`Durability::Disk`], `log` is what storage holds (without gaps,
    /// starting after `base`), and the replica votes at once unless it has `forgotten`. With
    /// [`Durability::Memory`], the log is empty, and it recovers before it votes.
    Restarted {
        /// The last durable state.
        durable: DurableState,
        /// The entries on disk, empty in memory mode.
        log: Vec<Entry>,
        /// The viewstamp before the first entry of `log`.
        base: Viewstamp,
        /// The configuration at `base`.
        configuration_at_base: Configuration,
        /// Storage has lost entries that it had confirmed (damage in the middle of the log): the
        /// replica keeps its promise, drops `log` and recovers as in memory mode. The caller
        /// repeats this at every start until storage holds a state that is `amnesiac`.
        forgotten: bool,
    },
}

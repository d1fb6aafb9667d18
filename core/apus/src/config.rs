//! What a core is started with.

use crate::{Canary, Configuration, Entry};
use plover_types::{Micros, ReplicaId, ReplicaSet, View, Viewstamp};
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

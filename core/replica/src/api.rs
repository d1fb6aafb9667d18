//! What happens to a replica, and what it asks of the world.

mod note;

pub use note::Note;

use apus::{Canary as ConsensusCanary, Configuration, Durability, DurableState, Entry};
use plover_policy::{MatchConfig, Policy, SlotConfig, UnprotectedOutput};
use plover_syncvm::blocks::Divergent;
use plover_types::{
    Digest, Frame, Index, Lane, Micros, PageNo, PageSet, Payload, ReplicaId, ReplicaSet, SyncNo,
    Unconsumed, View, Viewstamp,
};
use serde::{Deserialize, Serialize};

/// How a replica is set up. All replicas of a group must agree on everything but `me`,
/// `seed` and `hash_key`.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The group. One replica alone is the unreplicated baseline.
    pub members: ReplicaSet,
    /// Who boots the guest when the group starts for the first time.
    pub first_leader: ReplicaId,
    /// The leader's heartbeat period.
    pub heartbeat: Micros,
    /// Silence after which a replica is suspected (paper: 100 ms).
    pub timeout: Micros,
    /// When a log entry counts as acknowledged.
    pub durability: Durability,
    /// Payload bytes the log may hold.
    pub log_bytes_max: usize,
    /// Largest message on the log lane, bytes.
    pub message_bytes_max: usize,
    /// How the guest is protected. Must be one that [`Policy::check`] takes.
    pub policy: Policy,
    /// The slot's bounds.
    pub slot: SlotConfig,
    /// The bounds of a slot whose outputs are compared.
    pub matching: MatchConfig,
    /// What solo does with outputs.
    pub unprotected_output: UnprotectedOutput,
    /// Guest RAM in pages, and after them the blocks of its disks.
    pub pages: u32,
    /// How many of `pages` are blocks of disks: the last ones.
    pub disk_blocks: u32,
    /// Whether this machine type's devices must be reset before a state is loaded.
    pub needs_reset: bool,
    /// What of the guest a witness keeps ready for the day it becomes secondary: this replica's
    /// choice as a witness, and whether it sends anything as secondary.
    pub warm: Warm,
    /// Bytes a second that a secondary sends to keep a witness warm, at most.
    pub warm_bytes_per_s: u64,
    /// Whether only the differing blocks of divergent pages are sent, not whole pages.
    pub blocks: bool,
    /// Held output bytes that force a sync.
    pub guard_bytes_max: usize,
    /// Frames that may wait to be fed, like a NIC's receive queue; more are dropped on arrival.
    pub input_frames_max: usize,
    /// This process's secret for page hashes, from the system's random source.
    pub hash_key: [u8; 32],
    /// Seed of timeouts.
    pub seed: u64,
    /// A known bug to put back, for the simulator's proof that it can fail.
    #[doc(hidden)]
    pub canary: Canary,
}

/// What a witness keeps of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warm {
    /// Nothing.
    Off,
    /// Its disks.
    Disk,
    /// Its disks and its memory.
    #[default]
    Full,
}

/// Known bugs behind a test-only switch (style 19: the harness is tested too).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Canary {
    /// No bug.
    #[default]
    None,
    /// A restarted replica votes with its empty log.
    VoteAfterAmnesia,
    /// Outputs go out before the secondary has acknowledged.
    ReleaseBeforeAck,
    /// A failed sync forgets its dirty pages.
    DirtyBitsLost,
    /// Of several blocks that differ in a page, one is not sent.
    BlockMissed,
    /// The secondary acknowledges before the blocks of its disks are durable.
    AckBeforeDisks,
    /// Compared outputs go out without a match.
    ReleaseWithoutMatch,
    /// A match does not ask what the secondary has acknowledged to the client.
    IgnoreAcks,
    /// A log of the guest's last generation on disk is taken for one of the present generation.
    TrustOldGeneration,
    /// What a syncvm brings is not sent on to the warm copy.
    WarmForgetsSyncs,
    /// A secondary that takes over forgets which numbers clients know its connections by.
    ForgetNumbers,
    /// A secondary of a pair that was stopped for long trusts its guest as before.
    NeverDoubt,
    /// A leader of a pair takes its own standstill for the secondary's silence.
    ClockAlone,
    /// A page that was written while it was hashed for a comparison counts as compared.
    StaleCompare,
}

impl Canary {
    pub(crate) fn of_consensus(self) -> ConsensusCanary {
        match self {
            Self::VoteAfterAmnesia => ConsensusCanary::VoteAfterAmnesia,
            Self::TrustOldGeneration => ConsensusCanary::TrustOldGeneration,
            Self::NeverDoubt => ConsensusCanary::NeverDoubt,
            Self::ClockAlone => ConsensusCanary::ClockAlone,
            _ => ConsensusCanary::None,
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The fabric's link to a peer came up anew or went down.
    Link {
        /// The peer.
        peer: ReplicaId,
        /// Whether it is up.
        up: bool,
    },
    /// A peer wrote a record into our ring.
    Received {
        /// The peer.
        from: ReplicaId,
        /// Which ring.
        lane: Lane,
        /// The record.
        bytes: Vec<u8>,
    },
    /// [`Action::PersistState`] is durable.
    StatePersisted(View),
    /// [`Action::PersistEntries`] is durable up to here.
    EntriesPersisted(Viewstamp),
    /// Frames from clients arrived at the TAP. One batch: what waited goes together.
    Frames(Vec<Frame>),
    /// An operator's input to the guest; goes through the log like any other.
    Operator(OperatorInput),
    /// The operator's word that a group whose replicas have all forgotten the guest may boot a
    /// new one.
    Bootstrap,
    /// The hypervisor is up, its guest paused at power-on.
    GuestStarted,
    /// The guest is paused. Everything it had sent is in `outputs`.
    GuestPaused {
        /// Frames it has sent, after those of earlier [`Event::Outputs`].
        outputs: Vec<Frame>,
        /// Inputs taken back that the hypervisor had not consumed.
        unconsumed: Unconsumed,
    },
    /// The guest runs.
    GuestResumed,
    /// The devices are reset.
    GuestResetDone,
    /// Device and CPU state, opaque.
    StateSaved(Vec<u8>),
    /// It is loaded.
    StateLoaded,
    /// The hypervisor is gone or refused an order; its guest's state is lost here.
    GuestDied(String),
    /// The guest sent frames.
    Outputs(Vec<Frame>),
    /// The guest has printed on its console, and somebody looks: an output like any other, which the
    /// node holds until the syncvm that ends its slot is over ([`crate::Replica::prints_at_once`]).
    Printed,
    /// The guest has written so much to its disks that a syncvm is due.
    MuchWritten,
    /// The answer to [`Action::StageDisks`].
    DisksStaged(SyncNo),
    /// The answer to [`Action::Scan`].
    Scanned(PageSet),
    /// The answer to [`Action::Hash`], in the order asked.
    Hashed(Vec<Digest>),
    /// The answer to [`Action::HashBlocks`], in the order asked: each page's blocks, one page after
    /// the other.
    BlocksHashed(Vec<u64>),
    /// The answer to [`Action::ReadPages`] or [`Action::ReadBlocks`]: a page chunk.
    PagesRead(Vec<u8>),
    /// The answer to [`Action::WriteChunks`], which the next write need not wait for.
    ChunksWritten,
    /// A sample of the guest's activity, as [`crate::Replica::wants_samples`] asks for.
    Sample {
        /// CPU time of all vCPUs since the start; `None` where the guest plainly has work: the
        /// hypervisor has not consumed every frame fed to it, or one of its threads runs or
        /// waits for a CPU.
        cpu: Option<Micros>,
    },
}

/// What an operator may do to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorInput {
    /// Types on the serial console.
    Console(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Presses the power button.
    PowerButton,
}

/// What the replica asks of the world. The node carries actions out in order.
///
/// Work on pages (hash, read, write) is answered in the order asked. Where it concerns memory alone
/// the answer comes before the next event, and a scan's always does. Where it concerns blocks of disks
/// it takes as long as the disk takes, and other events come first: what a page was hashed as may no
/// longer be so, and the sync that asked may be over.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write a record into our ring at a peer.
    Write {
        /// The ring's owner.
        to: ReplicaId,
        /// Which ring.
        lane: Lane,
        /// What it is for.
        payload: Payload,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Make this durable → [`Event::StatePersisted`].
    PersistState(DurableState),
    /// Make these log entries durable → [`Event::EntriesPersisted`].
    PersistEntries {
        /// The viewstamp before them; what stood after it is truncated.
        after: Viewstamp,
        /// Given when the log begins anew there; see [`apus::Command::PersistEntries`].
        anew: Option<Configuration>,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// Note what a restart of the whole group would need to know.
    PersistGuest(GuestRecord),
    /// Start a hypervisor with a paused guest → [`Event::GuestStarted`].
    StartGuest,
    /// End the hypervisor.
    KillGuest,
    /// Stop the vCPUs → [`Event::GuestPaused`].
    Pause,
    /// Let them run → [`Event::GuestResumed`].
    Resume,
    /// Reset the devices → [`Event::GuestResetDone`].
    Reset,
    /// Serialise device state → [`Event::StateSaved`].
    SaveState,
    /// Load device state → [`Event::StateLoaded`].
    LoadState(Vec<u8>),
    /// Collect and clear dirty bits → [`Event::Scanned`].
    Scan,
    /// Hash these pages → [`Event::Hashed`].
    Hash {
        /// The session's key.
        key: [u8; 32],
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Read these pages into one chunk → [`Event::PagesRead`].
    ReadPages(Vec<PageNo>),
    /// Hash the blocks of these pages → [`Event::BlocksHashed`].
    HashBlocks {
        /// The session's key.
        key: [u8; 32],
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Read these blocks into one chunk → [`Event::PagesRead`].
    ReadBlocks(Vec<Divergent>),
    /// Write page chunks into guest memory and its disks → [`Event::ChunksWritten`]. Whatever this
    /// guest does afterwards, it finds them written.
    WriteChunks(Vec<Vec<u8>>),
    /// Make the blocks of disks in these page chunks durable, and what was written to the disks
    /// before: all or nothing, whenever this host dies → [`Event::DisksStaged`]. They are written
    /// by the [`Action::WriteChunks`] that follows.
    StageDisks {
        /// The syncvm they are of.
        sync: SyncNo,
        /// Page chunks; pages of guest RAM among them are passed over.
        chunks: Vec<Vec<u8>>,
    },
    /// Put frames into the guest's NIC queue.
    Feed(Vec<Frame>),
    /// Carry out an operator's input on this side's guest.
    Operate(OperatorInput),
    /// Send frames to the clients.
    Release {
        /// The slot they belong to: the number of the next syncvm when they were sent.
        slot: SyncNo,
        /// The frames.
        frames: Vec<Frame>,
    },
    /// Start or stop being the guest's face: read the TAP or ignore it.
    FaceClients(bool),
    /// Tell the network that the guest's address now lives here.
    Announce,
    /// For the trace and the status.
    Note(Note),
}

/// What a restart needs to know (design §7, "all lost").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRecord {
    /// The in-sync set.
    pub in_sync: ReplicaSet,
    /// The view it was agreed in.
    pub view: View,
    /// The last syncvm this replica holds.
    pub sync: SyncNo,
    /// The generation of the group in which the in-sync set was agreed, and where in its log. Of two
    /// replicas' records, the one with the greater pair is the newer.
    #[serde(default)]
    pub generation: View,
    /// See `generation`.
    #[serde(default)]
    pub index: Index,
}

impl GuestRecord {
    /// A view that whoever wrote this had promised at the least: for [`apus::Start::PromiseLost`].
    pub fn promised_at_least(&self) -> View {
        self.view.max(self.generation)
    }
}

/// Where a replica stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Has forgotten the log and recovers it.
    Recovering,
    /// Votes and logs, runs no guest.
    Witness,
    /// Receives a full copy.
    Joining,
    /// Runs the guest in step.
    Secondary,
    /// Runs the guest and faces clients.
    Leader,
    /// Led, and does not know yet who leads now; its guest runs on with its outputs held.
    Deposed,
}

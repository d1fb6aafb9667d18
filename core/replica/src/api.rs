//! The interface of a replica: the events that it takes, and the actions that it asks for.

mod config;
mod note;
mod operator;

pub use config::{Config, Warm};
pub use note::{Note, OwnFault};
pub use operator::{NotTaken, OperatorInput, Ticket};

use crate::jobs::JobId;
use crate::members::{GroupRecord, MemberOrder, RecordPlace};
use crate::tuning::Tuning;

use apus::{Configuration, DurableState, Entry};
use plover_syncvm::subpages::Divergent;
use plover_types::wire::Versions;
use plover_types::{
    DeviceState, Digest, Frame, HashKey, Incarnation, Index, Lane, MachineWords, Micros, PageNo,
    PageSet, Payload, ReplicaId, ReplicaSet, Reply, SyncNo, Unconsumed, View, Viewstamp,
};
use serde::{Deserialize, Serialize};

/// An input of the replica: time, a message, finished work, or a frame.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The versions that a peer has told at a link which comes up next ([`apus::Event::Speaks`]).
    Speaks {
        /// The peer.
        peer: ReplicaId,
        /// What it said.
        versions: Versions,
    },
    /// The fabric's link to a peer came up anew or went down.
    Link {
        /// The peer.
        peer: ReplicaId,
        /// Whether it is up.
        up: bool,
    },
    /// This process of a peer has died on a host that lives ([`apus::Event::ProcessDied`]).
    ProcessDied(Incarnation),
    /// The other one of a pair runs no more ([`apus::Event::PeerOff`]).
    PeerOff {
        /// The other one.
        peer: ReplicaId,
        /// When the caller began to look, by the clock of this replica.
        seen_at: Micros,
    },
    /// A peer wrote a record into our ring.
    Received {
        /// The peer.
        from: ReplicaId,
        /// The ring that it came by.
        lane: Lane,
        /// The record.
        bytes: Vec<u8>,
    },
    /// [`Action::PersistState`] is durable.
    StatePersisted(DurableState),
    /// [`Action::PersistEntries`] is durable up to here.
    EntriesPersisted(Viewstamp),
    /// The record of [`Action::Regroup`] with this place is durable.
    MembersPersisted(RecordPlace),
    /// Frames from clients arrived at the TAP. All that waited are one batch.
    Frames(Vec<Frame>),
    /// An operator's input to the guest; goes through the log like any other → [`Action::Answer`].
    Operator {
        /// Its answer carries this.
        ticket: Ticket,
        /// The input.
        input: OperatorInput,
    },
    /// An operator wants this leader to hand over: to this replica, or to any that can lead. Ask
    /// [`crate::Replica::why_not_switch_over`] first.
    SwitchOver {
        /// The next leader.
        to: Option<ReplicaId>,
    },
    /// An operator changes the members of the group. Ask [`crate::Replica::why_not_change_members`] first.
    Members(MemberOrder),
    /// An operator wants this host cleared of every role that matters (`true`), or lets it have roles again.
    Drain(bool),
    /// The operator has changed what can be changed while the replica runs.
    Tuned(Box<Tuning>),
    /// The operator's word that a group whose replicas have all forgotten the guest may boot a
    /// new one.
    Bootstrap,
    /// The hypervisor is up, its guest paused at power-on.
    GuestStarted(MachineWords),
    /// The guest is paused. Everything it had sent is in `outputs`.
    GuestPaused {
        /// Frames it has sent, after those of earlier [`Event::Outputs`].
        outputs: Vec<Frame>,
        /// Inputs taken back that the hypervisor had not consumed.
        unconsumed: Unconsumed,
    },
    /// This host reaches the guest's clients, or does not any more. At the start it is taken to reach them.
    Uplink {
        /// Whether it does.
        up: bool,
    },
    /// The guest runs.
    GuestResumed,
    /// The devices are reset.
    GuestResetDone,
    /// Device and CPU state, opaque.
    StateSaved(Vec<u8>),
    /// It is loaded.
    StateLoaded,
    /// The answer to [`Action::Probe`].
    Probed,
    /// The hypervisor is gone or refused an order; its guest's state is lost here.
    GuestDied(String),
    /// The guest sent frames.
    Outputs(Vec<Frame>),
    /// Programs in the guest have said this of datagrams; those that were sent come with the next
    /// [`Event::Outputs`] or [`Event::GuestPaused`], or later.
    Replies {
        /// Their words, in the order in which these were found.
        replies: Vec<Reply>,
        /// They have said more, which is lost.
        lost: bool,
    },
    /// The guest has printed on its console, and an operator watches it. Console output is an output like any
    /// other: the node holds it until the syncvm that ends its slot is over, or shows it at once
    /// ([`Watch::console_until`]).
    Printed,
    /// A syncvm is due: the guest has written much to its memory or disks, or is off.
    SyncDue,
    /// The answer to [`Action::StageDisks`].
    DisksStaged(SyncNo),
    /// The answer to [`Action::Scan`].
    Scanned(JobId, PageSet),
    /// The answer to [`Action::Hash`], in the order of its pages.
    Hashed(JobId, Vec<Digest>),
    /// The answer to [`Action::HashSubpages`]: the hashes of each page's subpages, one page after the other.
    SubpagesHashed(JobId, Vec<u64>),
    /// The answer to [`Action::ReadPages`], [`Action::ReadSubpages`] or [`Action::CopyPages`]: a page
    /// chunk.
    PagesRead(JobId, Vec<u8>),
    /// The answer to [`Action::WriteChunks`], which the next write need not wait for.
    ChunksWritten(JobId),
    /// A sample of the guest's activity, as [`Watch::sample_every`] asks for.
    Sample {
        /// CPU time of all vCPUs since the start; `None` where the guest plainly has work: the
        /// hypervisor has not consumed every frame fed to it, or one of its threads runs or
        /// waits for a CPU.
        cpu: Option<Micros>,
    },
}

/// A request of the replica. The node carries actions out in order.
///
/// Work on pages (hash, read, write) is answered in the order asked. The answer of a scan, and of work on
/// memory alone, comes before the next event. Work on blocks of disks takes as long as the disk takes, and
/// other events come first: a page may have changed since it was hashed, and the sync that asked may be
/// over.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write a record into our ring at a peer.
    Write {
        /// The ring's owner.
        to: ReplicaId,
        /// The ring to write it into.
        lane: Lane,
        /// The kind of its content; the node counts bytes by it.
        payload: Payload,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Make this durable → [`Event::StatePersisted`].
    PersistState(DurableState),
    /// Make these log entries durable → [`Event::EntriesPersisted`].
    PersistEntries {
        /// The viewstamp before them; older entries after it are truncated.
        after: Viewstamp,
        /// Given when the log begins anew there; see [`apus::Command::PersistEntries`].
        anew: Option<Configuration>,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// Note what a restart of the whole group would need to know.
    PersistGuest(GuestRecord),
    /// Start a hypervisor with a paused guest → [`Event::GuestStarted`].
    StartGuest(BootReason),
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
    LoadState(DeviceState),
    /// Ask the hypervisor whether it is there → [`Event::Probed`].
    Probe,
    /// Tell programs in the guest, which stands, that it stands at the cut of this syncvm. It counts as a write of the
    /// guest's: the next scan reports its page.
    TellCut(SyncNo),
    /// Collect and clear dirty bits → [`Event::Scanned`]. Of a guest that runs it may take a while, but its answer comes before
    /// that of a pause that is asked for later.
    Scan(JobId),
    /// Hash these pages → [`Event::Hashed`].
    Hash {
        /// Its answer carries this.
        job: JobId,
        /// The key.
        key: HashKey,
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Read these pages into one chunk → [`Event::PagesRead`].
    ReadPages {
        /// Its answer carries this.
        job: JobId,
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Read these pages for a copy into one chunk → [`Event::PagesRead`]. There is time: other work goes
    /// first, and a page may be read as it is by then.
    CopyPages {
        /// Its answer carries this.
        job: JobId,
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Hash the subpages of these pages → [`Event::SubpagesHashed`].
    HashSubpages {
        /// Its answer carries this.
        job: JobId,
        /// The key.
        key: HashKey,
        /// The pages.
        pages: Vec<PageNo>,
    },
    /// Read these subpages into one chunk → [`Event::PagesRead`].
    ReadSubpages {
        /// Its answer carries this.
        job: JobId,
        /// The pages, and the subpages of each to read.
        pages: Vec<Divergent>,
    },
    /// Write page chunks into guest memory and its disks → [`Event::ChunksWritten`]. The guest reads them
    /// from then on, even before that event.
    WriteChunks {
        /// Its answer carries this.
        job: JobId,
        /// The chunks.
        chunks: Vec<Vec<u8>>,
    },
    /// Make the blocks of disks in these page chunks durable, and all earlier writes to the disks. If this
    /// host dies, all of them are there, or none → [`Event::DisksStaged`]. The [`Action::WriteChunks`] that
    /// follows writes them to the disks.
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
    /// Tell the operator who gave this input what has become of it. With `Ok` it outlives the loss of a host.
    Answer {
        /// From the input.
        ticket: Ticket,
        /// Whether it is safe.
        result: Result<(), NotTaken>,
    },
    /// Send frames to the clients.
    Release {
        /// The slot they belong to: the number of the next syncvm when they were sent.
        slot: SyncNo,
        /// The frames.
        frames: Vec<Frame>,
    },
    /// Start or stop being the guest's face: read the TAP or ignore it.
    FaceClients(bool),
    /// This leader hands over: these frames of clients, and those that still come here for a moment, are to be
    /// sent on to the others.
    SendOn(Vec<Frame>),
    /// Tell the network that the guest's address now lives here.
    Announce,
    /// Keep, release or discard the guest's console output that this host holds.
    Console(ConsoleHold),
    /// The members have changed, or [`crate::Replica::contacts`]: make the record durable → [`Event::MembersPersisted`], and
    /// link to the replicas that it knows.
    Regroup(Box<GroupRecord>),
    /// See [`apus::Command::Version`].
    Version(u8),
    /// This replica has left the group, and its guest is gone: end, and never start again with this state. Regard it as
    /// the last action.
    Leave,
    /// This replica's role has changed.
    Role {
        /// From.
        from: Role,
        /// To.
        to: Role,
    },
    /// A peer has sent what no correct replica sends: drop the link to it, and tell the operator.
    CutLink {
        /// The peer.
        peer: ReplicaId,
        /// What it has sent, as words that go on after "it has sent".
        why: String,
    },
    /// For the trace and the status. It changes nothing.
    Note(Note),
}

/// Console output is an output (docs/decisions/0024): it is held until the state behind it is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleHold {
    /// Output so far belongs to this syncvm.
    Cut(SyncNo),
    /// The syncvm was given up: its output belongs to the running slot again.
    Reopen,
    /// The syncvm is acknowledged: its output is shown.
    Show(SyncNo),
    /// The state that has printed it is gone.
    Forget,
}

/// The events that a replica waits for, and until when; [`crate::Replica::apply`] returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// When the next [`Event::Tick`] is due at the latest.
    pub deadline: Micros,
    /// How soon after the last one an [`Event::Sample`] is of use; `None` if none is.
    pub sample_every: Option<Micros>,
    /// Whether frames of the guest are to be told at once ([`Event::Outputs`]). If not, they may be told
    /// together with the next event: each frame would otherwise wake the body for nothing.
    pub hears_outputs: bool,
    /// Until when console output may be shown as it comes: a leader that is solo and has its lease. Otherwise
    /// it is held ([`ConsoleHold`]).
    pub console_until: Micros,
    /// Log entries up to here have been reclaimed.
    pub log_base: Index,
}

/// The reason for which a hypervisor is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootReason {
    /// The guest boots from this host's disks, which must be whole.
    Boot,
    /// The guest is to hold another replica's pages: disks and memory are overwritten.
    Copy,
}

/// The newest in-sync set that this replica has heard of. A restart of the whole group compares these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRecord {
    /// The in-sync set.
    pub in_sync: ReplicaSet,
    /// The view it was agreed in.
    pub view: View,
    /// The last syncvm this replica holds.
    pub sync: SyncNo,
    /// The generation of the group in which the in-sync set was agreed. Of two replicas' records, the one
    /// with the greater pair of `generation` and `index` is the newer.
    #[serde(default)]
    pub generation: View,
    /// The index of the entry that agreed it, in that generation's log.
    #[serde(default)]
    pub index: Index,
}

impl GuestRecord {
    /// A view that the writer of this record had promised at the least: for [`apus::Start::PromiseLost`].
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

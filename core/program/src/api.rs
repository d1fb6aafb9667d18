//! The interface of the brain: events go in, actions come out.

use crate::{Canary, Client, ConnectionId, Held, Sessions, State};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View, Viewstamp};

/// Where the input of clients enters a leader's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entrance {
    /// The caller reads the clients. Every program, the leader's too, is fed at the commit.
    #[default]
    Fed,
    /// The leader's program reads its clients itself, and executes their input at once. Its output waits until
    /// all that it has read is committed.
    HoldsOutput,
    /// The leader's program reads its clients itself, and its reads end at the commit (APUS §4.1).
    HoldsInput,
}

/// The configuration of one replica; the same on all of them but for `me`.
#[derive(Clone, Debug)]
pub struct Config {
    /// This replica.
    pub me: ReplicaId,
    /// The voters of the group.
    pub members: ReplicaSet,
    /// Where this replica serves its checkpoints to the others.
    pub address: String,
    /// Bytes of output that one hash covers; `None` compares nothing (APUS §3: 1.5 KB).
    pub check: Option<u32>,
    /// Whether checkpoints can be taken. Without them the log is never trimmed.
    pub checkpoints: bool,
    /// A checkpoint is due when the log holds this many bytes behind the last one, and no client is
    /// connected or connections go on.
    pub checkpoint_bytes: u64,
    /// The same although clients are connected; they are cut off.
    pub checkpoint_bytes_max: u64,
    /// Clients' input is taken as long as the log holds no more bytes than this. It holds some more of replicas, whose
    /// entries let it be trimmed.
    pub room: u64,
    /// A program that leaves its input unread for this long is taken to stand still.
    pub stall: Micros,
    /// A checkpoint that is not taken within this time is asked of another replica.
    pub checkpoint_within: Micros,
    /// The same while the log is full: clients wait for it then.
    pub checkpoint_within_if_full: Micros,
    /// Where the input of clients enters a leader's program.
    pub entrance: Entrance,
    /// How clients' connections outlive a checkpoint.
    pub sessions: Sessions,
    /// The program is ended for a checkpoint, and started again.
    pub restarts: bool,
    /// A known bug that is put back, to test the tests.
    #[doc(hidden)]
    pub canary: Canary,
}

/// How consensus and the network stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// The view that this replica leads, if it does.
    pub leads: Option<View>,
    /// Entries up to here were trimmed.
    pub base: Index,
    /// Entries up to here are committed, as far as this replica knows.
    pub commit: Index,
    /// The last entry.
    pub last: Viewstamp,
    /// Bytes that the log holds.
    pub bytes: u64,
    /// The replicas to which a link is up.
    pub linked: ReplicaSet,
    /// The viewstamp in the log at the index of [`Replica::own`](crate::Replica::own).
    pub at_own: Option<Viewstamp>,
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// Time has passed, or consensus has moved.
    Log(LogState),
    /// The entry that the replica [wants](crate::Replica::wants). No bytes: it is none of a program.
    Entry(Viewstamp, Option<&'a [u8]>),
    /// The program has read all that it was given on this connection, or has closed it.
    Consumed(ConnectionId),
    /// The program has sent these bytes.
    Output(ConnectionId, &'a [u8]),
    /// The program has ended this connection by itself.
    OutputEnded(ConnectionId),
    /// The leader's program has read this input itself, and it is proposed at this place of the log.
    Proposed(Viewstamp),
    /// Its time has gone on, and that is proposed at this place of the log.
    ProposedTime(Viewstamp),
    /// The leader's program has read input that cannot be proposed, since this replica leads no more.
    Unproposed,
    /// The program has read nothing of its clients since [`Action::Quiesce`], and all that it has read before is
    /// proposed.
    Quiet,
    /// The leader's program leaves its clients unread.
    StandsStill,
    /// The program runs, as [`Action::Start`] has asked, with the state of its checkpoint.
    Started(State),
    /// The program was not started, for whatever reason.
    StartFailed(String),
    /// This replica's checkpoint is damaged, gone or of another release. [`StartFailed`](Self::StartFailed) follows.
    CheckpointLost,
    /// The program has ended.
    Died(String),
    /// A checkpoint of the program as [`Action::TakeCheckpoint`] has asked; or why there is none.
    CheckpointTaken(Result<Own, String>),
    /// A checkpoint of another replica is here, as [`Action::Fetch`] has asked; or why it is not.
    Fetched(Result<Own, String>),
}

/// A checkpoint on this replica's own disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// The entry that it reflects.
    pub at: Viewstamp,
    /// The replica whose program it is the state of.
    pub taken_by: ReplicaId,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The file's checksum.
    pub sum: [u8; 32],
}

/// An action: the brain asks its caller to carry it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Propose this entry, through the leader. It may be lost: the brain repeats what matters.
    Propose(Vec<u8>),
    /// Open a connection to the program, of this client.
    Connect(ConnectionId, Client),
    /// Give the program these bytes.
    Feed(ConnectionId, Vec<u8>),
    /// Tell the program that the client sends nothing more.
    EndInput(ConnectionId),
    /// The time of the program's next input, µs since 1970.
    Clock(u64),
    /// Close the connection to the program, and its client's.
    Close(ConnectionId),
    /// Send these bytes to the client.
    Reply(ConnectionId, Vec<u8>),
    /// The program has ended the connection: close its client's when all replies are sent, and propose
    /// [`Entry::Close`](crate::Entry::Close).
    Finish(ConnectionId),
    /// The input that the leader's program has read up to here is committed: its output may leave, or its reads may end.
    Release(Viewstamp),
    /// Input that the program has read and that is not released is not in the log: its reads fail.
    Forget,
    /// Cut off the program from its clients, and answer with [`Event::Quiet`]. A checkpoint is due.
    Quiesce,
    /// Close all clients' connections: this replica does not lead any more.
    DropClients,
    /// Start the program, from this checkpoint of this replica or from nothing, and answer with
    /// [`Event::Started`]. A program that runs is killed first.
    Start(Option<Viewstamp>),
    /// Kill the program.
    Stop,
    /// Take a checkpoint of the program, whose inputs are held meanwhile, with this state.
    TakeCheckpoint(Viewstamp, State),
    /// Get this checkpoint, one at a time.
    Fetch(Held),
    /// Remove this replica's checkpoint.
    Discard(Viewstamp),
    /// Trim the log up to here.
    Trim(Index),
    /// Tell the operator.
    Note(Note),
}

/// What an operator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The program runs, and goes on behind this entry.
    Runs(Index),
    /// The program is stopped and restored.
    Restores(Taint),
    /// Clients are accepted.
    Serves(View),
    /// Replicas have sent different bytes; which of them is wrong is not known yet, or cannot be.
    Differs(Difference),
    /// The same, and a majority agrees against these replicas.
    Wrong(Difference),
    /// The bytes of two replicas, where they differ.
    Excerpts(Excerpts),
    /// A checkpoint failed.
    CheckpointFailed(String),
    /// None was taken, since requests were not answered in time.
    Unanswered,
    /// No checkpoint that this replica could start from is to be had.
    NoCheckpoint,
}

/// Why a program is not as the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taint {
    /// It has ended.
    Died(String),
    /// It has not started.
    NotStarted(String),
    /// It has sent something else than the majority.
    Diverged(ConnectionId),
    /// It has executed input that the group has not committed.
    Ahead,
    /// The log does not hold its next input any more.
    Behind,
}

/// Outputs that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// On this connection.
    pub connection: ConnectionId,
    /// In the piece that begins at this byte.
    pub from: u64,
    /// The replicas that differ from the majority; without one, all that have reported.
    pub replicas: ReplicaSet,
}

/// The outputs of two replicas, where they differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpts {
    /// On this connection.
    pub connection: ConnectionId,
    /// The first byte that differs.
    pub position: u64,
    /// One replica and its bytes from there on.
    pub one: (ReplicaId, Vec<u8>),
    /// Another replica and its bytes.
    pub other: (ReplicaId, Vec<u8>),
}

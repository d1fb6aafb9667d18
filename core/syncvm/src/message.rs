//! The messages of the bulk lane.

use plover_matching::{LeaderSyn, Translation};
use plover_packets::{MACS_BYTES, Route};
use plover_types::{
    Frame, MachineWords, Micros, Payload, REASON_BYTES_MAX, ReplicaId, Runs, SyncNo, Unconsumed,
    View, told, wire,
};
use serde::{Deserialize, Serialize};

/// The oldest wire version that has [`Body::Streams`].
pub const STREAMS_VERSION: u8 = 4;

/// The longest policy in words, in bytes.
const POLICY_BYTES_MAX: usize = 4096;

/// A message of the bulk lane. Every one carries the view, and a receiver in another view
/// drops it (PLOVER §4.4: "all phases carry the sender's vid").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncMessage {
    /// The view the sender is in.
    pub view: View,
    /// The message.
    pub body: Body,
}

/// The purpose of a copy of a guest's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyPurpose {
    /// Leader to witness: become my secondary.
    Join,
    /// Secondary to witness: keep the copy, so that you can join with little left to do.
    Warm,
}

/// A connection of whose bytes programs in the guest say which are clean (docs/decisions/0081). Numbers are those that its
/// client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownStream {
    /// The connection, from the guest to its client.
    pub route: Route,
    /// The Ethernet addresses of the guest's frames, the receiver's first.
    pub macs: [u8; MACS_BYTES],
    /// The sequence number of the program's first byte.
    pub first: u32,
    /// The client has acknowledged all bytes before this one.
    pub acked: u32,
    /// The guest has acknowledged all bytes before this one.
    pub heard: u32,
    /// Bytes of the slot that begins with the syncvm may leave before the next one, so a replica that takes over resets
    /// it.
    pub early: bool,
}

/// The kinds of messages, in the order of their use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Source of a copy: take my guest's pages. Start a hypervisor if none is ready.
    CopyStart {
        /// Its purpose.
        purpose: CopyPurpose,
        /// Names this opening among all of its source.
        attempt: u64,
        /// Names the sequence of chunks that follows. A sequence that was broken off goes on under the
        /// same name.
        stream: u64,
        /// The source's policy in words: the target's must be the same.
        #[serde(deserialize_with = "told::<POLICY_BYTES_MAX, _>")]
        policy: String,
        /// The machine that the source's hypervisor has made.
        machine: MachineWords,
        /// The guest's RAM in pages, and after them the blocks of its disks.
        pages: u32,
        /// How many of them are blocks of disks.
        disk_blocks: u32,
    },
    /// Target: my hypervisor is ready.
    CopyReady {
        /// The opening.
        attempt: u64,
        /// Chunks of this stream that are written here; `None` if it holds none.
        written: Option<u32>,
        /// Pages from this one on are to be compared; those before it are blank.
        compare_from: u32,
        /// For a warm copy: pages from this one on are to be kept warm.
        keep_from: u32,
    },
    /// Target: I do not take this copy. Source: I have given up this attempt to join.
    CopyFailed {
        /// The opening.
        attempt: u64,
        /// For the operator.
        #[serde(deserialize_with = "told::<REASON_BYTES_MAX, _>")]
        why: String,
    },
    /// Source, in a group of wire version 2: hash these pages, by XXH3.
    Compare {
        /// The opening.
        attempt: u64,
        /// The first page.
        first: u32,
        /// How many, in a row.
        count: u32,
        /// The source's hash key.
        key: [u8; 32],
    },
    /// Target: the digests of those pages.
    Compared {
        /// The opening.
        attempt: u64,
        /// The first page.
        first: u32,
        /// 16 bytes a digest, rising by page; one alone if all pages have the same.
        #[serde(with = "serde_bytes")]
        digests: Vec<u8>,
    },
    /// Source: pages, while its guest runs. The target writes them at once: its memory is not used before
    /// its first syncvm.
    Copy {
        /// The opening.
        attempt: u64,
        /// Numbered from 0 without gaps, through all openings of a stream.
        seq: u32,
        /// A page chunk.
        #[serde(with = "serde_bytes")]
        chunk: Vec<u8>,
    },
    /// Target: copy chunks up to this one are written.
    CopyAck {
        /// The opening.
        attempt: u64,
        /// Chunks of the stream that are written.
        chunks: u32,
    },
    /// Leader, in a group of wire version 2: my dirty pages; hash the union with yours under this key, by XXH3.
    Dirty {
        /// The syncvm.
        sync: SyncNo,
        /// Pages the leader has written since the last one, and its debt.
        runs: Runs,
        /// The leader's hash key.
        key: [u8; 32],
    },
    /// Secondary: my dirty pages, and the digests of the union, rising by page.
    Hashes {
        /// The syncvm.
        sync: SyncNo,
        /// Pages the secondary has written, and its debt. Empty in later parts.
        runs: Runs,
        /// The place of this part's first digest in the union.
        first: u32,
        /// Digests of the union.
        total: u32,
        /// 16 bytes a digest.
        #[serde(with = "serde_bytes")]
        digests: Vec<u8>,
        /// How long the secondary needed to finish its inputs after the cut reached it.
        wait: Micros,
    },
    /// Leader: a checkpoint follows, to be kept for when you take over. There is nothing to
    /// compare: your guest has not run.
    Checkpoint {
        /// The sync.
        sync: SyncNo,
    },
    /// Leader: these pages differ; hash their subpages (see [`crate::subpages`]).
    Subpages {
        /// The syncvm.
        sync: SyncNo,
        /// The divergent pages.
        runs: Runs,
        /// The mark of the subpage hashes from you that I remember ([`crate::HashHistory::mark`]).
        heard: u64,
    },
    /// Secondary: the hashes of all subpages of these pages, rising by page, as a report of
    /// [`crate::HashHistory::say`].
    SubpageHashes {
        /// The syncvm.
        sync: SyncNo,
        /// Whether you must forget my earlier subpage hashes.
        anew: bool,
        /// The place of this part's first byte in the report.
        first: u32,
        /// Bytes of the whole report.
        total: u32,
        /// The part.
        #[serde(with = "serde_bytes")]
        said: Vec<u8>,
    },
    /// Leader: divergent pages or their differing subpages, or the pages of a checkpoint.
    Pages {
        /// The syncvm.
        sync: SyncNo,
        /// Numbered from 0 without gaps.
        seq: u32,
        /// A page chunk.
        #[serde(with = "serde_bytes")]
        chunk: Vec<u8>,
    },
    /// Secondary: page chunks up to this one are staged.
    PagesAck {
        /// The syncvm.
        sync: SyncNo,
        /// Chunks staged.
        chunks: u32,
    },
    /// Leader: the end mark. All chunks are sent.
    End {
        /// The syncvm.
        sync: SyncNo,
        /// Chunks sent.
        chunks: u32,
        /// Device and CPU state.
        #[serde(with = "serde_bytes")]
        device: Vec<u8>,
        /// How long the guest had stood in this state when the message was sent.
        age: Micros,
        /// Inputs to feed again after the cut.
        refeed: Unconsumed,
        /// Whether the outputs of the slot that begins here are compared. If so, report yours.
        compare: bool,
        /// The connections of this guest state that clients know by other sequence numbers.
        translations: Vec<Translation>,
    },
    /// Secondary: resetting my devices wrote these pages too. Send them before I acknowledge.
    Fetch {
        /// The syncvm.
        sync: SyncNo,
        /// The pages.
        runs: Runs,
    },
    /// Leader: the fetched pages, in one or more parts.
    Fetched {
        /// The syncvm.
        sync: SyncNo,
        /// A page chunk.
        #[serde(with = "serde_bytes")]
        chunk: Vec<u8>,
        /// Whether this is the last part.
        last: bool,
    },
    /// Secondary: I hold all of this syncvm and will apply it whatever happens to you.
    Ack {
        /// The syncvm.
        sync: SyncNo,
    },
    /// Leader: my guest has opened a connection. Translate your guest's SYN to this one's numbers.
    LeaderSyn {
        /// The syncvm with which the slot began.
        sync: SyncNo,
        /// The connection and its numbers.
        syn: LeaderSyn,
    },
    /// Secondary: frames that my guest has sent since it went on from this syncvm.
    OutputsReported {
        /// The syncvm.
        sync: SyncNo,
        /// Frames of this slot that were reported before these.
        first: u64,
        /// The frames, oldest first.
        frames: Vec<Frame>,
    },
    /// Leader: clients have got the contents of this many of your reported frames. Keep them no longer.
    OutputsReleased {
        /// The syncvm with which the slot began.
        sync: SyncNo,
        /// The number of frames, from the first of the slot on.
        frames: u64,
    },
    /// Secondary: I could not complete this syncvm and went on from my own state. Begin another one.
    GaveUp {
        /// The syncvm.
        sync: SyncNo,
        /// For the operator.
        #[serde(deserialize_with = "told::<REASON_BYTES_MAX, _>")]
        why: String,
    },
    /// Follower, to the leader: whether this host reaches the guest's clients. Unsaid, it does.
    Uplink {
        /// Whether it does.
        up: bool,
    },
    /// Follower, to the leader: whether an operator has drained this host. Unsaid, it is not.
    Drained {
        /// Whether it is.
        drained: bool,
    },
    /// Leader, to the leader before it that stays in step: resetting my devices has been seen to write these
    /// pages.
    ResetPages {
        /// The pages.
        runs: Runs,
    },
    /// Either side: my guest is gone; I do not hold its state any more.
    GuestLost {
        /// For the operator.
        #[serde(deserialize_with = "told::<REASON_BYTES_MAX, _>")]
        why: String,
    },
    /// Any replica, to one whose link has come up; a leader, to all when the group changes: the committed members that I
    /// know, as `plover_replica::GroupRecord`. It counts in every view.
    Members {
        /// The record.
        #[serde(with = "serde_bytes")]
        record: Vec<u8>,
    },
    /// Secondary, to the leader, while a new host takes the place of another one: it has a whole warm copy, or no copies
    /// are kept here.
    Copied {
        /// The new host's replica.
        peer: ReplicaId,
    },
    /// As [`Self::Dirty`], by universal hashes (docs/decisions/0055). Since wire version 3.
    DirtyUnderKeys {
        /// The syncvm.
        sync: SyncNo,
        /// Pages the leader has written since the last one, and its debt.
        runs: Runs,
        /// The key of the pages. No other sync has it.
        pages: [u8; 32],
        /// The key of the subpages. Syncs of one view share it.
        subpages: [u8; 32],
    },
    /// As [`Self::Compare`], by universal hashes. Since wire version 3.
    CompareUnderKey {
        /// The opening.
        attempt: u64,
        /// The first page.
        first: u32,
        /// How many, in a row.
        count: u32,
        /// The key of this opening.
        key: [u8; 32],
    },
    /// Leader, before the end mark: the connections that programs in my guest speak of, as of this syncvm. Unsaid, there are
    /// none. Since wire version 4.
    Streams {
        /// The syncvm.
        sync: SyncNo,
        /// The connections.
        streams: Vec<KnownStream>,
    },
}

impl Body {
    /// The oldest wire version that has this message.
    pub fn since(&self) -> u8 {
        match self {
            Self::DirtyUnderKeys { .. } | Self::CompareUnderKey { .. } => 3,
            Self::Streams { .. } => STREAMS_VERSION,
            // The test of the forms finds a new kind that is missing above.
            _ => wire::OLDEST_VERSION,
        }
    }

    /// The payload kind under which its bytes are counted.
    pub fn payload(&self) -> Payload {
        match self {
            Self::Dirty { .. }
            | Self::DirtyUnderKeys { .. }
            | Self::Hashes { .. }
            | Self::Subpages { .. } => Payload::Digests,
            Self::SubpageHashes { .. } => Payload::SubpageHashes,
            Self::Pages { .. } | Self::Fetched { .. } => Payload::Pages,
            Self::End { .. } => Payload::Device,
            Self::OutputsReported { .. } => Payload::Outputs,
            Self::CopyStart { .. }
            | Self::CopyReady { .. }
            | Self::CopyFailed { .. }
            | Self::Compare { .. }
            | Self::CompareUnderKey { .. }
            | Self::Compared { .. }
            | Self::Copy { .. }
            | Self::CopyAck { .. } => Payload::Copy,
            Self::Checkpoint { .. }
            | Self::PagesAck { .. }
            | Self::Fetch { .. }
            | Self::Ack { .. }
            | Self::GaveUp { .. }
            | Self::LeaderSyn { .. }
            | Self::OutputsReleased { .. }
            | Self::Uplink { .. }
            | Self::Drained { .. }
            | Self::ResetPages { .. }
            | Self::Members { .. }
            | Self::Copied { .. }
            | Self::Streams { .. }
            | Self::GuestLost { .. } => Payload::Other,
        }
    }
}

#[cfg(test)]
mod form;

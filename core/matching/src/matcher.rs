//! Compares the outputs of both guests (COLO §3.1, §3.3.2).
//!
//! Both guests take the same inputs, so most of their outputs are the same. An output that the
//! secondary's guest has sent as well is explained by its state: a client may see it although no sync
//! has made the two states equal. The leader runs the matcher over both sides' frames:
//!
//! ```text
//!  our guest's frames ──▶ ┌─────────┐ ──▶ covered: numbers of our frames that may go out
//!                         │ Matcher │ ──▶ difference: only a sync helps
//!  the secondary's    ──▶ └─────────┘ ──▶ done: how many of its frames it need not keep
//! ```
//!
//! A frame of ours is covered when
//!
//! 1. the other side has sent every byte of its payload, and its FIN or RST, at the same place of the
//!    same connection (`connection` has the table of what is compared); a datagram must be the same
//!    and stand at the same place of its flow; and
//! 2. the other side has acknowledged at least as much to the client as the frame does. A client
//!    forgets what is acknowledged. If the secondary's guest had not got it, it would be lost after a
//!    failover.
//!
//! Order holds within a connection, not across connections.
//!
//! A *slot* begins with a sync, which makes the two guests equal. Only outputs since then count:
//! [`Matcher::begin`].

use crate::connection::Connection;
use crate::connections::Connections;
use crate::flow::{Flow, Pairing};
use crate::side::Reset;
use crate::translation::LeaderSyn;
use plover_packets::{FlowKey, Packet, Route, Segment, TcpHead};
use plover_types::{Frame, OutputNo};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Flows of datagrams that are compared at once. Outputs on others wait for a sync.
const FLOWS_MAX: usize = 1 << 14;

/// The secondary keeps a datagram or RST that our guest has not sent until so many bytes follow it; then
/// it counts as lost on the network. Otherwise outputs of one guest alone (an ARP request, say) would
/// fill the secondary's window for the rest of the slot.
const UNPAIRED_BYTES_MAX: usize = 64 << 10;

/// Why the outputs of a slot cannot all be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The two guests open a connection differently, or the secondary could not translate its guest's
    /// SYN.
    Syn,
    /// Different bytes at one place of a stream.
    Content,
    /// One stream ends where the other goes on.
    Stream,
    /// A guest has sent bytes after others that were not seen.
    Gap,
    /// Urgent data, or an option of MPTCP, which are not compared.
    Special,
    /// The n-th datagrams of a flow differ.
    Datagram,
    /// More bytes wait, or there are more connections, than the matcher keeps.
    TooMuch,
    /// A message with the secondary's outputs did not arrive.
    Lost,
    /// Our guest has sent something that was dropped.
    Dropped,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syn => "a connection is being opened",
            Self::Content => "the bytes differ",
            Self::Stream => "one stream ends where the other goes on",
            Self::Gap => "a part of the stream was not seen",
            Self::Special => "urgent data and MPTCP are not compared",
            Self::Datagram => "the datagrams differ",
            Self::TooMuch => "more waits than is kept",
            Self::Lost => "a message from the secondary was lost",
            Self::Dropped => "an output of the leader was dropped",
        })
    }
}

/// The condition under which the secondary need not keep a frame any more.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Segment {
        route: Route,
        end: u32,
        reset: Option<Reset>,
    },
    Datagram {
        key: FlowKey,
        nth: u64,
    },
    /// A sync.
    Sync,
}

/// Compares the outputs of the slot that is running.
#[derive(Debug)]
pub struct Matcher {
    connections: Connections,
    flows: BTreeMap<FlowKey, Flow>,
    covered: Vec<OutputNo>,
    /// The secondary's frames, with their sizes, from the first that it must still keep.
    pending: VecDeque<(Pending, usize)>,
    pending_bytes: usize,
    /// Bytes of the secondary's datagrams that count as lost. Their flow keeps them, in case our guest
    /// sends the same later.
    unpaired_bytes: usize,
    pending_bytes_max: usize,
    /// Frames of the secondary's are ignored until the next sync.
    closed: bool,
    /// Not all that our guest has sent in this slot was seen: nothing more of it is covered.
    incomplete: bool,
    done: u64,
    done_bytes: usize,
    difference: Option<(FlowKey, Difference)>,
    /// Our guest's SYNs, for the secondary's translator.
    syns: Vec<LeaderSyn>,
    any_ack: bool,
}

impl Matcher {
    /// A matcher that keeps at most about `bytes_max` bytes that the secondary's guest has sent ahead of
    /// ours.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            connections: Connections::default(),
            flows: BTreeMap::new(),
            covered: Vec::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            unpaired_bytes: 0,
            pending_bytes_max: bytes_max,
            closed: false,
            incomplete: false,
            done: 0,
            done_bytes: 0,
            difference: None,
            syns: Vec::new(),
            any_ack: false,
        }
    }

    /// Leaves out the second condition: a known bug that the simulator must find.
    #[cfg(feature = "canary")]
    pub fn ignore_acks(&mut self) {
        self.any_ack = true;
    }

    /// A slot begins: a sync makes the secondary's guest equal to ours as it stands now. `followed`
    /// says whether this matcher was told of all that our guest has sent; if not, it forgets all
    /// connections.
    pub fn begin(&mut self, followed: bool) {
        self.flows.clear();
        self.connections.begin(followed && !self.incomplete);
        self.covered.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.unpaired_bytes = 0;
        self.closed = false;
        self.incomplete = false;
        self.done = 0;
        self.done_bytes = 0;
        self.difference = None;
        self.syns.clear();
    }

    /// Our guest has sent this.
    pub fn ours(&mut self, no: OutputNo, frame: &Frame) {
        if self.incomplete {
            return;
        }
        match Packet::of(frame) {
            Packet::Segment(route, segment) => {
                let Some(connection) = self.connection(route, &segment) else {
                    return;
                };
                let compared = connection.ours(no, &segment);
                self.compared(route, compared);
                if segment.syn.is_some() {
                    self.syns.extend(TcpHead::of(frame).map(LeaderSyn::of));
                }
            }
            Packet::Datagram(key, bytes) => {
                let Some(flow) = self.flow(key) else { return };
                let pairing = flow.ours(no, bytes);
                self.paired(key, pairing);
            }
        }
        self.drop_done();
    }

    /// The secondary's guest has sent this.
    pub fn theirs(&mut self, frame: &Frame) {
        if self.closed {
            return;
        }
        if self.pending_bytes + self.unpaired_bytes >= self.pending_bytes_max {
            return self.close(Difference::TooMuch);
        }
        let bytes = frame.0.len();
        let pending = match Packet::of(frame) {
            Packet::Segment(route, segment) => self.their_segment(route, &segment),
            Packet::Datagram(key, bytes) => match self.flow(key) {
                None => Pending::Sync,
                Some(flow) => {
                    let pairing = flow.theirs(bytes);
                    let nth = flow.their_count;
                    self.paired(key, pairing);
                    Pending::Datagram { key, nth }
                }
            },
        };
        self.pending_bytes += bytes + size_of::<Pending>();
        self.pending.push_back((pending, bytes));
        self.drop_done();
    }

    /// A frame of our guest was dropped. Nothing more of this slot is compared.
    pub fn dropped(&mut self) {
        self.incomplete = true;
        self.close(Difference::Dropped);
    }

    /// Some of the secondary's frames did not arrive, so the place of later ones is not known.
    pub fn lost(&mut self) {
        self.close(Difference::Lost);
    }

    /// Ignores the secondary's frames until the next sync.
    fn close(&mut self, why: Difference) {
        self.differs(FlowKey::Link([0; 14]), why);
        self.closed = true;
    }

    fn their_segment(&mut self, route: Route, segment: &Segment<'_>) -> Pending {
        let Some(connection) = self.connection(route, segment) else {
            return Pending::Sync;
        };
        let compared = connection.theirs(segment);
        self.compared(route, compared);
        let takes_a_place = segment.fin || segment.syn.is_some();
        let length = segment.payload.len() as u32 + u32::from(takes_a_place);
        Pending::Segment {
            route,
            end: segment.seq.wrapping_add(length),
            reset: segment.rst.then_some((segment.seq, segment.ack)),
        }
    }

    /// Our guest's SYNs since the last call, for the secondary's [`crate::SequenceTranslator`].
    pub fn take_syns(&mut self) -> Vec<LeaderSyn> {
        std::mem::take(&mut self.syns)
    }

    /// The numbers, rising, of our frames that both sides have sent since the last call.
    pub fn take_covered(&mut self) -> Vec<OutputNo> {
        let mut covered = std::mem::take(&mut self.covered);
        covered.sort_unstable();
        covered
    }

    /// Whether [`Self::take_covered`] would return any.
    pub fn has_covered(&self) -> bool {
        !self.covered.is_empty()
    }

    /// How many of the secondary's frames, from its first in this slot on, it need not keep: clients get
    /// the same from this side, or the frame counts as lost on the network.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// How many bytes these frames have.
    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    /// The first difference of this slot.
    pub fn difference(&self) -> Option<Difference> {
        self.difference.map(|(_, difference)| difference)
    }

    /// The first difference in words, with the connection or flow.
    pub fn describe_difference(&self) -> String {
        match &self.difference {
            Some((_, why @ (Difference::TooMuch | Difference::Lost))) => why.to_string(),
            Some((key, difference)) => format!("{key}: {difference}"),
            None => "none".to_string(),
        }
    }

    /// Our oldest frame that waits for the other side, in words.
    pub fn describe_waiting(&self) -> Option<String> {
        let segments = self.connections.used().filter_map(|(route, one)| {
            let (no, what) = one.describe_waiting()?;
            Some((no, format!("{route}: {what}")))
        });
        let datagrams = self.flows.iter().filter_map(|(key, flow)| {
            let ours = format!(
                "{key}: a datagram of ours waits, {} were paired",
                flow.paired
            );
            Some((flow.first_waiting()?, ours))
        });
        let oldest = segments.chain(datagrams).min_by_key(|(no, _)| *no);
        oldest.map(|(_, what)| what)
    }

    fn connection(&mut self, route: Route, first: &Segment<'_>) -> Option<&mut Connection> {
        let connection = self.connections.of(route, first);
        if connection.is_none() {
            let too_many = (FlowKey::Ip(route), Difference::TooMuch);
            self.difference.get_or_insert(too_many);
        }
        connection
    }

    fn flow(&mut self, key: FlowKey) -> Option<&mut Flow> {
        if !self.flows.contains_key(&key) && self.flows.len() >= FLOWS_MAX {
            self.differs(key, Difference::TooMuch);
            return None;
        }
        Some(self.flows.entry(key).or_default())
    }

    fn compared(&mut self, route: Route, compared: Result<(), Difference>) {
        if let Err(difference) = compared {
            self.differs(FlowKey::Ip(route), difference);
        }
        let any_ack = cfg!(feature = "canary") && self.any_ack;
        if let Some(connection) = self.connections.get_mut(&route) {
            while let Some(no) = connection.pop_covered(any_ack) {
                self.covered.push(no);
            }
        }
    }

    fn paired(&mut self, key: FlowKey, pairing: Pairing) {
        match pairing {
            Pairing::Waits => {}
            Pairing::Equal(no) => self.covered.push(no),
            Pairing::Different => self.differs(key, Difference::Datagram),
        }
    }

    fn differs(&mut self, key: FlowKey, difference: Difference) {
        self.difference.get_or_insert((key, difference));
    }

    fn drop_done(&mut self) {
        while let Some((pending, bytes)) = self.pending.front() {
            let given_up = self.pending_bytes - bytes > UNPAIRED_BYTES_MAX;
            let done = match pending {
                Pending::Segment { reset: Some(_), .. } if given_up => true,
                Pending::Segment { route, end, reset } => self
                    .connections
                    .get(route)
                    .is_some_and(|one| one.is_matched(*end, *reset)),
                Pending::Datagram { key, nth } => {
                    let paired = self.flows.get(key).is_some_and(|flow| flow.paired >= *nth);
                    if given_up && !paired {
                        self.unpaired_bytes += bytes;
                    }
                    paired || given_up
                }
                Pending::Sync => false,
            };
            if !done {
                break;
            }
            self.pending_bytes -= bytes + size_of::<Pending>();
            self.done_bytes += bytes;
            self.done += 1;
            self.pending.pop_front();
        }
    }
}

//! Which outputs the secondary's guest has sent as well (COLO §3.1, §3.3.2).
//!
//! Both guests take the same inputs, so most of what they send is the same. What the secondary's
//! guest has itself sent, its state explains: a client may see it although no sync has made the
//! two states equal. The leader runs the matcher over both sides' frames:
//!
//! ```text
//!  our guest's frames ──▶ ┌─────────┐ ──▶ covered: numbers of our frames that may go out
//!                         │ Matcher │ ──▶ difference: nothing but a sync helps
//!  the secondary's    ──▶ └─────────┘ ──▶ done: how many of its frames it need not keep
//! ```
//!
//! A frame of ours is covered when
//!
//! 1. every byte of its payload, and its FIN or RST, has been sent by the other side at the same
//!    place of the same connection (`packet` has the table of what is compared), and
//! 2. the other side has acknowledged at least as much to the client as the frame does. The
//!    client forgets what is acknowledged; a frame of its that was lost on the way into the
//!    secondary's guest would otherwise be lost for good after a failover.
//!
//! Order holds within a connection, none across connections.
//!
//! A *slot* begins with a sync, which makes the two guests equal, and only what both have sent
//! since then counts: [`Matcher::begin`].

use crate::connection::Connection;
use crate::flow::{Flow, Pairing};
use crate::guard::OutputNo;
use crate::numbers::Opened;
use crate::packet::{FlowKey, Packet, Route, Segment};
use crate::renumber::Head;
use plover_types::Frame;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Connections and flows that are followed at once; what is sent on others waits for a sync.
/// An idle connection takes some 300 bytes here.
const FLOWS_MAX: usize = 4096;

/// A datagram or RST of the secondary's that our guest has not sent is not kept there for good: so
/// many bytes later it counts as one that a network has lost. Or what one guest sends and the other
/// does not, as when one asks for an address, would fill the secondary's window for the rest of the
/// slot.
const LOOSE_WAITS_BYTES: usize = 64 << 10;

/// Why the outputs of a slot cannot all be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A connection is being opened, and not in the same way by both guests; or the secondary
    /// could not renumber its guest's SYN.
    Opens,
    /// Different bytes at one place of a stream.
    Content,
    /// One stream ends where the other goes on.
    Stream,
    /// A guest has sent what lies behind bytes that nobody has seen it send.
    Gap,
    /// Urgent data, which is not compared.
    Urgent,
    /// The n-th datagrams of a flow differ.
    Datagram,
    /// More is waiting, or on more connections, than is kept.
    TooMuch,
    /// Some of what the secondary's guest has sent did not arrive here.
    Lost,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opens => "a connection is being opened",
            Self::Content => "the bytes differ",
            Self::Stream => "one stream ends where the other goes on",
            Self::Gap => "a part of the stream was not seen",
            Self::Urgent => "urgent data is not compared",
            Self::Datagram => "the datagrams differ",
            Self::TooMuch => "more waits than is kept",
            Self::Lost => "a message from the secondary was lost",
        })
    }
}

/// What makes a frame of the secondary's dispensable there.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Segment {
        route: Route,
        end: u32,
        reset: Option<(u32, Option<u32>)>,
    },
    Datagram {
        key: FlowKey,
        nth: u64,
    },
    /// Only a sync does.
    Sync,
}

/// Compares the outputs of the slot that is running.
#[derive(Debug)]
pub struct Matcher {
    connections: BTreeMap<Route, Connection>,
    flows: BTreeMap<FlowKey, Flow>,
    covered: Vec<OutputNo>,
    /// The secondary's frames from the first that is still needed there, with their sizes.
    pending: VecDeque<(Pending, usize)>,
    pending_bytes: usize,
    /// Of what the secondary has sent and was counted as lost. Its flow keeps it, should the leader's
    /// guest send the like.
    loose_bytes: usize,
    pending_bytes_max: usize,
    /// Nothing of the secondary's is taken any more.
    closed: bool,
    done: u64,
    done_bytes: usize,
    difference: Option<(FlowKey, Difference)>,
    /// What the secondary must know to say its guest's SYNs.
    opened: Vec<Opened>,
    any_ack: bool,
}

impl Matcher {
    /// One that keeps at most about `bytes_max` bytes of what the secondary's guest has sent
    /// ahead of ours.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            connections: BTreeMap::new(),
            flows: BTreeMap::new(),
            covered: Vec::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            loose_bytes: 0,
            pending_bytes_max: bytes_max,
            closed: false,
            done: 0,
            done_bytes: 0,
            difference: None,
            opened: Vec::new(),
            any_ack: false,
        }
    }

    /// Leaves the second condition out: a known bug, for the simulator's proof that it can fail.
    #[doc(hidden)]
    pub fn ignore_acks(&mut self) {
        self.any_ack = true;
    }

    /// A slot begins: a sync makes the secondary's guest equal to ours as it stands now, with
    /// all that ours has sent. `followed` says whether this matcher has seen all of that; if
    /// not, it remembers nothing.
    pub fn begin(&mut self, followed: bool) {
        self.flows.clear();
        if followed {
            self.connections.retain(|_, one| one.begin_anew());
        } else {
            self.connections.clear();
        }
        self.covered.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.loose_bytes = 0;
        self.closed = false;
        self.done = 0;
        self.done_bytes = 0;
        self.difference = None;
        self.opened.clear();
    }

    /// Our guest has sent this.
    pub fn ours(&mut self, no: OutputNo, frame: &Frame) {
        match Packet::of(frame) {
            Packet::Segment(route, segment) => {
                let Some(connection) = self.connection(route, &segment) else {
                    return;
                };
                let compared = connection.ours(no, &segment);
                self.compared(route, compared);
                if segment.opening.is_some() {
                    self.opened.extend(Head::of(frame).map(Opened::of));
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
        if self.pending_bytes + self.loose_bytes >= self.pending_bytes_max {
            return self.close(Difference::TooMuch);
        }
        let bytes = frame.0.len();
        let pending = match Packet::of(frame) {
            Packet::Segment(route, segment) => self.their_segment(route, &segment),
            Packet::Datagram(key, bytes) => match self.flow(key) {
                None => Pending::Sync,
                Some(flow) => {
                    let pairing = flow.theirs(bytes);
                    let nth = flow.said;
                    self.paired(key, pairing);
                    Pending::Datagram { key, nth }
                }
            },
        };
        self.pending_bytes += bytes + size_of::<Pending>();
        self.pending.push_back((pending, bytes));
        self.drop_done();
    }

    /// Some of what the secondary's guest has sent did not arrive: of what comes later nobody
    /// could say what it follows.
    pub fn lost(&mut self) {
        self.close(Difference::Lost);
    }

    /// Takes nothing more of the secondary's before the next sync.
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
        let takes_a_place = segment.fin || segment.opening.is_some();
        let length = segment.payload.len() as u32 + u32::from(takes_a_place);
        Pending::Segment {
            route,
            end: segment.seq.wrapping_add(length),
            reset: segment.rst.then_some((segment.seq, segment.ack)),
        }
    }

    /// The connections that our guest has opened since this was last asked, for the secondary's
    /// [`crate::Numbers`].
    pub fn take_opened(&mut self) -> Vec<Opened> {
        std::mem::take(&mut self.opened)
    }

    /// The numbers of our frames that both sides have sent, rising; each is told once.
    pub fn take_covered(&mut self) -> Vec<OutputNo> {
        let mut covered = std::mem::take(&mut self.covered);
        covered.sort_unstable();
        covered
    }

    /// Whether [`Self::take_covered`] has anything to tell.
    pub fn has_covered(&self) -> bool {
        !self.covered.is_empty()
    }

    /// How many of the secondary's frames, from its first in this slot on, clients have got or
    /// are about to get from this side, or count as lost on their way.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// How many bytes those have.
    pub fn done_bytes(&self) -> usize {
        self.done_bytes
    }

    /// The first difference of this slot.
    pub fn difference(&self) -> Option<Difference> {
        self.difference.map(|(_, difference)| difference)
    }

    /// The same in words, with where it was found.
    pub fn describe_difference(&self) -> String {
        match &self.difference {
            Some((_, why @ (Difference::TooMuch | Difference::Lost))) => why.to_string(),
            Some((key, difference)) => format!("{key}: {difference}"),
            None => "none".to_string(),
        }
    }

    /// In words, the oldest of our frames that waits for the other side, if one does.
    pub fn describe_waiting(&self) -> Option<String> {
        let segments = self.connections.iter().filter_map(|(route, one)| {
            let (no, what) = one.describe_waiting()?;
            Some((no, format!("{route}: {what}")))
        });
        let datagrams = self.flows.iter().filter_map(|(key, flow)| {
            let ours = format!(
                "{key}: a datagram of ours waits, {} were paired",
                flow.paired
            );
            Some((flow.waits()?, ours))
        });
        let oldest = segments.chain(datagrams).min_by_key(|(no, _)| *no);
        oldest.map(|(_, what)| what)
    }

    fn connection(&mut self, route: Route, first: &Segment<'_>) -> Option<&mut Connection> {
        let known = self.connections.contains_key(&route);
        if !known && self.connections.len() >= FLOWS_MAX {
            self.differs(FlowKey::Ip(route), Difference::TooMuch);
            return None;
        }
        let entry = self.connections.entry(route);
        Some(entry.or_insert_with(|| Connection::new(first)))
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
        if let Some(connection) = self.connections.get_mut(&route) {
            while let Some(no) = connection.pop_covered(self.any_ack) {
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
            let given_up = self.pending_bytes - bytes > LOOSE_WAITS_BYTES;
            let done = match pending {
                Pending::Segment { reset: Some(_), .. } if given_up => true,
                Pending::Segment { route, end, reset } => self
                    .connections
                    .get(route)
                    .is_some_and(|one| one.is_matched(*end, *reset)),
                Pending::Datagram { key, nth } => {
                    let paired = self.flows.get(key).is_some_and(|flow| flow.paired >= *nth);
                    if given_up && !paired {
                        self.loose_bytes += bytes;
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

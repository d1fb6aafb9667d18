//! Translates TCP sequence numbers and timestamps between a guest and its clients.
//!
//! Each guest chooses the initial sequence number of a connection by itself. So two guests that open a
//! connection together differ in all of its numbers, by one distance, until a sync makes their memories
//! equal. Clients know the numbers of the guest whose SYN they got: the leader's. So the secondary
//! translates at its guest's NIC, in both directions, and everything beyond (guard, log, matcher) sees
//! the numbers that clients know.
//!
//! ```text
//!                clients' numbers          │ translator │       the guest's own numbers
//!  inputs   acknowledged n, SACK n..m ────▶│  + shift   │────▶ n + shift, n + shift..m + shift
//!           echoed timestamp t             │  + clock   │      t + clock
//!  outputs  sequence number n         ◀────│  − shift   │◀──── n + shift
//!           timestamp t                    │  − clock   │      t + clock
//!                                          └─────▲──────┘
//!       LeaderSyn: the leader's guest has sent a SYN with this number and timestamp
//! ```
//!
//! *When the distance is known.* The leader reports each SYN of its guest ([`LeaderSyn`]). The
//! secondary's own SYN waits here until then; then it is translated and reported to the leader. A client
//! gets the leader's SYN on a match, which is later than that report. So at a failover no client knows
//! numbers that the secondary does not know. (If a sync releases the SYN instead, the secondary has the
//! leader's numbers in its memory.)
//!
//! *How long it is needed.* The table belongs to the guest's memory, and a sync replaces both. The
//! synced table is empty, unless the leader's guest is itself translated because it took over between
//! two syncs. On that leader the table lives as long as the connections.
//!
//! *Timestamps.* The clock of a connection begins anywhere, too (RFC 7323 §5.4): Linux derives it from a
//! secret that a guest makes up when it opens its first connection. A client that was given timestamps
//! of the leader's guest drops segments with older ones (PAWS, §5), and a guest may refuse the echo of a
//! time that it has not reached. So timestamps are translated, too, by the distance between the two
//! SYNs' timestamps. The secondary's SYN is some milliseconds later than the leader's, so its
//! translated clock is slow by these milliseconds. A failover takes longer than that. If one did not,
//! clients would drop segments until the clock has caught up, and TCP would send them again.

use plover_packets::{Route, TcpHead};
use plover_types::{Frame, Micros, SyncNo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Connections that are translated at once: of a secondary, those that were opened in one slot. Further SYNs are not
/// translated: they differ, which costs a sync, and that empties the table of a secondary. An entry takes some 200
/// bytes, and 60 in each sync of a leader that has taken over.
const CONNECTIONS_MAX: usize = 1 << 14;

/// Bytes of frames that may wait for the leader's number. It is already on its way when they come, or lost.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The bytes that a waiting frame counts for.
fn weight(frame: &Frame) -> usize {
    frame.0.len() + 64
}

/// A connection that both ends have closed is forgotten after two maximum segment lifetimes
/// (RFC 9293 §3.6.1): until then either end may send again.
const CLOSED_FOR: Micros = Micros::from_ms(240_000);

/// A SYN that the leader's guest has sent. The leader reports it to the secondary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderSyn {
    route: Route,
    seq: u32,
    /// The client's SYN that it answers; `None` if the guest opens the connection.
    ack: Option<u32>,
    stamp: Option<u32>,
}

impl LeaderSyn {
    pub(crate) fn of(head: TcpHead) -> Self {
        Self {
            route: head.route,
            seq: head.seq,
            ack: head.ack,
            stamp: head.stamp,
        }
    }
}

/// How one connection is translated. It travels with the memory of the guest that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Translation {
    route: Route,
    /// The guest's sequence number minus the clients'.
    shift: u32,
    /// The guest's timestamp minus the clients'.
    clock: u32,
    /// The guest's own SYN: its number and acknowledgement number.
    own: (u32, Option<u32>),
}

/// The decision on a frame that the guest has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It passes, with the numbers that clients know.
    Passes(Frame),
    /// It is kept until the leader's number is known.
    Waits,
    /// Too many wait: it is dropped, as on any network.
    Dropped,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    /// Our guest's newest SYN: its number and acknowledgement number.
    own: Option<(u32, Option<u32>)>,
    own_stamp: Option<u32>,
    /// The leader's newest SYN, until it is paired with ours.
    leader_syn: Option<LeaderSyn>,
    /// Our number minus the leader's, once both are known.
    shift: Option<u32>,
    /// Our timestamp minus the leader's.
    clock: u32,
    waiting: Vec<Frame>,
    /// Whether our guest, and its peer, have sent a FIN.
    ended: [bool; 2],
    /// One of them has sent an RST, and our guest nothing else since.
    is_reset: bool,
    closed: Option<Micros>,
}

/// Places in `Connection::ended`.
const GUEST: usize = 0;
const PEER: usize = 1;

impl Connection {
    /// Our guest's SYN waits for the leader's.
    fn waits(&self) -> bool {
        self.own.is_some() && self.shift.is_none()
    }

    /// Clients know other numbers than our guest, or another clock.
    fn is_translated(&self) -> bool {
        self.clock != 0 || self.shift.is_some_and(|shift| shift != 0)
    }

    /// Pairs our guest's SYN with the leader's, if they answer the same SYN. Returns the frames that
    /// have waited for that, translated.
    fn pair(&mut self) -> Vec<Frame> {
        let (Some((seq, ack)), Some(leader), None) = (self.own, self.leader_syn, self.shift) else {
            return Vec::new();
        };
        if ack != leader.ack {
            return Vec::new();
        }
        self.leader_syn = None;
        self.shift = Some(seq.wrapping_sub(leader.seq));
        self.clock = match (self.own_stamp, leader.stamp) {
            (Some(own), Some(leader)) => own.wrapping_sub(leader),
            _ => 0,
        };
        let mut waited = std::mem::take(&mut self.waiting);
        for frame in &mut waited {
            if let Some(head) = TcpHead::of(frame) {
                self.translate_sent(&head, frame);
            }
        }
        waited
    }

    fn translate_sent(&self, head: &TcpHead, frame: &mut Frame) {
        if self.is_translated() {
            let shift = self.shift.unwrap_or(0);
            head.move_sent(frame, shift.wrapping_neg(), self.clock.wrapping_neg());
        }
    }

    fn note_end(&mut self, head: &TcpHead, now: Micros, by: usize) {
        // A guest that goes on has refused an RST (RFC 5961 §3.2), or has not read it yet: then this stays for longer.
        let goes_on = by == GUEST && !head.rst && std::mem::take(&mut self.is_reset);
        self.closed = self.closed.filter(|_| !goes_on);
        self.ended[by] |= head.fin;
        self.is_reset |= head.rst;
        if head.rst || self.ended == [true; 2] || self.closed.is_some() {
            self.closed = Some(now);
        }
    }
}

/// Translates between a guest's NIC and everything else.
#[derive(Debug, Default)]
pub struct SequenceTranslator {
    connections: BTreeMap<Route, Connection>,
    /// The bytes of all frames that wait.
    waiting: usize,
    /// The guest's memory is the state of this sync, and what the guest has done since.
    sync: SyncNo,
    /// The leader compares its guest's outputs with ours, and reports its SYNs.
    compared: bool,
    /// SYNs of a slot whose sync has not been applied here yet.
    early: Vec<(SyncNo, LeaderSyn)>,
}

impl SequenceTranslator {
    /// The guest now has the state of this sync, with the translations that belong to it. `compared`
    /// says whether the leader reports its SYNs from here on. Frames that waited belonged to the
    /// replaced state and are dropped.
    pub fn begin(&mut self, sync: SyncNo, compared: bool, translations: &[Translation]) {
        self.connections = translations
            .iter()
            .map(|one| (one.route, one.into()))
            .collect();
        self.waiting = 0;
        self.sync = sync;
        self.compared = compared;
        for (of, syn) in std::mem::take(&mut self.early) {
            if of == sync && compared {
                self.take_leader_syn(syn);
            }
        }
    }

    /// The translations that belong to the guest's memory, to travel with it.
    pub fn translations(&mut self, now: Micros) -> Vec<Translation> {
        self.connections
            .retain(|_, one| one.waits() || one.closed.is_none_or(|at| now.since(at) < CLOSED_FOR));
        let translated = self
            .connections
            .iter()
            .filter(|(_, one)| one.is_translated());
        let translations = translated.filter_map(|(route, one)| {
            Some(Translation {
                route: *route,
                shift: one.shift?,
                clock: one.clock,
                own: one.own?,
            })
        });
        translations.collect()
    }

    /// The leader's guest has opened a connection in the slot that begins with this sync. Returns
    /// the frames that have waited for that.
    pub fn on_leader_syn(&mut self, sync: SyncNo, syn: LeaderSyn) -> Vec<Frame> {
        if sync > self.sync {
            if self.early.len() < CONNECTIONS_MAX {
                self.early.push((sync, syn));
            }
            return Vec::new();
        }
        if sync < self.sync || !self.compared {
            return Vec::new();
        }
        self.take_leader_syn(syn)
    }

    fn take_leader_syn(&mut self, syn: LeaderSyn) -> Vec<Frame> {
        let full = self.connections.len() >= CONNECTIONS_MAX;
        if full && !self.connections.contains_key(&syn.route) {
            return Vec::new();
        }
        let one = self.connections.entry(syn.route).or_default();
        let own_seq = one.shift.map(|shift| syn.seq.wrapping_add(shift));
        if own_seq.is_some_and(|seq| one.own == Some((seq, syn.ack))) {
            // The leader's guest has sent its SYN again.
            return Vec::new();
        }
        one.leader_syn = Some(syn);
        let waited = one.pair();
        self.waiting -= waited.iter().map(weight).sum::<usize>();
        waited
    }

    /// The leader reports no more SYNs, or this replica leads itself. Connections that clients do not
    /// know yet are not translated from here on. Returns the frames that have waited.
    pub fn stop(&mut self) -> Vec<Frame> {
        self.compared = false;
        self.early.clear();
        self.waiting = 0;
        let mut waited = Vec::new();
        self.connections.retain(|_, one| {
            waited.append(&mut one.waiting);
            one.leader_syn = None;
            one.shift.is_some()
        });
        waited
    }

    /// Translates a frame from a client for the guest.
    pub fn incoming(&mut self, now: Micros, mut frame: Frame) -> Frame {
        if self.connections.is_empty() {
            return frame;
        }
        let Some(head) = TcpHead::of(&frame) else {
            return frame;
        };
        if let Some(one) = self.connections.get_mut(&head.route.back()) {
            one.note_end(&head, now, PEER);
            if one.is_translated() {
                head.move_acknowledged(&mut frame, one.shift.unwrap_or(0), one.clock);
            }
        }
        frame
    }

    /// Translates a frame from the guest for clients.
    pub fn outgoing(&mut self, now: Micros, frame: Frame) -> Outgoing {
        if self.connections.is_empty() && !self.compared {
            return Outgoing::Passes(frame);
        }
        let Some(head) = TcpHead::of(&frame) else {
            return Outgoing::Passes(frame);
        };
        if head.syn && !self.take_own_syn(&head) {
            return Outgoing::Passes(frame);
        }
        self.pass_or_wait(&head, now, frame)
    }

    /// Our guest opens a connection, or sends its SYN again. Returns whether the connection is in the
    /// table now.
    fn take_own_syn(&mut self, head: &TcpHead) -> bool {
        let own = Some((head.seq, head.ack));
        let known = self.connections.get(&head.route);
        if known.is_some_and(|one| one.own == own) {
            return true;
        }
        let full = known.is_none() && self.connections.len() >= CONNECTIONS_MAX;
        // This SYN opens a new connection in the place of an old one.
        let old = self.connections.remove(&head.route);
        let waited = old.iter().flat_map(|old| &old.waiting);
        self.waiting -= waited.map(weight).sum::<usize>();
        if !self.compared || full || head.signed {
            return false;
        }
        let mut fresh = Connection {
            own,
            own_stamp: head.stamp,
            leader_syn: old.and_then(|old| old.leader_syn),
            ..Connection::default()
        };
        fresh.pair();
        self.connections.insert(head.route, fresh);
        true
    }

    fn pass_or_wait(&mut self, head: &TcpHead, now: Micros, mut frame: Frame) -> Outgoing {
        let Some(one) = self.connections.get_mut(&head.route) else {
            return Outgoing::Passes(frame);
        };
        one.note_end(head, now, GUEST);
        if !one.waits() {
            one.translate_sent(head, &mut frame);
            Outgoing::Passes(frame)
        } else if self.waiting < WAITING_BYTES_MAX {
            self.waiting += weight(&frame);
            one.waiting.push(frame);
            Outgoing::Waits
        } else {
            Outgoing::Dropped
        }
    }
}

impl From<&Translation> for Connection {
    fn from(translation: &Translation) -> Self {
        Self {
            own: Some(translation.own),
            shift: Some(translation.shift),
            clock: translation.clock,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;
    use plover_types::forms::assert_form;
    use plover_types::wire;

    /// Both travel in messages of a sync.
    #[test]
    fn the_form_of_connections_is_that_of_their_version() {
        let [four, six]: [IpAddr; 2] = ["10.1.2.3", "fe80::4"].map(|ip| ip.parse().unwrap());
        let route = Route {
            protocol: 6,
            source: (four, 1001),
            destination: (six, 1002),
        };
        let syn = LeaderSyn {
            route,
            seq: 1003,
            ack: Some(1004),
            stamp: None,
        };
        let translation = Translation {
            route,
            shift: 1005,
            clock: 1008,
            own: (1006, Some(1007)),
        };
        let bytes = [
            wire::encode_part(&syn, Vec::new()),
            wire::encode_part(&translation, Vec::new()),
        ];
        assert_form("connections", &bytes);
    }
}

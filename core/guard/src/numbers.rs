//! TCP sequence numbers and clocks: a guest's own, and those that its clients know.
//!
//! Each guest draws the first number of a connection by itself, so two guests that open one
//! together differ in all of its numbers, by one distance, until a sync makes their memories equal.
//! Clients know the numbers of the guest whose SYN they got: the leader's. So the secondary's
//! guest is renumbered, in both directions, at its NIC; everything beyond it (guard, log, the
//! comparing) sees the numbers that clients know.
//!
//! ```text
//!                 clients' numbers          │ Numbers │          the guest's own
//!  inputs   acknowledged n, SACK n..m ─────▶│ + shift │─────▶ n + shift, n + shift..m + shift
//!           echo of the stamp t             │ + clock │       t + clock
//!  outputs  sequence number n         ◀─────│ − shift │◀───── n + shift
//!           stamp t                         │ − clock │       t + clock
//!                                           └────▲────┘
//!        Opened: the leader's guest has sent a SYN with this number and stamp
//! ```
//!
//! *When the distance is known.* The leader tells the number of each SYN of its guest ([`Opened`]).
//! The secondary's own SYN waits here until then, and only then is said to the leader, renumbered.
//! A client gets the leader's SYN on a match, that is, after it was said: so no failover can find a
//! client that knows numbers which the secondary does not. (Where a sync lets the SYN go, the
//! secondary has the leader's own numbers in its memory.)
//!
//! *How long it is needed.* The table belongs to the guest's memory. A state that comes from
//! elsewhere brings its own table: empty, unless the guest there is renumbered itself, because it
//! took over between two syncs. There the table lives as long as the connections.
//!
//! *Timestamps.* A connection's clock begins anywhere, too (RFC 7323 §5.4): Linux draws its beginning from a secret that
//! a guest makes up when it opens its first connection. A client that was given stamps of the leader's guest
//! drops whatever has older ones (PAWS, §5), and a guest may refuse the echo of a moment that
//! has not come at it. So stamps are moved like numbers, by the distance of the two SYNs'. That leaves the time
//! by which the secondary's SYN was later, milliseconds, and no more than an output may be late; a new leader is
//! later than the old one by the time it takes to notice. Should that be shorter, a client drops what it
//! gets until the clock has caught up, and TCP sends it again.

use crate::packet::Route;
use crate::renumber::Head;
use plover_types::{Frame, Micros, SyncNo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Connections that are renumbered at once. A SYN beyond that is not, and costs a sync, which
/// empties the table of a secondary. An entry takes some 200 bytes.
const CONNECTIONS_MAX: usize = 4096;

/// Frames that may wait for the leader's number. It is under way when they come, or lost.
const WAITING_MAX: usize = 1024;

/// A connection that both ends have closed is forgotten after two maximum segment lifetimes
/// (RFC 9293 §3.6.1): until then either end may ask again.
const CLOSED_FOR: Micros = Micros::from_ms(240_000);

/// The leader's guest has sent a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    route: Route,
    seq: u32,
    /// Which of the client's SYNs it answers; nothing if it asks itself.
    ack: Option<u32>,
    stamp: Option<u32>,
}

impl Opened {
    pub(crate) fn of(head: Head) -> Self {
        Self {
            route: head.route,
            seq: head.seq,
            ack: head.ack,
            stamp: head.stamp,
        }
    }
}

/// A connection whose numbers the guest that travels with it knows otherwise than clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    route: Route,
    /// The guest's number less the clients', and the same of its clock.
    shift: u32,
    clock: u32,
    /// The guest's own SYN: its number, and what it acknowledged.
    own: (u32, Option<u32>),
}

/// What becomes of a frame that the guest has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// It goes on, with the numbers that clients know.
    Goes(Frame),
    /// It is kept until the leader's number is known.
    Waits,
    /// Too many wait: it is lost, as on any network.
    Lost,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    /// Our guest's newest SYN: its number, and what it acknowledges.
    own: Option<(u32, Option<u32>)>,
    own_stamp: Option<u32>,
    /// The leader's newest SYN, not yet found to be ours.
    told: Option<Opened>,
    /// Ours less the leader's, once both are known.
    shift: Option<u32>,
    /// The same of the two clocks.
    clock: u32,
    waiting: Vec<Frame>,
    /// Our guest, and its peer, have sent their last.
    ended: [bool; 2],
    closed: Option<Micros>,
}

impl Connection {
    /// Our guest's SYN waits for the leader's.
    fn waits(&self) -> bool {
        self.own.is_some() && self.shift.is_none()
    }

    /// Clients know other numbers than our guest, or another clock.
    fn is_renumbered(&self) -> bool {
        self.clock != 0 || self.shift.is_some_and(|shift| shift != 0)
    }

    /// Pairs our guest's SYN with the leader's, if they answer the same. Returns what has waited.
    fn pair(&mut self) -> Vec<Frame> {
        let (Some((seq, ack)), Some(told), None) = (self.own, self.told, self.shift) else {
            return Vec::new();
        };
        if ack != told.ack {
            return Vec::new();
        }
        self.told = None;
        self.shift = Some(seq.wrapping_sub(told.seq));
        self.clock = match (self.own_stamp, told.stamp) {
            (Some(own), Some(leader)) => own.wrapping_sub(leader),
            _ => 0,
        };
        let mut waited = std::mem::take(&mut self.waiting);
        for frame in &mut waited {
            if let Some(head) = Head::of(frame) {
                self.renumber(&head, frame);
            }
        }
        waited
    }

    fn renumber(&self, head: &Head, frame: &mut Frame) {
        if self.is_renumbered() {
            let shift = self.shift.unwrap_or(0);
            head.move_own(frame, shift.wrapping_neg(), self.clock.wrapping_neg());
        }
    }

    fn ends(&mut self, head: &Head, now: Micros, who: usize) {
        self.ended[who] |= head.fin || head.rst;
        if head.rst || self.ended == [true; 2] {
            self.closed.get_or_insert(now);
        }
    }
}

/// Stands between a guest's NIC and everything else.
#[derive(Debug, Default)]
pub struct Numbers {
    connections: BTreeMap<Route, Connection>,
    waiting: usize,
    /// The guest's memory is of this sync, and what it has done since.
    sync: SyncNo,
    /// The leader compares what it sends with ours.
    compared: bool,
    /// Told of a slot that begins with a sync which is not in place yet.
    early: Vec<(SyncNo, Opened)>,
}

impl Numbers {
    /// The guest holds the state of this sync, with the numbers that belong to it. `compared`
    /// says whether the leader tells of its SYNs from here on. What waited belonged to a state
    /// that is gone.
    pub fn begin(&mut self, sync: SyncNo, compared: bool, known: &[Known]) {
        self.connections = known.iter().map(|one| (one.route, one.into())).collect();
        self.waiting = 0;
        self.sync = sync;
        self.compared = compared;
        for (of, opened) in std::mem::take(&mut self.early) {
            if of == sync && compared {
                self.told(opened);
            }
        }
    }

    /// The numbers that belong to the guest's memory, to travel with it.
    pub fn known(&mut self, now: Micros) -> Vec<Known> {
        self.connections
            .retain(|_, one| one.waits() || one.closed.is_none_or(|at| now.since(at) < CLOSED_FOR));
        let renumbered = self
            .connections
            .iter()
            .filter(|(_, one)| one.is_renumbered());
        let known = renumbered.filter_map(|(route, one)| {
            Some(Known {
                route: *route,
                shift: one.shift?,
                clock: one.clock,
                own: one.own?,
            })
        });
        known.collect()
    }

    /// The leader's guest has opened a connection in the slot that begins with this sync. Returns
    /// what has waited for that.
    pub fn opened(&mut self, sync: SyncNo, opened: Opened) -> Vec<Frame> {
        if sync > self.sync {
            if self.early.len() < CONNECTIONS_MAX {
                self.early.push((sync, opened));
            }
            return Vec::new();
        }
        if sync < self.sync || !self.compared {
            return Vec::new();
        }
        self.told(opened)
    }

    fn told(&mut self, opened: Opened) -> Vec<Frame> {
        let full = self.connections.len() >= CONNECTIONS_MAX;
        if full && !self.connections.contains_key(&opened.route) {
            return Vec::new();
        }
        let one = self.connections.entry(opened.route).or_default();
        let renumbered = one.shift.map(|shift| opened.seq.wrapping_add(shift));
        if renumbered.is_some_and(|seq| one.own == Some((seq, opened.ack))) {
            // The leader's guest has sent its SYN again.
            return Vec::new();
        }
        one.told = Some(opened);
        let waited = one.pair();
        self.waiting -= waited.len();
        waited
    }

    /// The leader tells no more, or this replica leads itself: the guest's own numbers are what
    /// clients will know of connections that they do not know yet. Returns what has waited.
    pub fn stop(&mut self) -> Vec<Frame> {
        self.compared = false;
        self.early.clear();
        self.waiting = 0;
        let mut waited = Vec::new();
        self.connections.retain(|_, one| {
            waited.append(&mut one.waiting);
            one.told = None;
            one.shift.is_some()
        });
        waited
    }

    /// What clients send, as the guest is to get it.
    pub fn incoming(&mut self, now: Micros, mut frame: Frame) -> Frame {
        if self.connections.is_empty() {
            return frame;
        }
        let Some(head) = Head::of(&frame) else {
            return frame;
        };
        if let Some(one) = self.connections.get_mut(&head.route.back()) {
            one.ends(&head, now, 1);
            if one.is_renumbered() {
                head.move_acknowledged(&mut frame, one.shift.unwrap_or(0), one.clock);
            }
        }
        frame
    }

    /// What the guest sends, as clients are to get it.
    pub fn outgoing(&mut self, now: Micros, mut frame: Frame) -> Outgoing {
        if self.connections.is_empty() && !self.compared {
            return Outgoing::Goes(frame);
        }
        let Some(head) = Head::of(&frame) else {
            return Outgoing::Goes(frame);
        };
        if head.syn {
            return self.opens(&head, now, frame);
        }
        let Some(one) = self.connections.get_mut(&head.route) else {
            return Outgoing::Goes(frame);
        };
        one.ends(&head, now, 0);
        if one.waits() {
            return self.wait(head.route, frame);
        }
        one.renumber(&head, &mut frame);
        Outgoing::Goes(frame)
    }

    /// Our guest opens a connection, or says so again.
    fn opens(&mut self, head: &Head, now: Micros, mut frame: Frame) -> Outgoing {
        let own = (head.seq, head.ack);
        let known = self.connections.get(&head.route);
        let again = known.is_some_and(|one| one.own == Some(own));
        if !again {
            let full = known.is_none() && self.connections.len() >= CONNECTIONS_MAX;
            if !self.compared || full || head.signed {
                self.forget(head.route);
                return Outgoing::Goes(frame);
            }
            let told = self.forget(head.route);
            let fresh = Connection {
                own: Some(own),
                own_stamp: head.stamp,
                told,
                ..Connection::default()
            };
            let one = self.connections.entry(head.route).or_insert(fresh);
            // Nothing waits yet; the frame at hand goes below.
            one.pair();
        }
        let Some(one) = self.connections.get_mut(&head.route) else {
            return Outgoing::Goes(frame);
        };
        one.ends(head, now, 0);
        if one.waits() {
            return self.wait(head.route, frame);
        }
        one.renumber(head, &mut frame);
        Outgoing::Goes(frame)
    }

    /// Forgets a connection for a new one in its place. Returns what was told of that one.
    fn forget(&mut self, route: Route) -> Option<Opened> {
        let old = self.connections.remove(&route)?;
        self.waiting -= old.waiting.len();
        old.told
    }

    fn wait(&mut self, route: Route, frame: Frame) -> Outgoing {
        match self.connections.get_mut(&route) {
            Some(one) if self.waiting < WAITING_MAX => {
                self.waiting += 1;
                one.waiting.push(frame);
                Outgoing::Waits
            }
            _ => Outgoing::Lost,
        }
    }
}

impl From<&Known> for Connection {
    fn from(known: &Known) -> Self {
        Self {
            own: Some(known.own),
            shift: Some(known.shift),
            clock: known.clock,
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
        let opened = Opened {
            route,
            seq: 1003,
            ack: Some(1004),
            stamp: None,
        };
        let known = Known {
            route,
            shift: 1005,
            clock: 1008,
            own: (1006, Some(1007)),
        };
        let bytes = [
            wire::encode_part(&opened, Vec::new()),
            wire::encode_part(&known, Vec::new()),
        ];
        assert_form("connections", &bytes);
    }
}

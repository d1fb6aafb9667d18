//! The network between the replicas, as the fabric shows it: links with sessions, lanes in
//! order, and what can go wrong with them.
//!
//! ```text
//!             Connect                 notice Up, at each end in its own time
//!  no link ────────────▶ session n ─────────────▶ records, first in first out on each lane
//!     ▲                     │  │ cut: records stall; mended in time, they arrive late
//!     └─────────────────────┘◀─┘ not mended: given up; what was under way is lost
//! ```
//!
//! * **Cut** both ways or one way: what goes that way stalls.
//! * **Reset**: the session ends at once; notices follow.
//! * **Slow**: delays grow a hundredfold for a while.
//! * **Full ring**: records of the bulk lane are lost, as when their ring has no room.
//! * **Harsh** (some seeds): records of the log lane are lost, doubled and reordered at random.
//!   The fabric promises better, consensus must not need it.

use crate::rng::Rng;
use crate::schedule::{Arrival, Happening, Schedule};
use plover_types::wire::Versions;
use plover_types::{Lane, Micros, ReplicaId};
use std::collections::{BTreeMap, VecDeque};

/// The network without faults.
#[derive(Clone, Copy, Debug)]
pub struct NetHabits {
    /// The delay of a record, one way.
    pub delay: (u64, u64),
    /// Bytes that a link moves in a microsecond.
    pub bytes_per_us: u64,
    /// How often a record of the log lane is lost, and as often doubled, and reordered.
    pub harsh: f64,
}

#[derive(Debug, Default)]
struct LaneState {
    last_arrival: Micros,
    stalled: VecDeque<Arrival>,
}

/// One direction of a link.
#[derive(Debug, Default)]
struct Way {
    cut: bool,
    full_ring: bool,
    lanes: [LaneState; 2],
    /// The session that the sender believes in, and the moment of its newest notice.
    told: Option<u64>,
    noticed_at: Micros,
}

#[derive(Debug)]
struct Link {
    session: u64,
    open: bool,
    slowness: u64,
    /// What the lower and the higher end have told in this session.
    told: Option<[Versions; 2]>,
}

/// All links.
#[derive(Debug)]
pub struct Net {
    habits: NetHabits,
    rng: Rng,
    links: BTreeMap<(ReplicaId, ReplicaId), Link>,
    ways: BTreeMap<(ReplicaId, ReplicaId), Way>,
}

fn pair(a: ReplicaId, b: ReplicaId) -> (ReplicaId, ReplicaId) {
    (a.min(b), a.max(b))
}

fn place(lane: Lane) -> usize {
    match lane {
        Lane::Log => 0,
        Lane::Bulk => 1,
    }
}

impl Net {
    /// No links yet, all of them about to connect.
    pub fn new(habits: NetHabits, rng: Rng, members: &[ReplicaId], plan: &mut Schedule) -> Self {
        let mut net = Self {
            habits,
            rng,
            links: BTreeMap::new(),
            ways: BTreeMap::new(),
        };
        for &a in members {
            for &b in members.iter().filter(|b| **b != a) {
                net.ways.insert((a, b), Way::default());
                if a < b {
                    net.lay(a, b, plan);
                }
            }
        }
        net
    }

    fn lay(&mut self, a: ReplicaId, b: ReplicaId, plan: &mut Schedule) {
        let link = Link {
            session: 0,
            open: false,
            slowness: 1,
            told: None,
        };
        self.links.insert((a, b), link);
        plan.after(self.rng.micros((0, 20_000)), Happening::Connect(a, b));
    }

    /// A new host gets links to the others, all of lower ids.
    pub fn add(&mut self, new: ReplicaId, others: &[ReplicaId], plan: &mut Schedule) {
        for &other in others {
            self.ways.insert((other, new), Way::default());
            self.ways.insert((new, other), Way::default());
            self.lay(other, new, plan);
        }
    }

    fn way(&mut self, from: ReplicaId, to: ReplicaId) -> &mut Way {
        self.ways
            .get_mut(&(from, to))
            .expect("a way between members")
    }

    fn link(&mut self, a: ReplicaId, b: ReplicaId) -> &mut Link {
        self.links
            .get_mut(&pair(a, b))
            .expect("a link between members")
    }

    /// What `peer` has told `end` in this session, unless there is a newer one.
    pub fn told(&mut self, end: ReplicaId, peer: ReplicaId, session: u64) -> Option<Versions> {
        let link = self.link(end, peer);
        let told = link.told.filter(|_| link.session == session)?;
        Some(told[usize::from(peer > end)])
    }

    /// Two replicas try to connect. `told` is what they tell each other, the lower id first, if both answer and accept
    /// each other.
    pub fn connect(
        &mut self,
        a: ReplicaId,
        b: ReplicaId,
        told: Option<[Versions; 2]>,
        plan: &mut Schedule,
    ) {
        let cut = self.way(a, b).cut || self.way(b, a).cut;
        let link = self.link(a, b);
        if link.open {
            return;
        }
        if cut || told.is_none() {
            let again = self.rng.micros((5_000, 40_000));
            return plan.after(again, Happening::Connect(a, b));
        }
        link.open = true;
        link.told = told;
        link.session += 1;
        let session = link.session;
        for (end, peer) in [(a, b), (b, a)] {
            self.notify(end, peer, session, true, (50, 3000), plan);
        }
    }

    /// Plans a notice; an end hears of its sessions in order.
    fn notify(
        &mut self,
        end: ReplicaId,
        peer: ReplicaId,
        session: u64,
        up: bool,
        span: (u64, u64),
        plan: &mut Schedule,
    ) {
        let at = plan.now() + self.rng.micros(span);
        let way = self.way(end, peer);
        way.noticed_at = way.noticed_at.max(at) + Micros(1);
        let at = way.noticed_at;
        plan.at(
            at,
            Happening::LinkNotice {
                end,
                peer,
                session,
                up,
            },
        );
    }

    /// A notice reaches a running end. False if the notice is out of date.
    pub fn on_notice(&mut self, end: ReplicaId, peer: ReplicaId, session: u64, up: bool) -> bool {
        let way = self.way(end, peer);
        let current = way.told == Some(session);
        match up {
            true => way.told = Some(session),
            false if current => way.told = None,
            false => return false,
        }
        true
    }

    /// The session ends: everything under way is lost. The ends hear of it within `span`.
    pub fn break_link(
        &mut self,
        a: ReplicaId,
        b: ReplicaId,
        span: (u64, u64),
        plan: &mut Schedule,
    ) {
        let link = self.link(a, b);
        if !link.open {
            return;
        }
        link.open = false;
        let session = link.session;
        for (end, peer) in [(a, b), (b, a)] {
            for lane in &mut self.way(end, peer).lanes {
                lane.stalled.clear();
            }
            self.notify(end, peer, session, false, span, plan);
        }
        let again = self.rng.micros((1000, 60_000));
        plan.after(again, Happening::Connect(a, b));
    }

    /// A link over which nothing passes any more is given up.
    pub fn on_break(&mut self, a: ReplicaId, b: ReplicaId, session: u64, plan: &mut Schedule) {
        let cut = self.way(a, b).cut || self.way(b, a).cut;
        if cut && self.link(a, b).session == session {
            self.break_link(a, b, (0, 100_000), plan);
        }
    }

    /// The process at `end` is gone, and with it the sessions that it knew.
    pub fn process_died(
        &mut self,
        end: ReplicaId,
        members: &[ReplicaId],
        span: (u64, u64),
        plan: &mut Schedule,
    ) {
        for &peer in members.iter().filter(|peer| **peer != end) {
            self.break_link(end, peer, span, plan);
            self.way(end, peer).told = None;
        }
    }

    /// Nothing passes from `from` to `to` any more.
    pub fn cut(&mut self, from: ReplicaId, to: ReplicaId, plan: &mut Schedule) {
        self.way(from, to).cut = true;
        let session = self.link(from, to).session;
        let patience = self.rng.micros((5_000, 1_200_000));
        plan.after(patience, Happening::BreakLink(from, to, session));
    }

    /// Whether nothing passes on some way.
    pub fn has_cut(&self) -> bool {
        self.ways.values().any(|way| way.cut)
    }

    /// Records pass from `from` to `to` again. Stalled records arrive a little later, before newer
    /// ones.
    pub fn mend(&mut self, from: ReplicaId, to: ReplicaId, plan: &mut Schedule) {
        self.way(from, to).cut = false;
        let late = self.rng.micros(self.habits.delay);
        plan.after(late, Happening::Mended(from, to));
    }

    /// The stalled records, which arrive now; none if the way is cut again.
    pub fn take_stalled(&mut self, from: ReplicaId, to: ReplicaId) -> Vec<Arrival> {
        let way = self.way(from, to);
        if way.cut {
            return Vec::new();
        }
        way.lanes
            .iter_mut()
            .flat_map(|lane| std::mem::take(&mut lane.stalled))
            .collect()
    }

    /// Sets how many times slower than usual a link is.
    pub fn set_slowness(&mut self, a: ReplicaId, b: ReplicaId, slowness: u64) {
        self.link(a, b).slowness = slowness;
    }

    /// Whether the bulk ring of `from` at `to` has no room at times.
    pub fn set_full_ring(&mut self, from: ReplicaId, to: ReplicaId, full: bool) {
        self.way(from, to).full_ring = full;
    }

    /// Ends every fault.
    pub fn heal(&mut self, plan: &mut Schedule) {
        let ways: Vec<_> = self.ways.keys().copied().collect();
        for (from, to) in ways {
            self.set_full_ring(from, to, false);
            self.set_slowness(from, to, 1);
            self.mend(from, to, plan);
        }
        self.habits.harsh = 0.0;
    }

    /// A replica writes a record.
    pub fn send(
        &mut self,
        from: ReplicaId,
        to: ReplicaId,
        lane: Lane,
        bytes: Vec<u8>,
        plan: &mut Schedule,
    ) {
        let link = self.link(from, to);
        let (open, session) = (link.open, link.session);
        let way = self.way(from, to);
        let full = way.full_ring;
        if !open || way.told != Some(session) {
            return;
        }
        if lane == Lane::Bulk && full && self.rng.chance(0.3) {
            return;
        }
        let harsh = if lane == Lane::Log {
            self.habits.harsh
        } else {
            0.0
        };
        if harsh > 0.0 && self.rng.chance(harsh) {
            return;
        }
        if harsh > 0.0 && self.rng.chance(harsh) {
            let late = self.rng.micros((0, 20_000));
            let twin = Arrival {
                from,
                to,
                lane,
                session,
                bytes: bytes.clone(),
            };
            plan.after(late, Happening::Arrival(twin));
        }
        let record = Arrival {
            from,
            to,
            lane,
            session,
            bytes,
        };
        if harsh > 0.0 && self.rng.chance(harsh) {
            let late = self.rng.micros((0, 10_000));
            return plan.after(late, Happening::Arrival(record));
        }
        self.launch(record, plan);
    }

    /// A record goes on its way, behind those before it.
    fn launch(&mut self, record: Arrival, plan: &mut Schedule) {
        let slowness = self.link(record.from, record.to).slowness;
        let delay = self.rng.micros(self.habits.delay);
        let travel = Micros(
            delay.0 * slowness + record.bytes.len() as u64 * slowness / self.habits.bytes_per_us,
        );
        // A session's records come after the notice of it.
        let receiver = self.way(record.to, record.from);
        let told = receiver.told == Some(record.session);
        let notice = if told {
            Micros::ZERO
        } else {
            receiver.noticed_at + Micros(1)
        };
        let lane = &mut self.way(record.from, record.to).lanes[place(record.lane)];
        lane.last_arrival = lane.last_arrival.max(plan.now() + travel).max(notice);
        let at = lane.last_arrival;
        plan.at(at, Happening::Arrival(record));
    }

    /// Whether a record's session lasts and its receiver knows of it.
    pub fn is_valid(&mut self, record: &Arrival) -> bool {
        let (from, to, session) = (record.from, record.to, record.session);
        let link = self.link(from, to);
        link.open && link.session == session && self.way(to, from).told == Some(session)
    }

    /// A record reaches the end of its lane. `None` if it is lost there, or has to wait.
    pub fn arrive(&mut self, record: Arrival) -> Option<Arrival> {
        if !self.is_valid(&record) {
            return None;
        }
        let way = self.way(record.from, record.to);
        let lane = &mut way.lanes[place(record.lane)];
        if way.cut || !lane.stalled.is_empty() {
            lane.stalled.push_back(record);
            return None;
        }
        Some(record)
    }
}

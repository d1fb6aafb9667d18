//! After the last fault the group has to recover and serve. Then a follower that is cut off and
//! comes back has to change nothing.
//!
//! ```text
//!   Heal: faults end, processes start, fine weather
//!   Look: does it serve? --no--> look again, until healing has taken too long
//!           | yes
//!   a last proposal --> delivered everywhere --> EncoreCut --> EncoreHeal --> EncoreLook --> end
//! ```

use super::faults::Fault;
use super::invariants::{healthy_leader_stays, progress_after_healing as progress};
use super::schedule::Happening;
use super::world::World;
use apus::{Durability, Phase};
use plover_sim::trace::trace;
use plover_types::{Micros, ReplicaId, View};

/// Between two looks at the healing group.
const LOOK_EVERY: Micros = Micros::from_ms(20);
/// How long the encore's follower has to catch up.
const CATCH_UP_MAX: Micros = Micros::from_ms(1500);

/// How far the end of a run has come.
#[derive(Debug, Default)]
pub struct Healing {
    begun: Option<Micros>,
    /// The last proposal, and the view in which it was made.
    last_words: Option<(View, u64)>,
    /// The leader and its view before the encore, and the replica that is cut off.
    encore: Option<(usize, View, Fault, usize)>,
}

impl Healing {
    /// Whether the last fault has ended.
    pub fn has_begun(&self) -> bool {
        self.begun.is_some()
    }
}

impl World {
    /// Every fault ends.
    pub(super) fn heal(&mut self) {
        trace!(self, "HEAL");
        self.healing.begun = Some(self.plan.now());
        self.net.calm();
        let size = self.hosts.len();
        for host in 0..size {
            self.hosts[host].disk.slowness = 1;
            for peer in 0..size {
                if self.net.mend(host, peer) {
                    self.notify(host, peer, true);
                }
            }
            self.restart(host);
        }
        self.plan.after(LOOK_EVERY, Happening::Look);
    }

    /// Has the group recovered?
    pub(super) fn look(&mut self) {
        let begun = self.healing.begun.unwrap_or_default();
        if let Some(leader) = self.serving() {
            return self.last_words(leader);
        }
        if self.plan.now().since(begun) <= progress::HEALING_MAX {
            return self.plan.after(LOOK_EVERY, Happening::Look);
        }
        let excuse = self.excuse();
        let state = || {
            let states = self
                .up()
                .map(|(host, core)| format!("r{host} {:?}", core.status()));
            states.collect::<Vec<_>>().join("; ")
        };
        self.check(progress::does_not_serve(excuse, state));
        if let Some(excuse) = excuse {
            trace!(self, "END the group refuses to serve: {excuse}");
            self.coverage.hit(excuse);
        }
        self.end();
    }

    /// The leader that all members follow, if there is one.
    fn serving(&self) -> Option<usize> {
        let leader = self.leader()?;
        let end = self.status(leader)?;
        let whole = end.members.all().iter().all(|id| {
            self.status(usize::from(id.0)).is_some_and(|status| {
                let follows =
                    status.view == end.view && status.leader == Some(ReplicaId(leader as u8));
                follows && status.phase != Phase::Recovering
            })
        });
        let valid = self.hosts[leader].lease_is_valid(self.plan.now());
        (whole && valid && self.replacing.is_idle()).then_some(leader)
    }

    /// Proposes a last time, and waits until all members have delivered it.
    fn last_words(&mut self, leader: usize) {
        let again = Happening::Look;
        let view = self.status(leader).map_or(View::NONE, |status| status.view);
        // A proposal to a leader that was deposed since may be lost: it was not acknowledged.
        let words = self.healing.last_words.filter(|(made, _)| *made == view);
        let words = words.or_else(|| Some((view, self.propose(leader)?)));
        self.healing.last_words = words;
        let chosen = self.invariants.log.newest();
        let place = words.and_then(|(_, words)| {
            let named = |entry: &apus::Entry| entry.payload.get(..8) == Some(&words.to_le_bytes());
            chosen.iter().position(named)
        });
        let delivered = place.is_some_and(|place| {
            let members = self.members_of(leader);
            let mut cursors = members
                .iter()
                .map(|id| self.hosts[usize::from(id.0)].cursor);
            cursors.all(|cursor| cursor.0 > place as u64)
        });
        if !delivered {
            let begun = self.healing.begun.unwrap_or_default();
            if self.plan.now().since(begun) > progress::HEALING_MAX {
                let state = || format!("its last proposal is not delivered, chosen at {place:?}");
                self.check(progress::does_not_serve(None, state));
            }
            return self.plan.after(LOOK_EVERY, again);
        }
        let healed = self
            .plan
            .now()
            .since(self.healing.begun.unwrap_or_default());
        trace!(self, "HEALED after {healed}");
        self.coverage.hit("end: the group serves");
        self.check(self.invariants.acknowledged.survive(chosen));
        self.plan.after(Micros::from_ms(1), Happening::EncoreCut);
    }

    /// Why a group may refuse to serve, if more was lost than it is made for.
    fn excuse(&self) -> Option<&'static str> {
        // By all members that some replica knows: only those that have not forgotten it know which
        // are the newest.
        let majority = self.up().all(|(_, core)| {
            let voters = core.status().members.voters;
            let remembers = |id: &ReplicaId| !self.has_forgotten(usize::from(id.0));
            voters.iter().filter(remembers).count() > voters.len() / 2
        });
        if !self.scenario.bounded && !majority {
            return Some("end: refuses, a majority has forgotten its log");
        }
        if !self.scenario.guest {
            return None;
        }
        let mut statuses = self.up().map(|(_, core)| core.status()).collect::<Vec<_>>();
        statuses.retain(|status| status.phase != Phase::Recovering);
        let best = statuses.iter().max_by_key(|status| status.last);
        let named =
            |host: usize| best.is_some_and(|best| best.in_sync.contains(ReplicaId(host as u8)));
        let mut holders = (0..self.hosts.len()).filter(|host| self.hosts[*host].holds_guest);
        if holders.any(|host| named(host) && majority) {
            return None;
        }
        // Only the first leader can boot a new guest, once all replicas that the log or the
        // configuration names have answered that there is none.
        if !self.all_named_are_up() {
            return Some("end: refuses, a replica that has left is still asked about the guest");
        }
        let held = self.hosts.iter().any(|host| host.holds_guest);
        (held || !self.scenario.operator || !majority)
            .then_some("end: refuses, the guest is lost or ruled out")
    }

    /// Whether all replicas run that some voter's log or configuration names.
    fn all_named_are_up(&self) -> bool {
        let mut named = self.newest_voters();
        for voter in self.newest_voters() {
            let told = self.hosts[voter].told;
            named.extend(told.iter().map(|id| usize::from(id.0)));
        }
        named.into_iter().all(|host| self.core(host).is_some())
    }

    /// The voters by the log that reaches farthest.
    fn newest_voters(&self) -> Vec<usize> {
        let statuses = self.up().map(|(_, core)| core.status());
        let newest = statuses.max_by_key(|status| status.last);
        let voters = newest.map(|status| status.members.voters);
        voters
            .into_iter()
            .flat_map(|voters| {
                voters
                    .iter()
                    .map(|id| usize::from(id.0))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Cuts off a follower without which there is a quorum.
    pub(super) fn encore_cut(&mut self) {
        let serving = self.serving().filter(|_| self.leavers_are_gone());
        let Some((leader, status)) = serving.and_then(|host| Some((host, self.status(host)?)))
        else {
            return self.plan.after(LOOK_EVERY, Happening::EncoreCut);
        };
        let voters = status.members.voters;
        if voters.len() <= status.members.quorum() {
            return self.end();
        }
        let followers: Vec<_> = voters
            .iter()
            .filter(|id| usize::from(id.0) != leader)
            .collect();
        let follower = usize::from(self.faults.pick(&followers).0);
        let fault = match self.faults.range(0, 2) {
            0 => Fault::CutOneWay(leader, follower),
            1 => Fault::CutOneWay(follower, leader),
            _ => Fault::Isolate(follower),
        };
        trace!(self, "ENCORE {fault:?}");
        self.healing.encore = Some((leader, status.view, fault, follower));
        self.cut(fault);
        let span = self.faults.micros((50_000, 900_000));
        self.plan.after(span, Happening::EncoreHeal);
    }

    pub(super) fn encore_heal(&mut self) {
        if let Some((_, _, fault, _)) = self.healing.encore {
            trace!(self, "ENCORE heals");
            self.mend(fault);
        }
        self.plan.after(CATCH_UP_MAX, Happening::EncoreLook);
    }

    pub(super) fn encore_look(&mut self) {
        if let Some((leader, view, _, follower)) = self.healing.encore {
            let now = self
                .serving()
                .and_then(|now| Some((now, self.status(now)?.view)));
            self.check(healthy_leader_stays::stays(follower, (leader, view), now));
            self.coverage
                .hit("end: a healed follower left the leader alone");
        }
        self.end();
    }

    fn end(&mut self) {
        self.done = true;
        let log = &self.invariants.log;
        self.coverage.add("world: deliveries", log.deliveries());
        self.coverage
            .add("world: generations", log.generations() as u64);
        let acknowledged = self.invariants.acknowledged.len() as u64;
        self.coverage
            .add("world: proposals acknowledged", acknowledged);
        self.coverage.hit(match self.scenario.durability {
            Durability::Memory => "world: memory",
            Durability::Disk => "world: disk",
        });
    }
}

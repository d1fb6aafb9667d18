//! The operator replaces replicas while the group runs.
//!
//! ```text
//!   newcomer:   started empty -> learner -> has caught up -> voter
//!   leaver:     voter -> none -> its process is stopped some time later, or never
//! ```
//!
//! The operator keeps no state but the goal. It asks the leader for the next step again and again,
//! so a step that is refused or lost is repeated.

use super::faults::Moment;
use super::schedule::Happening;
use super::world::World;
use apus::{EntryKind, Members, MembersError, Phase, ProposeError, Status};
use plover_sim::trace::trace;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, View};

/// A replacement under way.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// The replica that comes.
    newcomer: Option<ReplicaId>,
    /// The replica that goes.
    leaver: Option<ReplicaId>,
    /// The newcomer votes before the leaver goes.
    newcomer_first: bool,
}

/// The state of the operator.
#[derive(Debug, Default)]
pub struct Replacing {
    goal: Option<Goal>,
    newcomers: usize,
    /// The newest group that was ever committed.
    group: Members,
}

impl Replacing {
    /// Whether no replica is being replaced.
    pub fn is_idle(&self) -> bool {
        self.goal.is_none()
    }
}

impl World {
    /// The operator looks at the group.
    pub(super) fn operator(&mut self) {
        if !self.scenario.replaces || self.done {
            return;
        }
        let gap = self.work.micros((5_000, 60_000));
        self.plan.after(gap, Happening::Operator);
        let now = self.plan.now();
        let leader = self.leader();
        let leader = leader.filter(|host| self.hosts[*host].paused_until <= now);
        let Some((leader, mut status)) = leader.and_then(|host| Some((host, self.status(host)?)))
        else {
            return;
        };
        status.members = self.members_by_log(leader);
        self.stop_leavers();
        if self.replacing.goal.is_none() && !self.healing.has_begun() && self.work.often(300) {
            self.replacing.goal = self.draw_goal(&status);
            trace!(self, "OPERATOR wants {:?}", self.replacing.goal);
        }
        if let Some(goal) = self.replacing.goal {
            self.pursue(goal, leader, &status);
        }
    }

    fn draw_goal(&mut self, status: &Status) -> Option<Goal> {
        let voters = status.members.voters;
        let free = (self.scenario.replicas + self.replacing.newcomers) as u8;
        let newcomer = (usize::from(free) < self.hosts.len()).then_some(ReplicaId(free));
        // In a group with a guest, those that have it stay (the replica above would first move
        // it), and so does the first leader, who alone may boot another.
        let guest = self.scenario.guest;
        let may_leave = |id: &ReplicaId| !guest || !(status.in_sync.contains(*id) || id.0 == 0);
        let may_leave: Vec<_> = voters.iter().filter(may_leave).collect();
        let leaver = (!may_leave.is_empty()).then(|| self.work.pick(&may_leave));
        let goal = match self.work.range(0, 9) {
            0 => Goal {
                newcomer: None,
                leaver: leaver.filter(|_| voters.len() > 3),
                newcomer_first: true,
            },
            1 => Goal {
                newcomer: newcomer.filter(|_| voters.len() < 9),
                leaver: None,
                newcomer_first: true,
            },
            n => Goal {
                newcomer: newcomer.filter(|_| voters.len() < 9 || leaver.is_some()),
                leaver: leaver.filter(|_| newcomer.is_some()),
                newcomer_first: (n % 2 == 0 || voters.len() < 3) && voters.len() < 9,
            },
        };
        (goal.newcomer.is_some() || goal.leaver.is_some()).then(|| {
            self.replacing.newcomers += usize::from(goal.newcomer.is_some());
            goal
        })
    }

    /// Asks for the next step towards the goal, or finds it reached.
    fn pursue(&mut self, goal: Goal, leader: usize, status: &Status) {
        let members = status.members;
        let mut goal = goal;
        if self.scenario.guest {
            // A replica that has been given the guest meanwhile stays.
            goal.leaver = goal.leaver.filter(|id| !status.in_sync.contains(*id));
        }
        let full = members.voters.len() == 9;
        let goes = goal.leaver.filter(|id| members.voters.contains(*id));
        if full && goes.is_none() {
            goal.newcomer = None;
        }
        let comes = goal.newcomer.filter(|id| !members.voters.contains(*id));
        let next = match (comes, goes) {
            (None, None) => {
                trace!(self, "OPERATOR has {members:?}");
                self.coverage.hit("members: a replacement was completed");
                self.replacing.goal = None;
                return;
            }
            (Some(newcomer), None) => self.admit(newcomer, leader, status),
            (Some(newcomer), Some(_)) if goal.newcomer_first && !full => {
                self.admit(newcomer, leader, status)
            }
            (_, Some(leaver)) => {
                let mut next = members;
                next.voters.remove(leaver);
                Some(next)
            }
        };
        if let Some(next) = next.filter(|next| self.is_prudent(*next)) {
            self.propose_members(leader, next);
        }
    }

    /// The next step of a newcomer, if it is ready for one.
    fn admit(&mut self, newcomer: ReplicaId, leader: usize, status: &Status) -> Option<Members> {
        let mut next = status.members;
        if !next.learners.contains(newcomer) {
            let host = &mut self.hosts[usize::from(newcomer.0)];
            if !host.enlisted {
                host.enlisted = true;
                host.told = next.voters;
                self.start(usize::from(newcomer.0));
                self.coverage.hit("members: a newcomer starts");
            }
            next.learners.insert(newcomer);
            return Some(next);
        }
        let held = self.core(leader)?.matched(newcomer)?;
        (held >= status.commit).then(|| {
            next.learners.remove(newcomer);
            next.voters.insert(newcomer);
            next
        })
    }

    fn propose_members(&mut self, leader: usize, next: Members) {
        let kind = EntryKind::Members(next);
        match self.propose_kind(leader, kind, Vec::new()) {
            Some(Ok(())) => {
                trace!(self, "OPERATOR proposes {next:?} on r{leader}");
                self.coverage.hit("members: a change was proposed");
                if !next.voters.contains(ReplicaId(leader as u8)) {
                    self.coverage.hit("members: a leader is removed");
                }
                self.moment(Moment::MembersProposed, leader);
            }
            Some(Err(ProposeError::Members(MembersError::ChangePending))) => {
                self.coverage.hit("members: refused, a change is pending");
            }
            Some(Err(ProposeError::Members(MembersError::ViewTooYoung))) => {
                self.coverage.hit("members: refused, the view is too young");
            }
            _ => {}
        }
    }

    /// Whether the group can bear the change: an operator who takes a voter out while others
    /// have not recovered may leave a majority without its log.
    fn is_prudent(&self, next: Members) -> bool {
        let voters = next.voters.iter().map(|id| usize::from(id.0));
        let forgetful: Vec<_> = voters.filter(|host| self.has_forgotten(*host)).collect();
        let bearable = forgetful.len() <= (next.voters.len() - 1) / 2;
        // A replica that lost its disk asks the members that it was told: they must not leave
        // meanwhile.
        let asks = forgetful.iter().any(|host| self.hosts[*host].disk.is_new);
        (bearable || !self.scenario.bounded) && !asks
    }

    /// A change of members is chosen for ever.
    pub(super) fn members_chosen(&mut self, members: Members) {
        self.replacing.group = members;
    }

    /// A new generation begins, with the members that the first leader was told: those that were
    /// stopped are needed again.
    pub(super) fn group_begins(&mut self, members: ReplicaSet) {
        self.replacing.group = Members::of(members);
        for id in members.iter() {
            let host = usize::from(id.0);
            if !std::mem::replace(&mut self.hosts[host].enlisted, true) {
                self.plan
                    .after(Micros::from_ms(1), Happening::Restart(host));
            }
        }
    }

    /// What an operator would tell a host that begins anew: the voters of the newest group.
    pub(super) fn group(&self) -> ReplicaSet {
        self.replacing.group.voters
    }

    /// Stops the processes of replicas that have left, some time later: until then they may believe
    /// that they are members.
    fn stop_leavers(&mut self) {
        let goal = self.replacing.goal;
        for host in 0..self.hosts.len() {
            let id = ReplicaId(host as u8);
            let awaited = goal.is_some_and(|goal| goal.newcomer == Some(id));
            let left = !self.replacing.group.all().contains(id) && !awaited;
            let soon = if self.healing.has_begun() { 500 } else { 100 };
            if left && self.hosts[host].enlisted && self.work.often(soon) {
                trace!(self, "OPERATOR stops r{host}");
                self.hosts[host].enlisted = false;
                if self.hosts[host].core.is_some() {
                    self.fall(host);
                }
            }
        }
    }

    /// Whether all replicas that left are stopped.
    pub(super) fn leavers_are_gone(&self) -> bool {
        let hosts = self.hosts.iter().enumerate();
        let mut enlisted = hosts.filter(|(_, host)| host.enlisted);
        let group = self.replacing.group.all();
        enlisted.all(|(host, _)| group.contains(ReplicaId(host as u8)))
    }

    /// Whether the newest log of a leader names a group that is not committed yet.
    pub(super) fn change_is_pending(&self) -> bool {
        let leads = self
            .up()
            .filter(|(_, core)| core.status().phase == Phase::Leading);
        leads.into_iter().any(|(_, core)| {
            let status = core.status();
            let mut index = status.commit.next();
            while let Some(entry) = core.entry(index) {
                if matches!(entry.kind, EntryKind::Members(_)) {
                    return true;
                }
                index = index.next();
            }
            false
        })
    }

    /// The members by the log of `host`, without asking its core: the newest change in it, or else
    /// the newest that was ever committed.
    pub(super) fn members_by_log(&self, host: usize) -> Members {
        let Some(core) = self.core(host) else {
            return self.replacing.group;
        };
        let status = core.status();
        // What is committed anywhere is known; only the rest of the log may say something newer.
        let known = self.invariants.log.before(View(u64::MAX)).len() as u64;
        let kept = known.max(status.base.0) + 1..=status.last.index.0;
        let changes = kept
            .rev()
            .filter_map(|index| match core.entry(Index(index))?.kind {
                EntryKind::Members(members) => Some(members),
                _ => None,
            });
        changes.into_iter().next().unwrap_or(self.replacing.group)
    }

    /// The members as `leader` reports them.
    pub(super) fn members_of(&self, leader: usize) -> ReplicaSet {
        let status = self.status(leader);
        status.map_or(ReplicaSet::EMPTY, |status| status.members.all())
    }
}

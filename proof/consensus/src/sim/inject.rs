//! Faults begin and end.

use super::disk::Disk;
use super::faults::{Fault, FaultPoint, KINDS, Kind, Moment, span_of};
use super::schedule::Happening;
use super::world::World;
use apus::{Canary, Durability, Phase};
use plover_sim::trace::trace;
use plover_types::{Micros, ReplicaSet};

impl World {
    /// The next fault at a random moment.
    pub(super) fn next_fault(&mut self) {
        if self.healing.has_begun() {
            return;
        }
        let gap = self.faults.micros(self.scenario.fault_gap);
        self.plan.after(gap, Happening::NextFault);
        if !self.is_formed() {
            return;
        }
        let kind = self.faults.pick(&KINDS);
        // Leaders are hit more often, or little would happen to the group.
        let leader = self.leader().filter(|_| self.faults.often(400));
        let victim = leader.unwrap_or_else(|| self.anyone());
        let fault = self.aim(kind, victim);
        self.inject(fault);
    }

    /// Whether the first generation has begun: a majority keeps its log. Before that, a group that loses
    /// its leader only waits for an operator.
    fn is_formed(&mut self) -> bool {
        if !self.formed {
            let statuses = self.up().map(|(_, core)| core.status());
            let keep =
                statuses.filter(|status| status.phase != Phase::Recovering && status.commit.0 > 0);
            self.formed = keep.count() > self.scenario.replicas / 2;
        }
        self.formed
    }

    /// A host that takes part.
    fn anyone(&mut self) -> usize {
        let enlisted = self.hosts.iter().enumerate();
        let enlisted: Vec<_> = enlisted
            .filter(|(_, host)| host.enlisted)
            .map(|(place, _)| place)
            .collect();
        self.faults.pick(&enlisted)
    }

    fn aim(&mut self, kind: Kind, victim: usize) -> Fault {
        let other = self.anyone();
        let disk = self.scenario.durability == Durability::Disk;
        let (from, to) = if self.faults.often(500) {
            (victim, other)
        } else {
            (other, victim)
        };
        match kind {
            Kind::Damage if disk => Fault::Damage(victim),
            Kind::Crash | Kind::Damage => Fault::Crash(victim),
            Kind::Wipe => Fault::Wipe(victim),
            Kind::Pause => Fault::Pause(victim),
            Kind::Cut => Fault::Cut(victim, other),
            Kind::CutOneWay => Fault::CutOneWay(from, to),
            Kind::Isolate => Fault::Isolate(victim),
            Kind::Partition => Fault::Partition(self.faults.word() as u16 & 0x7fff),
            Kind::SlowWay => Fault::SlowWay(from, to),
            Kind::SlowDisk => Fault::SlowDisk(victim),
        }
    }

    /// The protocol is at a point at which a fault may be injected.
    pub(super) fn moment(&mut self, moment: Moment, host: usize) {
        let Some(fault_point) = self.scenario.fault_point else {
            return;
        };
        let FaultPoint {
            often,
            kind,
            myself,
            delay,
            ..
        } = fault_point;
        if !self.formed
            || fault_point.moment != moment
            || self.healing.has_begun()
            || !self.faults.often(often)
        {
            return;
        }
        let victim = if myself {
            host
        } else {
            self.leader().unwrap_or(host)
        };
        let fault = self.aim(kind, victim);
        let delay = self.faults.micros(delay);
        self.coverage.hit("fault: at a fault injection point");
        self.plan.after(delay, Happening::Inject(fault));
    }

    /// A fault begins.
    pub(super) fn inject(&mut self, fault: Fault) {
        if self.healing.has_begun() {
            return;
        }
        let span = span_of(fault, &mut self.faults);
        let Some(what) = self.inject_for(fault, span) else {
            return;
        };
        trace!(self, "FAULT {fault:?} for {span}");
        self.coverage.hit(what);
        if self.change_is_pending() {
            self.coverage
                .hit("members: a fault while a change is pending");
        }
        match fault {
            Fault::Crash(host) | Fault::Damage(host) | Fault::Wipe(host) => {
                self.plan.after(span, Happening::Restart(host));
            }
            Fault::Pause(_) => {}
            _ => self.plan.after(span, Happening::Mend(fault)),
        }
    }

    fn inject_for(&mut self, fault: Fault, span: Micros) -> Option<&'static str> {
        Some(match fault {
            Fault::Crash(host) => {
                let forgets = self.scenario.durability == Durability::Memory;
                self.crash(host, forgets).then_some("fault: crash")?
            }
            Fault::Damage(host) => {
                self.crash(host, true).then_some("fault: damaged log")?;
                self.hosts[host].disk.damaged = true;
                self.hosts[host].disk.has_forgotten = true;
                "fault: damaged log"
            }
            Fault::Wipe(host) => self.wipe(host).then_some("fault: lost disk")?,
            Fault::Pause(host) => {
                let until = self.plan.now() + span;
                let paused = &mut self.hosts[host].paused_until;
                *paused = until.max(*paused);
                if self.scenario.canary == Canary::ReportBeforeDeath {
                    self.report_death(host);
                }
                "fault: pause"
            }
            Fault::SlowWay(from, to) => {
                self.net.slow(from, to, 100);
                "fault: slow link"
            }
            Fault::SlowDisk(host) => {
                self.hosts[host].disk.slowness = 40;
                "fault: slow disk"
            }
            Fault::CutOneWay(from, to) => {
                self.cut(fault);
                (from != to).then_some("fault: cut one way")?
            }
            Fault::Cut(..) => {
                self.cut(fault);
                "fault: cut"
            }
            Fault::Isolate(_) => {
                self.cut(fault);
                "fault: cut off"
            }
            Fault::Partition(_) => {
                self.cut(fault);
                "fault: partition"
            }
        })
    }

    /// The ways that a fault cuts.
    pub(super) fn ways_of(&self, fault: Fault) -> Vec<(usize, usize)> {
        let size = self.hosts.len();
        let cuts = |from: usize, to: usize| match fault {
            Fault::Cut(a, b) => (from, to) == (a, b) || (from, to) == (b, a),
            Fault::CutOneWay(a, b) => (from, to) == (a, b),
            Fault::Isolate(host) => from == host || to == host,
            Fault::Partition(mask) => ((mask >> from) & 1) != ((mask >> to) & 1),
            _ => false,
        };
        let all = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        all.filter(|&(from, to)| from != to && cuts(from, to))
            .collect()
    }

    pub(super) fn cut(&mut self, fault: Fault) {
        // A broken connection is noticed; a silent network is not.
        let noticed = self.faults.often(300);
        for (from, to) in self.ways_of(fault) {
            self.net.cut(from, to);
            if noticed {
                self.notify(from, to, false);
            }
        }
    }

    /// A fault ends.
    pub(super) fn mend(&mut self, fault: Fault) {
        match fault {
            Fault::SlowWay(from, to) => self.net.slow(from, to, 1),
            Fault::SlowDisk(host) => self.hosts[host].disk.slowness = 1,
            _ => {
                for (from, to) in self.ways_of(fault) {
                    if self.net.mend(from, to) {
                        self.notify(from, to, true);
                    }
                }
            }
        }
    }

    /// Kills a process, unless that would be more than the group is made for.
    fn crash(&mut self, host: usize, forgets: bool) -> bool {
        if self.hosts[host].core.is_none()
            || (self.scenario.bounded && !self.may_fall(host, forgets))
        {
            return false;
        }
        self.fall(host);
        true
    }

    /// A process dies.
    pub(super) fn fall(&mut self, host: usize) {
        let loss = self.hosts[host].disk.crash(&mut self.disks);
        if loss.torn {
            self.coverage.hit("disk: a torn tail");
        }
        if loss.writes > 0 {
            self.coverage.hit("disk: a suffix was not synced");
        }
        let state = &mut self.hosts[host];
        state.core = None;
        state.holds_guest = false;
        if self.faults.often(700) {
            self.report_death(host);
        }
        if self.faults.often(500) {
            for peer in 0..self.hosts.len() {
                self.notify(peer, host, false);
            }
        }
    }

    /// Whether only a minority has fallen if `host` falls as well. It must be a minority of every set of
    /// members that a replica's log names, or will name again once the replica is back. With a log on
    /// disk, any number may fall, because they come back with their logs.
    fn may_fall(&self, host: usize, forgets: bool) -> bool {
        if !forgets && !self.hosts[host].disk.would_recover() {
            return true;
        }
        let mut groups: Vec<ReplicaSet> = self
            .up()
            .map(|(_, core)| core.status().members.voters)
            .collect();
        if self.scenario.durability == Durability::Disk {
            let down = self.hosts.iter().filter(|host| host.core.is_none());
            let logs = down.filter(|host| !host.disk.would_recover());
            groups.extend(logs.map(|host| host.disk.members().voters));
        }
        groups.sort_unstable_by_key(|voters| voters.0);
        groups.dedup();
        groups.into_iter().all(|voters| {
            let fallen = voters.iter().filter(|id| {
                let other = usize::from(id.0);
                other == host || self.has_forgotten(other)
            });
            fallen.count() <= (voters.len() - 1) / 2
        })
    }

    /// Whether the log of `host` is lost and not recovered yet.
    pub(super) fn has_forgotten(&self, host: usize) -> bool {
        let memory = self.scenario.durability == Durability::Memory;
        match self.status(host) {
            Some(status) => status.phase == Phase::Recovering,
            None => memory || self.hosts[host].disk.would_recover(),
        }
    }

    /// Replaces the disk of `host`, but only while all others remember: no protocol can keep its promises
    /// if several replicas forget even theirs.
    fn wipe(&mut self, host: usize) -> bool {
        let remembers = |other: usize| {
            let status = self.status(other);
            status.is_some_and(|status| status.phase != Phase::Recovering)
        };
        let others = (0..self.hosts.len()).filter(|other| *other != host);
        let mut others = others.filter(|other| self.hosts[*other].enlisted);
        let quiet = self.replacing.is_idle();
        if !quiet || !others.all(remembers) || !self.crash(host, true) {
            return false;
        }
        let configuration = self.scenario.first_configuration();
        self.hosts[host].disk = Disk::new(configuration);
        // An operator who replaces a disk configures the group's members.
        self.hosts[host].told = self.group();
        self.hosts[host].disk.has_forgotten = true;
        let views = self.up().map(|(_, core)| core.status().view);
        let known = views.max().unwrap_or_default();
        self.invariants.one_leader_a_view.forgotten(host, known);
        true
    }

    /// A process starts again.
    pub(super) fn restart(&mut self, host: usize) {
        if self.hosts[host].core.is_none() && self.hosts[host].enlisted {
            self.start(host);
            self.moment(Moment::Started, host);
        }
    }
}

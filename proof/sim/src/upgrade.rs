//! An operator who upgrades the replicas one by one, and takes them back to the former release, in the middle of
//! everything. A new host may have either release.
//!
//! Until the group's version is raised, all of that works. From then on the former release is refused, by its disk if
//! that knows the version, or else by the others; the operator reads so, and starts the new one.

use crate::faults::{AfterOrder, Fault};
use crate::invariants::forms_are_known::{self, Known};
use crate::rng::Rng;
use crate::schedule::Happening;
use crate::streams::Stream;
use crate::trace::trace;
use crate::world::World;
use plover_policy::Secondary;
use plover_types::wire::{OLDEST_VERSION, Versions, WIRE_VERSION};
use plover_types::{ReplicaId, ReplicaSet};

/// The part of the seeds in which an operator upgrades.
const CHANCE: f64 = 0.25;

/// The part of the seeds in which replicas tell their versions, and the group has the newest one from then on.
const TELLS: f64 = 0.7;

/// The operator's work.
#[derive(Debug)]
pub(crate) struct Upgrading {
    rng: Rng,
    comes: bool,
    /// Whether replicas tell their versions at links. In seeds in which they do not, the group sends only the oldest
    /// forms.
    tells: bool,
    gap: (u64, u64),
    /// How often a replica is taken back.
    back: f64,
    fault_after: f64,
    /// The hosts that have the former release.
    old: ReplicaSet,
}

impl Upgrading {
    /// The work of a seed.
    pub fn draw(seed: u64, may_come: bool, secondary: Secondary) -> Self {
        let mut rng = Stream::Upgrade.of(seed);
        let comes = may_come && rng.chance(CHANCE);
        let some = ReplicaSet(rng.word() as u16);
        let old = if rng.chance(0.7) {
            ReplicaSet(u16::MAX)
        } else {
            some
        };
        Self {
            comes,
            // The entry after which a secondary rests is of the newer version.
            tells: comes || secondary == Secondary::Semi || Stream::Tells.of(seed).chance(TELLS),
            gap: rng.pick(&[(50_000, 400_000), (300_000, 1_500_000)]),
            back: rng.pick(&[0.0, 0.3, 0.5]),
            fault_after: rng.pick(&[0.0, 0.2, 0.5]),
            old: if comes { old } else { ReplicaSet::EMPTY },
            rng,
        }
    }

    /// Whether there is any.
    pub fn comes(&self) -> bool {
        self.comes
    }

    /// Whether replicas tell their versions at links.
    pub fn tells(&self) -> bool {
        self.tells
    }
}

impl World {
    /// The newest version of the release that a process of `who` has when it starts.
    pub(crate) fn newest_of(&mut self, who: ReplicaId) -> u8 {
        let is_refused = !Versions::up_to(OLDEST_VERSION).fits(self.process(who).disk.version());
        if self.upgrading.old.contains(who) && is_refused {
            self.coverage
                .hit("upgrade: the former release is refused by its disk");
            self.upgrading.old.remove(who);
        }
        match self.upgrading.old.contains(who) {
            true => OLDEST_VERSION,
            false => WIRE_VERSION,
        }
    }

    /// What a replica that runs tells at a link.
    pub(crate) fn versions_of(&self, who: ReplicaId) -> Option<Versions> {
        let replica = self.process(who).replica.as_deref()?;
        Some(replica.consensus_core().versions())
    }

    /// What two replicas that run tell each other, the lower id first, if they accept each other.
    pub(crate) fn greet(&mut self, a: ReplicaId, b: ReplicaId) -> Option<[Versions; 2]> {
        let told = [self.versions_of(a.min(b))?, self.versions_of(a.max(b))?];
        let agree = told[0].agree(told[1]);
        if !agree {
            self.coverage.hit("upgrade: a link is refused");
        }
        agree.then_some(told)
    }

    /// A replica knows of a new version: it ends the links to those that do not speak it.
    pub(crate) fn on_version(&mut self, who: ReplicaId, version: u8) {
        trace!(self, "{who} knows version {version}");
        self.coverage.hit("upgrade: a replica learns of a version");
        for peer in self.others(who) {
            if self.versions_of(peer).is_some_and(|it| !it.fits(version)) {
                self.net.break_link(who, peer, (0, 5_000), &mut self.plan);
            }
        }
    }

    /// The highest version that a replica that runs takes for the group's.
    fn group_version(&self) -> u8 {
        let versions = self.running().map(|(_, it)| it.consensus_core().version());
        versions.max().unwrap_or_default()
    }

    /// Whether every replica that runs is of a release with which the others talk.
    pub(crate) fn speaks_together(&self) -> bool {
        let group = self.group_version();
        let mut running = self.running();
        running.all(|(_, it)| it.consensus_core().versions().fits(group))
    }

    /// Whether the group has the version that all its releases speak.
    pub(crate) fn is_upgraded(&self) -> bool {
        !self.upgrading.comes || self.group_version() == WIRE_VERSION
    }

    /// The operator's next step.
    pub(crate) fn upgrade_one(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let gap = self.upgrading.rng.micros(self.upgrading.gap);
        self.plan.after(gap, Happening::Upgrade);
        let hosts = self.scenario.members.clone();
        let who = self.upgrading.rng.pick(&hosts);
        let is_old = self.upgrading.old.contains(who);
        let goes_back = !is_old && self.upgrading.rng.chance(self.upgrading.back);
        if is_old {
            self.upgrading.old.remove(who);
            self.coverage.hit("upgrade: a replica is upgraded");
        } else if goes_back && self.group_version() < WIRE_VERSION {
            self.upgrading.old.insert(who);
            self.coverage.hit("upgrade: a replica is taken back");
        } else {
            return;
        }
        trace!(
            self,
            "OPERATOR {} {who}",
            if is_old { "upgrades" } else { "takes back" }
        );
        if self.leader() == Some(who) {
            self.coverage
                .hit("upgrade: a leader dies before all have the new release");
        }
        let span = self.upgrading.rng.micros((5_000, 400_000));
        self.strike(Fault::Crash(who), Some(span));
        if self.upgrading.rng.chance(self.upgrading.fault_after) {
            let next = AfterOrder::draw(&mut self.upgrading.rng, &hosts);
            self.strike_after_order(next);
        }
    }

    /// All hosts get the new release in the end.
    pub(crate) fn end_upgrading(&mut self) {
        self.upgrading.old = ReplicaSet::EMPTY;
        for who in self.scenario.members.clone() {
            let versions = self.versions_of(who);
            if versions.is_some_and(|it| it.newest < WIRE_VERSION) {
                self.ended_by_operator(who);
            }
        }
    }

    /// Checks the forms that a record to `who` begins with.
    pub(crate) fn check_record(&mut self, who: ReplicaId, bytes: &[u8]) {
        if let (Some(versions), Some(form)) = (self.versions_of(who), bytes.first()) {
            self.check(forms_are_known::record(who, versions, *form));
        }
    }

    /// Checks the version of a replica after its turn.
    pub(crate) fn check_version(&mut self, who: ReplicaId) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let core = replica.consensus_core();
        let status = core.status();
        let known = Known {
            generation: core.generation(),
            view: status.view,
            leads: status.phase == apus::Phase::Leading,
            named: core.named_version(),
            version: core.version(),
        };
        let (speaks, forms) = (core.versions(), &mut self.invariants.forms_are_known);
        let check = forms.after_turn(who, speaks, known);
        self.check(check);
    }
}

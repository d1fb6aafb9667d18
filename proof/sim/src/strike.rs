//! Faults strike and end.

use crate::coverage::killed_in;
use crate::disk::Disk;
use crate::faults::{AfterOrder, Fault, Kind, Victim, aim, any_kind, span_of};
use crate::heal::LOOK_EVERY;
use crate::plots::{Cast, PLOTS, PLOTS_OF_PAIRS, scenes};
use crate::process::State;
use crate::schedule::Happening;
use crate::trace::trace;
use crate::world::World;
use apus::Phase;
use plover_replica::{Event, Replica, Role};
use plover_types::{Micros, ReplicaId};

impl World {
    /// The next fault at a random moment.
    pub(crate) fn next_fault(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        if self.scenario.faults.one_at_a_time && !self.is_calm() {
            return self.plan.after(LOOK_EVERY, Happening::Next);
        }
        if self.scenario.faults_alone {
            return match self.invariants.one_fault.is_settled() && self.has_caught_up() {
                true => self.next_fault_alone(),
                false => self.plan.after(LOOK_EVERY, Happening::Next),
            };
        }
        let gap = self.chance.faults.micros(self.scenario.faults.gap);
        self.plan.after(gap, Happening::Next);
        if self.chance.faults.chance(0.15) {
            return self.plot();
        }
        let kind = any_kind(&mut self.chance.faults);
        let victim = self
            .chance
            .faults
            .pick(&[Victim::Leader, Victim::Secondary, Victim::Anyone]);
        let anyone = self.chance.faults.pick(&self.scenario.members);
        let fault = self.aim_at(kind, victim, anyone);
        self.strike(fault, None);
    }

    /// Whether no disk has writes left from a time when it was slow, and no replica still recovers its log.
    fn has_caught_up(&self) -> bool {
        let now = self.plan.now();
        let knows =
            |replica: &Replica| replica.consensus_core().status().phase != Phase::Recovering;
        self.processes
            .iter()
            .all(|process| process.disk_free_at <= now)
            && self.running().all(|(_, replica)| knows(replica))
    }

    /// Plans the faults of a plot: each is harmless alone, and they are meant to be harmful together.
    fn plot(&mut self) {
        let cast = self.cast();
        let Some(cast) = cast else { return };
        let rng = &mut self.chance.faults;
        let plot = match self.scenario.members.len() {
            2 => rng.pick(&PLOTS_OF_PAIRS),
            _ => rng.pick(&PLOTS),
        };
        trace!(self, "PLOT {plot:?} on {cast:?}");
        self.coverage.hit(plot.name());
        for (late, fault, span) in scenes(plot, cast, &mut self.chance.faults) {
            self.plan.after(late, Happening::Strike(fault, Some(span)));
        }
    }

    /// The replicas that play the leader, its secondary and the witness.
    fn cast(&self) -> Option<Cast> {
        let leader = self.leader()?;
        let role_of = |role: Role| {
            let mut players = self.running().filter(|(_, r)| r.status().role == role);
            players.find(|(who, _)| *who != leader).map(|(who, _)| who)
        };
        let secondary = role_of(Role::Secondary)?;
        // A pair has no witness, and no plot of pairs needs one.
        let witness = match self.scenario.members.len() {
            2 => secondary,
            _ => role_of(Role::Witness)?,
        };
        Some(Cast {
            leader,
            secondary,
            witness,
        })
    }

    pub(crate) fn strike_after_order(&mut self, next: AfterOrder) {
        let fault = self.aim_at(next.kind, next.victim, next.anyone);
        self.plan.after(next.late, Happening::Strike(fault, None));
    }

    pub(crate) fn aim_at(&mut self, kind: Kind, victim: Victim, myself: ReplicaId) -> Fault {
        let leader = self.leader();
        let in_step = |role: Role| matches!(role, Role::Secondary | Role::Joining);
        let secondary = self
            .running()
            .find(|(_, replica)| in_step(replica.status().role));
        let secondary = secondary.map(|(who, _)| who);
        let anyone = self.chance.faults.pick(&self.scenario.members);
        let victim = match victim {
            Victim::Leader => leader.unwrap_or(anyone),
            Victim::Secondary => secondary.unwrap_or(anyone),
            Victim::Anyone => anyone,
            Victim::Myself => myself,
        };
        aim(
            kind,
            victim,
            &self.scenario.members,
            &mut self.chance.faults,
        )
    }

    /// The leader of the newest view.
    pub(crate) fn leader(&self) -> Option<ReplicaId> {
        let leads = self
            .running()
            .filter(|(_, r)| r.status().role == Role::Leader);
        leads
            .max_by_key(|(_, replica)| replica.status().view)
            .map(|(who, _)| who)
    }

    /// A fault strikes.
    pub(crate) fn strike(&mut self, fault: Fault, span: Option<Micros>) {
        if self.healed_at.is_some() || !self.may_strike(fault) {
            return;
        }
        self.links_failed |= fault.is_of_links();
        if self.is_calm() {
            self.invariants.one_fault.is_whole();
        }
        self.invariants.one_fault.strikes(fault);
        self.disturbed_at = self.plan.now();
        trace!(self, "FAULT {fault:?}");
        let span = span.unwrap_or_else(|| span_of(fault, &mut self.chance.faults));
        let struck = match fault {
            Fault::Crash(who) => self.crash(who, span),
            Fault::Wipe(who) => self.wipe(who, span),
            Fault::Stop(who, with_guest) => self.stop(who, with_guest),
            Fault::KillGuest(who) => self.kill_guest(who),
            Fault::HangGuest(who) => self.hang_guest(who),
            Fault::LoseUplink(who) => {
                self.tell(who, Event::Uplink { up: false });
                Some("fault: uplink lost")
            }
            Fault::LoseTap(who) => {
                self.process_mut(who).has_tap = false;
                self.tell(who, Event::Uplink { up: false });
                Some("fault: TAP down")
            }
            Fault::Cut(a, b) => {
                self.net.cut(a, b, &mut self.plan);
                self.net.cut(b, a, &mut self.plan);
                Some("fault: cut two ways")
            }
            Fault::CutOneWay(from, to) => {
                self.net.cut(from, to, &mut self.plan);
                Some("fault: cut one way")
            }
            Fault::Isolate(who) => {
                for peer in self.others(who) {
                    self.net.cut(who, peer, &mut self.plan);
                    self.net.cut(peer, who, &mut self.plan);
                }
                Some("fault: replica cut off")
            }
            Fault::Reset(a, b) => {
                self.net.break_link(a, b, (0, 30_000), &mut self.plan);
                Some("fault: link reset")
            }
            Fault::Slow(a, b) => {
                self.net.set_slowness(a, b, 100);
                Some("fault: slow link")
            }
            Fault::FullRing(from, to) => {
                self.net.set_full_ring(from, to, true);
                Some("fault: full bulk ring")
            }
            Fault::SlowDisk(who) => {
                self.process_mut(who).disk_slow = true;
                Some("fault: slow disk")
            }
            Fault::HangDisk(who) => {
                self.process_mut(who).disk_hangs.get_or_insert(0);
                Some("fault: disk hangs")
            }
            Fault::StaleBridge => {
                self.clients.stale = true;
                Some("fault: stale bridge")
            }
        };
        if let Some(what) = struck {
            self.coverage.hit(what);
            self.active_faults += 1;
            self.plan.after(span, Happening::Mend(fault));
        }
    }

    /// At the end of a single fault a replica that it has not hit must hold the guest's state. (A pair without fencing
    /// may lose it: nobody says which of the two is late.)
    fn look_for_holders(&mut self, fault: Option<Fault>) {
        let holds = |who: &ReplicaId| {
            let replica = self.process(*who).replica.as_deref();
            let holds = replica.is_some_and(|replica| replica.status().holds_state);
            holds && fault.and_then(Fault::victim) != Some(*who)
        };
        let may_lose_it = self.scenario.members.len() == 2 && !self.scenario.is_fenced();
        // Links of a harsh network break by themselves.
        if may_lose_it || self.scenario.net.harsh > 0.0 || self.scenario.members.iter().any(holds) {
            return;
        }
        let check = self.invariants.one_fault.nobody_holds();
        self.check(check);
    }

    /// A guest has ended by itself a while ago.
    pub(crate) fn look_after_an_end(&mut self) {
        if self.healed_at.is_none() && self.invariants.one_fault.is_undisturbed() {
            self.look_for_holders(None);
        }
    }

    pub(crate) fn others(&self, who: ReplicaId) -> Vec<ReplicaId> {
        self.scenario
            .members
            .iter()
            .copied()
            .filter(|peer| *peer != who)
            .collect()
    }

    fn crash(&mut self, who: ReplicaId, span: Micros) -> Option<&'static str> {
        if self.process(who).state == State::Down {
            return None;
        }
        self.vanish(who);
        self.plan.after(span, Happening::Restart(who));
        Some("fault: process killed")
    }

    /// All processes vanish, and with them the guest's generation.
    pub(crate) fn all_die(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let next = self.chance.lives.micros((500_000, 3_000_000));
        self.plan.after(next, Happening::AllDie);
        for who in self.scenario.members.clone() {
            let span = self.chance.lives.micros((5_000, 150_000));
            self.strike(Fault::Crash(who), Some(span));
        }
    }

    /// A replica was told to begin its log anew. If it dies now, its disk may have only a part of the
    /// new log.
    pub(crate) fn log_begins_anew(&mut self, who: ReplicaId) {
        if self.scenario.short_lives && self.chance.lives.chance(0.4) {
            let longest = self.scenario.store.1;
            let delay = self.chance.lives.micros((0, longest));
            let span = self.chance.lives.micros((5_000, 150_000));
            let crash = Happening::Strike(Fault::Crash(who), Some(span));
            self.plan.after(delay, crash);
        }
    }

    /// Replaces the disk of `who`, but only while all others remember: no protocol can keep its promises
    /// if several replicas forget even theirs.
    fn wipe(&mut self, who: ReplicaId, span: Micros) -> Option<&'static str> {
        let remembers = |peer: ReplicaId| {
            let process = self.process(peer);
            let phase = process
                .replica
                .as_ref()
                .map(|r| r.consensus_core().status().phase);
            process.state == State::Up && phase.is_some_and(|phase| phase != Phase::Recovering)
        };
        let members = self.group().members.all();
        let mut others = members.iter().filter(|id| *id != who);
        if !others.all(remembers) || self.crash(who, span).is_none() {
            return None;
        }
        self.process_mut(who).disk = Disk::default();
        let views = self
            .running()
            .map(|(_, replica)| replica.consensus_core().status().view);
        let known = views.max().unwrap_or_default();
        self.invariants.one_leader_a_view.forgotten(who, known);
        // Where one of a pair begins a generation alone, no other replica has promised its view.
        self.generation = self.generation.min(known);
        self.invariants.one_sender_a_slot.forgotten(known);
        Some("fault: process killed, its disk lost")
    }

    pub(crate) fn vanish(&mut self, who: ReplicaId) {
        if let Some(phase) = self.process(who).phase {
            self.coverage.hit(killed_in(phase));
        }
        let under_way = self.process(who).disk.under_way() as u64;
        let kept = match self.process(who).disk_hangs {
            Some(_) => 0,
            None => self.chance.faults.range(0, under_way) as usize,
        };
        let process = self.process_mut(who);
        process.disk.crash(kept);
        if process.disk.is_between_generations() {
            self.coverage
                .hit("generation: its word is on a disk, its log is not");
        }
        self.check_disks(who);
        self.replacing.lost_copy(who);
        self.invariants.inputs_in_order.guest_replaced(who);
        self.process_mut(who).vanish();
        // A killed process's connections are reset; a dead host's fall silent.
        let notice = self.chance.faults.pick(&[(100, 20_000), (50_000, 700_000)]);
        if notice.0 == 100 {
            self.report_death(who);
        }
        self.net
            .process_died(who, &self.scenario.members, notice, &mut self.plan);
    }

    fn stop(&mut self, who: ReplicaId, with_guest: bool) -> Option<&'static str> {
        let now = self.plan.now();
        let process = self.process_mut(who);
        if process.state != State::Up {
            return None;
        }
        process.state = State::Stopped;
        self.stopped_at = now;
        let process = self.process_mut(who);
        if let Some(hypervisor) = process.hypervisor.as_mut().filter(|_| with_guest) {
            hypervisor.freeze(now);
        }
        // A pair without fencing rests on clocks (docs/pairs.md).
        let rests_on_clocks = self.scenario.members.len() == 2 && !self.scenario.is_fenced();
        if with_guest && !rests_on_clocks && self.chance.clocks.chance(0.4) {
            self.process_mut(who).suspended = Some(now);
            return Some("fault: host suspended, its clock stands still");
        }
        Some("fault: process stopped")
    }

    /// SIGCONT: the events of the meantime come at once, and the clock has jumped, unless it stood still.
    pub(crate) fn go_on(&mut self, who: ReplicaId) {
        let now = self.plan.now();
        if self.process(who).state != State::Stopped {
            return;
        }
        self.stopped_at = now;
        // The node reads its sources one after the other, the fabric before most of the others.
        let by_source = self.chance.faults.chance(0.5);
        let process = self.process_mut(who);
        if let Some(since) = process.suspended.take() {
            process.clock.stood(now.since(since));
            process.clock_went_on = Some(now);
        }
        process.state = State::Up;
        if let Some(hypervisor) = &mut process.hypervisor {
            hypervisor.thaw(now);
        }
        let mut missed = std::mem::take(&mut process.missed);
        if by_source {
            missed.sort_by_key(|(_, event)| {
                !matches!(event, Event::Received { .. } | Event::Link { .. })
            });
        }
        self.plan_hypervisor(who);
        for (hypervisor, event) in missed {
            match hypervisor {
                Some(number) => self.tell_of_hypervisor(who, number, event),
                None => self.tell(who, event),
            }
        }
        self.tell(who, Event::Tick);
    }

    fn kill_guest(&mut self, who: ReplicaId) -> Option<&'static str> {
        let now = self.plan.now();
        let late = self.chance.faults.micros((10, 30_000));
        let process = self.process_mut(who);
        let number = process.hypervisors;
        let hypervisor = process.hypervisor.as_mut().filter(|h| !h.is_dead())?;
        hypervisor.die(now);
        self.plan
            .after(late, Happening::HypervisorDied(who, number));
        Some("fault: hypervisor killed")
    }

    fn hang_guest(&mut self, who: ReplicaId) -> Option<&'static str> {
        let now = self.plan.now();
        let hypervisor = self.process_mut(who).hypervisor.as_mut();
        hypervisor.filter(|h| !h.is_dead())?.freeze(now);
        Some("fault: hypervisor stands still")
    }

    /// The hypervisor goes on, unless its whole host stands still.
    pub(crate) fn unhang_guest(&mut self, who: ReplicaId) {
        let now = self.plan.now();
        let process = self.process_mut(who);
        if process.state == State::Up {
            if let Some(hypervisor) = &mut process.hypervisor {
                hypervisor.thaw(now);
            }
            self.plan_hypervisor(who);
        }
    }

    /// The disk answers again.
    pub(crate) fn unhang_disk(&mut self, who: ReplicaId) {
        let process = self.process_mut(who);
        let (done, incarnation) = (process.disk_hangs.take(), process.incarnation);
        for _ in 0..done.unwrap_or_default() {
            self.plan
                .after(Micros::ZERO, Happening::Stored(who, incarnation));
        }
    }

    /// A fault ends.
    pub(crate) fn mend(&mut self, fault: Fault) {
        self.active_faults -= 1;
        if self.healed_at.is_some() {
            return;
        }
        trace!(self, "MENDED {fault:?}");
        self.look_for_holders(Some(fault));
        self.invariants.one_fault.ends();
        self.disturbed_at = self.plan.now();
        match fault {
            Fault::Stop(who, _) => self.go_on(who),
            Fault::HangGuest(who) => self.unhang_guest(who),
            Fault::LoseUplink(who) => self.tell(who, Event::Uplink { up: true }),
            Fault::LoseTap(who) => {
                self.process_mut(who).has_tap = true;
                self.tell(who, Event::Uplink { up: true });
            }
            Fault::Cut(a, b) => {
                self.net.mend(a, b, &mut self.plan);
                self.net.mend(b, a, &mut self.plan);
            }
            Fault::CutOneWay(from, to) => self.net.mend(from, to, &mut self.plan),
            Fault::Isolate(who) => {
                for peer in self.others(who) {
                    self.net.mend(who, peer, &mut self.plan);
                    self.net.mend(peer, who, &mut self.plan);
                }
            }
            Fault::Slow(a, b) => self.net.set_slowness(a, b, 1),
            Fault::FullRing(from, to) => self.net.set_full_ring(from, to, false),
            Fault::SlowDisk(who) => {
                let process = self.process_mut(who);
                process.disk_slow = false;
                process.disk_slow_until = process.disk_free_at.max(process.answers_free_at);
            }
            Fault::HangDisk(who) => self.unhang_disk(who),
            Fault::StaleBridge => self.clients.stale = false,
            Fault::Crash(_) | Fault::Wipe(_) | Fault::KillGuest(_) | Fault::Reset(..) => {}
        }
    }
}

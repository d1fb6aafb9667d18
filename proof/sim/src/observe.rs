//! Shows a replica's log, notes and messages to the invariants and the coverage.

use crate::describe::{brief, name};
use crate::faults::Ambush;
use crate::history::History;
use crate::hypervisor::Hypervisor;
use crate::invariants::debt_never_forgotten::{self, Side};
use crate::invariants::forms_are_known;
use crate::invariants::memory_equal_after_sync::Snapshot;
use crate::invariants::{Violation, committed_not_lost, warm_copy_accounted};
use crate::process::State;
use crate::schedule::Happening;
use crate::trace::trace;
use crate::world::World;
use apus::EntryKind;
use plover_replica::{Event, Note, OperatorInput, Replica, Role};
use plover_syncvm::message::Body;
use plover_syncvm::{Phase, SyncMessage};
use plover_types::{Index, Lane, Micros, ReplicaId, SyncNo, View, wire};

/// Longer messages carry pages and are not decoded here. The limit has room for an end mark with all
/// inputs that came while a slow disk was waited for, or while an operator had paused the guest.
const LOOK_BYTES_MAX: usize = 1 << 18;

/// A bootstrap is carried out within this time: its promise may wait behind others on a slow disk.
const OPERATOR_HEARD_WITHIN: Micros = Micros(10_000_000);

/// Nothing of a fault is left to be seen in how fast messages go after this time.
const CALM_AFTER: Micros = Micros(1_000_000);

fn unwanted_generation(message: String) -> Violation {
    let section = "docs/failures.md, all hosts lost";
    Violation {
        invariant: "committed_not_lost",
        section,
        message,
    }
}

impl World {
    /// A replica is about to be told something.
    pub(crate) fn before(&mut self, who: ReplicaId, event: &Event) {
        self.cause = name(event);
        if self.trace.is_on() {
            let what = brief(event);
            trace!(self, "{who} <- {what}");
        }
        match event {
            Event::Frames(frames) => self.invariants.inputs_in_order.offered(who, frames),
            Event::Operator {
                input: OperatorInput::Console(line),
                ..
            } => self.invariants.inputs_in_order.offered_line(who, line),
            _ => {}
        }
        let Event::Received {
            lane: Lane::Bulk,
            bytes,
            ..
        } = event
        else {
            return;
        };
        if bytes.len() > LOOK_BYTES_MAX {
            return;
        }
        if let Ok(SyncMessage {
            view,
            body: Body::End { sync, .. },
        }) = wire::decode(bytes)
        {
            let current = self.process(who).replica.as_ref().map(|r| r.status().view);
            if current == Some(view) {
                self.invariants
                    .memory_equal_after_sync
                    .ended(who, view, sync);
            }
        }
    }

    /// A replica writes a message on the bulk lane.
    pub(crate) fn look_at_bulk(&mut self, who: ReplicaId, bytes: &[u8]) {
        if bytes.len() > LOOK_BYTES_MAX {
            return;
        }
        let Ok(SyncMessage { view, body }) = wire::decode(bytes) else {
            return;
        };
        match body {
            Body::Ack { sync } => {
                let cut = self.invariants.memory_equal_after_sync.at_cut(view, sync);
                if let Some(at) = cut.and_then(|cut| self.histories.find(cut.history)) {
                    self.invariants.external_consistency.acknowledged(who, at);
                }
            }
            Body::Fetch { .. } => {
                self.coverage.hit("sync: reset with a fetch");
                let in_sync = self.invariants.log.in_sync();
                if in_sync.len() > 1 && in_sync.contains(who) {
                    self.coverage
                        .hit("sync: a member of the in-sync set has to fetch");
                    let check = self.invariants.one_fault.fetches(who);
                    self.check(check);
                }
            }
            Body::CopyAck { .. } => self.check_warm_copy(who),
            _ => {}
        }
    }

    /// Reads what a replica has committed since it was last read.
    pub(crate) fn read_log(&mut self, who: ReplicaId) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let consensus = replica.consensus_core();
        let (generation, status) = (consensus.generation(), consensus.status());
        let (read_generation, read) = self.process(who).read;
        if generation == View::NONE
            || generation < self.generation
            || (generation == read_generation && status.commit == read)
        {
            return;
        }
        if generation > self.generation {
            if self.goes_on(who) {
                self.begin_alone(who, generation);
            } else {
                self.begin_generation(who, generation);
            }
        }
        let read = if generation == read_generation {
            read
        } else {
            Index(0)
        };
        let from = read.max(status.base).next();
        let process = &self.processes[usize::from(who.0)];
        let Some(replica) = process.replica.as_deref() else {
            return;
        };
        let mut check = Ok(());
        for index in from.0..=status.commit.0 {
            let entry = replica.consensus_core().entry(Index(index));
            let entry = entry.expect("what lies between base and commit is in the log");
            check = check.and(self.invariants.log.committed(who, status.view, entry));
            if let (EntryKind::App, Some(form)) = (entry.kind, entry.payload.first()) {
                let speaks = replica.consensus_core().versions();
                check = check.and(forms_are_known::record(who, speaks, *form));
            }
        }
        self.process_mut(who).read = (generation, status.commit);
        self.check(check);
        self.time_commit(who, status);
    }

    /// Notes when the leader commits, and checks how much later the others learn of it.
    fn time_commit(&mut self, who: ReplicaId, status: apus::Status) {
        let (view, commit, now) = (status.view, status.commit, self.plan.now());
        let told = &mut self.invariants.commits_are_told;
        if status.phase == apus::Phase::Leading {
            return told.committed(view, commit, now);
        }
        if !self.invariants.log.in_sync().contains(who) {
            return told.left(who);
        }
        // With logs in memory a backup may commit before its leader.
        let is_fast = self.scenario.keeps_log()
            && self.scenario.store.1 <= 300
            && self.scenario.net.delay.1 <= 400
            && self.scenario.net.harsh == 0.0;
        // A new host learns late of entries that are older than its part in the group.
        let is_old = !self.replacing.comes();
        if is_fast && is_old && self.active_faults == 0 {
            let calm_since = self.disturbed_at + CALM_AFTER;
            let check = told.learnt(who, (view, commit), now, calm_since);
            self.check(check);
        }
    }

    fn begin_generation(&mut self, who: ReplicaId, generation: View) {
        trace!(self, "generation {generation} begins, says {who}");
        if self.generation != View::NONE {
            let spoke = self.operator_spoke_at.take();
            if spoke.is_none_or(|at| self.plan.now().since(at) > OPERATOR_HEARD_WITHIN) {
                self.check(Err(unwanted_generation(format!(
                    "{who} is in generation {generation}, which no operator let begin"
                ))));
            }
            self.check_nobody_held(who, generation);
            self.coverage
                .hit("generation: begun by the operator's word");
            self.is_split = false;
            self.invariants.new_generation();
        }
        self.generation = generation;
    }

    /// A new generation begins by `who`: no other replica may hold the state of the old one and be
    /// named by the best log of those that are left. What a replica holds that is no member any more is out of date.
    fn check_nobody_held(&mut self, who: ReplicaId, generation: View) {
        let log = &self.invariants.log;
        let others = || {
            let running = self.running();
            running.filter(|(id, _)| *id != who && log.is_member(*id))
        };
        let logs =
            others().filter(|(_, replica)| replica.consensus_core().generation() < generation);
        let best = logs
            .map(|(_, replica)| replica.consensus_core().status())
            .max_by_key(|s| s.last);
        let Some(best) = best else { return };
        // A replica of a pair that doubts its state may not go on with it.
        let holds = |r: &Replica| r.status().holds_state && !r.consensus_core().status().doubts;
        let holder = others().find(|(id, r)| holds(r) && best.in_sync.contains(*id));
        if let Some((holder, _)) = holder {
            let in_sync = best.in_sync;
            self.check(Err(unwanted_generation(format!(
                "{who} begins generation {generation} while {holder}, in the in-sync set {in_sync}, holds the \
                 state of the old one"
            ))));
        }
    }

    /// A replica notes something.
    pub(crate) fn observe(&mut self, who: ReplicaId, note: Note) {
        trace!(self, "{who} notes {note:?}");
        self.count(who, &note);
        match &note {
            Note::Elected { view } => self.on_elected(who, *view),
            Note::Serving { view } => self.on_serving(who, *view),
            Note::SyncPhase { sync, phase } => self.on_phase(who, *sync, *phase),
            Note::Applied { sync } => {
                self.invariants.one_fault.applies(who);
                self.on_applied(who, *sync);
            }
            Note::Role {
                from: Role::Joining,
                to: Role::Secondary,
                ..
            } => {
                self.replacing.has_copy(who);
                self.invariants.one_fault.joins(who);
            }
            Note::Kept { sync } => self.on_kept(who, *sync),
            Note::GuestLost { .. } | Note::GroupEmpty { .. } => self.invariants.progress.said(),
            Note::Synced(_) => {
                self.invariants.one_fault.synced();
                self.look_at_pause(who);
            }
            Note::Members { voters, .. } => self.members_change(who, *voters),
            Note::Warm { peer } => self.replacing.has_copy(*peer),
            Note::HandedOver { .. } => self.hands_over(who),
            Note::InSync { in_sync, .. } => self.changes_in_sync(who, *in_sync),
            _ => {}
        }
        self.end_at(&note);
        if self.healed_at.is_none() && self.violation.is_none() {
            let set_off = self
                .scenario
                .faults
                .set_off(&note, &mut self.chance.ambushes);
            for ambush in set_off {
                self.spring(who, ambush);
            }
        }
    }

    fn spring(&mut self, who: ReplicaId, ambush: Ambush) {
        if self.scenario.faults.one_at_a_time && self.active_faults > 0 {
            return;
        }
        if self.plan.now() < self.scenario.faults.begin {
            return;
        }
        let fault = self.aim_at(ambush.kind, ambush.victim, who);
        let delay = self.chance.ambushes.micros(ambush.delay);
        // A crash can come between two actions. A stop cannot: see the crate's documentation.
        let crash = matches!(fault, crate::faults::Fault::Crash(_));
        if delay == Micros::ZERO && crash {
            self.strike(fault, None);
        } else {
            self.plan.after(delay, Happening::Strike(fault, None));
        }
    }

    fn on_elected(&mut self, who: ReplicaId, view: View) {
        let check = self.invariants.one_leader_a_view.elected(who, view);
        self.check(check);
        if view > self.generation && self.goes_on(who) {
            let core = |r: &Replica| r.consensus_core().generation();
            if self.process(who).replica.as_deref().map(core) == Some(view) {
                self.begin_alone(who, view);
            }
        }
        let process = &self.processes[usize::from(who.0)];
        if let Some(replica) = process.replica.as_deref() {
            let check = committed_not_lost::elected(who, replica, &self.invariants.log);
            self.check(check);
        }
        self.invariants
            .inputs_in_order
            .elected(who, &self.invariants.log);
    }

    /// The history of a replica's guest.
    pub(crate) fn history_of(&self, who: ReplicaId) -> Option<History> {
        let guest = &self.process(who).hypervisor.as_ref()?.guest;
        self.histories.find(guest.history())
    }

    /// Whether a process may take a lease for valid that is over: its clock has stood still, and has not yet shown the
    /// end of the lease that it had then.
    pub(crate) fn may_trust_an_old_lease(&self, who: ReplicaId) -> bool {
        let went_on = self.process(who).clock_went_on;
        went_on.is_some_and(|at| self.plan.now().since(at) <= self.scenario.lease_max())
    }

    fn on_serving(&mut self, who: ReplicaId, view: View) {
        // A leader whose predecessor stays in step serves by its lease, and one whose clock stood still takes a lease for
        // valid that is over. What it sends then is judged as of any such leader.
        let is_late =
            self.may_trust_an_old_lease(who) && self.invariants.one_sender_a_slot.is_late(view);
        if !is_late {
            let in_sync = self.invariants.log.in_sync();
            self.invariants.inputs_in_order.serves(who, in_sync);
        }
        if is_late {
            self.coverage
                .hit("planned: serves late, its clock stood still");
        } else if let Some(at) = self.history_of(who) {
            let all = &self.histories;
            let check = self
                .invariants
                .external_consistency
                .serves(who, view, at, all);
            self.check(check);
        }
        if self.invariants.external_consistency.has_shown() {
            self.coverage.hit("failover: a new leader serves");
            let hypervisor = self.process(who).hypervisor.as_ref();
            let is_off = hypervisor.is_some_and(Hypervisor::is_off);
            let stands = hypervisor.is_some_and(Hypervisor::stands);
            if is_off {
                self.coverage
                    .hit("guest: off while its next leader takes over");
            }
            if stands {
                self.coverage
                    .hit("guest: stands while its next leader takes over");
            }
        }
        self.check_pause(who);
        self.invariants.one_sender_a_slot.serves(who, view);
        let check = self.invariants.progress.serves(who, self.generation);
        self.check(check);
    }

    fn on_phase(&mut self, who: ReplicaId, sync: SyncNo, phase: Phase) {
        let Some(replica) = self.process(who).replica.as_deref() else {
            return;
        };
        let view = replica.status().view;
        match phase {
            Phase::Scan => {
                if let Some(snapshot) = self.snapshot(who) {
                    self.invariants
                        .memory_equal_after_sync
                        .cut(view, sync, snapshot);
                }
            }
            // The scan's pages are in the ledger by now.
            Phase::Hash | Phase::Copy => self.check_debt(who),
            _ => {}
        }
        self.at_checkpoint(who, phase);
    }

    fn snapshot(&self, who: ReplicaId) -> Option<Snapshot> {
        let guest = &self.process(who).hypervisor.as_ref()?.guest;
        Some(Snapshot {
            memory: guest.memory().to_vec(),
            devices: guest.save_devices(),
            history: guest.history(),
        })
    }

    fn check_debt(&mut self, leader: ReplicaId) {
        let Some(ours) = self.side(leader) else {
            return;
        };
        // A replica that the in-sync set leaves out may differ: it gets a full copy.
        let in_sync = self.invariants.log.in_sync();
        let follows = |side: &Side<'_>| {
            in_sync.contains(leader)
                && side.who != leader
                && in_sync.contains(side.who)
                && side.replica.status().holds_state
        };
        let members = self.scenario.members.iter();
        let sides = members.filter_map(|who| self.side(*who)).filter(follows);
        let check = { sides }.try_for_each(|theirs| debt_never_forgotten::check(ours, theirs));
        self.check(check);
    }

    /// Checks the warm copy on `target` against its source's ledger.
    fn check_warm_copy(&mut self, target: ReplicaId) {
        let stream = |side: &Side<'_>| side.replica.warm_stream();
        let theirs = self.side(target);
        let Some((theirs, (id, source))) = theirs.and_then(|side| Some((side, stream(&side)?)))
        else {
            return;
        };
        let Some(ours) = self
            .side(source)
            .filter(|side| stream(side) == Some((id, target)))
        else {
            return;
        };
        let check = warm_copy_accounted::check(ours, theirs);
        self.coverage.hit("warm: copies looked at");
        self.check(check);
    }

    fn side(&self, who: ReplicaId) -> Option<Side<'_>> {
        let process = self.process(who);
        let replica = process.replica.as_deref()?;
        let guest = &process.hypervisor.as_ref()?.guest;
        Some(Side {
            who,
            replica,
            guest,
        })
    }

    /// A waiting secondary has a checkpoint in its guest's memory; the device state comes later.
    fn on_kept(&mut self, who: ReplicaId, sync: SyncNo) {
        if let Some(now) = self.snapshot(who) {
            let memory = &mut self.invariants.memory_equal_after_sync;
            let check = memory.kept(who, sync, &now);
            self.check(check);
        }
    }

    fn on_applied(&mut self, who: ReplicaId, sync: SyncNo) {
        self.invariants.inputs_in_order.guest_replaced(who);
        let leader = self
            .process(who)
            .replica
            .as_deref()
            .and_then(|r| r.status().leader);
        if leader.is_none_or(|l| l == who || self.process(l).state == State::Down) {
            self.coverage.hit("sync: applied after its leader was lost");
        }
        if let Some(now) = self.snapshot(who) {
            let check = self
                .invariants
                .memory_equal_after_sync
                .applied(who, sync, &now);
            self.check(check);
        }
    }
}

//! The body of a replica: it stands for `plover-node`, and keeps the node's order of steps.
//!
//! Events are applied one at a time; actions are carried out in order; answers to work on memory
//! are applied before the next action (`work`). A crash can come between any two actions.

use crate::clean::Datagram;
use crate::describe::Paced;
use crate::disk::Write;
use crate::hypervisor::{Due, Hypervisor, Order};
use crate::invariants::external_consistency::Release;
use crate::invariants::streams_go_on::StreamsGoOn;
use crate::invariants::{disks_survive, guest_is_whole, nobody_is_refused};
use crate::listener::Bare;
use crate::process::State;
use crate::schedule::{Arrival, Happening};
use crate::spoken::Spoken;
use crate::trace::trace;
use crate::world::World;
use plover_replica::{Action, BootReason, Event, OperatorInput};
use plover_types::{Frame, Lane, Micros, ReplicaId, SyncNo};

/// The shortest time between a turn and the next tick.
const TURN: Micros = Micros(20);

impl World {
    /// Something happens to a replica.
    pub(crate) fn tell(&mut self, who: ReplicaId, event: Event) {
        let process = self.process_mut(who);
        match process.state {
            State::Down => {}
            State::Stopped => process.missed.push((None, event)),
            State::Up => {
                let hypervisor = process.hypervisor.as_mut();
                let unheard = hypervisor.and_then(Hypervisor::take_unheard);
                process.events.extend(unheard);
                process.events.push_back(event);
                self.turn(who);
            }
        }
    }

    /// Something happens to the hypervisor of a replica. If the replica has replaced that hypervisor
    /// meanwhile, it is not told.
    pub(crate) fn tell_of_hypervisor(&mut self, who: ReplicaId, number: u64, event: Event) {
        let process = self.process_mut(who);
        if process.hypervisors != number || process.hypervisor.is_none() {
            return;
        }
        match process.state {
            State::Stopped => process.missed.push((Some(number), event)),
            State::Up | State::Down => self.tell(who, event),
        }
    }

    /// Applies the waiting events and carries out the actions that follow.
    pub(crate) fn turn(&mut self, who: ReplicaId) {
        while let Some(event) = self.process_mut(who).events.pop_front() {
            let pauses = matches!(event, Event::GuestPaused { .. });
            if pauses && !self.process(who).scans.is_empty() {
                let others = std::mem::take(&mut self.process_mut(who).events);
                self.make_scans(who);
                let events = &mut self.process_mut(who).events;
                events.push_back(event);
                events.extend(others);
                continue;
            }
            if matches!(event, Event::Outputs(_) | Event::GuestPaused { .. }) {
                if let Some(said) = self.take_replies(who) {
                    let events = &mut self.process_mut(who).events;
                    events.push_front(event);
                    events.push_front(said);
                    continue;
                }
            }
            // A sample is asked for again and again where a leader waits for its guest to be idle.
            if !matches!(event, Event::Tick | Event::Sample { .. }) {
                self.invariants.nothing_spins.busy(who);
            }
            if matches!(event, Event::GuestDied(_)) {
                self.process_mut(who).hypervisor = None;
            }
            self.before(who, &event);
            let now = self.plan.now();
            let process = self.process_mut(who);
            let local = process.clock.local(now);
            let replica = process
                .replica
                .as_mut()
                .expect("a process that runs has a brain");
            let mut actions = Vec::new();
            let paced = Paced::of(replica);
            process.watch = replica.apply(local, event, &mut actions);
            process.actions.extend(actions);
            self.count_paced(who, paced);
            self.read_log(who);
            self.check_version(who);
            self.at_member_entry(who);
            while let Some(action) = self.process_mut(who).actions.pop_front() {
                self.act(who, action);
                if self.violation.is_some() || self.process(who).state != State::Up {
                    return;
                }
                if !self.process(who).events.is_empty() {
                    break;
                }
            }
        }
        if self.cause == "Outputs" {
            self.after_outputs(who);
        }
        self.reclaim(who);
        self.rearm(who);
    }

    /// The guest's words about its datagrams; sometimes they are lost.
    fn take_replies(&mut self, who: ReplicaId) -> Option<Event> {
        let hypervisor = self.process_mut(who).hypervisor.as_mut()?;
        let replies = hypervisor.guest.take_words();
        if replies.is_empty() {
            return None;
        }
        let lost = self.chance.work.chance(0.02);
        let replies = if lost { Vec::new() } else { replies };
        Some(Event::Replies { replies, lost })
    }

    /// Reclaims on the disk the entries that the log has reclaimed.
    fn reclaim(&mut self, who: ReplicaId) {
        let process = self.process_mut(who);
        if let Some(replica) = &process.replica {
            let base = replica.consensus_core().status().base;
            process.disk.reclaim(base);
        }
    }

    pub(crate) fn receive(&mut self, record: Arrival) {
        let Arrival {
            from,
            to,
            lane,
            bytes,
            ..
        } = record;
        self.check_record(to, &bytes);
        self.tell(to, Event::Received { from, lane, bytes });
    }

    /// Plans the next tick and the next sample. Outputs that the replica did not want to hear of at once
    /// are planned too, if it does now.
    fn rearm(&mut self, who: ReplicaId) {
        let now = self.plan.now();
        let process = &mut self.processes[usize::from(who.0)];
        if process.replica.is_none() {
            return;
        }
        let watch = process.watch;
        if let Some(hypervisor) = &mut process.hypervisor {
            if watch.hears_outputs {
                hypervisor.hear_outputs();
            }
        }
        let due = process.clock.global(watch.deadline).max(now + TURN);
        if due < process.tick.0 && due != Micros::NEVER {
            process.tick = (due, process.tick.1 + 1);
            self.plan.at(due, Happening::Tick(who, process.tick.1));
        }
        if let Some(period) = watch.sample_every.filter(|_| !process.sample.0) {
            process.sample = (true, process.sample.1 + 1);
            self.plan
                .after(period, Happening::Sample(who, process.sample.1));
        }
        self.plan_hypervisor(who);
    }

    pub(crate) fn on_tick(&mut self, who: ReplicaId, token: u64) {
        let now = self.plan.now();
        let process = self.process_mut(who);
        if token != process.tick.1 || process.state == State::Down {
            return;
        }
        process.tick.0 = Micros::NEVER;
        if process.replica.is_none() || process.state != State::Up {
            return;
        }
        if process.clock.local(now) < process.watch.deadline {
            return self.rearm(who);
        }
        let spins = self.invariants.nothing_spins.ticked(who, now);
        self.check(spins);
        self.tell(who, Event::Tick);
    }

    pub(crate) fn on_sample(&mut self, who: ReplicaId, token: u64) {
        let now = self.plan.now();
        let process = self.process_mut(who);
        if token != process.sample.1 || process.state != State::Up {
            if token == process.sample.1 {
                process.sample.0 = false;
            }
            return;
        }
        process.sample.0 = false;
        let wanted = process.watch.sample_every.is_some();
        if let Some(hypervisor) = process.hypervisor.as_mut().filter(|_| wanted) {
            let cpu = hypervisor.sample(now);
            self.tell(who, Event::Sample { cpu });
        }
    }

    pub(crate) fn act(&mut self, who: ReplicaId, action: Action) {
        match action {
            Action::Write {
                to, lane, bytes, ..
            } => {
                if lane == Lane::Bulk {
                    self.look_at_bulk(who, &bytes);
                }
                self.net.send(who, to, lane, bytes, &mut self.plan);
            }
            Action::PersistState(state) => self.store(who, Write::State(state)),
            Action::PersistEntries {
                after,
                anew,
                entries,
            } => {
                self.store(who, Write::Entries(after, anew, entries));
                if anew.is_some() {
                    self.log_begins_anew(who);
                }
            }
            Action::PersistGuest(record) => self.store(who, Write::Guest(record)),
            Action::Version(version) => self.on_version(who, version),
            Action::Regroup(record) => self.store(who, Write::Group(record)),
            Action::Leave => self.leaves(who),
            Action::Answer { ticket, result } => self.operator_told(who, ticket, result),
            Action::StartGuest(reason) => self.start_guest(who, reason),
            Action::KillGuest => self.process_mut(who).hypervisor = None,
            Action::Pause => self.order(who, Order::Pause),
            Action::Resume => {
                self.process_mut(who).disk.copy.settle();
                self.order(who, Order::Resume);
            }
            Action::StageDisks { sync, chunks } => {
                let hypervisor = self.process(who).hypervisor.as_ref();
                let blocks = hypervisor.map(|h| h.guest.staged_blocks(&chunks));
                let blocks = blocks.unwrap_or_default();
                self.store(who, Write::Staged(sync, blocks));
            }
            Action::Reset => self.order(who, Order::Reset),
            Action::SaveState => self.order(who, Order::Save),
            Action::Probe => self.order(who, Order::Probe),
            Action::LoadState(state) => self.order(who, Order::Load(state.bytes)),
            Action::TellCut(sync) => {
                if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
                    hypervisor.guest.tell_cut(sync.0);
                }
            }
            Action::Scan(_)
            | Action::Hash { .. }
            | Action::HashSubpages { .. }
            | Action::ReadSubpages { .. }
            | Action::ReadPages { .. }
            | Action::WriteChunks { .. } => self.work(who, action),
            Action::CopyPages { job, pages } => self.copy_pages(who, job, pages),
            Action::Feed(frames) => {
                let now = self.plan.now();
                if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
                    hypervisor.feed(now, frames);
                }
                self.plan_hypervisor(who);
            }
            Action::Operate(input) => {
                let now = self.plan.now();
                if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
                    match input {
                        OperatorInput::Console(bytes) => hypervisor.type_on(now, &bytes),
                        OperatorInput::PowerButton => hypervisor.press_button(false),
                        OperatorInput::Start => hypervisor.start_guest(now),
                        OperatorInput::Reboot => hypervisor.press_button(true),
                        OperatorInput::Reset => hypervisor.hard_reset(now),
                        OperatorInput::Pause => hypervisor.stand_still(now),
                        OperatorInput::Unpause => hypervisor.go_on(now),
                        OperatorInput::Agent(_) => {
                            unreachable!("no operator of the simulator asks an agent")
                        }
                    }
                }
                self.plan_hypervisor(who);
            }
            Action::Release { slot, frames } => self.release(who, slot, frames),
            Action::FaceClients(facing) => self.process_mut(who).facing = facing,
            Action::Announce => {
                let late = self.clients.learning();
                if self.process(who).has_tap {
                    self.plan.after(late, Happening::Learn(who));
                }
            }
            // The simulated console shows nothing, and a role shows in the other actions.
            Action::Console(_) | Action::Role { .. } | Action::SendOn(_) => {}
            Action::CutLink { peer, why } => {
                self.check(nobody_is_refused::refused(who, peer, &why));
            }
            Action::Note(note) => self.observe(who, note),
        }
    }

    /// A host is about to lose its guest: checks the disks that it finds again afterwards.
    pub(crate) fn check_disks(&mut self, who: ReplicaId) {
        if !self.invariants.log.in_sync().contains(who) {
            return;
        }
        let process = &self.processes[usize::from(who.0)];
        let Some(hypervisor) = &process.hypervisor else {
            return;
        };
        let on_match = self.scenario.releases_on_match();
        let (now, chance) = (hypervisor.guest.disk_blocks(), &mut self.chance.copies);
        let left = process.disk.copy.after_crash(&now, || chance.chance(0.5));
        if let Some(blocks) = left.filter(|blocks| !blocks.is_empty()) {
            self.coverage.hit("disks: looked at after a crash");
            let shown = &self.invariants.external_consistency;
            let check = disks_survive::check(who, &blocks, shown, on_match, &self.histories);
            self.check(check);
        }
    }

    fn store(&mut self, who: ReplicaId, write: Write) {
        let now = self.plan.now();
        let slowness = if self.process(who).disk_slow { 40 } else { 1 };
        let span = self.chance.disks.micros(self.scenario.store);
        let process = self.process_mut(who);
        process.disk.begin(write);
        let at = process.disk_free_at.max(now) + Micros(span.0 * slowness);
        process.disk_free_at = at;
        let incarnation = process.incarnation;
        self.plan.at(at, Happening::Stored(who, incarnation));
    }

    pub(crate) fn on_stored(&mut self, who: ReplicaId, incarnation: u64) {
        let process = self.process_mut(who);
        if process.incarnation != incarnation {
            return;
        }
        if let Some(done) = &mut process.disk_hangs {
            *done += 1;
            return;
        }
        if let Some(event) = process.disk.complete() {
            self.tell(who, event);
        }
    }

    fn start_guest(&mut self, who: ReplicaId, reason: BootReason) {
        let rng = self.chance.hypervisors.fork(u64::from(who.0));
        let copies = reason == BootReason::Copy;
        self.process_mut(who).disk.copy.start(copies);
        self.invariants.inputs_in_order.guest_replaced(who);
        let hypervisor = Hypervisor::start(self.scenario.hypervisor, rng, &mut self.histories);
        let process = self.process_mut(who);
        process.hypervisors += 1;
        process.hypervisor = Some(hypervisor);
        self.plan_hypervisor(who);
    }

    fn order(&mut self, who: ReplicaId, order: Order) {
        if let Some(hypervisor) = &mut self.process_mut(who).hypervisor {
            hypervisor.order(order);
        }
        self.plan_hypervisor(who);
    }

    pub(crate) fn plan_hypervisor(&mut self, who: ReplicaId) {
        let process = &mut self.processes[usize::from(who.0)];
        let number = process.hypervisors;
        if let Some(hypervisor) = &mut process.hypervisor {
            for (span, due) in hypervisor.take_due() {
                self.plan
                    .after(span, Happening::Hypervisor(who, number, due));
            }
        }
    }

    pub(crate) fn on_hypervisor(&mut self, who: ReplicaId, number: u64, due: Due) {
        let now = self.plan.now();
        let process = &mut self.processes[usize::from(who.0)];
        if process.hypervisors != number {
            return;
        }
        let Some(hypervisor) = &mut process.hypervisor else {
            return;
        };
        let hears = process.replica.is_some() && process.watch.hears_outputs;
        let event = hypervisor.on_due(now, due, hears, &mut self.histories);
        let whole = guest_is_whole::check(who, &hypervisor.guest);
        let strange = hypervisor.guest.strange.take();
        let strange = strange.filter(|_| self.invariants.log.in_sync().contains(who));
        let fed = StreamsGoOn::fed(who, strange, &self.histories);
        self.plan_hypervisor(who);
        self.check(whole.and(fed));
        self.count_life(who);
        let Some(event) = event else { return };
        if let Event::GuestDied(why) = &event {
            trace!(self, "{who}'s hypervisor {why}");
            self.coverage.hit("hypervisor: refused an order");
        }
        self.tell_of_hypervisor(who, number, event);
    }

    pub(crate) fn on_hypervisor_died(&mut self, who: ReplicaId, number: u64) {
        self.tell_of_hypervisor(who, number, Event::GuestDied("killed".to_string()));
    }

    /// Outputs go to clients. Most invariants are checked here.
    fn release(&mut self, who: ReplicaId, slot: SyncNo, mut frames: Vec<Frame>) {
        let cut_short = self.cut_short(who, slot, frames.len());
        frames.truncate(cut_short.unwrap_or(frames.len()));
        if !frames.is_empty() {
            self.send_to_clients(who, slot, frames);
        }
        if let Some(sent) = cut_short {
            self.die_releasing(who, sent);
        }
    }

    fn send_to_clients(&mut self, who: ReplicaId, slot: SyncNo, frames: Vec<Frame>) {
        let Some(replica) = &self.process(who).replica else {
            return;
        };
        let view = replica.status().view;
        if replica.consensus_core().generation() < self.generation {
            self.coverage.hit("pair: two send as the guest");
        }
        let in_sync = self.invariants.log.in_sync();
        let on_match = self.scenario.releases_on_match();
        trace!(
            self,
            "{who} releases {} frames of slot {slot}",
            frames.len()
        );
        match (in_sync.len(), self.cause) {
            (1, _) => self.coverage.hit("release: solo"),
            (_, "Received Bulk") if on_match => self.coverage.hit("release: on match or sync"),
            (_, "Outputs") if on_match => self.coverage.hit("release: on match, we were later"),
            (_, "Received Bulk") => self.coverage.hit("release: on acknowledgement"),
            _ => self.coverage.hit("release: late, the lease had run out"),
        }
        // A leader whose clock stood still takes its lease for valid. It may send what it was about to send: to clients,
        // frames that were long on their way.
        let may_be_late = self.may_trust_an_old_lease(who);
        let one = &mut self.invariants.one_sender_a_slot;
        let is_late = may_be_late && one.is_late(view);
        let check = match is_late {
            true => Ok(()),
            false => one.released(
                who,
                view,
                slot,
                on_match || self.scenario.has_clean_replies(),
            ),
        };
        self.check(check);
        let others = in_sync.iter().filter(|member| *member != who);
        let members = others.map(|member| (member, self.history_of(member)));
        let release = Release {
            who,
            view,
            stands: self.history_of(who),
            members: members.collect(),
            on_match,
        };
        for frame in &frames {
            let datagram = Datagram::decode(frame);
            let spoken = datagram.map(|datagram| datagram.as_spoken());
            if let Some(bare) = Bare::of(frame) {
                self.coverage.hit(match bare.rst {
                    true => "clean: an RST of a leader's own",
                    false => "clean: an end is asked for its number",
                });
                continue;
            }
            let spoken = spoken.or_else(|| Spoken::decode(frame));
            let spoken = spoken.expect("the guest's frames decode");
            if spoken.resets {
                self.coverage
                    .hit("guest: a connection of before its reset is refused");
            }
            let at = self.histories.find(spoken.history);
            let at = at.expect("a guest was there");
            let all = &self.histories;
            let seen = &mut self.invariants;
            let shown = &mut seen.external_consistency;
            let check = match is_late {
                true => shown.released_late(&release, at, &spoken, all),
                false => shown.released(&release, at, &spoken, all),
            };
            if datagram.is_some() {
                self.check(check);
                continue;
            }
            // In disk mode the leader knows what is committed.
            let guesses = on_match && !release.members.is_empty() && !self.scenario.keeps_log();
            let order = seen
                .inputs_in_order
                .released(who, at, guesses, all, &seen.log);
            let streams = seen.streams_go_on.shown(who, view, &spoken);
            self.check(check.and(order).and(streams));
        }
        let late = self.clients.latency();
        if self.process(who).has_tap {
            self.plan.after(late, Happening::Replies(frames));
            let late = self.clients.learning();
            self.plan.after(late, Happening::Learn(who));
        }
    }
}

//! The state of a replica and the one way to change it.

use crate::api::{Action, Config, Event, Note, Role, Watch};
use crate::context::{Context, Memory, Rules};
use crate::copy::Copies;
use crate::follow::{EarlyDirty, FollowSync};
use crate::group::Group;
use crate::guest::{Guest, Power};
use crate::hash_keys::HashKeys;
use crate::hypervisor::Order;
use crate::jobs::Jobs;
use crate::leader::Leader;
use crate::leader::operators::Operators;
use crate::leader::sync::LeadSync;
use crate::outputs::Outputs;
use crate::peers::Peers;
use crate::phase::Phase;
use crate::secondary::Secondary;
use apus::{Apus, Start};
use plover_policy::{MatchRule, RestRule, SlotRule, WaitRule};
use plover_syncvm::{HashHistory, Ledger};
use plover_types::{Frame, Lane, Micros, PageSet, ReplicaId, Unconsumed};

/// One replica: owns all state, touches nothing outside.
#[derive(Debug)]
pub struct Replica {
    /// The data that every phase shares.
    pub(crate) cx: Context,
    pub(crate) phase: Phase,
    /// The syncvm that brings the leader's state into this side's guest. Behind its end mark it outlives
    /// the phase in which it began.
    pub(crate) follow: Option<FollowSync>,
    /// The leader's part of a syncvm that this side's log has not come to.
    pub(crate) early_dirty: Option<EarlyDirty>,
}

impl Replica {
    /// A replica whose process starts at `now`.
    pub fn new(config: Config, start: Start, now: Micros) -> Self {
        let consensus = apus::Config {
            me: config.me,
            members: config.members,
            first_leader: config.first_leader,
            any_voter_stands: false,
            pair: config.pair,
            fencing: config.fencing,
            quorum_selection: false,
            newest_version: config.newest_version,
            heartbeat: config.heartbeat,
            timeout: config.timeout,
            timeout_min: config.timeout_min,
            durability: config.durability,
            log_bytes_max: config.log_bytes_max,
            message_bytes_max: config.message_bytes_max,
            seed: config.seed,
            canary: config.canary.of_consensus(),
            known_after: config.known_after,
        };
        let mut core = Apus::new(consensus, start, now);
        if config.record.is_of_the_log() {
            core.tell_members(config.record.told());
        }
        let group = Group::new(core, config.record.clone(), config.contacts);
        let others = group.record.members.all().iter();
        let others = others.chain(group.contacts.iter());
        let others = others.filter(|id| *id != config.me);
        let wait_max = config.policy.sync.wait_max(&config.slot);
        let cx = Context {
            now,
            out: Vec::new(),
            peers: Peers::new(others),
            group,
            guest: Guest::new(config.slot.idle_threshold),
            outputs: Outputs::new(config.guard_bytes_max),
            memory: Memory {
                ledger: Ledger::all(config.layout.pages()),
                reset_pages: PageSet::new(config.layout.pages()),
                recent_pages: PageSet::new(config.layout.pages()),
                hash_history: HashHistory::default(),
                hash_keys: HashKeys::new(config.hash_key),
            },
            rules: Rules {
                slot: SlotRule::new(config.slot),
                wait: WaitRule::new(wait_max),
                matching: MatchRule::new(config.matching),
                rest: RestRule::default(),
            },
            copies: Copies::default(),
            jobs: Jobs::default(),
            operators: Operators::default(),
            reaches_clients: true,
            storage_is_late: false,
            drained: config.drained,
            has_left: false,
            switch_not_before: Micros::ZERO,
            config,
        };
        Self {
            cx,
            phase: Phase::Recovering,
            follow: None,
            early_dirty: None,
        }
    }

    /// Applies one event at `now`. Appends the actions to carry out, in order, to `out`. Returns the events
    /// that the replica waits for.
    pub fn apply(&mut self, now: Micros, event: Event, out: &mut Vec<Action>) -> Watch {
        if now.since(self.cx.now) > self.cx.config.timeout {
            self.begin_waits_anew(now);
        }
        self.cx.now = self.cx.now.max(now);
        if let Some(order) = answered_by(&event) {
            self.cx.guest.unanswered.answered(order, self.cx.now);
        }
        if !self.cx.has_left {
            self.dispatch(event);
            self.settle();
        }
        out.append(&mut self.cx.out);
        self.watch()
    }

    fn dispatch(&mut self, event: Event) {
        let cx = &mut self.cx;
        match event {
            Event::Tick => cx.consensus(apus::Event::Tick),
            Event::ProcessDied(process) => {
                let peer = process.replica;
                let known = cx.peers.get_mut(peer);
                // Reports are repeated.
                if known.is_some_and(|known| known.died.replace(process) != Some(process)) {
                    cx.note(Note::DeathReported { peer });
                }
                cx.consensus(apus::Event::ProcessDied(process));
            }
            Event::PeerOff { peer, seen_at } => {
                cx.consensus(apus::Event::PeerOff { peer, seen_at });
            }
            Event::Speaks { peer, versions } => {
                self.cx.consensus(apus::Event::Speaks { peer, versions });
            }
            Event::Link { peer, up } => self.on_link(peer, up),
            Event::Received {
                from,
                lane: Lane::Log,
                bytes,
            } => cx.consensus(apus::Event::Received {
                from,
                bytes: &bytes,
            }),
            Event::Received {
                from,
                lane: Lane::Bulk,
                bytes,
            } => self.on_bulk(from, &bytes),
            Event::StatePersisted(state) => self.on_stored(apus::Event::StatePersisted(state)),
            Event::EntriesPersisted(at) => self.on_stored(apus::Event::EntriesPersisted(at)),
            Event::MembersPersisted(place) => self.on_members_persisted(place),
            Event::Frames(frames) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_frames(cx, frames);
                }
            }
            Event::Operator { ticket, input } => self.on_operator(ticket, input),
            Event::SwitchOver { to } => self.on_switch_over(to),
            Event::Members(order) => self.on_member_order(order),
            Event::Drain(drained) => self.on_drain(drained),
            Event::Tuned(tuning) => cx.tune(*tuning),
            Event::Bootstrap => self.bootstrap(),
            Event::Uplink { up } => self.on_uplink(up),
            Event::GuestStarted(machine) => self.on_guest_started(machine),
            Event::GuestPaused {
                outputs,
                unconsumed,
            } => self.on_guest_paused(outputs, unconsumed),
            Event::GuestResumed => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_resumed(cx);
                }
            }
            // Its time is all that it says.
            Event::Probed => {}
            Event::GuestResetDone => self.follow_reset_done(),
            Event::StateSaved(state) => {
                if let Some((leader, cx)) = self.leading() {
                    leader.on_state_saved(cx, state);
                }
            }
            Event::StateLoaded => self.follow_state_loaded(),
            Event::GuestDied(why) => self.on_guest_died(why),
            Event::Outputs(frames) => self.on_outputs(frames),
            Event::Replies { replies, lost } => {
                if let Some((leader, _)) = self.leading() {
                    leader.clean.said(replies, lost);
                }
            }
            Event::SyncDue => {
                if let Some((leader, _)) = self.leading() {
                    leader.slot.is_due = true;
                }
            }
            Event::Printed => {
                if let Some((leader, _)) = self.leading() {
                    leader.slot.printed = true;
                }
            }
            Event::DisksStaged(sync) => self.follow_disks_staged(sync),
            Event::Scanned(job, set) => self.on_scanned(job, &set),
            Event::Hashed(job, digests) => self.on_hashed(job, digests),
            Event::SubpagesHashed(job, hashes) => self.on_subpages_hashed(job, hashes),
            Event::PagesRead(job, chunk) => self.on_pages_read(job, chunk),
            Event::ChunksWritten(job) => self.on_chunks_written(job),
            Event::Sample { cpu } => cx.guest.activity.sample(cx.now, cpu),
        }
    }

    /// After every event: carries out the commands of consensus, does what is due by time, and releases
    /// outputs that have become safe.
    fn settle(&mut self) {
        if let Some((leader, cx)) = self.leading() {
            leader.take_operators(cx);
        }
        loop {
            self.drain_consensus();
            self.drop_contacts();
            self.retell_members();
            self.watch_hypervisor();
            self.watch_uplink();
            self.watch_planned();
            if let Some((leader, cx)) = self.leading() {
                leader.watch_log(cx);
            }
            // This replica may have given up the lead just now.
            self.drain_consensus();
            if let Some((leader, cx)) = self.leading() {
                leader.tick(cx);
            }
            let is_compared = self.reports_outputs();
            self.cx.tick_pace(is_compared);
            self.tick_follow();
            let in_a_sync = self.follow.is_some();
            match &mut self.phase {
                Phase::Leader(leader) => {
                    leader.release_what_is_safe(&mut self.cx);
                }
                Phase::Secondary(secondary) => secondary.tick_warm(&mut self.cx, in_a_sync),
                _ => {}
            }
            if self.cx.group.commands.is_empty() {
                break;
            }
        }
        self.answer_operators();
    }

    fn on_link(&mut self, id: ReplicaId, up: bool) {
        if let Some(peer) = self.cx.peers.get_mut(id) {
            // Its words about its host stand: it repeats them over a new link (`correct_leader`).
            peer.is_linked = up;
        }
        self.cx.consensus(apus::Event::Link { peer: id, up });
        if up {
            self.cx.tell_members(id);
        }
        self.cx.peers.forget_refusal(id);
        // Either way, what was in flight on the bulk lane is lost.
        if let Some((leader, cx)) = self.leading() {
            leader.on_link(cx, id);
        }
        if self.cx.group.leader == Some(id) {
            self.correct_leader();
            self.abort_follow("the link to the leader broke");
            if self.role() == Role::Joining && !self.counts_once_loaded() {
                self.leave_join();
            }
        }
        if let Some(stream) = self.cx.peers.copy_mut().filter(|s| s.peer == id) {
            stream.is_open = false;
        }
    }

    fn on_guest_paused(&mut self, outputs: Vec<Frame>, unconsumed: Unconsumed) {
        if self.cx.guest.power != Power::Pausing {
            return;
        }
        self.cx.guest.power = Power::Paused;
        self.on_outputs(outputs);
        if std::mem::take(&mut self.cx.guest.resume_when_paused) {
            return self.resume_guest(unconsumed);
        }
        match &mut self.phase {
            Phase::Leader(leader) if leader.sync.is_some() => {
                leader.on_paused(&mut self.cx, unconsumed);
            }
            _ if self.follow.is_some() => self.follow_paused(unconsumed),
            _ => self.resume_guest(unconsumed),
        }
    }

    /// The events that the body waits for until the next call.
    fn watch(&self) -> Watch {
        let in_a_sync = self.follow.as_ref();
        let drains = in_a_sync.is_some_and(FollowSync::is_draining);
        let cx = &self.cx;
        let (waits, mut hears_outputs, phase_deadline) = match &self.phase {
            Phase::Leader(leader) => {
                let waits = leader.waits_for_idleness(cx);
                let hears = leader.matching.compares() || cx.config.policy.clean_replies;
                (waits, hears, leader.deadline(cx))
            }
            Phase::Secondary(secondary) => {
                let warm = secondary.warm_deadline(cx, in_a_sync.is_some());
                (false, secondary.report.is_some(), warm)
            }
            _ => (false, false, Micros::NEVER),
        };
        let samples = waits || drains;
        hears_outputs |= !samples && self.role() != Role::Secondary;
        let prints = |leader: &Leader| leader.prints_at_once(cx);
        let console_until = match &self.phase {
            Phase::Leader(leader) if prints(leader) => cx.group.core.lease_until(),
            _ => Micros::ZERO,
        };
        let deadline = cx.group.core.deadline().min(phase_deadline);
        let deadline = deadline.min(self.follow_deadline()).min(cx.pace_deadline());
        let deadline = deadline.min(self.hypervisor_deadline());
        let deadline = deadline.min(self.retell_deadline());
        Watch {
            deadline,
            sample_every: samples.then(|| cx.guest.activity.period()),
            hears_outputs,
            console_until,
            log_base: cx.group.core.base(),
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.phase.role()
    }

    /// This leader and what it may touch, if it leads.
    pub(crate) fn leading(&mut self) -> Option<(&mut Leader, &mut Context)> {
        match &mut self.phase {
            Phase::Leader(leader) => Some((leader, &mut self.cx)),
            _ => None,
        }
    }

    /// This secondary and what it may touch, if it is one.
    pub(crate) fn following(&mut self) -> Option<(&mut Secondary, &mut Context)> {
        match &mut self.phase {
            Phase::Secondary(secondary) => Some((secondary, &mut self.cx)),
            _ => None,
        }
    }

    /// Whether this side's guest is in a state that explains everything clients have seen.
    pub(crate) fn holds_state(&self) -> bool {
        match &self.phase {
            Phase::Secondary(_) | Phase::Deposed => true,
            Phase::Leader(_) => !matches!(self.cx.guest.power, Power::Off | Power::Starting),
            Phase::Recovering | Phase::Witness { .. } | Phase::Joining { .. } => false,
        }
    }

    /// Whether this secondary reports its guest's outputs, so that inputs are given at the leader's pace.
    pub(crate) fn reports_outputs(&self) -> bool {
        matches!(&self.phase, Phase::Secondary(secondary) if secondary.report.is_some())
    }
}

/// The order that an event is the answer to.
fn answered_by(event: &Event) -> Option<Order> {
    match event {
        Event::GuestPaused { .. } => Some(Order::Pause),
        Event::GuestResumed => Some(Order::Resume),
        Event::StateSaved(_) => Some(Order::Save),
        Event::GuestResetDone => Some(Order::Reset),
        Event::StateLoaded => Some(Order::Load),
        Event::Probed => Some(Order::Probe),
        Event::Hashed(..) | Event::SubpagesHashed(..) | Event::PagesRead(..) => Some(Order::Pages),
        _ => None,
    }
}

impl Drop for Replica {
    /// A replica that goes away takes its held outputs with it: nobody has seen them.
    fn drop(&mut self) {
        if let Phase::Leader(leader) = &mut self.phase {
            if let Some((Some(held), _)) = leader.sync.take().map(LeadSync::into_parts) {
                self.cx.outputs.guard.discard(held);
            }
        }
        self.cx.outputs.guard.discard_all();
    }
}

//! The state of a replica and the one way to change it.

use crate::api::{Action, Canary, Config, Event, Note, Role};
use crate::follow_sync::{EarlyDirty, FollowSync, Kept};
use crate::guest::{Guest, Power};
use crate::join::{Joined, LeadJoin};
use crate::lead_sync::LeadSync;
use crate::matching::{Matching, Saying};
use crate::pace::Pace;
use crate::refusals::Refusals;
use crate::standby::Standby;
use crate::stream::Stream;
use crate::warm::Warming;
use apus::{Apus, Command, Phase as ConsensusPhase, Start};
use plover_guard::Guard;
use plover_policy::{IdleDetector, SlotRule, WaitRule};
use plover_syncvm::{HashHistory, Ledger, Phase};
use plover_types::{
    Frame, Index, Lane, Micros, PageSet, ReplicaId, ReplicaSet, SyncNo, Unconsumed, View,
};
use std::collections::VecDeque;

/// Why memory was read, written, scanned or hashed: answers come back in the order asked.
#[derive(Debug)]
pub(crate) enum Asked {
    /// The leader's part of this syncvm.
    Lead(SyncNo),
    /// The leader's answer to a fetch; whether it is the last part.
    LeadFetch(SyncNo, bool),
    /// The secondary's part of this syncvm.
    Follow(SyncNo),
    /// The round of this attempt to join is over.
    Join(u64),
    /// The source's part of a copy: of this opening, this chunk.
    Copy(u64, u32),
    /// The source's part of comparing, of this opening.
    Compare(u64),
    /// The target's part: of this opening, from this page on.
    Standby(u64, u32),
    /// The target writes: of this opening, so many chunks in all.
    Written(u64, u32),
    /// For a guest that was dropped before the answer, or nobody needs it.
    Nothing,
}

/// One replica: owns all state, touches nothing outside.
#[derive(Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) apus: Apus,
    pub(crate) now: Micros,
    pub(crate) out: Vec<Action>,
    pub(crate) consensus_out: Vec<Command>,

    pub(crate) role: Role,
    pub(crate) view: View,
    pub(crate) leader: Option<ReplicaId>,
    pub(crate) consensus_phase: ConsensusPhase,
    /// The newest in-sync set that is committed.
    pub(crate) in_sync: ReplicaSet,
    /// The in-sync set this leader has proposed and not yet seen committed.
    pub(crate) pending_in_sync: Option<ReplicaSet>,
    pub(crate) delivered: Index,
    pub(crate) last_input_proposed: Index,
    pub(crate) links: ReplicaSet,
    pub(crate) alive: ReplicaSet,
    /// Facing clients.
    pub(crate) serving: bool,

    pub(crate) guest: Guest,
    /// Whether this side's guest is in a state that explains everything clients have seen.
    pub(crate) holds_state: bool,
    pub(crate) guard: Guard,
    /// Outputs whose state is safe, waiting for the lease.
    pub(crate) cleared: VecDeque<(SyncNo, Vec<Frame>)>,
    pub(crate) ledger: Ledger,
    /// The newest syncvm known.
    pub(crate) sync_no: SyncNo,
    pub(crate) slot_started: Micros,
    pub(crate) slot_rule: SlotRule,
    pub(crate) wait_rule: WaitRule,
    pub(crate) idle: IdleDetector,
    pub(crate) guest_idle: bool,
    /// The last slot ended because the guest was idle, and whether it was is not known yet.
    pub(crate) idleness_unproven: bool,
    /// The last syncvm failed; the next one is a repetition.
    pub(crate) retry: bool,
    /// The guest has written so much to its disks that a syncvm is due.
    pub(crate) much_written: bool,
    /// What the guest has printed in this slot waits for its syncvm.
    pub(crate) printed: bool,
    /// Pages that device resets have been seen to write.
    pub(crate) reset_pages: PageSet,

    pub(crate) matching: Matching,
    pub(crate) saying: Option<Saying>,
    pub(crate) pace: Pace,

    pub(crate) lead: Option<LeadSync>,
    pub(crate) follow: Option<FollowSync>,
    pub(crate) early_dirty: Option<EarlyDirty>,
    /// The newest checkpoint of a secondary whose guest waits.
    pub(crate) kept: Option<Kept>,
    pub(crate) join: Option<LeadJoin>,
    pub(crate) joined: Option<Joined>,
    pub(crate) next_join_at: Micros,
    pub(crate) refusals: Refusals,
    /// Counts copies that were opened, which names them.
    pub(crate) copies: u64,
    /// The copy that this replica is the source of.
    pub(crate) stream: Option<Stream>,
    pub(crate) copied_bytes: u64,
    /// The copy that it is the target of.
    pub(crate) standby: Option<Standby>,
    pub(crate) warming: Warming,

    pub(crate) scans: VecDeque<Asked>,
    pub(crate) hashes: VecDeque<Asked>,
    pub(crate) block_hashes: VecDeque<Asked>,
    /// Those that this replica has said as a secondary, or heard of one.
    pub(crate) hash_history: HashHistory,
    pub(crate) reads: VecDeque<Asked>,
    pub(crate) writes: VecDeque<Asked>,
}

impl Replica {
    /// A replica whose process starts at `now`.
    pub fn new(config: Config, start: Start, now: Micros) -> Self {
        let consensus = apus::Config {
            me: config.me,
            members: config.members,
            first_leader: config.first_leader,
            any_voter_stands: false,
            pair: config.members.len() == 2,
            quorum_selection: false,
            heartbeat: config.heartbeat,
            timeout: config.timeout,
            durability: config.durability,
            log_bytes_max: config.log_bytes_max,
            message_bytes_max: config.message_bytes_max,
            seed: config.seed,
            canary: config.canary.of_consensus(),
        };
        let apus = Apus::new(consensus, start, now);
        Self {
            role: Role::Recovering,
            view: View::NONE,
            leader: None,
            consensus_phase: ConsensusPhase::Recovering,
            in_sync: ReplicaSet::EMPTY,
            pending_in_sync: None,
            delivered: Index(0),
            last_input_proposed: Index(0),
            links: ReplicaSet::EMPTY,
            alive: ReplicaSet::EMPTY,
            serving: false,
            guest: Guest::new(),
            holds_state: false,
            guard: Guard::new(config.guard_bytes_max),
            cleared: VecDeque::new(),
            ledger: Ledger::all(config.pages),
            sync_no: SyncNo(0),
            slot_started: now,
            slot_rule: SlotRule::new(config.slot),
            wait_rule: WaitRule::new(config.policy.sync.wait_max(&config.slot)),
            idle: IdleDetector::new(config.slot.idle_threshold),
            guest_idle: false,
            idleness_unproven: false,
            retry: false,
            much_written: false,
            printed: false,
            reset_pages: PageSet::new(config.pages),
            matching: Matching::new(&config),
            saying: None,
            pace: Pace::default(),
            lead: None,
            follow: None,
            early_dirty: None,
            kept: None,
            join: None,
            joined: None,
            next_join_at: Micros::ZERO,
            refusals: Refusals::default(),
            copies: 0,
            stream: None,
            copied_bytes: 0,
            standby: None,
            warming: Warming::default(),
            scans: VecDeque::new(),
            hashes: VecDeque::new(),
            block_hashes: VecDeque::new(),
            hash_history: HashHistory::default(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            out: Vec::new(),
            consensus_out: Vec::new(),
            apus,
            config,
            now,
        }
    }

    /// Applies one event at `now` and appends what is to be done, in order, to `out`.
    pub fn apply(&mut self, now: Micros, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        self.dispatch(event);
        self.settle();
        out.append(&mut self.out);
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => self.consensus(apus::Event::Tick),
            Event::Link { peer, up } => self.on_link(peer, up),
            Event::Received {
                from,
                lane: Lane::Log,
                bytes,
            } => {
                self.consensus(apus::Event::Received {
                    from,
                    bytes: &bytes,
                });
            }
            Event::Received {
                from,
                lane: Lane::Bulk,
                bytes,
            } => self.on_bulk(from, &bytes),
            Event::StatePersisted(view) => self.consensus(apus::Event::StatePersisted(view)),
            Event::EntriesPersisted(at) => self.consensus(apus::Event::EntriesPersisted(at)),
            Event::Frames(frames) => self.on_frames(frames),
            Event::Operator(input) => self.on_operator(input),
            Event::Bootstrap => self.apus.bootstrap(self.now, &mut self.consensus_out),
            Event::GuestStarted => self.on_guest_started(),
            Event::GuestPaused {
                outputs,
                unconsumed,
            } => {
                self.on_guest_paused(outputs, unconsumed);
            }
            Event::GuestResumed => self.lead_resumed(),
            Event::GuestResetDone => self.follow_reset_done(),
            Event::StateSaved(state) => self.lead_state_saved(state),
            Event::StateLoaded => self.follow_state_loaded(),
            Event::GuestDied(why) => self.on_guest_died(why),
            Event::Outputs(frames) => self.on_outputs(frames),
            Event::MuchWritten => self.much_written = self.role == Role::Leader,
            Event::Printed => self.printed = self.role == Role::Leader,
            Event::DisksStaged(sync) => self.follow_disks_staged(sync),
            Event::Scanned(set) => self.on_scanned(&set),
            Event::Hashed(digests) => match self.hashes.pop_front() {
                Some(Asked::Lead(sync)) => self.lead_hashed(sync, digests),
                Some(Asked::Follow(sync)) => self.follow_hashed(sync, &digests),
                Some(Asked::Compare(attempt)) => self.copy_hashed(attempt, &digests),
                Some(Asked::Standby(attempt, first)) => {
                    self.standby_hashed(attempt, first, &digests);
                }
                Some(Asked::Nothing) => {}
                other => panic!("hashes nobody asked for: {other:?}"),
            },
            Event::BlocksHashed(hashes) => match self.block_hashes.pop_front() {
                Some(Asked::Lead(sync)) => self.lead_blocks_hashed(sync, hashes),
                Some(Asked::Follow(sync)) => self.follow_blocks_hashed(sync, &hashes),
                Some(Asked::Nothing) => {}
                other => panic!("block hashes nobody asked for: {other:?}"),
            },
            Event::PagesRead(chunk) => match self.reads.pop_front() {
                Some(Asked::Lead(sync)) => self.lead_pages_read(sync, chunk),
                Some(Asked::LeadFetch(sync, last)) => self.lead_fetch_read(sync, chunk, last),
                Some(Asked::Follow(sync)) => self.follow_restore_read(sync, chunk),
                Some(Asked::Copy(attempt, seq)) => self.copy_pages_read(attempt, seq, chunk),
                Some(Asked::Nothing) => {}
                other => panic!("pages nobody asked for: {other:?}"),
            },
            Event::ChunksWritten => match self.writes.pop_front() {
                Some(Asked::Written(attempt, chunks)) => self.standby_written(attempt, chunks),
                Some(Asked::Nothing) => {}
                other => panic!("a write nobody asked for: {other:?}"),
            },
            Event::Sample { cpu } => self.guest_idle = self.idle.sample(self.now, cpu),
        }
    }

    /// After every event: what consensus asks, what time asks, what has become safe.
    fn settle(&mut self) {
        loop {
            self.drain_consensus();
            self.tick_lead();
            self.tick_pace();
            self.tick_follow();
            self.tick_join();
            self.tick_warm();
            self.release_what_is_safe();
            if self.consensus_out.is_empty() {
                break;
            }
        }
    }

    fn on_link(&mut self, peer: ReplicaId, up: bool) {
        if up {
            self.links.insert(peer);
        } else {
            self.links.remove(peer);
        }
        self.consensus(apus::Event::Link { peer, up });
        self.refusals.forget(peer);
        // Either way, what was in flight on the bulk lane is lost.
        if self.lead.as_ref().is_some_and(|s| s.peer == peer) {
            self.abort_lead("the link to the secondary broke");
        }
        if self.join.as_ref().is_some_and(|j| j.peer == peer) {
            self.fail_join("the link to the joining replica broke");
        }
        if self.leader == Some(peer) {
            self.abort_follow("the link to the leader broke");
            if self.role == Role::Joining {
                self.leave_join();
            }
        }
        if let Some(stream) = self.stream.as_mut().filter(|s| s.peer == peer) {
            stream.is_open = false;
        }
    }

    fn on_guest_paused(&mut self, outputs: Vec<Frame>, unconsumed: Unconsumed) {
        if self.guest.power != Power::Pausing {
            return;
        }
        self.guest.power = Power::Paused;
        self.on_outputs(outputs);
        if self.guest.resume_when_paused {
            self.guest.resume_when_paused = false;
            self.resume_guest(unconsumed);
        } else if self.lead.is_some() {
            self.lead_paused(unconsumed);
        } else if self.follow.is_some() {
            self.follow_paused(unconsumed);
        } else {
            self.resume_guest(unconsumed);
        }
    }

    fn on_scanned(&mut self, set: &PageSet) {
        if let Some(stream) = &mut self.stream {
            stream.owe(set);
        }
        match self.scans.pop_front() {
            Some(Asked::Lead(sync)) => self.lead_scanned(sync, set),
            Some(Asked::Follow(sync)) => self.follow_scanned(sync, set),
            Some(Asked::Join(attempt)) => self.join_scanned(attempt),
            Some(Asked::Nothing) => {}
            other => panic!("a scan nobody asked for: {other:?}"),
        }
    }

    /// How soon after the last one a sample of the guest's activity is of use, while somebody waits
    /// for it.
    pub fn wants_samples(&self) -> Option<Micros> {
        let slot_waits = self.config.policy.sync.asks_for_idleness()
            && self.role == Role::Leader
            && self.lead.is_none()
            && self.guest.power == Power::Running
            && self.secondary().is_some()
            && (self.printed || !self.guard.is_empty())
            && !self.waits_for_a_match();
        let cut_waits = self.follow.as_ref().is_some_and(FollowSync::is_draining);
        (slot_waits || cut_waits).then(|| self.idle.period())
    }

    /// Whether what the guest sends is to be told at once ([`Event::Outputs`]). If not, nothing is waited
    /// for but the guest's rest or its cut, and it is early enough to tell of it before whatever is told
    /// next, be it a sample: each frame a guest sends would otherwise wake the node for nothing.
    pub fn hears_outputs(&self) -> bool {
        let is_compared = match self.role {
            Role::Secondary => self.saying.is_some(),
            _ => self.matching.compares(),
        };
        is_compared || self.wants_samples().is_none() && self.role != Role::Secondary
    }

    /// When the next [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Micros {
        let consensus = self.apus.deadline();
        let lead = self.lead_deadline();
        let follow = self.follow_deadline();
        let join = self.join_deadline();
        let warm = self.warm_deadline();
        let pace = self.pace_deadline();
        consensus
            .min(lead)
            .min(follow)
            .min(join)
            .min(warm)
            .min(pace)
    }

    /// A peer that runs the guest in step with this leader.
    pub(crate) fn secondary(&self) -> Option<ReplicaId> {
        let set = self.pending_in_sync.unwrap_or(self.in_sync);
        set.iter()
            .find(|id| *id != self.config.me && set.contains(self.config.me))
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.out.push(Action::Note(note));
    }

    pub(crate) fn note_phase(&mut self, sync: SyncNo, phase: Phase) {
        self.note(Note::SyncPhase { sync, phase });
    }

    /// The one place where the role changes.
    pub(crate) fn set_role(&mut self, to: Role) {
        use Role::{Deposed, Joining, Leader, Recovering, Secondary, Witness};
        let from = self.role;
        if from == to {
            return;
        }
        let allowed = matches!(
            (from, to),
            (Recovering, Witness | Leader)
                | (Witness, Joining | Leader)
                | (Joining, Secondary | Witness)
                | (Secondary, Leader | Witness)
                | (Leader, Deposed | Witness)
                | (Deposed, Leader | Witness)
        );
        assert!(allowed, "no way from {from:?} to {to:?}");
        self.role = to;
        let view = self.view;
        self.note(Note::Role { from, to, view });
    }

    pub(crate) fn set_holds_state(&mut self, holds: bool) {
        self.holds_state = holds;
        self.apus.set_holds_state(holds);
    }

    pub(crate) fn canary(&self, canary: Canary) -> bool {
        self.config.canary == canary
    }
}

impl Drop for Replica {
    /// A replica that goes away takes its held outputs with it: nobody has seen them.
    fn drop(&mut self) {
        if let Some(held) = self.lead.take().and_then(LeadSync::into_held) {
            held.discard();
        }
        self.guard.discard_all();
    }
}

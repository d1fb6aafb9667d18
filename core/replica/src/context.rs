//! The state that every phase of a replica shares: its configuration, its group, its peers, its guest.

use crate::api::{Action, BootReason, Config, Note, OwnFault};
use crate::copy::Copies;
use crate::group::Group;
use crate::guest::Power;
use crate::guest::{Arrange, Cut, Guest, Input};
use crate::hash_keys::HashKeys;
use crate::hypervisor::Order;
use crate::jobs::{Job, JobId, Jobs};
use crate::leader::operators::Operators;
use crate::log_ops::REST_VERSION;
use crate::outputs::Outputs;
use crate::peers::Peers;
use apus::{EntryKind, ProposeError};
use plover_policy::{MatchRule, RestRule, Secondary, Sent, SlotRule, WaitRule};
use plover_syncvm::message::Body;
use plover_syncvm::{HashHistory, Ledger, Phase, SyncMessage};
use plover_types::{Lane, Micros, PageSet, ReplicaId, SyncNo, Unconsumed, Viewstamp, wire};

/// The guest's pages, as far as this side knows them and the other's.
#[derive(Debug)]
pub(crate) struct Memory {
    pub ledger: Ledger,
    /// Pages that device resets have been seen to write.
    pub reset_pages: PageSet,
    /// Pages that either guest had written when this secondary last took the leader's state.
    pub recent_pages: PageSet,
    /// The hashes that this replica has sent as a secondary, or received from one.
    pub hash_history: HashHistory,
    /// The keys that this replica has drawn.
    pub hash_keys: HashKeys,
}

/// The rules that learn from syncs. They outlive a phase: the guest stays the same.
#[derive(Debug)]
pub(crate) struct Rules {
    pub slot: SlotRule,
    pub wait: WaitRule,
    pub matching: MatchRule,
    pub rest: RestRule,
}

/// The state that every phase may use.
#[derive(Debug)]
pub(crate) struct Context {
    pub config: Config,
    pub now: Micros,
    pub out: Vec<Action>,
    pub group: Group,
    pub peers: Peers,
    pub guest: Guest,
    pub outputs: Outputs,
    pub memory: Memory,
    pub rules: Rules,
    pub copies: Copies,
    pub jobs: Jobs,
    /// The inputs of this leader's operators.
    pub operators: Operators,
    /// Whether clients are reached from this host.
    pub reaches_clients: bool,
    /// This replica has handed over since its own disk has not stored the log in time, and it still has not.
    pub storage_is_late: bool,
    /// Whether an operator has drained this host.
    pub drained: bool,
    /// This replica is no member of the group any more.
    pub has_left: bool,
    /// A leader that is drained does not hand over before, because that was in vain a moment ago.
    pub switch_not_before: Micros,
}

impl Context {
    pub fn note(&mut self, note: Note) {
        self.out.push(Action::Note(note));
    }

    pub fn note_phase(&mut self, sync: SyncNo, phase: Phase) {
        self.note(Note::SyncPhase { sync, phase });
    }

    /// Asks for work on pages; the answer finds its job again.
    pub fn ask(&mut self, job: Job, action: impl FnOnce(JobId) -> Action) {
        let id = self.jobs.begin(job);
        self.out.push(action(id));
    }

    /// Orders the hypervisor to do something; its answer is timed.
    pub fn order(&mut self, order: Order, action: Action) {
        self.guest.unanswered.ordered(order, self.now);
        self.out.push(action);
    }

    /// Sends a message on the bulk lane; returns its length.
    pub fn send_bulk(&mut self, to: ReplicaId, body: Body) -> u64 {
        let payload = body.payload();
        let since = body.since();
        // A peer that knows the group's version knows this message.
        assert!(
            since <= self.group.usable_version(),
            "{body:?} in a group of an older version"
        );
        let view = self.group.view;
        let bytes = wire::encode_since(since, &SyncMessage { view, body });
        let len = bytes.len() as u64;
        self.out.push(Action::Write {
            to,
            lane: Lane::Bulk,
            payload,
            bytes,
        });
        len
    }

    /// The leader of this view. One that is suspected may lead on, and then waits for what this replica has to tell it.
    pub fn leader_of_view(&self) -> Option<ReplicaId> {
        let leader = self.group.leader.or(self.group.view.leader());
        leader.filter(|leader| *leader != self.config.me)
    }

    /// A peer has sent what no correct replica sends. Links that break end what was under way over them.
    pub fn cut_link(&mut self, peer: ReplicaId, why: &str) {
        let why = why.to_string();
        self.out.push(Action::CutLink { peer, why });
    }

    /// The same, of the leader.
    pub fn cut_leader(&mut self, why: &str) {
        if let Some(leader) = self.group.leader {
            self.cut_link(leader, why);
        }
    }

    /// A message of the leader makes no sense here.
    pub fn reject_leader(&mut self, why: &str) {
        if let Some(from) = self.group.leader {
            let why = why.to_string();
            self.note(Note::Rejected { from, why });
        }
    }

    pub fn consensus(&mut self, event: apus::Event<'_>) {
        let Group { core, commands, .. } = &mut self.group;
        core.apply(self.now, event, commands);
    }

    /// Proposes and sends at once.
    pub fn propose(
        &mut self,
        kind: EntryKind,
        payload: Vec<u8>,
    ) -> Result<Viewstamp, ProposeError> {
        let Group { core, commands, .. } = &mut self.group;
        let viewstamp = core.propose(self.now, kind, payload)?;
        core.flush(self.now, commands);
        Ok(viewstamp)
    }

    pub fn is_log_half_full(&self) -> bool {
        self.group.core.status().log_bytes * 2 > self.config.log_bytes_max
    }

    /// Another replica that holds the guest is to lead, because this host is at fault; this one keeps its guest until that
    /// is agreed.
    pub fn hand_over(&mut self, why: OwnFault) {
        self.note(Note::Resigned { why });
        self.out.push(Action::SendOn(Vec::new()));
        let Group { core, commands, .. } = &mut self.group;
        core.hand_over(self.now, commands);
    }

    /// Whether there is no third replica that decides.
    pub fn is_pair(&self) -> bool {
        self.config.pair
    }

    /// Whether the secondary's guest stands still, so that syncs are checkpoints.
    pub fn takes_checkpoints(&self) -> bool {
        self.config.policy.secondary == Secondary::Waits
    }

    /// Whether the secondary's guest runs or rests, as the leader decides for each slot. It runs while a replica of the
    /// group may not know the entry that lets it rest.
    pub fn may_rest(&self) -> bool {
        let is_known = self.group.core.version() >= REST_VERSION;
        is_known && self.config.policy.secondary == Secondary::Semi
    }

    /// Whether a secondary that runs is sent all pages, unhashed.
    pub fn sends_unhashed(&self) -> bool {
        let policy = &self.config.policy;
        policy.secondary != Secondary::Waits && policy.sent == Sent::AllOfPrimary
    }

    /// Clients know connections that the guest opens from here on by the guest's own sequence numbers.
    pub fn stop_translating(&mut self) {
        for frame in self.guest.translator.stop() {
            // One that finds no room is lost, as on any network.
            self.outputs.guard.hold(self.now, self.guest.taken, frame);
        }
    }

    pub fn start_guest(&mut self, reason: BootReason) {
        self.guest.power = Power::Starting;
        self.out.push(Action::StartGuest(reason));
    }

    /// Gives the guest an input, which is no cut.
    pub fn feed(&mut self, input: Input) {
        self.guest.activity.fed();
        let cut = self.guest.give(self.now, input, &mut self.out);
        assert_eq!(cut, None, "an input is no cut");
    }

    /// Lets a paused guest run; `first` is fed before the waiting inputs. Returns the cut at which the gate
    /// stays shut.
    pub fn resume_guest(&mut self, first: Unconsumed, arrange: Arrange) -> Option<Cut> {
        self.guest.resume(self.now, first, arrange, &mut self.out)
    }

    /// Lets waiting inputs through to a guest that runs, up to a cut.
    pub fn open_gate(&mut self, arrange: Arrange) -> Option<Cut> {
        let nothing = Unconsumed::default();
        self.guest
            .open_gate(self.now, nothing, arrange, &mut self.out)
    }
}

//! One replica: its state, and where each event goes.

use crate::api::{Action, Config, Entrance, Event, LogState, Note, Own, Taint};
use crate::canary::canary;
use crate::check::{Check, Verdict};
use crate::checkpoints::Checkpoints;
use crate::feed::Feed;
use crate::pace::Pace;
use crate::{Claim, ConnectionId, Entry, Phase};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};

/// Entries with claims that one turn proposes.
const CLAIMS_PER_TURN: usize = 8;

/// One replica of a program.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) phase: Phase,
    pub(crate) log: LogState,
    pub(crate) feed: Feed,
    pub(crate) check: Check,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) pace: Pace,
    /// The program stands still.
    pub(crate) stalled: bool,
    /// The caller takes a checkpoint.
    pub(crate) taking: bool,
    /// How often in a row the program could not be started, died or diverged soon after.
    pub(crate) failures: u32,
    /// The own checkpoint, after too many failed starts from it.
    pub(crate) doubted: Option<Viewstamp>,
    /// Since when it runs.
    pub(crate) runs_since: Micros,
    /// When a leader proposes its next cut, and when one that lacks a checkpoint asks for it again.
    pub(crate) repeat_at: Micros,
    /// How often in a row it has asked.
    pub(crate) needs: u32,
    /// When what must get into the log still is proposed again.
    pub(crate) say_at: Micros,
    /// The log does not say yet that this replica's program has diverged.
    pub(crate) confesses: Option<Index>,
    /// The log does not say yet that it cannot take the checkpoint that it was asked for.
    pub(crate) refuses: bool,
    /// The newest cut at which it could not take a checkpoint. A program that does not survive the attempt comes to that cut again.
    pub(crate) failed_at: Option<Viewstamp>,
    /// It was noted that there is no checkpoint.
    pub(crate) lacks: bool,
    /// The connection on which replicas differed last.
    pub(crate) differs: Option<ConnectionId>,
    /// Replicas whose divergence was noted.
    pub(crate) noted: ReplicaSet,
}

impl Replica {
    /// A replica that starts. `own` is the checkpoint on its disk, if it has one.
    pub fn new(config: Config, own: Option<Own>) -> Self {
        Self {
            phase: Phase::Looking { next: Index(1) },
            log: LogState::default(),
            feed: Feed::new(Index(1)),
            check: Check::new(config.me, config.members, config.check),
            checkpoints: Checkpoints::new(&config, own),
            pace: Pace::new(config.me, config.members),
            stalled: false,
            taking: false,
            failures: 0,
            doubted: None,
            runs_since: Micros::NEVER,
            repeat_at: Micros::ZERO,
            needs: 0,
            say_at: Micros::ZERO,
            confesses: None,
            refuses: false,
            failed_at: None,
            lacks: false,
            differs: None,
            noted: ReplicaSet::EMPTY,
            config,
        }
    }

    /// Applies one event and appends the actions that follow from it to `out`.
    pub fn apply(&mut self, now: Micros, event: Event<'_>, out: &mut Vec<Action>) {
        match event {
            Event::Log(log) => self.on_log(now, log, out),
            Event::Entry(at, bytes) => self.on_entry(now, at, bytes, out),
            Event::Consumed(connection) => {
                self.feed.consumed(now, connection);
                self.stalled = false;
                self.go_on(now, out);
            }
            // A program that is being ended for a checkpoint answers nobody.
            Event::Output(..) | Event::OutputEnded(_) if self.taking && self.config.restarts => {}
            Event::Output(connection, bytes) => self.on_output(now, connection, bytes, out),
            Event::OutputEnded(connection) => {
                if let Some(open) = self.feed.open.get_mut(&connection) {
                    open.finished = true;
                    let mut verdicts = Vec::new();
                    if !open.inherited {
                        self.check.ended(now, connection, &mut verdicts);
                    }
                    self.judge(now, verdicts, out);
                    if self.replies() {
                        out.push(Action::Finish(connection));
                    }
                    self.go_on(now, out);
                }
            }
            Event::Proposed(at) => {
                self.stalled = false;
                self.on_proposed(at, out);
            }
            Event::ProposedTime(at) => self.on_proposed(at, out),
            Event::Unproposed => self.on_unproposed(now, out),
            Event::Quiet => self.on_quiet(),
            Event::StandsStill => self.stalled = true,
            Event::Started(state) => self.on_started(now, state, out),
            Event::CheckpointLost => self.checkpoints.disown(),
            Event::StartFailed(why) => self.taint(now, Taint::NotStarted(why), out),
            Event::Died(why) => self.taint(now, Taint::Died(why), out),
            Event::CheckpointTaken(result) => self.on_taken(now, result, out),
            Event::Fetched(result) => self.on_fetched(now, result, out),
        }
    }

    /// Consensus has moved, or time has passed.
    fn on_log(&mut self, now: Micros, log: LogState, out: &mut Vec<Action>) {
        self.log = log;
        if let Phase::Leading { view, .. } = self.phase {
            if log.leads != Some(view) {
                out.push(Action::DropClients);
                self.phase.enter(Phase::Following);
                out.extend(self.pace.follows().map(Action::Release));
                if canary!(self.config, StandAhead) {
                    self.go_on_ahead();
                }
            }
        }
        if self.phase.executes() {
            if let Some(view) = log.leads.filter(|_| self.may_begin_to_lead()) {
                self.lead(view);
            }
            if self.feed.next <= log.base {
                self.taint(now, Taint::Behind, out);
            }
        }
        if now >= self.feed.stalls_at(self.config.stall) {
            self.stalled = true;
        }
        if now >= self.checkpoint_due().min(self.feed.end_due()) {
            self.go_on(now, out);
        }
        let is_full = self.is_full();
        self.checkpoints.look(now, self.log.linked, is_full);
        self.keep_up(out);
        self.advance_start(now, out);
        self.keep_pace(now, out);
        self.repeat(now, out);
        if matches!(self.phase, Phase::Leading { .. }) {
            self.advance_lead(now, out);
        }
    }

    /// Proposes what the log lacks of this replica.
    fn repeat(&mut self, now: Micros, out: &mut Vec<Action>) {
        // A full log has room for checkpoints alone.
        for _ in 0..CLAIMS_PER_TURN {
            let Some(claims) = self.claims_due(now) else {
                break;
            };
            out.push(propose(&Entry::Claims(self.config.me, claims)));
        }
        if let Some(held) = self.checkpoints.announce(now, &self.config.address) {
            out.push(propose(&Entry::Holds(held)));
        }
        if !self.is_full() {
            let progress = self.pace.says(now);
            out.extend(progress.map(|it| propose(&Entry::Progress(self.config.me, it))));
        }
        if (self.confesses.is_some() || self.refuses) && now >= self.say_at {
            self.say_at = now + crate::checkpoints::REPEAT;
            if let Some(executed) = self.confesses {
                out.push(propose(&Entry::Tainted(self.config.me, executed)));
            } else {
                self.need(out);
            }
        }
    }

    fn claims_due(&mut self, now: Micros) -> Option<Vec<Claim>> {
        if self.is_full() {
            return None;
        }
        self.check.due(now)
    }

    /// The other replicas to which a link is up.
    pub(crate) fn followers(&self) -> ReplicaSet {
        let mut others = ReplicaSet(self.config.members.0 & self.log.linked.0);
        others.remove(self.config.me);
        others
    }

    /// Looks whether this replica's program keeps up, and whether a leader waits for those of its followers.
    fn keep_pace(&mut self, now: Micros, out: &mut Vec<Action>) {
        if self.phase.executes() {
            let held = self.feed.checkpoint.is_some();
            let next = self.feed.first_unread();
            self.pace.look(now, self.log.commit, next, held);
        }
        if matches!(self.phase, Phase::Leading { .. }) {
            let followers = self.followers();
            let released = self.pace.lead(now, followers);
            out.extend(released.map(Action::Release));
        }
    }

    /// Whether the caller sends what the program answers to clients.
    fn replies(&self) -> bool {
        self.config.entrance == Entrance::Fed && matches!(self.phase, Phase::Leading { .. })
    }

    fn on_output(
        &mut self,
        now: Micros,
        connection: ConnectionId,
        bytes: &[u8],
        out: &mut Vec<Action>,
    ) {
        let Some(open) = self.feed.open.get_mut(&connection) else {
            return;
        };
        if !self.phase.executes() {
            return;
        }
        // Of an inherited connection it is what the leader's program has written into its shared memory.
        open.session.sent = open.session.sent.saturating_add(bytes.len() as u64);
        self.feed.active_at = now;
        let is_compared = !open.inherited;
        if self.replies() {
            out.push(Action::Reply(connection, bytes.to_vec()));
        }
        let mut verdicts = Vec::new();
        if is_compared {
            self.check.sent(now, connection, bytes, &mut verdicts);
        }
        self.judge(now, verdicts, out);
        if self.feed.checkpoint.is_some() || self.feed.held.is_some() {
            self.go_on(now, out);
        }
    }

    /// Draws the consequences of comparisons.
    pub(crate) fn judge(&mut self, now: Micros, verdicts: Vec<Verdict>, out: &mut Vec<Action>) {
        for verdict in verdicts {
            let (Verdict::Differs(difference) | Verdict::Wrong(difference)) = &verdict;
            // The first difference of a connection tells what an operator can know.
            let is_new = self.differs != Some(difference.connection);
            if is_new {
                self.differs = Some(difference.connection);
                let excerpt = self.check.excerpt(difference).filter(|_| !self.is_full());
                out.extend(excerpt.map(|it| propose(&Entry::Excerpt(it))));
            }
            match verdict {
                Verdict::Differs(difference) if is_new => {
                    out.push(Action::Note(Note::Differs(difference)));
                }
                Verdict::Differs(_) => {}
                Verdict::Wrong(difference) => {
                    if difference
                        .replicas
                        .iter()
                        .any(|id| !self.noted.contains(id))
                    {
                        self.noted.0 |= difference.replicas.0;
                        out.push(Action::Note(Note::Wrong(difference)));
                    }
                    let me = self.config.me;
                    let is_wrong = difference.replicas.contains(me) && self.phase.executes();
                    if is_wrong && !canary!(self.config, LeadDiverged) {
                        let executed = Index(self.feed.next.0.saturating_sub(1));
                        (self.confesses, self.say_at) = (Some(executed), now);
                        self.taint(now, Taint::Diverged(difference.connection), out);
                    }
                }
            }
        }
    }

    /// Whether this replica's own program has taken the checkpoint at `at`, and was found wrong since. From the time at which the log
    /// says so, nobody starts from it ([`Entry::Tainted`]); this replica may start before that.
    pub(crate) fn has_found_wrong(&self, taken_by: ReplicaId, at: Viewstamp) -> bool {
        let is_own = taken_by == self.config.me && !canary!(self.config, StartWrong);
        is_own && self.confesses.is_some_and(|executed| at.index <= executed)
    }

    /// The entry that this replica takes next, if it can take one now.
    pub fn wants(&self) -> Option<Index> {
        let (next, limit) = match &self.phase {
            Phase::Looking { next } | Phase::Fetching { next, .. } => {
                ((*next).max(self.log.base.next()), self.log.commit)
            }
            Phase::Leading { .. } if canary!(self.config, ReplyBeforeCommit) => {
                (self.feed.next, self.log.last.index)
            }
            Phase::Following | Phase::Leading { .. } => (self.feed.next, self.log.commit),
            Phase::Restoring { .. } | Phase::Tainted { .. } => return None,
        };
        let is_ready = !self.phase.executes() || self.feed.is_ready();
        (is_ready && next <= limit && next > self.log.base).then_some(next)
    }
}

/// The action that proposes `entry`.
pub(crate) fn propose(entry: &Entry<'_>) -> Action {
    Action::Propose(entry.encode())
}

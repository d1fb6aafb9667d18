//! The leader's half of the normal case: order, send, count, commit.
//!
//! ```text
//!   propose, propose, ... --> log
//!   flush --> Append to every peer (several in flight, a bounded window each)
//!                          |
//!     (`replicate`) Ack{matched} from peers, own copy counted once durable
//!                          |
//!          a quorum holds an entry of *this* view --> it and all entries before are committed
//! ```
//!
//! In a group with a guest every replica that is in sync has to hold it as well (`milestone`).
//!
//! Entries of older views are never committed by counting copies: a majority may hold one, and a
//! later leader still replaces it (figure 8 of the Raft paper). They are committed with the first
//! entry of this view that follows them, which is why a leader begins with a no-op.
//!
//! Batches form by themselves (APUS §4): entries that are proposed in one turn of the caller's loop
//! go together, and so do those that gather while the window is closed. An idle group sends an entry
//! at once.

use crate::canary::canary;
use crate::message::{ENTRY_BYTES_MAX, HEADER_BYTES_MAX, Vote};
use crate::peers::Peer;
use crate::quorum_selection::QuorumSelection;
use crate::resign::Resigned;
use crate::{Apus, Role};
use crate::{Command, Entry, EntryKind, Members, ProposeError, VOTERS_MAX};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::collections::{BTreeMap, VecDeque};

/// The state of a leader.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    pub peers: BTreeMap<ReplicaId, Peer>,
    heartbeat_at: Micros,
    /// No replica needs entries up to here.
    pub trim: Index,
    /// The backups that get an entry at once, and those that get it a little later.
    pub selection: QuorumSelection,
    /// Counts the times that something was sent.
    pub round: u64,
    /// For how long the voters are asked to refuse others (see `silence`).
    pub span: Micros,
    /// Until then the span is the longest: the leader before this one was taken for dead, and was not.
    pub hasty_until: Micros,
    /// The leader before this one has resigned.
    pub predecessor: Option<Resigned>,
    /// The last entry before those that `propose` took and `flush` has not sent.
    unsent: Option<Viewstamp>,
    /// The entries that wait for this replica's own storage.
    pub unstored: Unstored,
}

/// Entries that a leader's own storage has not confirmed. Others may commit them meanwhile, and they may be trimmed, but
/// they take memory until it has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unstored {
    /// Of each request its last index, its bytes, and when it was made.
    requests: VecDeque<(Index, usize, Micros)>,
    bytes: usize,
}

impl Unstored {
    pub(crate) fn asked(&mut self, last: Index, bytes: usize, now: Micros) {
        self.requests.push_back((last, bytes, now));
        self.bytes += bytes;
    }

    pub(crate) fn oldest(&self) -> Option<(Index, Micros)> {
        self.requests
            .front()
            .map(|(last, _, since)| (*last, *since))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn stored(&mut self, index: Index) {
        while let Some((_, bytes, _)) = self.requests.front().filter(|it| it.0 <= index) {
            self.bytes -= bytes;
            self.requests.pop_front();
        }
    }
}

impl Leadership {
    pub(crate) fn deadline(&self, timeout: Micros) -> Micros {
        if self.unsent.is_some() {
            return Micros::ZERO;
        }
        let dead_at = self.peers.values().map(|peer| peer.dead_at(timeout)).min();
        let due = self.heartbeat_at.min(self.selection.deadline());
        dead_at.map_or(Micros::NEVER, |at| at.min(due))
    }

    /// The replicas that are sent the log.
    pub(crate) fn audience(&self) -> ReplicaSet {
        ReplicaSet::of(self.peers.keys().copied())
    }

    /// The peers among `voters`.
    pub(crate) fn voters(&self, voters: ReplicaSet) -> impl Iterator<Item = &Peer> {
        let peers = self.peers.iter();
        peers.filter_map(move |(id, peer)| voters.contains(*id).then_some(peer))
    }

    /// Sends the log to `id` from now on, if it was not sent before.
    pub(crate) fn welcome(&mut self, id: ReplicaId, now: Micros) {
        let newcomer = || Peer::new(Index(0), now);
        self.peers.entry(id).or_insert_with(newcomer);
    }
}

impl Apus {
    /// Appends an entry to the leader's log. The next [`flush`](Self::flush) sends it, with all
    /// others that were proposed until then. [`Command::Deliver`] says when it is committed.
    ///
    /// Entries about the group (all but [`EntryKind::App`]) are taken even when the log is full:
    /// they may be what allows it to be trimmed.
    ///
    /// # Errors
    ///
    /// The reason why the entry was not taken, and what the caller can do.
    pub fn propose(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: Vec<u8>,
    ) -> Result<Viewstamp, ProposeError> {
        let Role::Leading(leadership) = &self.role else {
            return Err(ProposeError::NotLeader);
        };
        if payload.len() + HEADER_BYTES_MAX + ENTRY_BYTES_MAX > self.config.message_bytes_max {
            return Err(ProposeError::TooLarge(payload.len()));
        }
        match kind {
            EntryKind::App => {
                let bytes = self.log.bytes().max(leadership.unstored.bytes);
                let is_full = bytes + payload.len() > self.config.log_bytes_max;
                if is_full || self.log.held() > self.config.held_bytes_max() {
                    return Err(ProposeError::LogFull);
                }
            }
            EntryKind::Noop => assert!(payload.is_empty(), "a no-op carries nothing"),
            EntryKind::InSync(set) => {
                assert!(payload.is_empty(), "an in-sync set carries nothing else");
                assert!(
                    !set.is_empty() && set.0 & !self.members().voters.0 == 0,
                    "in-sync set {set} off the group"
                );
            }
            EntryKind::Version(version) => {
                assert!(payload.is_empty(), "a version carries nothing else");
                assert!(
                    version <= self.config.newest_version,
                    "this replica does not speak version {version}"
                );
            }
            EntryKind::Members(members) => {
                self.check_members(members).map_err(ProposeError::Members)?;
                self.welcome(now, members);
            }
        }
        Ok(self.append(kind, payload))
    }

    fn append(&mut self, kind: EntryKind, payload: Vec<u8>) -> Viewstamp {
        let prev = self.log.last();
        let viewstamp = Viewstamp {
            view: self.promised,
            index: prev.index.next(),
        };
        self.log.push(Entry {
            viewstamp,
            kind,
            payload,
        });
        if let Role::Leading(leadership) = &mut self.role {
            leadership.unsent.get_or_insert(prev);
            if matches!(kind, EntryKind::Members(_)) {
                // A majority may take more voters now.
                leadership.selection.suspend();
            }
        }
        viewstamp
    }

    /// Sends the entries that were proposed since the last call, and makes them durable. Call it at the
    /// end of each turn in which something was proposed.
    pub fn flush(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let Some(prev) = leadership.unsent.take() else {
            return;
        };
        // Sends first, so that the others' storage works at the same time as this replica's.
        self.replicate_to_all(now, false, out);
        self.persist_after(prev, None, out);
        self.advance_commit(now, out);
    }

    /// Reclaims committed entries up to `index`, because no replica needs them any more. Backups
    /// learn of it with the next message. Ignored unless leading.
    pub fn trim(&mut self, index: Index) {
        if let Role::Leading(leadership) = &mut self.role {
            self.log.trim(index, &mut self.pool);
            leadership.trim = leadership.trim.max(self.log.base().index);
        }
    }

    /// The time until which no other replica can be elected: the send time of the newest message that
    /// a quorum has acknowledged, plus the span that stood in it less an eighth for clock drift. Zero
    /// unless leading; [`Micros::NEVER`] for a group of one, and for a leader of a pair that has no
    /// partner in sync.
    ///
    /// This is sound because a replica that answered refuses its vote for that span after it
    /// *received* the message, a candidate needs the vote of one of them, and a leader that gives
    /// its own vote to a candidate stops leading in the same step.
    pub fn lease_until(&self) -> Micros {
        let Role::Leading(leadership) = &self.role else {
            return Micros::ZERO;
        };
        if self.config.pair {
            let partner = self.partner(leadership);
            return partner.map_or(Micros::NEVER, |peer| peer.faithful_until);
        }
        let members = self.members();
        let peers_needed = members.quorum() - usize::from(self.is_voter());
        if peers_needed == 0 {
            return Micros::NEVER;
        }
        let mut faithful = [Micros::ZERO; VOTERS_MAX];
        let voters = leadership.voters(members.voters);
        for (slot, peer) in faithful.iter_mut().zip(voters) {
            *slot = peer.faithful_until;
        }
        faithful.sort_unstable_by(|a, b| b.cmp(a));
        faithful[peers_needed - 1]
    }

    /// Begins to lead the view that was won. `votes` say where each voter's log ends.
    pub(crate) fn lead(
        &mut self,
        now: Micros,
        votes: &BTreeMap<ReplicaId, Vote>,
        out: &mut Vec<Command>,
    ) {
        assert_eq!(
            self.promised.leader(),
            Some(self.config.me),
            "another's view"
        );
        assert!(self.is_eligible(), "leading without the right to");
        let peers = self.others().iter().map(|id| {
            let believed = match votes.get(&id) {
                Some(vote) => self.held_by(vote.last, vote.commit),
                None => Some(self.log.last().index),
            };
            let mut peer = Peer::new(believed.unwrap_or(Index(0)), now);
            peer.needs_snapshot = believed.is_none();
            (id, peer)
        });
        let leadership = Leadership {
            peers: peers.collect(),
            heartbeat_at: now + self.config.heartbeat,
            trim: self.log.base().index,
            selection: QuorumSelection::new(),
            round: 0,
            span: self.config.timeout,
            hasty_until: Micros::ZERO,
            predecessor: self.heard.resigned.take(),
            unsent: None,
            unstored: Unstored::default(),
        };
        self.transition(Role::Leading(leadership));
        self.told = None;
        out.push(Command::Lead {
            view: self.promised,
        });
        self.append(EntryKind::Noop, Vec::new());
        self.flush(now, out);
    }

    pub(crate) fn tick_leading(&mut self, now: Micros, out: &mut Vec<Command>) {
        let timeout = self.config.timeout;
        let beats = match (self.config.pair, self.recovery.doubt) {
            (false, _) => 0,
            (true, None) => self.beats_to_death(),
            (true, Some(_)) => u64::MAX,
        };
        let late_by = self.config.heartbeat;
        let excused_until = now + self.config.grace();
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        for (&id, peer) in &mut leadership.peers {
            let dead_at = peer.dead_at(timeout);
            if now >= dead_at && peer.unanswered >= beats {
                // Where beats are counted, a process that stood still itself has sent none meanwhile.
                let is_late = beats == 0 && now.since(dead_at) >= late_by;
                if is_late && peer.excuse(excused_until) {
                    continue;
                }
                peer.dead();
                leadership.selection.suspend();
                out.push(Command::PeerAlive {
                    peer: id,
                    alive: false,
                });
            }
        }
        let beat = now >= leadership.heartbeat_at;
        if beat {
            leadership.heartbeat_at = now + self.config.heartbeat;
            for peer in leadership.peers.values_mut() {
                peer.unanswered += 1;
            }
            self.choose_span(now);
            self.raise_version(now);
        }
        self.flush(now, out);
        self.tick_slow_followers(now, out);
        if beat {
            self.replicate_to_all(now, true, out);
        }
    }

    /// The last index up to which a quorum holds this log.
    fn held_by_quorum(&self, leadership: &Leadership, members: Members) -> Index {
        let mut held = [Index(0); VOTERS_MAX + 1];
        if self.is_voter() {
            held[VOTERS_MAX] = self.counted();
        }
        let voters = leadership.voters(members.voters);
        for (slot, peer) in held.iter_mut().zip(voters) {
            *slot = peer.matched;
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        held[members.quorum() - 1]
    }

    /// Commits the entries that a quorum holds, if the last of them is of this view.
    pub(crate) fn advance_commit(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Leading(leadership) = &self.role else {
            return;
        };
        let members = self.members();
        let index = if self.config.pair {
            self.held_by_pair(leadership)
        } else {
            let by_quorum = self.held_by_quorum(leadership, members);
            self.held_by_in_sync(leadership, by_quorum)
        };
        let before = self.log.commit();
        let count_old_views = canary!(self.config, CountOldViews);
        if index > before
            && self
                .log
                .at(index)
                .is_some_and(|entry| entry.view == self.promised || count_old_views)
        {
            self.commit_to(index, out);
            self.select_quorum(now, index);
            let milestone = self.keeps_milestones() && self.log.milestone().index > before;
            if milestone || !self.backups_commit_alone() {
                self.replicate_to_all(now, milestone, out);
            }
            let changed_at = self.log.members_at();
            if changed_at > before && changed_at <= index {
                self.dismiss(now, members, out);
            }
        }
    }
}

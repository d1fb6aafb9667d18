//! The backup's half of the normal case: accept, acknowledge, deliver.
//!
//! ```text
//!   Append{prev, entries, commit} --> have prev? --no--> Gap{where my log ends}
//!                                        | yes
//!                     skip entries that are there, replace those that differ, append the rest
//!                                        |
//!                     memory: at once;   |   disk: once stable
//!                                     Ack{matched}
//! ```
//!
//! `matched` is how far this log is known to equal the leader's *in this view*. Entries beyond it
//! may be left over from an older view, and are neither acknowledged nor committed.

use crate::log::{Accepted, Log};
use crate::message::{Ack, Append, Batch, Gap, HEADER_BYTES_MAX, Message};
use crate::{Apus, Role};
use crate::{Command, Configuration, Contradiction, Durability};
use plover_types::{Incarnation, Index, Micros, ReplicaId, View, Viewstamp};
use std::fmt;

/// The state of a follower.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    /// The leader, once heard from, until suspected.
    pub leader: Option<ReplicaId>,
    /// This log equals the leader's up to here.
    pub matched: Index,
    /// The leader's clock in its newest message, and the silence that it asked for then; the
    /// acknowledgement returns both.
    newest: Option<(Micros, Micros)>,
    /// A candidate waits for the promise of this view, which storage does not have yet.
    pub owes_promise: bool,
}

impl Follower {
    /// A follower that has heard nothing in its view yet: only committed entries are certainly in the
    /// leader's log.
    pub(crate) fn new(commit: Index) -> Self {
        Self {
            leader: None,
            matched: commit,
            newest: None,
            owes_promise: false,
        }
    }
}

/// The newest acknowledgement: its place among the commands, and its bytes.
#[derive(Clone, Default)]
pub(crate) struct Acked {
    view: View,
    place: usize,
    bytes: Vec<u8>,
}

/// Prints no fields, because they are no part of a replica's state: whether the acknowledgement can
/// still be taken back depends on the caller.
impl fmt::Debug for Acked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acked")
    }
}

impl Acked {
    fn note(&mut self, view: View, place: usize, bytes: &[u8]) {
        self.view = view;
        self.place = place;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes it from `out` if it is of `view` and still there. To the other replicas, a removed
    /// acknowledgement is the same as a lost one.
    fn take_back(&self, view: View, out: &mut Vec<Command>) -> Option<Vec<u8>> {
        let is_there = matches!(
            out.get(self.place),
            Some(Command::Write { to, bytes }) if *bytes == self.bytes && view.leader() == Some(*to)
        );
        if !is_there || self.view != view {
            return None;
        }
        match out.remove(self.place) {
            Command::Write { bytes, .. } => Some(bytes),
            other => unreachable!("{other:?} is no message"),
        }
    }
}

impl Apus {
    pub(crate) fn on_append(
        &mut self,
        now: Micros,
        from: ReplicaId,
        mut append: Append,
        entries: Batch<'_>,
        out: &mut Vec<Command>,
    ) {
        if append.view < self.promised {
            let (view, promised) = (append.view, self.promised);
            self.send(from, &Message::Refuse { view, promised }, out);
            return;
        }
        if append.generation < self.generation || !self.may_accept_from(append.view, out) {
            return;
        }
        let process = Incarnation {
            replica: from,
            number: append.incarnation,
        };
        if self.heard.is_dead(process) || self.heard.has_resigned(append.view) {
            return;
        }
        // The answer says for how long this replica refuses.
        append.span = append.span.min(self.config.timeout);
        self.hear_leader(now, process, &append, out);
        if append.generation > self.generation {
            self.adopt_generation(append.generation, out);
        }
        if let Some(configuration) = append.snapshot {
            // In a pair a generation can begin with a log, so an empty log may have another base.
            let begins = self.log.last().index == Index(0);
            let is_ahead = append.prev.index > self.log.commit() || begins;
            // Replicas may have been started with different members; those of the leader that
            // began the generation count.
            let is_other = begins && self.log.configuration_at_base() != configuration;
            if is_ahead && (is_other || !self.log.has(append.prev)) {
                let (base, committed) = (append.prev, self.log.committed());
                if !begins && base.view < committed.view {
                    let why = Contradiction::Begins { base, committed };
                    return self.refuse(from, why, out);
                }
                self.install_snapshot(append.prev, configuration, out);
            }
        }
        let matched = Index(append.prev.index.0 + entries.len());
        // Trimmed first, so that the spare buffers can hold the new entries.
        self.log.trim(append.trim, &mut self.pool);
        let known = self.follower().matched;
        let accepted = match self.accept(append.prev, entries, known) {
            Ok(accepted) => accepted,
            Err(why) => return self.refuse(from, why, out),
        };
        match accepted {
            Accepted::Gap => {
                let gap = Gap {
                    view: append.view,
                    stamp: append.stamp,
                    span: append.span,
                    number: append.number,
                    last: self.log.last(),
                    commit: self.log.committed(),
                };
                if self.durable == self.promised {
                    self.send(from, &Message::Gap(gap), out);
                }
                return;
            }
            Accepted::ChangedAfter(after) => self.persist_after(after, None, out),
            Accepted::Unchanged => {}
        }
        let follower = self.follower();
        follower.matched = follower.matched.max(matched);
        follower.newest = follower.newest.max(Some((append.stamp, append.span)));
        let commit = append.commit.min(follower.matched);
        if commit > self.log.commit() {
            self.commit_to(commit, out);
        }
        self.commit_with_leader(out);
        self.log.trim(append.trim, &mut self.pool);
        self.acknowledge(now, out);
        self.check_recovered(out);
    }

    /// A leader of the promised view or a higher one sent a message: follows it.
    fn hear_leader(
        &mut self,
        now: Micros,
        process: Incarnation,
        append: &Append,
        out: &mut Vec<Command>,
    ) {
        let newer = append.view > self.promised;
        if newer {
            self.promise(append.view, out);
        }
        self.heard.resigned = None;
        if newer || !matches!(self.role, Role::Following(_)) {
            self.transition(Role::Following(Follower::new(self.log.commit())));
        }
        self.follower().leader = Some(process.replica);
        self.heard.leader(now, process, append.span);
        self.arm_election(now);
        self.recovery.not_empty();
        self.tell(Some(process.replica), out);
    }

    fn follower(&mut self) -> &mut Follower {
        match &mut self.role {
            Role::Following(follower) => follower,
            other => panic!("not following but {other:?}"),
        }
    }

    /// Begins the log anew at `base`, because the leader's log does not reach back farther. The
    /// entries up to `base` are committed, so nothing of this log is needed any more.
    pub(crate) fn install_snapshot(
        &mut self,
        base: Viewstamp,
        configuration: Configuration,
        out: &mut Vec<Command>,
    ) {
        self.log = Log::new(base, configuration);
        out.push(Command::InstallSnapshot {
            base,
            configuration,
        });
        self.persist_after(base, Some(configuration), out);
        self.take_version(configuration.version, out);
        self.follower().matched = base.index;
    }

    /// Where a quorum is two replicas, a backup commits what it has accepted without being told: the
    /// leader and the backup hold it, and that is a quorum. This saves the secondary half a round
    /// trip before it feeds its guest.
    ///
    /// This is sound because the last entry is of the leader's own view: the leader commits it by
    /// the same rule when the acknowledgement arrives. Only the loss of that message can prevent
    /// this, and elections see the two copies, not the message. The promise of the view has to be
    /// durable, as for an acknowledgement. It does not apply in disk mode, where the leader sends an
    /// entry before its own storage has it. And the log has to end there: entries left over from an
    /// older view could name other members.
    pub(crate) fn commit_with_leader(&mut self, out: &mut Vec<Command>) {
        let Role::Following(follower) = &self.role else {
            return;
        };
        let matched = follower.matched;
        let members = self.members();
        let leader = self.promised.leader();
        let last = self.log.last();
        if self.backups_commit_alone()
            && self.is_voter()
            && leader.is_some_and(|leader| {
                members.voters.contains(leader) && self.in_sync_are_me_and(leader)
            })
            && self.durable == self.promised
            && matched > self.log.commit()
            && (matched, self.promised) == (last.index, last.view)
        {
            self.commit_to(matched, out);
        }
    }

    /// Whether a backup that holds an entry knows by that alone that it is committed.
    pub(crate) fn backups_commit_alone(&self) -> bool {
        self.config.durability == Durability::Memory && self.members().quorum() == 2
    }

    /// Acknowledges the log as far as it counts, if there is a leader and the promise of its view is
    /// durable.
    pub(crate) fn acknowledge(&mut self, now: Micros, out: &mut Vec<Command>) {
        let Role::Following(follower) = &self.role else {
            return;
        };
        let (Some((stamp, span)), Some(leader)) = (follower.newest, self.promised.leader()) else {
            return;
        };
        if self.durable < self.promised {
            return;
        }
        let matched = follower.matched.min(self.counted());
        let ack = Message::Ack(Ack {
            view: self.promised,
            stamp,
            span,
            wanted: self.wanted_span(now),
            matched,
            incarnation: self.config.seed,
        });
        if self.is_out_of_reach(leader) {
            return;
        }
        // One acknowledgement a turn is enough: the newest covers the earlier ones.
        if let Some(bytes) = self.acked.take_back(self.promised, out) {
            self.pool.give(bytes);
        }
        let buffer = self.pool.lend(HEADER_BYTES_MAX);
        let bytes = ack.encode(std::iter::empty(), buffer);
        self.acked.note(self.promised, out.len(), &bytes);
        out.push(Command::Write { to: leader, bytes });
    }

    /// Storage has the promise: sends it to the candidate, and acknowledges to the leader.
    pub(crate) fn promise_is_durable(&mut self, now: Micros, out: &mut Vec<Command>) {
        let follower = self.follower();
        if std::mem::take(&mut follower.owes_promise) {
            self.send_promise(out);
        }
        self.commit_with_leader(out);
        self.acknowledge(now, out);
        self.check_recovered(out);
    }
}

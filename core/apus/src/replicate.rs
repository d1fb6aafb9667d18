//! Replication: the leader brings every backup's log to where its own is.
//!
//! ```text
//!   next <= last, window open --> Append{prev = next - 1, entries}, next moves on
//!   Ack{matched}              --> window opens, commit may advance, send on
//!   commit advances           --> Append{commit} to who has acknowledged all, and waits for that word
//!   Gap{last, commit}         --> fall back to where the logs agree, send again
//!   Recovery (a restart)      --> the same, and the caller learns of it
//!   the entries are reclaimed --> Append{prev = base, snapshot}
//! ```

use crate::Command;
use crate::canary::canary;
use crate::log::Log;
use crate::message::{Ack, Append, ENTRY_BYTES_MAX, Gap, HEADER_BYTES_MAX, Message, Request};
use crate::peers::Peer;
use crate::{Apus, Role};
use plover_types::{Incarnation, Index, Micros, ReplicaId, View, Viewstamp};

/// How many messages with entries may be in flight to one peer. Under load this makes batches:
/// entries that are proposed while these are on their way go together when the first is
/// acknowledged. More than one, so that on a link with a real round trip an entry waits only for a
/// part of it. One, two and four were measured in turns, with 24 proposers that each wait for their
/// last entry, over `shm` on 2 cores, with 3 and 9 replicas. They differed by less than one run from
/// the next: entries that are committed together are proposed together, and share a message anyway.
const FLIGHTS_MAX: usize = 4;
/// How many of the largest messages' bytes may be in flight to one peer. Eight cover a round trip
/// in which the leader fills messages as fast as it can encode them, and a ring that holds eight
/// of them never overflows.
const WINDOW_MESSAGES: usize = 8;

impl Apus {
    /// Sends `to` the entries that it lacks, as far as its window allows; if `beat`, at least a
    /// heartbeat.
    pub(crate) fn replicate(
        &mut self,
        now: Micros,
        to: ReplicaId,
        beat: bool,
        out: &mut Vec<Command>,
    ) {
        if let Role::Leading(leadership) = &mut self.role {
            leadership.round += 1;
        }
        self.replicate_like(now, to, beat, &mut None, out);
    }

    /// As `replicate`, for one backup of a round. Backups mostly lack the same entries: `twin` is the
    /// message that was last encoded in this round, and its place in `out`. If the next message equals
    /// it, its bytes are copied.
    fn replicate_like(
        &mut self,
        now: Micros,
        to: ReplicaId,
        beat: bool,
        twin: &mut Option<(Append, usize)>,
        out: &mut Vec<Command>,
    ) {
        let waits_for_commit = !self.backups_commit_alone();
        let is_kept = self.is_log_kept_from(to);
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let Some(peer) = leadership.peers.get_mut(&to) else {
            return;
        };
        let heartbeat = self.config.heartbeat;
        let commit = self.log.commit();
        let selection = &mut leadership.selection;
        let lacked = self.log.last().index.next().0.saturating_sub(peer.next.0);
        let lacks = peer.needs_snapshot || lacked > 0;
        let says_commit = waits_for_commit && !canary!(self.config, CommitAtHeartbeat);
        let beat = beat || says_commit && !lacks && peer.lacks_word_of(commit);
        let mut is_due = || beat || lacks && selection.is_sent_now(to, lacked, now, heartbeat);
        if is_kept || !is_due() {
            return;
        }
        let bytes_max = self.config.message_bytes_max;
        let window = bytes_max * WINDOW_MESSAGES;
        let (base, last) = (self.log.base(), self.log.last().index);
        let mut beat = beat;
        loop {
            let snapshot = peer.needs_snapshot || peer.next <= base.index;
            let first = if snapshot {
                base.index.next()
            } else {
                peer.next
            };
            // The first message of a generation names its members: a backup may have been started
            // with others.
            let begins = first == Index(1);
            let more = first <= last && peer.has_room(window, FLIGHTS_MAX);
            if !(more || beat) {
                return;
            }
            let prev = self
                .log
                .at(Index(first.0 - 1))
                .expect("next lies at most after the end");
            let mut entries = self.log.nothing();
            let mut bytes = 0;
            if more {
                let end;
                (end, bytes) = fit(&self.log, first, bytes_max);
                entries = self.log.slice(first, end);
                peer.sent(end, bytes);
                peer.needs_snapshot = false;
            }
            let append = Append {
                view: self.promised,
                generation: self.generation,
                prev,
                commit,
                trim: leadership.trim,
                stamp: now,
                span: leadership.span,
                incarnation: self.config.seed,
                number: leadership.round,
                snapshot: (snapshot || begins).then(|| self.log.configuration_at_base()),
                count: entries.iter().len() as u64,
            };
            let bytes = match (&*twin, twin.as_ref().and_then(|(_, place)| out.get(*place))) {
                (Some((like, _)), Some(Command::Write { bytes, .. })) if *like == append => {
                    self.pool.copy(bytes)
                }
                _ => {
                    let buffer = self.pool.lend(HEADER_BYTES_MAX + bytes);
                    *twin = Some((append.clone(), out.len()));
                    Message::Append(append).encode(entries.iter(), buffer)
                }
            };
            out.push(Command::Write { to, bytes });
            peer.was_told(commit);
            beat = false;
        }
    }

    /// Replicates to all backups and learners in one round; if `beat`, each gets at least a heartbeat.
    pub(crate) fn replicate_to_all(&mut self, now: Micros, beat: bool, out: &mut Vec<Command>) {
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        leadership.round += 1;
        let mut twin = None;
        for peer in leadership.audience().iter() {
            self.replicate_like(now, peer, beat, &mut twin, out);
        }
    }

    pub(crate) fn on_ack(
        &mut self,
        now: Micros,
        from: ReplicaId,
        ack: Ack,
        out: &mut Vec<Command>,
    ) {
        let process = Incarnation {
            replica: from,
            number: ack.incarnation,
        };
        if self.heard.is_dead(process) {
            return;
        }
        let plausible = ack.matched <= self.log.last().index;
        self.note_haste(now, process);
        let answered = (ack.stamp, ack.span);
        let heard = self.heard_peer(now, from, (ack.view, answered), plausible, out);
        if let Some((peer, _)) = heard {
            peer.wanted = ack.wanted;
            peer.answered(process);
            peer.acknowledged(ack.matched);
            self.advance_commit(now, out);
            self.replicate(now, from, false, out);
        }
    }

    /// The last index up to which a peer's log is known to equal this one: this log holds the peer's
    /// last entry or its last committed one. `None` if the peer needs a snapshot.
    pub(crate) fn held_by(&self, last: Viewstamp, commit: Viewstamp) -> Option<Index> {
        [last, commit]
            .iter()
            .find(|held| self.log.has(**held))
            .map(|held| held.index)
    }

    pub(crate) fn on_gap(
        &mut self,
        now: Micros,
        from: ReplicaId,
        gap: Gap,
        out: &mut Vec<Command>,
    ) {
        let held = self.held_by(gap.last, gap.commit);
        let heard = self.heard_peer(now, from, (gap.view, (gap.stamp, gap.span)), true, out);
        if let Some((peer, round)) = heard.filter(|(peer, _)| peer.is_news(gap.number)) {
            peer.rewind(held, round);
            self.replicate(now, from, true, out);
        }
    }

    /// Notes that a peer answered the message sent to it at `stamp`, with `span` in it. Returns the peer, and the leader's
    /// last round of sending; `None` if the answer is to be ignored: it is late, or no correct
    /// replica sends it.
    fn heard_peer(
        &mut self,
        now: Micros,
        from: ReplicaId,
        (view, (stamp, span)): (View, (Micros, Micros)),
        plausible: bool,
        out: &mut Vec<Command>,
    ) -> Option<(&mut Peer, u64)> {
        let span = self.counted_span(span);
        let Role::Leading(leadership) = &mut self.role else {
            return None;
        };
        let peer = leadership.peers.get_mut(&from)?;
        if view != self.promised {
            return None;
        }
        if stamp > now || !plausible {
            self.rejected += 1;
            return None;
        }
        if peer.heard(stamp, span, now) {
            out.push(Command::PeerAlive {
                peer: from,
                alive: true,
            });
        }
        self.recovery.partner_answered(stamp);
        Some((peer, leadership.round))
    }

    /// A peer has asked where the group stands: sends it the log from where its own ends.
    pub(crate) fn resend_from_its_end(
        &mut self,
        now: Micros,
        from: ReplicaId,
        request: &Request,
        out: &mut Vec<Command>,
    ) {
        let held = self.held_by(request.last, request.commit);
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        let Some(peer) = leadership.peers.get_mut(&from) else {
            return;
        };
        let restarted = request.restarted && peer.restarted(request.incarnation);
        peer.rewind(held, leadership.round);
        if restarted {
            self.partner_restarted(request.promised);
            out.push(Command::PeerAlive {
                peer: from,
                alive: false,
            });
        }
        self.replicate(now, from, true, out);
    }

    /// The link to `peer` came up again: the messages in flight are lost.
    pub(crate) fn resend_after_cut(
        &mut self,
        now: Micros,
        peer: ReplicaId,
        out: &mut Vec<Command>,
    ) {
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        if let Some(state) = leadership.peers.get_mut(&peer) {
            if state.matched > Index(0) {
                let matched = state.matched;
                state.rewind(Some(matched), leadership.round);
            }
            self.replicate(now, peer, true, out);
        }
    }
}

/// The entries from `first` on that fit one message of `bytes_max`, at least one: the last of them,
/// and their bytes.
pub(crate) fn fit(log: &Log, first: Index, bytes_max: usize) -> (Index, usize) {
    let room = bytes_max - HEADER_BYTES_MAX;
    let mut last = first;
    let mut bytes = 0;
    let mut next = first;
    while let Some(entry) = log.get(next) {
        let more = ENTRY_BYTES_MAX + entry.payload.len();
        if next > first && bytes + more > room {
            break;
        }
        bytes += more;
        last = next;
        next = next.next();
    }
    (last, bytes)
}

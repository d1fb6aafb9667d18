//! The leader's half of the normal case: put in order, send, count, commit.
//!
//! ```text
//!   propose --> log --> Append to every peer (many in flight, a bounded window each)
//!                          |
//!     (`replicate`) Ack{matched} from peers, own copy counted once durable
//!                          |
//!          a quorum holds an entry of *this* view --> it and all before it are committed
//! ```
//!
//! Entries of older views are never committed by counting: a majority may hold one and a
//! later leader still replace it (figure 8 of the Raft paper). They are committed by an entry
//! of this view that follows them, which is why a leader begins with a no-op.

use crate::api::{Command, Entry, EntryKind, ProposeError};
use crate::election::Vote;
use crate::message::{ENTRY_BYTES_MAX, HEADER_BYTES_MAX, sane_set};
use crate::peers::Peer;
use crate::{Apus, Role};
use plover_types::{Index, Micros, ReplicaId, Viewstamp};
use std::collections::BTreeMap;

/// What a replica keeps while it leads.
#[derive(Debug)]
pub(crate) struct Leadership {
    pub peers: BTreeMap<ReplicaId, Peer>,
    heartbeat_at: Micros,
    /// Nobody needs entries up to here.
    pub trim: Index,
}

impl Leadership {
    pub(crate) fn deadline(&self, timeout: Micros) -> Micros {
        let dead_at = self.peers.values().map(|peer| peer.dead_at(timeout)).min();
        dead_at.map_or(Micros::NEVER, |at| at.min(self.heartbeat_at))
    }
}

impl Apus {
    /// Appends an entry to the leader's log and sends it. The entry's viewstamp comes back at
    /// once; [`Command::Deliver`] says when it is committed.
    ///
    /// Entries of the group itself ([`EntryKind::Noop`], [`EntryKind::InSync`]) are taken even
    /// when the log is full: they may be what empties it.
    pub fn propose(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: Vec<u8>,
        out: &mut Vec<Command>,
    ) -> Result<Viewstamp, ProposeError> {
        if !matches!(self.role, Role::Leading(_)) {
            return Err(ProposeError::NotLeader);
        }
        match kind {
            EntryKind::App => {
                let overhead = HEADER_BYTES_MAX + ENTRY_BYTES_MAX;
                if payload.len() + overhead > self.config.message_bytes_max {
                    return Err(ProposeError::TooLarge(payload.len()));
                }
                if self.log.bytes() + payload.len() > self.config.log_bytes_max {
                    return Err(ProposeError::LogFull);
                }
            }
            EntryKind::Noop => assert!(payload.is_empty(), "a no-op carries nothing"),
            EntryKind::InSync(set) => {
                assert!(payload.is_empty(), "an in-sync set carries nothing else");
                assert!(
                    sane_set(set, self.config.members),
                    "in-sync set {set} off the group"
                );
            }
        }
        Ok(self.append(now, kind, payload, out))
    }

    fn append(
        &mut self,
        now: Micros,
        kind: EntryKind,
        payload: Vec<u8>,
        out: &mut Vec<Command>,
    ) -> Viewstamp {
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
        self.persist_after(prev, out);
        for peer in self.others().iter() {
            self.replicate(now, peer, false, out);
        }
        self.advance_commit(out);
        viewstamp
    }

    /// The leader's word that no replica needs entries up to `index` any more. Only what is
    /// committed goes; backups learn of it with the next message. Ignored unless leading.
    pub fn trim(&mut self, index: Index) {
        if let Role::Leading(leadership) = &mut self.role {
            self.log.trim(index);
            leadership.trim = leadership.trim.max(self.log.base().index);
        }
    }

    /// Until when no other replica can have been elected, by acknowledged heartbeats: the
    /// send time of the newest heartbeat that a quorum has acknowledged, plus the timeout less
    /// an eighth for clock drift. Zero unless leading; never for a group of one.
    ///
    /// Sound because whoever answered refuses its vote for a timeout after it *received* what
    /// was sent at that time, a candidate needs one of them, and a leader that gives its own
    /// vote away stops leading in the same step.
    pub fn lease_until(&self) -> Micros {
        let Role::Leading(leadership) = &self.role else {
            return Micros::ZERO;
        };
        let Some(peers_needed) = self.quorum.checked_sub(2) else {
            return Micros::NEVER;
        };
        let mut echoes = [None; 16];
        for (slot, peer) in echoes.iter_mut().zip(leadership.peers.values()) {
            *slot = peer.echo;
        }
        echoes.sort_unstable_by(|a, b| b.cmp(a));
        let span = self.config.timeout - Micros(self.config.timeout.0 / 8);
        echoes[peers_needed].map_or(Micros::ZERO, |echo| echo + span)
    }

    /// Begins to lead the view that was won. `votes` tell where each voter's log stands.
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
        assert!(
            self.log.in_sync().contains(self.config.me),
            "leading outside the in-sync set"
        );
        let peers = self.others().iter().map(|id| {
            let believed = match votes.get(&id) {
                Some(vote) => self.held_by(vote.last, vote.commit),
                None => Some(self.log.last().index),
            };
            let mut peer = Peer::new(believed.unwrap_or(Index(0)), now);
            peer.jump = believed.is_none();
            (id, peer)
        });
        let leadership = Leadership {
            peers: peers.collect(),
            heartbeat_at: now + self.config.heartbeat,
            trim: self.log.base().index,
        };
        self.transition(Role::Leading(leadership));
        self.told = None;
        out.push(Command::Lead {
            view: self.promised,
        });
        self.append(now, EntryKind::Noop, Vec::new(), out);
    }

    pub(crate) fn tick_leading(&mut self, now: Micros, out: &mut Vec<Command>) {
        let timeout = self.config.timeout;
        let Role::Leading(leadership) = &mut self.role else {
            return;
        };
        for (&id, peer) in &mut leadership.peers {
            if now >= peer.dead_at(timeout) {
                peer.dead();
                out.push(Command::PeerAlive {
                    peer: id,
                    alive: false,
                });
            }
        }
        if now >= leadership.heartbeat_at {
            leadership.heartbeat_at = now + self.config.heartbeat;
            for peer in self.others().iter() {
                self.replicate(now, peer, true, out);
            }
        }
    }

    /// Commits what a quorum holds, if that ends with an entry of this view.
    pub(crate) fn advance_commit(&mut self, out: &mut Vec<Command>) {
        let Role::Leading(leadership) = &self.role else {
            return;
        };
        let mut held = [Index(0); 16];
        held[0] = self.counted();
        for (slot, peer) in held[1..].iter_mut().zip(leadership.peers.values()) {
            *slot = peer.matched;
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        let index = held[self.quorum - 1];
        if index > self.log.commit()
            && self
                .log
                .at(index)
                .is_some_and(|entry| entry.view == self.promised)
        {
            self.commit_to(index, out);
        }
    }
}

//! Viewstamped Multi-Paxos as a pure state machine: event in, commands out.
//!
//! One replica, the leader of a [`View`], puts entries in one order. An entry is *committed* once
//! a majority of the voters holds it. Committed entries are delivered everywhere in the same order
//! and survive the loss of any minority ("Paxos made practical"; APUS §4).
//!
//! This crate does no I/O, reads no clock and owns no thread. [`Apus::apply`] takes one [`Event`]
//! and appends [`Command`]s; a caller that feeds the same events gets the same commands. With a
//! fabric, a disk and clients it is `plover-log`; with a guest it is the core of `plover-replica`.
//!
//! ```
//! use apus::{Apus, Canary, Command, Config, Durability, EntryKind, Event, Start};
//! use plover_types::{Micros, ReplicaId, ReplicaSet};
//!
//! let (now, mut out) = (Micros(1), Vec::new());
//! let config = Config {
//!     me: ReplicaId(0),
//!     members: ReplicaSet::of([ReplicaId(0)]), // a group of one
//!     first_leader: ReplicaId(0),
//!     any_voter_stands: true,
//!     pair: false,
//!     fencing: false,
//!     quorum_selection: false,
//!     newest_version: plover_types::wire::WIRE_VERSION,
//!     heartbeat: Micros::from_ms(20),
//!     timeout: Micros::from_ms(100),
//!     timeout_min: Micros::from_ms(60),
//!     known_after: Micros::from_ms(2000),
//!     durability: Durability::Memory,
//!     log_bytes_max: 1 << 20,
//!     message_bytes_max: 1 << 16,
//!     seed: 7,
//!     canary: Canary::None,
//! };
//! let mut core = Apus::new(config, Start::Fresh, now);
//! core.apply(now, Event::Tick, &mut out);
//! assert_eq!(out, [Command::GroupEmpty { fresh: true }]);
//! core.bootstrap(now, &mut out);
//! // The core waits until storage has its promise of the first view.
//! let stored = out.iter().find_map(|command| match command {
//!     Command::PersistState(state) => Some(*state),
//!     _ => None,
//! });
//! core.apply(now, Event::StatePersisted(stored.unwrap()), &mut out);
//! core.propose(now, EntryKind::App, b"hello".to_vec()).unwrap();
//! core.flush(now, &mut out);
//! let delivered = |command: &Command| matches!(command, Command::Deliver(it) if it.payload == b"hello");
//! assert!(out.iter().any(delivered));
//! ```
//!
//! # The states
//!
//! ```text
//!            start, memory forgotten                    start, log on disk
//!                    |                                          |
//!                    v    a leader answers, log caught up       v
//!   +--------> RECOVERING ----------------------------------> FOLLOWING <---------------+
//!   |                |                                        |      ^                  |
//!   |  bootstrap of  |             silence for a timeout,     |      | a leader is      |
//!   |  an empty      |             and holds the guest        |      | heard            |
//!   |  group         |                                        v      |                  |
//!   |                |                                      PRE-VOTING                  |
//!   |                |              a quorum would elect it   |                         |
//!   |                |                                        v                         |
//!   |                +--------------------------------->  ELECTING ---------------------+
//!   |                     (no votes needed: no replica        |   refused, out of time, |
//!   |                      has anything to lose)              |   or the merged log     |
//!   |                                                         |   rules it out          |
//!   |                              a quorum has promised; its |                         |
//!   |                              best log names the replica v                         |
//! process dies                                             LEADING ---------------------+
//!                                                              a higher view was promised
//! ```
//!
//! # The failures
//!
//! | what fails | what saves it |
//! |---|---|
//! | messages are lost, doubled, reordered, late | every message names its view; acknowledgements are cumulative; gaps are reported; heartbeats repeat (`message`, `replicate`, `following`) |
//! | the leader dies | a member of the in-sync set asks for pre-votes, collects promises, merges the best log of its quorum and leads a higher view (`pre_vote`, `election`, `merge`) |
//! | only the leader's process dies, and its host says so | the same without waiting for a timeout: a dead process has no lease (`death`) |
//! | the leader is to stop, or is at fault and says so | the same without waiting for a timeout: a leader that has resigned has no lease (`resign`) |
//! | the leader is cut off | it commits nothing without a quorum; its lease runs out before another replica can be elected ([`Apus::lease_until`]) |
//! | a replica comes back after a cut | it asks for pre-votes before it raises its view, so it cannot depose a leader that the others hear |
//! | a replica restarts and has forgotten its log | it does not vote until a leader has told it what it may have acknowledged (`recovery`), or only for a candidate that certainly has all of that (`milestone`) |
//! | a backup lacks entries that are reclaimed | it continues from the leader's base ([`Command::InstallSnapshot`]) |
//! | all replicas restart | none leads until [`Apus::bootstrap`], because none holds the guest; where the log on disk is all there is, an election follows |
//! | replicas of two releases are in the group | no message or entry is sent that one of them does not know (`version`) |
//! | a replica is gone for good | another takes its place, through the log (`members`) |
//! | one of two fails, and there is no third | the other goes on alone (`pair`) |
//! | a replica says what contradicts the log, or sends no messages at all | its link is dropped ([`Contradiction`]), and the others go on as without it |
//!
//! # Who may lead
//!
//! The *in-sync set* is in the log and names the replicas whose guest explains everything that
//! clients have seen. A replica stands for election only if it [holds the
//! guest](Apus::set_holds_state); the witness votes but never stands. And it leads only if the
//! newest in-sync set names it once it has merged the best log of its quorum: its own log may end
//! before the entry that took it in, or before the entry with which the others went on without
//! it. Otherwise it stands down.

#![forbid(unsafe_code)]

mod api;
mod canary;
mod config;
mod contradiction;
mod death;
mod dispatch;
mod durable;
mod election;
mod entry;
mod following;
#[doc(hidden)]
pub mod fuzz;
mod generation;
mod leading;
mod log;
mod members;
mod merge;
mod message;
mod milestone;
mod pair;
mod peers;
mod pool;
mod pre_vote;
mod quorum_selection;
mod recovery;
mod replicate;
mod resign;
mod rounds;
mod silence;
mod start;
mod status;
mod version;

pub use api::{BootstrapError, Command, Event, MembersError, Phase, ProposeError, Status};
pub use canary::Canary;
pub use config::{Config, Durability, DurableState, Start};
pub use contradiction::Contradiction;
pub use entry::{Configuration, Entry, EntryKind, Members, ToldMembers, VOTERS_MAX};

use death::Heard;
use election::Election;
use following::{Acked, Follower};
use leading::Leadership;
use log::Log;
use message::Message;
use milestone::Milestones;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, SplitMix64, View};
use pool::Pool;
use pre_vote::{PreVote, StoodDown};
use recovery::Recovery;
use rounds::Raised;
use version::Told;

/// The state of a replica, with the data that exists only in that state.
#[derive(Clone, Debug)]
enum Role {
    /// A replica that recovers follows too; [`Recovery`] forbids it to vote.
    Following(Follower),
    PreVoting(PreVote),
    Electing(Election),
    Leading(Leadership),
}

/// One replica's consensus core.
#[derive(Clone, Debug)]
pub struct Apus {
    config: Config,
    random: SplitMix64,
    role: Role,
    recovery: Recovery,
    log: Log,
    /// The highest view promised. Nothing of an older view is accepted.
    promised: View,
    /// The highest view whose promise storage has confirmed. Nothing that rests on a promise is
    /// sent until this reaches `promised`.
    durable: View,
    milestones: Milestones,
    /// The view in which this generation of the group began.
    generation: View,
    /// The highest round heard of; the next view takes a higher one.
    round_max: u64,
    raised: Raised,
    holds_state: bool,
    /// See [`Apus::set_expects_state`].
    expects_state: bool,
    /// See [`Apus::set_abstains`].
    abstains: bool,
    heard: Heard,
    other: pair::Other,
    /// When a follower looks for a new leader, unless it hears one before.
    election_at: Micros,
    stood_down: Option<StoodDown>,
    /// See [`Apus::tell_members`].
    told_members: Option<ToldMembers>,
    /// When the last event was applied.
    awake_at: Micros,
    /// Peers whose link is down: a message to them would be lost.
    down: ReplicaSet,
    /// See `version`.
    told_versions: Told,
    /// The view and the leader of the last [`Command::Follow`].
    told: Option<(View, Option<ReplicaId>)>,
    rejected: u64,
    pool: Pool,
    acked: Acked,
}

impl Apus {
    /// Applies one event and appends the commands that follow from it to `out`.
    pub fn apply(&mut self, now: Micros, event: Event<'_>, out: &mut Vec<Command>) {
        // An event may change the log, so entries that were proposed before it are sent first.
        self.flush(now, out);
        self.wake(now);
        match event {
            Event::Tick => self.tick(now, out),
            Event::Speaks { peer, versions } => self.peer_speaks(peer, versions, out),
            Event::Link { peer, up } => self.link(now, peer, up, out),
            Event::Received { from, bytes } => self.received(now, from, bytes, out),
            Event::ProcessDied(process) => self.process_died(now, process, out),
            Event::PeerOff { peer, seen_at } => self.peer_is_off(now, peer, seen_at, out),
            Event::StatePersisted(state) => self.state_persisted(now, state, out),
            Event::EntriesPersisted(viewstamp) => {
                self.log.mark_stable(viewstamp);
                match &mut self.role {
                    Role::Leading(leadership) => {
                        leadership.unstored.stored(viewstamp.index);
                        self.advance_commit(now, out);
                    }
                    _ => self.acknowledge(now, out),
                }
                self.check_recovered(out);
            }
        }
    }

    /// Sets whether this replica holds the guest's state, and so may stand for election when the
    /// in-sync set names it. After a start it does not hold it.
    pub fn set_holds_state(&mut self, holds: bool) {
        self.holds_state = holds;
        self.expects_state = false;
        if !holds {
            self.recovery.doubt = None;
        }
    }

    /// This replica has acknowledged the guest's whole state and only loads it: until [`Apus::set_holds_state`] it does not
    /// stand for election, but the group is not empty.
    pub fn set_expects_state(&mut self) {
        self.expects_state = true;
    }

    /// Takes back the bytes of a [`Command::Write`] that was carried out, or the payload of a
    /// delivered entry, as a spare buffer. A caller that gives back these and the
    /// [entries](Self::recycle_entries), and reuses `out`, causes no allocation in the steady state.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.pool.give(bytes);
    }

    /// Takes back the entries of a [`Command::PersistEntries`] that was carried out.
    pub fn recycle_entries(&mut self, entries: Vec<Entry>) {
        self.pool.give_list(entries);
    }

    /// An empty buffer with room for a payload of `bytes`, a spare one if there is one.
    pub fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.pool.lend(bytes)
    }

    /// Stops leading, because this replica has lost its guest. It sends no more heartbeats, so
    /// after the timeout a member of the in-sync set that holds the guest is elected. This replica
    /// votes, but does not stand.
    pub fn resign(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.set_holds_state(false);
        self.step_down(now, out);
    }

    /// Sets whether this replica, although it holds the guest, does not stand for election: another one
    /// would serve better. Its vote counts as ever, and the group is not empty while it lives.
    pub fn set_abstains(&mut self, abstains: bool) {
        self.abstains = abstains;
    }

    fn step_down(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.flush(now, out);
        if let Role::Leading(_) = self.role {
            self.follow(now, out);
        }
    }

    /// Promises `view`: from here on everything of an older view is refused.
    fn promise(&mut self, view: View, out: &mut Vec<Command>) {
        assert!(
            view > self.promised,
            "promised {} already, not {view}",
            self.promised
        );
        self.promised = view;
        self.round_max = self.round_max.max(view.round());
        self.persist_state(out);
    }

    /// The one place where the role changes. A transition that the picture in the crate's doc
    /// lacks is a bug.
    fn transition(&mut self, role: Role) {
        let allowed = matches!(
            (&self.role, &role),
            (_, Role::Following(_))
                | (Role::Following(_) | Role::PreVoting(_), Role::PreVoting(_))
                | (Role::Following(_) | Role::PreVoting(_), Role::Electing(_))
                | (Role::Electing(_), Role::Leading(_))
        );
        assert!(allowed, "no such transition: {:?} to {role:?}", self.role);
        self.role = role;
    }

    /// Becomes a follower without a leader: of a view just promised, or after a failed attempt to
    /// lead.
    fn follow(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.transition(Role::Following(Follower::new(self.log.commit())));
        self.arm_election(now);
        self.tell(None, out);
    }

    /// Tells the caller which leader this replica follows, if that has changed.
    fn tell(&mut self, leader: Option<ReplicaId>, out: &mut Vec<Command>) {
        let news = (self.promised, leader);
        if self.told != Some(news) {
            self.told = Some(news);
            out.push(Command::Follow {
                view: self.promised,
                leader,
            });
        }
    }

    /// Commits up to `index` and delivers the entries that this adds.
    fn commit_to(&mut self, index: Index, out: &mut Vec<Command>) {
        let mut next = self.log.commit().next();
        self.log.commit_to(index);
        while next <= index {
            let entry = self
                .log
                .get(next)
                .expect("committed entries lie in the log");
            let version = match entry.kind {
                EntryKind::Version(version) => version,
                _ => 0,
            };
            out.push(Command::Deliver(entry.copied(&mut self.pool)));
            self.take_version(version, out);
            next = next.next();
        }
    }

    /// Sends a message that carries no entries.
    fn send(&mut self, to: ReplicaId, message: &Message, out: &mut Vec<Command>) {
        if !self.is_out_of_reach(to) {
            let buffer = self.pool.lend(message::HEADER_BYTES_MAX);
            let bytes = message.encode(std::iter::empty(), buffer);
            out.push(Command::Write { to, bytes });
        }
    }
}

impl Entry {
    /// A copy of this entry, with the payload in a buffer of `pool`.
    fn copied(&self, pool: &mut Pool) -> Self {
        Self {
            payload: pool.copy(&self.payload),
            ..*self
        }
    }
}

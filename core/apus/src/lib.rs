//! Viewstamped Multi-Paxos as a pure state machine: event in, commands out.
//!
//! # The problem
//!
//! Every input of the guest takes one place in one order, and that order survives the loss of
//! any minority of replicas. One replica, the leader of a [`View`], puts entries in order; an
//! entry is *committed* once a majority holds it; committed entries are delivered everywhere in
//! the same order ("Paxos made practical"; APUS §4).
//!
//! This crate does no I/O, reads no clock and owns no thread. [`Apus::apply`] takes one
//! [`Event`] and appends [`Command`]s; a caller that feeds the same events gets the same
//! commands. With a fabric, a disk and clients it is `plover-log`, whose docs replicate a counter over
//! three threads and three processes.
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
//!   |                |              a quorum would elect me   |                         |
//!   |                |                                        v                         |
//!   |                +--------------------------------->  ELECTING ---------------------+
//!   |                     (no votes needed: nobody            |   refused, out of time, |
//!   |                      has anything to lose)              |   or the merged log     |
//!   |                                                         |   rules me out          |
//!   |                              a quorum has promised; its |                         |
//!   |                              best log names me          v                         |
//! process dies                                             LEADING ---------------------+
//!                                                              a higher view was promised
//! ```
//!
//! # The failures
//!
//! | what fails | what saves it |
//! |---|---|
//! | messages are lost, doubled, reordered, late | every message names its view; acknowledgements are cumulative; gaps are reported; heartbeats repeat (`replicate`, `following`) |
//! | the leader dies | a member of the in-sync set asks for pre-votes, collects promises, merges the best log of its quorum and leads a higher view (`pre_vote`, `election`, `merge`) |
//! | the leader is cut off | it commits nothing without a quorum; its lease runs out before anyone else can be elected ([`Apus::lease_until`]) |
//! | a replica comes back after a cut | it asks for pre-votes before it raises its view, so it cannot depose a leader that the others hear |
//! | a replica restarts and has forgotten its log | it takes no part until a leader has told it what it might have acknowledged (`recovery`) |
//! | a backup falls behind what is still in the log | it jumps to the leader's base |
//! | everyone restarts | nobody leads until [`Apus::bootstrap`], because nobody holds the guest; unless the log, on disk, is all there is |
//! | a replica is gone for good | another takes its place, through the log (`members`) |
//! | one of two, and there is no third | the other goes on alone (`pair`) |
//!
//! # Two words that decide who may lead
//!
//! The *in-sync set* lives in the log and names the replicas whose guest explains everything
//! clients have seen. A replica stands for election only if it [holds the
//! guest](Apus::set_holds_state); the witness votes but never stands. And it leads only if the
//! newest in-sync set names it once it has merged the best log of its quorum: its own may end
//! before the entry that took it in, or before the one that went on without it. Otherwise it
//! stands down.

mod api;
mod canary;
mod config;
mod dispatch;
mod durable;
mod election;
mod entry;
mod following;
mod generation;
mod leading;
mod log;
mod members;
mod merge;
mod message;
mod pair;
mod peers;
mod pool;
mod pre_vote;
mod quorum_selection;
mod recovery;
mod replicate;

pub use api::{BootstrapError, Command, Event, MembersError, Phase, ProposeError, Status};
pub use canary::Canary;
pub use config::{Config, Durability, DurableState, Start};
pub use entry::{Configuration, Entry, EntryKind, Members};

use canary::canary;
use election::Election;
use entry::VOTERS_MAX;
use following::{Acked, Follower};
use leading::Leadership;
use log::Log;
use message::Message;
use plover_types::{Index, Micros, ReplicaId, ReplicaSet, SplitMix64, View, Viewstamp};
use pool::Pool;
use pre_vote::{PreVote, StoodDown};
use recovery::Recovery;

/// The smallest useful `message_bytes_max`.
const MESSAGE_BYTES_MIN: usize = 256;

/// What a replica is doing, with what only matters while it does that.
#[derive(Clone, Debug)]
enum Role {
    /// Also while recovering: then [`Recovery`] forbids voting.
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
    /// The highest view of which storage has confirmed the promise. What rests on a promise
    /// waits until this reaches `promised`.
    durable: View,
    /// The view in which this generation of the guest began.
    generation: View,
    /// The highest round heard of, for choosing the next.
    round_max: u64,
    holds_state: bool,
    /// When a leader was last heard, or the start: a restarted replica may have answered one
    /// just before, and a lease may rest on that.
    heard_at: Micros,
    /// When a follower looks for a new leader, unless it hears one before.
    election_at: Micros,
    stood_down: Option<StoodDown>,
    /// When something was last applied.
    awake_at: Micros,
    /// Peers whose link is down. What is written to them would be lost.
    down: ReplicaSet,
    /// What the caller believes by the last [`Command::Follow`].
    told: Option<(View, Option<ReplicaId>)>,
    rejected: u64,
    pool: Pool,
    acked: Acked,
}

impl Apus {
    /// A core that starts at `now` with what `start` says it remembers.
    pub fn new(config: Config, start: Start, now: Micros) -> Self {
        let members = Members::of(config.members);
        assert!(members.are_sane(), "a group of 1 to 9 replicas");
        assert!(
            config.members.contains(config.first_leader),
            "the first leader is no member"
        );
        assert!(
            !config.pair || (config.members.len() == 2 && !config.any_voter_stands),
            "a pair has two members and a guest"
        );
        assert!(config.heartbeat > Micros::ZERO && config.heartbeat < config.timeout);
        assert!(
            config.message_bytes_max >= MESSAGE_BYTES_MIN,
            "messages of a few bytes"
        );
        let first = Configuration {
            in_sync: ReplicaSet::of([config.first_leader]),
            members,
        };
        let mut random = SplitMix64::new(config.seed);
        let recovery = Recovery::new(&config, &start, random.next_u64() ^ now.0, now);
        let (log, promised, generation) = match start {
            Start::Restarted {
                durable,
                log,
                base,
                configuration_at_base,
                forgotten: false,
            } if config.durability == Durability::Disk => {
                // Storage that was never told of a log has one from the beginning.
                let begun = base != Viewstamp::default();
                let log =
                    Log::restored(base, if begun { configuration_at_base } else { first }, log);
                let generation = if canary!(config, TrustOldGeneration) {
                    durable.generation
                } else {
                    durable::generation_of(base, durable.generation)
                };
                // An entry of a view is as good as the promise of it.
                let promised = durable.promised.max(log.last().view);
                (log, promised, generation)
            }
            Start::Restarted { durable, .. } => {
                let log = Log::new(Viewstamp::default(), first);
                (log, durable.promised, View::NONE)
            }
            Start::PromiseLost { least } => {
                let log = Log::new(Viewstamp::default(), first);
                (log, least, View::NONE)
            }
            Start::Fresh => (
                Log::new(Viewstamp::default(), first),
                View::NONE,
                View::NONE,
            ),
        };
        let mut core = Self {
            random,
            role: Role::Following(Follower::new(log.commit())),
            recovery,
            log,
            promised,
            durable: promised,
            generation,
            round_max: promised.round(),
            holds_state: false,
            heard_at: now,
            election_at: now,
            stood_down: None,
            awake_at: now,
            down: ReplicaSet::EMPTY,
            told: None,
            rejected: 0,
            pool: Pool::default(),
            acked: Acked::default(),
            config,
        };
        core.arm_election(now);
        core
    }

    /// Applies one event and appends what is to be done to `out`.
    pub fn apply(&mut self, now: Micros, event: Event<'_>, out: &mut Vec<Command>) {
        // What an event changes must not meet entries that storage has not been told of.
        self.flush(now, out);
        self.wake(now);
        match event {
            Event::Tick => self.tick(now, out),
            Event::Link { peer, up } => self.link(now, peer, up, out),
            Event::Received { from, bytes } => self.received(now, from, bytes, out),
            Event::StatePersisted(view) => self.state_persisted(now, view, out),
            Event::EntriesPersisted(viewstamp) => {
                self.log.mark_stable(viewstamp);
                match self.role {
                    Role::Leading(_) => self.advance_commit(now, out),
                    _ => self.acknowledge(out),
                }
                self.check_recovered(out);
            }
        }
    }

    /// Says whether this replica holds the guest's state and so may stand for election when
    /// the in-sync set names it. False after a start.
    pub fn set_holds_state(&mut self, holds: bool) {
        self.holds_state = holds;
        if !holds {
            self.recovery.doubt = None;
        }
    }

    /// Takes back the bytes of a [`Command::Write`] that was carried out, or the payload of an
    /// entry that was delivered, for use in later ones. A caller that does so with them and with
    /// [entries](Self::recycle_entries), and keeps `out`, allocates nothing in the steady state.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.pool.give(bytes);
    }

    /// Takes back the entries of a [`Command::PersistEntries`] that was carried out.
    pub fn recycle_entries(&mut self, entries: Vec<Entry>) {
        self.pool.give_list(entries);
    }

    /// An empty buffer with room for a payload of `bytes`, out of those that were given back.
    pub fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        self.pool.lend(bytes)
    }

    /// Stops leading, because this replica has lost what a leader needs (its guest). It sends
    /// no heartbeat any more, so a member of the in-sync set that still holds the state is
    /// elected after the timeout; this replica votes, but does not stand.
    pub fn resign(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.set_holds_state(false);
        self.flush(now, out);
        if let Role::Leading(_) = self.role {
            self.follow(now, out);
        }
    }

    /// When the next [`Event::Tick`] is due at the latest.
    pub fn deadline(&self) -> Micros {
        let role = match &self.role {
            Role::Following(_) => self.election_at.min(self.look_at()),
            Role::PreVoting(pre_vote) => pre_vote.deadline(),
            Role::Electing(election) => election.deadline(),
            Role::Leading(leadership) if self.config.pair => leadership.deadline(Micros::NEVER),
            Role::Leading(leadership) => leadership.deadline(self.config.timeout),
        };
        if self.is_asking() {
            role.min(self.recovery.ask_at)
        } else {
            role
        }
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        let (phase, leader) = match &self.role {
            Role::Following(follower) if self.recovery.amnesiac => {
                (Phase::Recovering, follower.leader)
            }
            Role::Following(follower) => (Phase::Following, follower.leader),
            Role::PreVoting(_) => (Phase::PreVoting, None),
            Role::Electing(_) => (Phase::Electing, None),
            Role::Leading(_) => (Phase::Leading, Some(self.config.me)),
        };
        Status {
            phase,
            view: self.promised,
            leader,
            in_sync: self.log.configuration().in_sync,
            members: self.members(),
            last: self.log.last(),
            commit: self.log.commit(),
            base: self.log.base().index,
            log_bytes: self.log.bytes(),
            doubts: self.recovery.doubt.is_some(),
            rejected: self.rejected,
        }
    }

    /// The entry at `index`, while the log holds it. For those who check logs from outside.
    pub fn entry(&self, index: Index) -> Option<&Entry> {
        self.log.get(index)
    }

    /// The view in which the guest's present generation began, as far as this replica knows.
    pub fn generation(&self) -> View {
        self.generation
    }

    /// Promises `view`: from here on everything older is refused.
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

    /// The one place where the role changes. Edges that the picture in the crate's doc lacks
    /// are bugs.
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

    /// Becomes a follower without a leader: of a view just promised, or after an attempt.
    fn follow(&mut self, now: Micros, out: &mut Vec<Command>) {
        self.transition(Role::Following(Follower::new(self.log.commit())));
        self.arm_election(now);
        self.tell(None, out);
    }

    /// Tells the caller whom this replica follows, if that is news.
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

    /// Commits up to `index` and delivers what that adds.
    fn commit_to(&mut self, index: Index, out: &mut Vec<Command>) {
        let mut next = self.log.commit().next();
        self.log.commit_to(index);
        while next <= index {
            let entry = self
                .log
                .get(next)
                .expect("committed entries lie in the log");
            out.push(Command::Deliver(entry.copied(&mut self.pool)));
            next = next.next();
        }
    }

    /// Sends a message that carries no entries.
    fn send(&mut self, to: ReplicaId, message: &Message, out: &mut Vec<Command>) {
        if !self.down.contains(to) {
            let buffer = self.pool.lend(message::HEADER_BYTES_MAX);
            let bytes = message.encode(std::iter::empty(), buffer);
            out.push(Command::Write { to, bytes });
        }
    }
}

impl Entry {
    /// The same, in a buffer of `pool`.
    fn copied(&self, pool: &mut Pool) -> Self {
        Self {
            payload: pool.copy(&self.payload),
            ..*self
        }
    }
}

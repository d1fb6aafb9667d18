//! A backup as its leader knows it.
//!
//! `next` runs ahead of `matched`: entries are sent as soon as they are proposed, with many
//! messages in flight, and `next` assumes that all of them arrive. When the backup reports a gap or
//! its link comes up again, `next` falls back and the rest is sent again: first one message, then
//! the stream once that is acknowledged. So a wrong guess costs one message and not a window.
//!
//! ```text
//!       matched           next            last
//!   ------+----------------+----------------+
//!   acked |   in flight    | does not fit the window yet
//! ```

use crate::silence::lease;
use plover_types::{Incarnation, Index, Micros};
use std::collections::VecDeque;

/// A backup, as its leader sees it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The next entry to send.
    pub next: Index,
    /// The backup's log equals the leader's up to here.
    pub matched: Index,
    /// Its log ends before the leader's begins: the next message makes it begin at the leader's
    /// base.
    pub needs_snapshot: bool,
    /// Messages with entries that are not acknowledged: their last index and their bytes.
    flights: VecDeque<(Index, usize)>,
    in_flight: usize,
    /// The last entry that the newest message to it called committed.
    told: Index,
    /// `next` has fallen back, and no message has been acknowledged since.
    probing: bool,
    /// Messages of this round or later were sent after `next` last fell back.
    rewound_at: u64,
    /// The leader's clock when it sent the newest message that the backup has answered.
    pub echo: Option<Micros>,
    /// Until when, by the leader's clock, the backup gives no other replica its vote.
    pub faithful_until: Micros,
    /// How long a silence of the leader it asks to bear.
    pub wanted: Micros,
    heard_at: Micros,
    /// It does not count as dead before, because this process stood still when its silence would have ended.
    excused_until: Micros,
    /// Heartbeats since it was heard.
    pub unanswered: u64,
    alive: Option<bool>,
    /// The process that last sent an `Ack`. It may still have to ask where the group stands.
    answered_by: Option<Incarnation>,
    /// The incarnation of its process that was heard first in this view, or that last sent a `Recovery`.
    incarnation: Option<u64>,
}

impl Peer {
    /// A backup at the start of a view, believed to hold the leader's log up to `believed`.
    pub(crate) fn new(believed: Index, now: Micros) -> Self {
        Self {
            next: believed.next(),
            // The belief decides what to send. It does not count towards a quorum.
            matched: Index(0),
            needs_snapshot: false,
            flights: VecDeque::new(),
            in_flight: 0,
            told: Index(0),
            probing: false,
            rewound_at: 0,
            echo: None,
            faithful_until: Micros::ZERO,
            wanted: Micros::NEVER,
            heard_at: now,
            excused_until: Micros::ZERO,
            unanswered: 0,
            alive: None,
            answered_by: None,
            incarnation: None,
        }
    }

    /// Whether another message with entries may be in flight, where `window` bytes and
    /// `flights_max` messages may be.
    pub(crate) fn has_room(&self, window: usize, flights_max: usize) -> bool {
        let flights_max = if self.probing { 1 } else { flights_max };
        self.flights.len() < flights_max && self.in_flight < window
    }

    /// A message with entries up to `last` is on its way.
    pub(crate) fn sent(&mut self, last: Index, bytes: usize) {
        self.next = last.next();
        self.in_flight += bytes;
        self.flights.push_back((last, bytes));
    }

    /// A message calls the log committed up to `commit`.
    pub(crate) fn was_told(&mut self, commit: Index) {
        self.told = self.told.max(commit);
    }

    /// Whether it has acknowledged all it was sent and does not know that this is committed. While
    /// something is in flight, what follows its acknowledgement says it.
    pub(crate) fn lacks_word_of(&self, commit: Index) -> bool {
        self.told < commit && self.flights.is_empty()
    }

    /// The backup holds everything up to `matched`.
    pub(crate) fn acknowledged(&mut self, matched: Index) {
        self.matched = self.matched.max(matched);
        self.next = self.next.max(self.matched.next());
        self.needs_snapshot = false;
        while let Some(&(last, bytes)) = self.flights.front() {
            if last > matched {
                break;
            }
            self.in_flight -= bytes;
            self.flights.pop_front();
            self.probing = false;
        }
    }

    /// Whether a gap that is reported for a message of this round is news. One lost message makes a
    /// gap before every later one in flight. Only the first report counts; otherwise each repeat
    /// would cause more repeats.
    pub(crate) fn is_news(&self, number: u64) -> bool {
        number >= self.rewound_at
    }

    /// Sends everything after `held` again, as if what was in flight were lost. `held` is `None` when
    /// the backup lacks entries that the leader has reclaimed. `round` is the leader's last round of
    /// sending.
    ///
    /// `matched` falls too when a backup has restarted without its memory. That is safe: it does not
    /// vote before it holds again what it had acknowledged.
    pub(crate) fn rewind(&mut self, held: Option<Index>, round: u64) {
        self.needs_snapshot = held.is_none();
        let held = held.unwrap_or(Index(0));
        self.next = held.next();
        self.matched = self.matched.min(held);
        self.flights.clear();
        self.in_flight = 0;
        self.probing = true;
        self.rewound_at = round + 1;
    }

    /// The backup answered the message sent at `stamp`, which asked for its faith for `span`. True if it was not known to be alive.
    pub(crate) fn heard(&mut self, stamp: Micros, span: Micros, now: Micros) -> bool {
        self.echo = self.echo.max(Some(stamp));
        self.faithful_until = self.faithful_until.max(stamp + lease(span));
        self.heard_at = now;
        self.excused_until = Micros::ZERO;
        self.unanswered = 0;
        self.alive.replace(true) != Some(true)
    }

    /// This process of the backup has sent an `Ack`. The first one in a view may still repeat that it has
    /// started.
    pub(crate) fn answered(&mut self, process: Incarnation) {
        self.answered_by = Some(process);
        self.incarnation.get_or_insert(process.number);
    }

    /// The process that last sent an `Ack`.
    pub(crate) fn answered_by(&self) -> Option<Incarnation> {
        self.answered_by
    }

    /// When the backup counts as dead unless it answers before; never if it is dead already.
    pub(crate) fn dead_at(&self, timeout: Micros) -> Micros {
        if self.alive == Some(false) {
            Micros::NEVER
        } else {
            (self.heard_at + timeout).max(self.excused_until)
        }
    }

    /// Gives the backup until `until` to answer, once in each silence. False if it had that already.
    pub(crate) fn excuse(&mut self, until: Micros) -> bool {
        let first = self.excused_until == Micros::ZERO;
        self.excused_until = until;
        first
    }

    /// Whether it answers, as far as it has been seen in this view.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive == Some(true)
    }

    /// Whether it answers; none before it has answered or been taken for dead in this view.
    pub(crate) fn liveness(&self) -> Option<bool> {
        self.alive
    }

    /// Whether it has been taken for dead and not been heard since.
    pub(crate) fn is_dead(&self) -> bool {
        self.alive == Some(false)
    }

    /// Takes the backup for dead.
    pub(crate) fn dead(&mut self) {
        self.alive = Some(false);
    }

    /// Its process has started (again) as `incarnation`. True if the leader believed it to be alive:
    /// a restart may be shorter than the timeout, yet it forgets the guest.
    pub(crate) fn restarted(&mut self, incarnation: u64) -> bool {
        let new = self.incarnation.replace(incarnation) != Some(incarnation);
        if new && self.alive == Some(true) {
            self.dead();
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assumed_log_position_is_not_an_acknowledgement() {
        let peer = Peer::new(Index(7), Micros(0));
        assert_eq!((peer.next, peer.matched), (Index(8), Index(0)));
    }

    #[test]
    fn the_window_closes_and_opens_with_cumulative_acknowledgements() {
        let mut peer = Peer::new(Index(0), Micros(0));
        peer.sent(Index(2), 60);
        peer.sent(Index(4), 60);
        assert!(peer.has_room(200, 3));
        assert!(!peer.has_room(200, 2));
        assert!(!peer.has_room(100, 3));
        peer.acknowledged(Index(1));
        assert!(!peer.has_room(100, 3), "half a message is no message");
        peer.acknowledged(Index(3));
        assert!(peer.has_room(100, 3));
        assert_eq!((peer.matched, peer.next), (Index(3), Index(5)));
        peer.acknowledged(Index(2));
        assert_eq!(peer.matched, Index(3), "late acknowledgements are harmless");
    }

    #[test]
    fn one_lost_message_is_not_answered_by_a_storm_of_repeats() {
        let mut peer = Peer::new(Index(0), Micros(0));
        let rounds = 1..=5;
        assert!(peer.is_news(2), "the first was lost");
        peer.rewind(Some(Index(0)), 5);
        assert!(rounds.skip(2).all(|round| !peer.is_news(round)));
        assert!(peer.is_news(6), "but the repeat may be lost too");
    }

    #[test]
    fn a_restart_shorter_than_the_timeout_is_noticed_once() {
        let mut peer = Peer::new(Index(0), Micros(0));
        assert!(!peer.restarted(1), "nothing was believed of it");
        assert!(peer.heard(Micros(1), Micros(9), Micros(2)));
        assert!(!peer.restarted(1));
        assert!(peer.restarted(2));
        assert!(!peer.restarted(2));
        assert!(peer.heard(Micros(3), Micros(9), Micros(4)));
    }

    /// A backup that followed a new leader before any leader had answered its `Recovery` repeats it.
    #[test]
    fn a_backup_that_still_says_that_it_has_started_is_no_restarted_one() {
        let replica = plover_types::ReplicaId(1);
        let process = |number| Incarnation { replica, number };
        let mut peer = Peer::new(Index(0), Micros(0));
        peer.heard(Micros(1), Micros(9), Micros(2));
        peer.answered(process(1));
        assert!(!peer.restarted(1));
        peer.answered(process(2));
        assert!(
            peer.restarted(2),
            "the next process may answer before it asks"
        );
    }
}

//! What a leader knows of one backup.
//!
//! `next` runs ahead of `matched`: entries are sent as soon as they are proposed, many messages
//! in flight, and `next` assumes that all of them arrive. When the backup reports a gap, or its
//! link comes up anew, `next` falls back and the rest is sent again: one message first, and the
//! stream once that is acknowledged, so that a bad guess costs one message and not a window.
//!
//! ```text
//!       matched           next            last
//!   ------+----------------+----------------+
//!   acked |   in flight    | does not fit the window yet
//! ```

use plover_types::{Index, Micros};
use std::collections::VecDeque;

/// A backup, as its leader sees it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The next entry to send.
    pub next: Index,
    /// The backup's log equals ours up to here.
    pub matched: Index,
    /// Its log ends before ours begins: the next message makes it jump to our base.
    pub needs_snapshot: bool,
    /// Messages with entries that are not acknowledged: their last index and their bytes.
    flights: VecDeque<(Index, usize)>,
    in_flight: usize,
    /// It has fallen back, and no message has been acknowledged since.
    probing: bool,
    /// Messages of this round or later were sent since we last fell back.
    rewound_at: u64,
    /// Our clock when we sent the newest message that it has answered.
    pub echo: Option<Micros>,
    heard_at: Micros,
    /// Heartbeats since then.
    pub unanswered: u64,
    alive: Option<bool>,
    /// Which start of its process last asked us for its recovery.
    incarnation: Option<u64>,
}

impl Peer {
    /// A backup that is believed to hold our log up to `matched`, at the start of a view.
    pub(crate) fn new(believed: Index, now: Micros) -> Self {
        Self {
            next: believed.next(),
            // Belief is enough to choose what to send; it does not count towards a quorum.
            matched: Index(0),
            needs_snapshot: false,
            flights: VecDeque::new(),
            in_flight: 0,
            probing: false,
            rewound_at: 0,
            echo: None,
            heard_at: now,
            unanswered: 0,
            alive: None,
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

    /// Whether a report of a gap in answer to a message of this round tells anything new. One
    /// lost message makes a gap before every later one in flight; only the first report counts,
    /// or repeats would breed repeats.
    pub(crate) fn is_news(&self, number: u64) -> bool {
        number >= self.rewound_at
    }

    /// Sends everything after `held` again: what was in flight is taken for lost. `held` is
    /// `None` when the backup lacks entries that we do not have any more. `round` is the last in
    /// which it was sent anything.
    ///
    /// `matched` falls too when a backup has restarted without its memory. That is safe either
    /// way: it votes for nobody before it holds again what it had acknowledged.
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

    /// The backup answered what we sent at `stamp`. True if it was not known to be alive.
    pub(crate) fn heard(&mut self, stamp: Micros, now: Micros) -> bool {
        self.echo = self.echo.max(Some(stamp));
        self.heard_at = now;
        self.unanswered = 0;
        self.alive.replace(true) != Some(true)
    }

    /// When the backup counts as dead unless it answers before; never if it is dead already.
    pub(crate) fn dead_at(&self, timeout: Micros) -> Micros {
        if self.alive == Some(false) {
            Micros::NEVER
        } else {
            self.heard_at + timeout
        }
    }

    /// Whether it answers, as far as it has been seen in this view.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive == Some(true)
    }

    /// Whether it has been taken for dead and not been heard since.
    pub(crate) fn is_dead(&self) -> bool {
        self.alive == Some(false)
    }

    /// Takes the backup for dead.
    pub(crate) fn dead(&mut self) {
        self.alive = Some(false);
    }

    /// Its process has started (again) as `incarnation`. True if that ends a generation that we
    /// believed in: a restart may be shorter than the timeout, yet it forgets the guest.
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
    fn belief_is_not_an_acknowledgement() {
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
        assert!(peer.heard(Micros(1), Micros(2)));
        assert!(!peer.restarted(1));
        assert!(peer.restarted(2));
        assert!(!peer.restarted(2));
        assert!(peer.heard(Micros(3), Micros(4)));
    }
}

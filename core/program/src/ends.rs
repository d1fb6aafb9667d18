//! The ends of connections: the program is told when it has answered, and not before.
//!
//! A program may give up a request when its client leaves. The leader's program has executed what its client was acknowledged; a
//! follower's may have read it and no more when the end comes, right behind it in the log. So an end of a client's says how much
//! the leader's program had sent ([`Entry::Close`](crate::Entry::Close)), and waits here until this one has sent as much. A client that
//! sends its request and that it sends nothing more ([`Entry::End`](crate::Entry::End)) waits for an answer yet, so that waits for the answer, too. A
//! [cut](crate::Entry::Cut) says nothing of the kind, since the leader is dead: it waits until every request is answered.
//!
//! Neither waits for ever. Answers may be shorter here, as when they tell a time, and some requests have no answer.

use crate::Entry;
use crate::feed::Feed;
use crate::session::Open;
use plover_types::Micros;

/// An end waits for so long at most: half of what it was after each wait in vain, and a little more after each other one.
const PATIENCE_MAX: Micros = Micros::from_ms(500);
const PATIENCE_MIN: Micros = Micros::from_ms(1);

/// A cut waits for so long at most: until then, a new leader serves nobody.
const CUT_WAITS_MAX: Micros = Micros::from_ms(200);

/// The wait of one end after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    patience: Micros,
    /// Until when the entry that is held waits for the program's output.
    until: Micros,
}

impl Ends {
    pub fn new() -> Self {
        Self {
            patience: PATIENCE_MAX,
            until: Micros::NEVER,
        }
    }

    /// Whether the program may be told of this end now.
    fn may_come(&mut self, now: Micros, is_heard: bool, is_cut: bool) -> bool {
        let waits = self.until != Micros::NEVER;
        if !is_heard && !waits {
            self.until = now + if is_cut { CUT_WAITS_MAX } else { self.patience };
        }
        if !is_heard && now < self.until {
            return false;
        }
        self.until = Micros::NEVER;
        if waits && !is_cut {
            let next = if is_heard {
                self.patience.0 + PATIENCE_MIN.0
            } else {
                self.patience.0 / 2
            };
            self.patience = Micros(next).clamp(PATIENCE_MIN, PATIENCE_MAX);
        }
        true
    }
}

impl Feed {
    /// Whether the program may be given this entry now, which it is otherwise ready for: an end waits for its answers.
    pub fn has_answered(&mut self, now: Micros, entry: &Entry<'_>) -> bool {
        let (is_heard, is_cut) = match entry {
            Entry::End(connection, sent) | Entry::Close(connection, sent) => {
                let is_end = matches!(entry, Entry::End(..));
                let open = self.open.get(connection);
                let is_heard = |it: &Open| it.has_sent(*sent) && (!is_end || it.is_answered());
                (open.is_none_or(is_heard), false)
            }
            Entry::Cut(_) => (self.open.values().all(|it| it.is_answered()), true),
            _ => return true,
        };
        self.ends.may_come(now, is_heard, is_cut)
    }

    /// When an end that waits comes, unless the program sends something before.
    pub fn end_due(&self) -> Micros {
        self.ends.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(at: u64) -> Micros {
        Micros::from_ms(at)
    }

    #[test]
    fn ends_that_wait_in_vain_wait_ever_shorter() {
        let mut ends = Ends::new();
        assert!(ends.may_come(ms(5), true, false), "nothing to wait for");
        let mut waits = Vec::new();
        let mut now = 10;
        for _ in 0..12 {
            let began = now;
            while !ends.may_come(ms(now), false, false) {
                now += 1;
            }
            waits.push(now - began);
        }
        assert_eq!(waits[..4], [500, 250, 125, 63]);
        assert_eq!(waits[11], 1);
        // Those that are heard give it back, slowly: some answers may always be shorter.
        for _ in 0..10 {
            assert!(!ends.may_come(ms(now), false, false));
            assert!(ends.may_come(ms(now), true, false));
        }
        assert_eq!(ends.patience, ms(11));
    }

    #[test]
    fn a_cut_waits_for_a_moment_however_often() {
        let mut ends = Ends::new();
        for round in 0..3 {
            let now = round * 1000;
            assert!(!ends.may_come(ms(now), false, true));
            assert!(!ends.may_come(ms(now + 199), false, true));
            assert!(ends.may_come(ms(now + 200), false, true));
        }
        assert_eq!(ends.patience, PATIENCE_MAX);
    }
}

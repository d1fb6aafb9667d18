//! One TCP connection as both guests have sent it, compared by place in the stream.
//!
//! ```text
//!              matched            next (ours)
//!  ours    ───────┼──────────────────┤            bytes beyond `matched` wait in `ahead`
//!  theirs  ───────┤ next (theirs)                 of whichever side has sent more
//!                 both have sent all before it, byte for byte
//! ```
//!
//! Segmentation and retransmission make no difference: bytes below a side's `next` are skipped, as a
//! receiver does. A FIN takes one place after the last byte.
//!
//! A SYN begins the stream anew. The secondary's frames come translated to the numbers that clients
//! know (see [`crate::SequenceTranslator`]), so two guests that open a connection alike send the same
//! SYN.
//!
//! | part of a segment | compared |
//! |---|---|
//! | payload, FIN | by place in the stream |
//! | RST | with its numbers |
//! | acknowledgement number | the other side's must be at least as high |
//! | SYN | its number, what it acknowledges, its options and ECN flags |
//! | URG, options of MPTCP, SYN with payload | not at all: the connection waits for a sync. Urgent data is out of the stream's order and hardly used; MPTCP ends streams by an option |
//! | segmentation, window, timestamps, SACK, PSH, ECN, checksum, IP header but the addresses | ignored |

use crate::matcher::Difference;
use crate::side::{Reset, Side};
use plover_packets::{Segment, Syn, before};
use plover_types::OutputNo;
use std::collections::VecDeque;

/// A segment of ours that the other side has not sent completely.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    no: OutputNo,
    end: u32,
    ack: Option<u32>,
    reset: Option<Reset>,
    is_syn: bool,
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    ours: Side,
    theirs: Side,
    matched: u32,
    /// The places above are known. An RST tells none: whoever has sent what it answers has chosen its number (RFC 9293
    /// §3.10.7.4).
    placed: bool,
    waiting: VecDeque<Waiting>,
    /// The two have differed, so nothing more matches before the next sync.
    broken: bool,
}

impl Connection {
    /// A connection whose first segment seen is `first`.
    pub fn new(first: &Segment<'_>) -> Self {
        Self {
            placed: !first.rst,
            ..Self::at(Side::from(first.seq, None))
        }
    }

    /// A connection that both sides go on with from here.
    fn at(side: Side) -> Self {
        Self {
            ours: side.clone(),
            matched: side.next,
            theirs: side,
            placed: true,
            waiting: VecDeque::new(),
            broken: false,
        }
    }

    /// The first segment of the stream that is no RST: the comparing begins at its place.
    fn place(&mut self, segment: &Segment<'_>) {
        if self.placed || segment.rst {
            return;
        }
        self.placed = true;
        for side in [&mut self.ours, &mut self.theirs] {
            (side.base, side.next) = (segment.seq, segment.seq);
        }
        self.matched = segment.seq;
        for reset in &mut self.waiting {
            reset.end = segment.seq;
        }
    }

    /// Our guest has sent this.
    pub fn ours(&mut self, no: OutputNo, segment: &Segment<'_>) -> Result<(), Difference> {
        if let Some(syn) = segment.syn {
            return self.our_syn(no, syn, segment.payload.len() as u32);
        }
        self.place(segment);
        self.ours.acknowledge(segment);
        let length = segment.payload.len() as u32 + u32::from(segment.fin);
        let end = segment.seq.wrapping_add(length);
        if self.broken {
            if !segment.rst {
                self.follow(segment.seq, end);
            }
            return Ok(());
        }
        let reset = segment.rst.then_some((segment.seq, segment.ack));
        if let Some(reset) = reset {
            self.ours.reset(reset);
        } else if let Err(difference) = self.advance(segment, true) {
            self.follow(segment.seq, end);
            return Err(difference);
        }
        self.waiting.push_back(Waiting {
            no,
            end: if reset.is_some() { self.ours.next } else { end },
            ack: segment.ack,
            reset,
            is_syn: false,
        });
        Ok(())
    }

    /// The next slot's comparing begins where our guest is: behind a segment that is not compared, if it goes on with the
    /// stream or the place was a guess.
    fn follow(&mut self, seq: u32, end: u32) {
        let goes_on = !before(self.ours.next, seq);
        if goes_on || self.ours.syn.is_none() {
            self.ours.reach(end);
        }
    }

    /// Our guest opens the connection, or sends its SYN again.
    fn our_syn(&mut self, no: OutputNo, syn: Syn, payload: u32) -> Result<(), Difference> {
        if self.ours.syn != Some(syn) {
            // The stream begins anew: only what both send from here on counts.
            self.break_off();
            self.ours = Side::opened(syn);
            self.theirs = Side::from(self.ours.next, None);
            self.matched = self.ours.next;
            self.placed = true;
            self.broken = payload > 0;
            self.ours.reach(self.ours.next.wrapping_add(payload));
        }
        if self.broken {
            return Err(Difference::Syn);
        }
        self.waiting.push_back(Waiting {
            no,
            end: self.ours.base,
            ack: syn.ack,
            reset: None,
            is_syn: true,
        });
        Ok(())
    }

    /// The secondary's guest opens the connection. Its SYN is translated to our number, so it comes
    /// after ours.
    fn their_syn(&mut self, syn: Syn, has_payload: bool) -> Result<(), Difference> {
        if self.ours.syn != Some(syn) || has_payload {
            self.break_off();
            return Err(Difference::Syn);
        }
        self.theirs.syn = Some(syn);
        self.theirs.ack = self.theirs.ack.or(syn.ack);
        Ok(())
    }

    /// The secondary's guest has sent this.
    pub fn theirs(&mut self, segment: &Segment<'_>) -> Result<(), Difference> {
        if self.broken {
            return Ok(());
        }
        if let Some(syn) = segment.syn {
            return self.their_syn(syn, !segment.payload.is_empty());
        }
        if !self.same_syn() {
            // Its guest is late, and this is of the connection that had these ports before.
            return Ok(());
        }
        self.place(segment);
        self.theirs.acknowledge(segment);
        if segment.rst {
            self.theirs.reset((segment.seq, segment.ack));
            return Ok(());
        }
        self.advance(segment, false)
    }

    fn advance(&mut self, segment: &Segment<'_>, ours: bool) -> Result<(), Difference> {
        let (side, other) = if ours {
            (&mut self.ours, &mut self.theirs)
        } else {
            (&mut self.theirs, &mut self.ours)
        };
        let taken = if segment.special {
            Err(Difference::Special)
        } else {
            side.take(segment)
        };
        let met = taken.and_then(|fresh| {
            // Bytes wait on one side at most: if they do on this one, the other has none, and these wait behind them.
            let both = other.meet(fresh)?;
            side.ahead.extend(&fresh[both..]);
            Ok(both)
        });
        let compared = met.and_then(|both| {
            self.matched = self.matched.wrapping_add(both as u32);
            self.compare_ends()
        });
        if compared.is_err() {
            self.break_off();
        }
        compared
    }

    /// Moves `matched` past a FIN that both have sent at this place.
    fn compare_ends(&mut self) -> Result<(), Difference> {
        let ends = |side: &Side| side.fin == Some(self.matched);
        let goes_on = |side: &Side| !side.ahead.is_empty();
        match (ends(&self.ours), ends(&self.theirs)) {
            (true, true) => self.matched = self.matched.wrapping_add(1),
            (true, false) if goes_on(&self.theirs) => return Err(Difference::Stream),
            (false, true) if goes_on(&self.ours) => return Err(Difference::Stream),
            _ => {}
        }
        Ok(())
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.waiting.clear();
        self.ours.ahead = VecDeque::new();
        self.theirs.ahead = VecDeque::new();
    }

    /// The next of our segments, in order, that the other side has sent as well. `any_ack` leaves out
    /// the rule of the acknowledgement number: a known bug that the simulator must find.
    pub fn pop_covered(&mut self, any_ack: bool) -> Option<OutputNo> {
        let first = self.waiting.front()?;
        let sent = !before(self.matched, first.end);
        // An RST has a place of its own, and the same one has the same acknowledgement.
        let acknowledged = any_ack || first.reset.is_some() || self.theirs.covers(first.ack);
        let reset = first
            .reset
            .is_none_or(|reset| self.theirs.resets.contains(&reset));
        let opened = !first.is_syn || self.same_syn();
        if sent && acknowledged && reset && opened {
            self.waiting.pop_front().map(|waiting| waiting.no)
        } else {
            None
        }
    }

    /// Our first segment that waits, and in words what the other side has not sent of it.
    pub fn describe_waiting(&self) -> Option<(OutputNo, String)> {
        let first = self.waiting.front()?;
        let behind = |place: u32| first.end.wrapping_sub(place) as i32;
        let what = match (first.is_syn, first.reset) {
            (true, _) => "a SYN",
            (_, Some(_)) => "an RST",
            _ => "a segment",
        };
        let said = format!(
            "{what} of ours waits: of its end the other side has sent all but {} bytes, both alike \
             all but {}; it acknowledges {:?}, the other side {:?}",
            behind(self.theirs.next),
            behind(self.matched),
            first.ack,
            self.theirs.ack
        );
        Some((first.no, said))
    }

    /// Whether both have begun the stream with the same SYN, if the SYN was seen.
    fn same_syn(&self) -> bool {
        self.ours.syn == self.theirs.syn
    }

    /// Whether both have sent the stream up to `end`, or this RST.
    pub fn is_matched(&self, end: u32, reset: Option<Reset>) -> bool {
        if self.broken || !self.same_syn() {
            return false;
        }
        match reset {
            Some(reset) => self.ours.resets.contains(&reset),
            None => !before(self.matched, end),
        }
    }

    /// A sync has made the other side's guest equal to ours: both go on from what ours has sent.
    pub fn begun_anew(self) -> Self {
        Self {
            placed: self.placed,
            ..Self::at(Side {
                syn: self.ours.syn,
                ..Side::from(self.ours.next, self.ours.ack)
            })
        }
    }
}

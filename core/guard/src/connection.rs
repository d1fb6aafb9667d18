//! One TCP connection as both guests have sent it, compared by its place in the stream.
//!
//! ```text
//!              matched            next (ours)
//!  ours    ───────┼──────────────────┤            bytes beyond `matched` wait in `ahead`
//!  theirs  ───────┤ next (theirs)                 of whichever side has sent more
//!                 both have sent all before it, byte for byte
//! ```
//!
//! How either side cuts its stream into segments, and what it sends again, makes no difference:
//! bytes below a side's `next` are passed over, as a receiver would. A FIN takes one place after
//! the last byte.
//!
//! A SYN begins the stream anew. Numbers are those that clients know: the secondary says its
//! guest's renumbered (see [`crate::Numbers`]), so that two guests that open a connection alike
//! send the same SYN.

use crate::guard::OutputNo;
use crate::matcher::Difference;
use crate::packet::{Opening, Segment};
use std::collections::VecDeque;

/// Whether `a` lies before `b`, in the circle of sequence numbers (RFC 9293 §3.4).
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// What tells one RST from another: its own number and what it acknowledges.
type Reset = (u32, Option<u32>);

/// RSTs of one connection and slot that are told apart. A guest that sends more has them
/// released by the sync.
const RESETS_MAX: usize = 8;

/// What one guest has sent.
#[derive(Clone, Debug, Default)]
struct Side {
    /// Where this slot's comparing began.
    base: u32,
    /// The place after all it has sent.
    next: u32,
    /// What the other has not sent yet.
    ahead: VecDeque<u8>,
    /// The place of its FIN.
    fin: Option<u32>,
    /// The highest acknowledgement number.
    ack: Option<u32>,
    /// The numbers of its RSTs.
    resets: Vec<Reset>,
    /// Its SYN.
    opening: Option<Opening>,
}

impl Side {
    /// One that begins with this SYN.
    fn opened(opening: Opening) -> Self {
        Self {
            opening: Some(opening),
            ..Self::from(opening.seq.wrapping_add(1), opening.ack)
        }
    }

    /// One that goes on from here.
    fn from(place: u32, ack: Option<u32>) -> Self {
        Self {
            base: place,
            next: place,
            ack,
            ..Self::default()
        }
    }

    fn reset(&mut self, numbers: Reset) {
        if self.resets.len() < RESETS_MAX && !self.resets.contains(&numbers) {
            self.resets.push(numbers);
        }
    }

    fn acknowledge(&mut self, ack: Option<u32>) {
        if let Some(ack) = ack {
            if self.ack.is_none_or(|highest| before(highest, ack)) {
                self.ack = Some(ack);
            }
        }
    }

    fn covers(&self, ack: Option<u32>) -> bool {
        match (ack, self.ack) {
            (None, _) => true,
            (Some(ack), Some(highest)) => !before(highest, ack),
            (Some(_), None) => false,
        }
    }

    /// Takes what is new of a segment.
    fn take(&mut self, segment: &Segment<'_>) -> Result<(), Difference> {
        let length = segment.payload.len() as u32;
        let end = segment.seq.wrapping_add(length);
        if before(self.next, segment.seq) {
            return Err(Difference::Gap);
        }
        let known = self.next.wrapping_sub(segment.seq);
        if known < length {
            if self.fin.is_some() {
                return Err(Difference::Stream);
            }
            self.ahead.extend(&segment.payload[known as usize..]);
            self.next = end;
        }
        if !segment.fin || self.fin == Some(end) {
            return Ok(());
        }
        let after = end.wrapping_add(1);
        if self.fin.is_none() && self.next == end {
            self.fin = Some(end);
            self.next = after;
            Ok(())
        } else if after == self.base {
            // Sent again from the slot before.
            Ok(())
        } else {
            Err(Difference::Stream)
        }
    }
}

/// A segment of ours that waits for the other side.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    no: OutputNo,
    end: u32,
    ack: Option<u32>,
    reset: Option<Reset>,
    /// It is the SYN.
    opens: bool,
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    ours: Side,
    theirs: Side,
    matched: u32,
    waiting: VecDeque<Waiting>,
    /// The two have differed: nothing more matches before the next sync.
    broken: bool,
    /// Slots that have ended since anything was sent on it.
    idle_slots: u32,
}

/// A connection on which this many slots have seen nothing is forgotten. Forgetting is safe: the
/// next segment is a new beginning, and only what is sent again across it can cost a sync.
const IDLE_SLOTS_MAX: u32 = 3;

impl Connection {
    /// One of which `first` is the first segment seen.
    pub fn new(first: &Segment<'_>) -> Self {
        let side = Side::from(first.seq, None);
        Self {
            ours: side.clone(),
            theirs: side,
            matched: first.seq,
            waiting: VecDeque::new(),
            broken: false,
            idle_slots: 0,
        }
    }

    /// Our guest has sent this.
    pub fn ours(&mut self, no: OutputNo, segment: &Segment<'_>) -> Result<(), Difference> {
        self.idle_slots = 0;
        if let Some(opening) = segment.opening {
            return self.we_open(no, opening, !segment.payload.is_empty());
        }
        self.ours.acknowledge(segment.ack);
        if self.broken {
            let length = segment.payload.len() as u32 + u32::from(segment.fin);
            let end = segment.seq.wrapping_add(length);
            if before(self.ours.next, end) {
                self.ours.next = end;
            }
            return Ok(());
        }
        let reset = segment.rst.then_some((segment.seq, segment.ack));
        if let Some(reset) = reset {
            self.ours.reset(reset);
        } else {
            self.advance(segment, true)?;
        }
        let length = segment.payload.len() as u32 + u32::from(segment.fin);
        self.waiting.push_back(Waiting {
            no,
            end: if reset.is_some() {
                self.ours.next
            } else {
                segment.seq.wrapping_add(length)
            },
            ack: segment.ack,
            reset,
            opens: false,
        });
        Ok(())
    }

    /// Our guest opens the connection, or says so again.
    fn we_open(
        &mut self,
        no: OutputNo,
        opening: Opening,
        has_payload: bool,
    ) -> Result<(), Difference> {
        if self.ours.opening != Some(opening) {
            // The stream begins anew, and only what both say from here on counts.
            self.break_off();
            self.ours = Side::opened(opening);
            self.theirs = Side::from(self.ours.next, None);
            self.matched = self.ours.next;
            self.broken = has_payload;
        }
        if self.broken {
            return Err(Difference::Opens);
        }
        self.waiting.push_back(Waiting {
            no,
            end: self.ours.base,
            ack: opening.ack,
            reset: None,
            opens: true,
        });
        Ok(())
    }

    /// The secondary's guest does. It knows our number only once we have sent ours.
    fn they_open(&mut self, opening: Opening, has_payload: bool) -> Result<(), Difference> {
        if self.ours.opening != Some(opening) || has_payload {
            self.break_off();
            return Err(Difference::Opens);
        }
        self.theirs.opening = Some(opening);
        self.theirs.acknowledge(opening.ack);
        Ok(())
    }

    /// The secondary's guest has sent this.
    pub fn theirs(&mut self, segment: &Segment<'_>) -> Result<(), Difference> {
        self.idle_slots = 0;
        if self.broken {
            return Ok(());
        }
        if let Some(opening) = segment.opening {
            return self.they_open(opening, !segment.payload.is_empty());
        }
        self.theirs.acknowledge(segment.ack);
        if segment.rst {
            self.theirs.reset((segment.seq, segment.ack));
            return Ok(());
        }
        self.advance(segment, false)
    }

    fn advance(&mut self, segment: &Segment<'_>, ours: bool) -> Result<(), Difference> {
        let side = if ours {
            &mut self.ours
        } else {
            &mut self.theirs
        };
        let taken = if segment.urgent {
            Err(Difference::Urgent)
        } else {
            side.take(segment)
        };
        let compared = taken.and_then(|()| self.compare());
        if compared.is_err() {
            self.break_off();
        }
        compared
    }

    /// Moves `matched` on over what both have sent.
    fn compare(&mut self) -> Result<(), Difference> {
        let both = self.ours.ahead.len().min(self.theirs.ahead.len());
        let ours = self.ours.ahead.drain(..both);
        let theirs = self.theirs.ahead.drain(..both);
        if !ours.eq(theirs) {
            return Err(Difference::Content);
        }
        self.matched = self.matched.wrapping_add(both as u32);
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

    /// The next of our segments that the other side has sent too, in order. `any_ack` leaves the
    /// rule of the acknowledgement number out, which is a bug to be found.
    pub fn pop_covered(&mut self, any_ack: bool) -> Option<OutputNo> {
        let first = self.waiting.front()?;
        let sent = !before(self.matched, first.end);
        let acknowledged = any_ack || self.theirs.covers(first.ack);
        let reset = first
            .reset
            .is_none_or(|reset| self.theirs.resets.contains(&reset));
        let opened = !first.opens || self.is_opened();
        if sent && acknowledged && reset && opened {
            self.waiting.pop_front().map(|waiting| waiting.no)
        } else {
            None
        }
    }

    /// The number of the first of our segments that waits, and what of it the other side lacks.
    pub fn describe_waiting(&self) -> Option<(OutputNo, String)> {
        let first = self.waiting.front()?;
        let behind = |place: u32| first.end.wrapping_sub(place) as i32;
        let what = match (first.opens, first.reset) {
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

    /// Whether both have begun the stream with the same SYN, if it began while it was followed.
    fn is_opened(&self) -> bool {
        self.ours.opening == self.theirs.opening
    }

    /// Whether both have sent the stream up to here; and this RST, if it is one.
    pub fn is_matched(&self, end: u32, reset: Option<Reset>) -> bool {
        if self.broken || !self.is_opened() {
            return false;
        }
        match reset {
            Some(reset) => self.ours.resets.contains(&reset),
            None => !before(self.matched, end),
        }
    }

    /// A sync makes the other side's guest equal to ours: all that ours has sent is explained,
    /// and both go on from there. Returns whether it is worth remembering.
    pub fn begin_anew(&mut self) -> bool {
        self.idle_slots += 1;
        let side = Side {
            opening: self.ours.opening,
            ..Side::from(self.ours.next, self.ours.ack)
        };
        self.ours = side.clone();
        self.matched = side.next;
        self.theirs = side;
        self.waiting.clear();
        self.broken = false;
        self.idle_slots <= IDLE_SLOTS_MAX
    }
}

//! The bytes of one TCP connection that one of the two guests has sent.

use crate::matcher::Difference;
use plover_packets::{Segment, Syn, before};
use std::collections::VecDeque;

/// The numbers that tell one RST from another: its sequence and acknowledgement number.
pub(crate) type Reset = (u32, Option<u32>);

/// Room for bytes that a connection keeps while none wait.
const IDLE_BYTES_MAX: usize = 512;

/// RSTs of one connection and slot that are told apart: the newest of them.
const RESETS_MAX: usize = 64;

/// The bytes that one guest has sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// The place where this slot's comparing began.
    pub base: u32,
    /// The place after the last byte that it has sent.
    pub next: u32,
    /// Bytes that the other side has not sent yet.
    pub ahead: VecDeque<u8>,
    /// The place of its FIN.
    pub fin: Option<u32>,
    /// The highest acknowledgement number.
    pub ack: Option<u32>,
    /// The numbers of its RSTs, the newest first.
    pub resets: VecDeque<Reset>,
    /// Its SYN.
    pub syn: Option<Syn>,
}

impl Side {
    /// A side whose stream begins with this SYN.
    pub fn opened(syn: Syn) -> Self {
        Self {
            syn: Some(syn),
            ..Self::from(syn.seq.wrapping_add(1), syn.ack)
        }
    }

    /// A side whose stream goes on from this place.
    pub fn from(place: u32, ack: Option<u32>) -> Self {
        Self {
            base: place,
            next: place,
            ack,
            ..Self::default()
        }
    }

    pub fn reset(&mut self, numbers: Reset) {
        if !self.resets.contains(&numbers) {
            self.resets.push_front(numbers);
            self.resets.truncate(RESETS_MAX);
        }
    }

    /// Takes a segment's acknowledgement, if it lies in this stream: one that lies elsewhere may be a late one of the
    /// connection that had these ports before. (A keep-alive lies one byte before its place.)
    pub fn acknowledge(&mut self, segment: &Segment<'_>) {
        let end = segment.seq.wrapping_add(segment.payload.len() as u32);
        let is_here = !before(self.next, segment.seq) && !before(end.wrapping_add(1), self.base);
        if let Some(ack) = segment.ack.filter(|_| is_here && !segment.rst) {
            if self.ack.is_none_or(|highest| before(highest, ack)) {
                self.ack = Some(ack);
            }
        }
    }

    pub fn covers(&self, ack: Option<u32>) -> bool {
        match (ack, self.ack) {
            (None, _) => true,
            (Some(ack), Some(highest)) => !before(highest, ack),
            (Some(_), None) => false,
        }
    }

    /// It has sent the stream up to here, seen or not.
    pub fn reach(&mut self, place: u32) {
        if before(self.next, place) {
            self.next = place;
        }
    }

    /// Takes a segment, and returns those of its bytes that have not been sent before.
    pub fn take<'a>(&mut self, segment: &Segment<'a>) -> Result<&'a [u8], Difference> {
        let length = segment.payload.len() as u32;
        let end = segment.seq.wrapping_add(length);
        if before(self.next, segment.seq) {
            return Err(Difference::Gap);
        }
        let known = self.next.wrapping_sub(segment.seq);
        let fresh = segment.payload.get(known as usize..).unwrap_or_default();
        if !fresh.is_empty() {
            if self.fin.is_some() {
                return Err(Difference::Stream);
            }
            self.next = end;
        }
        if !segment.fin || self.fin == Some(end) {
            return Ok(fresh);
        }
        let after = end.wrapping_add(1);
        if self.fin.is_none() && self.next == end {
            self.fin = Some(end);
            self.next = after;
            Ok(fresh)
        } else if after == self.base {
            // Sent again from the slot before.
            Ok(fresh)
        } else {
            Err(Difference::Stream)
        }
    }

    /// The other side has sent these bytes next. Returns how many of them this side has sent as well.
    pub fn meet(&mut self, bytes: &[u8]) -> Result<usize, Difference> {
        let both = bytes.len().min(self.ahead.len());
        let (first, second) = self.ahead.as_slices();
        let cut = both.min(first.len());
        if bytes[..cut] != first[..cut] || bytes[cut..both] != second[..both - cut] {
            return Err(Difference::Content);
        }
        self.ahead.drain(..both);
        // Connections are kept for some slots, and there may be many.
        if self.ahead.is_empty() && self.ahead.capacity() > IDLE_BYTES_MAX {
            self.ahead = VecDeque::new();
        }
        Ok(both)
    }
}

//! Clean replies over TCP: a segment leaves before the sync that ends its slot, if programs in the guest have called all
//! its bytes clean (docs/decisions/0081).
//!
//! ```text
//!  guest                     leader                                       secondary
//!  SYN to a client ────────▶ opened: where its bytes count from
//!  Reply(bytes a to b) ────▶ said
//!                  a sync ── listed: Streams, then the end mark ────────▶ at its takeover it resets these
//!                            ◀───────────────────────────────────── Ack
//!  a segment of a to b ────▶ sent: clean as of the cut, or of that sync
//! ```
//!
//! The bytes may have left when the secondary takes over with a guest that has not sent them. Its guest would send others
//! in their place, so the connection is reset ([`crate::leader::resets`]). For that it must be on the list of the last sync
//! that the secondary has acknowledged.
//!
//! At a planned takeover nothing has left early, and the next leader goes on with what it knows of each connection.
//!
//! Only while the secondary's guest stands. One that runs has sent the same bytes already or is to be compared, and would refuse
//! clients' segments that acknowledge what it has not sent.

use plover_packets::{MACS_BYTES, Route, Segment, before, macs_of};
use plover_syncvm::message::KnownStream;
use plover_types::{Frame, SyncNo};
use std::collections::{BTreeMap, VecDeque};

/// Connections of the guest that are known at most. The oldest makes room for a new one, and its replies wait from then on;
/// first one that no program has spoken of, as long as these are a quarter.
pub(crate) const STREAMS_MAX: usize = 1024;

/// Words of a connection that wait for their bytes or for the client to acknowledge them, at most.
const WORDS_MAX: usize = 64;

/// Bytes that a program has called clean.
#[derive(Clone, Copy, Debug)]
struct Word {
    /// The sequence number of the first.
    from: u32,
    bytes: u32,
    cut: SyncNo,
}

#[derive(Debug)]
struct Stream {
    /// It is the n-th that was opened.
    no: u64,
    macs: [u8; MACS_BYTES],
    /// The sequence number of the program's first byte.
    first: u32,
    /// The guest has sent all bytes before this one.
    sent: u32,
    acked: u32,
    heard: u32,
    words: VecDeque<Word>,
    /// A program has spoken of it.
    is_spoken_of: bool,
    /// The sync from which on each sync has had it on its list.
    listed: Option<SyncNo>,
}

impl Stream {
    /// The cut as of which all bytes of a segment are clean.
    fn clean_as_of(&self, seq: u32, bytes: u32) -> Option<SyncNo> {
        let (mut at, mut newest) = (0, SyncNo(0));
        while at < bytes {
            let next = seq.wrapping_add(at);
            let covers = |word: &&Word| next.wrapping_sub(word.from) < word.bytes;
            let word = self.words.iter().find(covers)?;
            at += word.bytes - next.wrapping_sub(word.from);
            newest = newest.max(word.cut);
        }
        Some(newest)
    }
}

/// The connections of the leader's guest, each from the guest to its client.
#[derive(Debug, Default)]
pub(super) struct Streams {
    known: BTreeMap<Route, Stream>,
    opened: u64,
}

impl Streams {
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn has(&self, route: &Route) -> bool {
        self.known.contains_key(route)
    }

    /// A program is about to send so many bytes, of which the first is byte `at` of its connection.
    pub fn said(&mut self, route: &Route, at: u64, bytes: u32, cut: SyncNo) {
        let Some(stream) = self.known.get_mut(route) else {
            return;
        };
        stream.is_spoken_of = true;
        // A word that is longer than the half of all numbers would cover what it does not mean.
        if bytes == 0 || bytes > u32::MAX / 2 {
            return;
        }
        let from = stream.first.wrapping_add(at as u32);
        // A later word about the same bytes is about what is sent in the end.
        let is_apart = |word: &Word| {
            from.wrapping_sub(word.from) >= word.bytes && word.from.wrapping_sub(from) >= bytes
        };
        stream.words.retain(is_apart);
        if stream.words.len() == WORDS_MAX {
            stream.words.pop_front();
        }
        stream.words.push_back(Word { from, bytes, cut });
    }

    /// Our guest has sent a segment. Returns the sync that has to be acknowledged before it may leave early, if it may.
    pub fn sent(&mut self, route: Route, segment: &Segment<'_>, frame: &Frame) -> Option<SyncNo> {
        if let (Some(syn), Some(macs)) = (segment.syn, macs_of(frame)) {
            self.opened(route, syn.seq.wrapping_add(1), macs, syn.ack);
            return None;
        }
        if segment.fin || segment.rst {
            self.known.remove(&route);
            return None;
        }
        let stream = self.known.get_mut(&route)?;
        stream.heard = segment.ack.unwrap_or(stream.heard);
        stream.macs = macs_of(frame).unwrap_or(stream.macs);
        let end = segment.seq.wrapping_add(segment.payload.len() as u32);
        if before(stream.sent, end) {
            stream.sent = end;
        }
        if segment.payload.is_empty() || segment.special {
            return None;
        }
        let listed = stream.listed?;
        let cut = stream.clean_as_of(segment.seq, segment.payload.len() as u32)?;
        Some(cut.max(listed))
    }

    fn opened(&mut self, route: Route, first: u32, macs: [u8; MACS_BYTES], ack: Option<u32>) {
        if self.known.len() >= STREAMS_MAX && !self.known.contains_key(&route) {
            let spoken_of = self.known.values().filter(|it| it.is_spoken_of).count();
            let keeps = |stream: &Stream| stream.is_spoken_of && spoken_of <= STREAMS_MAX / 4 * 3;
            let order = |stream: &Stream| (keeps(stream), stream.no);
            let oldest = self.known.iter().min_by_key(|(_, stream)| order(stream));
            let oldest = oldest.map(|(route, _)| *route);
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        self.opened += 1;
        let stream = Stream {
            no: self.opened,
            macs,
            first,
            sent: first,
            acked: first,
            heard: ack.unwrap_or_default(),
            words: VecDeque::new(),
            is_spoken_of: false,
            listed: None,
        };
        self.known.insert(route, stream);
    }

    /// A client has sent a segment; `route` leads to it.
    pub fn heard(&mut self, route: &Route, segment: &Segment<'_>) {
        if segment.rst {
            self.known.remove(route);
            return;
        }
        let (Some(stream), Some(ack)) = (self.known.get_mut(route), segment.ack) else {
            return;
        };
        if before(stream.acked, ack) && !before(stream.sent, ack) {
            stream.acked = ack;
            let is_open = |word: &Word| before(ack, word.from.wrapping_add(word.bytes));
            stream.words.retain(is_open);
        }
    }

    /// The guest stands at the cut of a sync. Over `room` connections at most replies of the next slot may leave early.
    pub fn cut(&mut self, sync: SyncNo, room: usize) {
        let mut early = 0;
        for stream in self.known.values_mut() {
            if !stream.is_spoken_of || early == room {
                stream.listed = None;
                continue;
            }
            early += 1;
            stream.listed.get_or_insert(sync);
        }
    }

    /// Those that a next leader has to know, as they are now.
    pub fn list(&self) -> impl Iterator<Item = KnownStream> + '_ {
        let spoken_of = self.known.iter().filter(|(_, stream)| stream.is_spoken_of);
        spoken_of.map(|(route, stream)| KnownStream {
            route: *route,
            macs: stream.macs,
            first: stream.first,
            acked: stream.acked,
            heard: stream.heard,
            early: stream.listed.is_some(),
        })
    }

    /// This replica takes over, and its guest has these connections.
    pub fn adopt(&mut self, known: KnownStream) {
        self.opened(known.route, known.first, known.macs, Some(known.heard));
        if let Some(stream) = self.known.get_mut(&known.route) {
            stream.acked = known.acked;
            stream.sent = known.acked;
            stream.is_spoken_of = true;
        }
    }
}

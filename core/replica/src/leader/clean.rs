//! Clean replies: a datagram leaves before the sync that ends its slot, if the guest's state at an acknowledged cut says
//! the same (COLO++ §3.3; docs/decisions/0065 has why that is sound). [`streams`] has the same for TCP.
//!
//! ```text
//!  leader's node          guest                              this module
//!  TellCut(n) ──────────▶ a program reads n
//!                         nothing that the reply says
//!                         was written since n
//!                         Reply(clean as of n) ────────────▶ said: waits for its frame
//!                         the datagram ────────────────────▶ sent: the frame is clean as of n
//!                                                            n is acknowledged ─▶ clients
//! ```
//!
//! The guest's word is trusted: one that says rubbish breaks the promises to its own clients, and nothing else. Each
//! datagram of a program is said, clean or not. So of two that look alike, one that is not clean is never taken for one
//! that is.

mod streams;

pub(crate) use self::streams::STREAMS_MAX;
use self::streams::Streams;
use super::Leader;
use crate::canary::canary;
use crate::context::Context;
use plover_packets::{FlowKey, Packet, Route};
use plover_syncvm::message::{Body, KnownStream, STREAMS_VERSION};
use plover_types::{About, Frame, Index, OutputNo, ReplicaId, Reply, SyncNo, fnv1a};
use std::collections::VecDeque;

/// Words that wait for their frames at most. The guest's network card and its queues hold fewer datagrams.
const WORDS_MAX: usize = 4096;

/// Replies of the leader's guest that programs in it have spoken of.
#[derive(Debug)]
pub(crate) struct CleanReplies {
    /// The slot that runs.
    slot: SyncNo,
    /// The newest sync that was acknowledged, and by whom.
    pub acknowledged: Option<(ReplicaId, SyncNo)>,
    /// Words of datagrams whose frame has not come.
    words: VecDeque<Reply>,
    streams: Streams,
    /// The secondary was last told of connections whose replies may leave early.
    has_early: bool,
    /// Some words are lost, so until the next cut no frame counts as clean.
    is_deaf: bool,
    /// The clean frames that wait, in their order, and the cuts that they wait for.
    waiting: Vec<(OutputNo, SyncNo)>,
    /// Frames of this slot that went out as clean.
    released: u32,
}

impl CleanReplies {
    pub fn new() -> Self {
        Self {
            slot: SyncNo(0),
            acknowledged: None,
            words: VecDeque::new(),
            streams: Streams::default(),
            has_early: false,
            is_deaf: false,
            waiting: Vec::new(),
            released: 0,
        }
    }

    /// Programs in the guest have said this; `lost`: and more, which is lost.
    pub fn said(&mut self, mut replies: Vec<Reply>, lost: bool) {
        replies.retain(|reply| match reply.about {
            About::Datagram { .. } => true,
            About::Stream { at } => {
                self.said_of_stream(reply, at);
                false
            }
        });
        if lost || self.words.len() + replies.len() > WORDS_MAX {
            self.words.clear();
            self.is_deaf = true;
        }
        if !self.is_deaf {
            self.words.extend(replies);
        }
    }

    /// A word about bytes of a connection. One that is not there says that they are not clean.
    fn said_of_stream(&mut self, reply: &Reply, at: u64) {
        let ((Some(address), port), Some(cut)) = (reply.guest, reply.clean_as_of) else {
            return;
        };
        let route = Route {
            protocol: reply.protocol,
            source: (address, port),
            destination: reply.client,
        };
        // Programs do not know NICs. Of two networks with the same addresses it is not known which is meant.
        let nics = (0..Frame::NICS_MAX as u8).map(|nic| route.on_nic(nic));
        let mut known = nics.filter(|route| self.streams.has(route));
        if let (Some(route), None) = (known.next(), known.next()) {
            self.streams.said(&route, at, reply.bytes, cut);
        }
    }

    /// Our guest has sent this.
    pub fn sent(&mut self, no: OutputNo, frame: &Frame) {
        let cut = match Packet::of(frame) {
            Packet::Segment(route, segment) => self.streams.sent(route, &segment, frame),
            Packet::Datagram(FlowKey::Ip(route), payload) => self.take_word(&route, payload),
            Packet::Datagram(FlowKey::Link(_), _) => None,
        };
        self.waiting.extend(cut.map(|cut| (no, cut)));
    }

    /// Clients have sent these.
    pub fn heard(&mut self, frames: &[Frame]) {
        if self.streams.is_empty() {
            return;
        }
        for frame in frames {
            if let Packet::Segment(route, segment) = Packet::of(frame) {
                self.streams.heard(&route.back(), &segment);
            }
        }
    }

    /// How many frames of this slot have left as clean.
    pub fn released(&self) -> u32 {
        self.released
    }

    /// All frames that waited have left.
    pub fn all_left(&mut self) {
        self.waiting.clear();
    }

    /// The cut as of which a datagram is clean. One of several words that fit is used up, and one that is not clean
    /// first.
    fn take_word(&mut self, route: &Route, payload: &[u8]) -> Option<SyncNo> {
        let about = |hash| About::Datagram { hash };
        let is_of_route = |word: &Reply| {
            let (address, port) = word.guest;
            word.protocol == route.ip_protocol()
                && word.client == route.destination
                && port == route.source.1
                && address.is_none_or(|address| address == route.source.0)
                && word.bytes as usize == payload.len()
        };
        let mut hash = None;
        let mut fits = |word: &Reply| {
            is_of_route(word) && word.about == *hash.get_or_insert_with(|| about(fnv1a(payload)))
        };
        let mut found = None;
        for (at, word) in self.words.iter().enumerate().filter(|(_, word)| fits(word)) {
            if word.clean_as_of.is_none() {
                found = Some(at);
                break;
            }
            found = found.or(Some(at));
        }
        self.words.remove(found?)?.clean_as_of
    }

    /// The guest stands at the cut of a sync: the slot ends. In the next one replies may leave early over `room` connections
    /// at most. Returns how many frames went out as clean.
    fn cut(&mut self, sync: SyncNo, room: usize) -> u32 {
        self.slot = sync.next();
        self.streams.cut(sync, room);
        self.waiting.clear();
        // A word whose frame has left without it would lend a later frame a cut that is not the newest.
        self.words.clear();
        self.is_deaf = false;
        std::mem::take(&mut self.released)
    }
}

impl Leader {
    /// The guest stands at the cut of a sync. Returns how many frames of its slot went out as clean, and the connections
    /// that the secondary has to know if it takes over with this state.
    pub(super) fn cut_clean(
        &mut self,
        cx: &Context,
        sync: SyncNo,
        rests: bool,
    ) -> (u32, Vec<KnownStream>) {
        let stands = rests || cx.takes_checkpoints();
        let is_known = cx.group.usable_version() >= STREAMS_VERSION;
        // One that hands over leaves nothing to be reset.
        let room = match stands && is_known && self.switchover.is_none() {
            true => STREAMS_MAX.saturating_sub(self.resets.list().len()),
            false => 0,
        };
        let clean = self.clean.cut(sync, room);
        let list = self.resets.list().chain(self.clean.streams.list());
        (clean, list.filter(|_| is_known).collect())
    }

    /// Tells the secondary, before the end mark of a sync, of the connections as they were at its cut.
    pub(super) fn send_streams(
        &mut self,
        cx: &mut Context,
        to: ReplicaId,
        sync: SyncNo,
        streams: Vec<KnownStream>,
    ) {
        let of_guest = |stream: &KnownStream| stream.early && !self.resets.has(&stream.route);
        self.clean.has_early = streams.iter().any(of_guest);
        if !streams.is_empty() {
            cx.send_bulk(to, Body::Streams { sync, streams });
        }
    }

    /// Whether the secondary would have to reset connections whose replies may leave early now.
    pub(crate) fn has_early_streams(&self) -> bool {
        self.clean.has_early
    }

    /// This replica takes over: it goes on with connections of its guest's state, but for those whose clients may have got
    /// more than the guest has sent.
    pub(crate) fn adopt_streams(&mut self, streams: Vec<KnownStream>) {
        let (early, known): (Vec<_>, Vec<_>) = streams.into_iter().partition(|it| it.early);
        self.resets.begin(early);
        known
            .into_iter()
            .for_each(|it| self.clean.streams.adopt(it));
    }

    /// This replica does not lead any more. Its guest has sent all that its clients have got.
    pub(crate) fn leave_streams(&self) -> Vec<KnownStream> {
        let known = self
            .clean
            .streams
            .list()
            .map(|it| KnownStream { early: false, ..it });
        self.resets.list().chain(known).collect()
    }

    /// Frames that are clean as of an acknowledged cut are as good as synced: they may go.
    pub(crate) fn clear_what_is_clean(&mut self, cx: &mut Context) {
        if self.clean.waiting.is_empty() {
            return;
        }
        let leads = self.serving && self.proposed.is_none();
        let secondary = self.secondary(cx).filter(|_| leads);
        // Another secondary holds an acknowledged cut from the first sync on that it has acknowledged itself.
        let by_it = |(peer, _): &(ReplicaId, SyncNo)| Some(*peer) == secondary;
        let Some((_, acknowledged)) = self.clean.acknowledged.filter(by_it) else {
            return;
        };
        let too_early = canary!(cx, CleanBeforeAck);
        let mut numbers = Vec::new();
        self.clean.waiting.retain(|(no, cut)| {
            let is_safe = *cut <= acknowledged || too_early;
            if is_safe {
                numbers.push(*no);
            }
            !is_safe
        });
        let frames = cx.outputs.guard.take(&numbers).frames;
        self.clean.released += frames.len() as u32;
        // It says nothing of inputs since that cut.
        cx.outputs.clear(self.clean.slot, Index(0), frames);
    }
}

#[cfg(test)]
mod tests;

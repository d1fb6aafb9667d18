//! A secondary's part of clean replies over TCP: the connections to go on with, or to reset, if it takes over
//! (docs/decisions/0081).

use crate::leader::clean::STREAMS_MAX;
use plover_packets::{Packet, Segment};
use plover_syncvm::message::KnownStream;
use plover_types::{Frame, SyncNo};

/// Connections that a leader tells of at most: those that its guest has, and as many that it still has to reset, twice.
pub(crate) const STREAMS_TOLD_MAX: usize = 4 * STREAMS_MAX;

/// The connections that the leader has told of.
#[derive(Debug, Default)]
pub(crate) struct HeirStreams {
    /// Those of the sync whose end mark is about to come.
    told: Option<(SyncNo, Vec<KnownStream>)>,
    /// Those of this guest's state.
    pub of_state: Vec<KnownStream>,
}

impl HeirStreams {
    /// The leader lists those of a sync.
    pub fn told(&mut self, sync: SyncNo, streams: Vec<KnownStream>) {
        self.told = Some((sync, streams));
    }

    /// This guest has sent a frame, and does not lead. A connection that it opens anew is not the leader's.
    pub fn sent(&mut self, frame: &Frame) {
        if self.of_state.is_empty() {
            return;
        }
        if let Packet::Segment(route, Segment { syn: Some(_), .. }) = Packet::of(frame) {
            self.of_state.retain(|stream| stream.route != route);
        }
    }

    /// A sync is whole, so its state is the guest's in any case.
    pub fn complete(&mut self, sync: SyncNo) {
        let told = self.told.take().filter(|(of, _)| *of == sync);
        self.of_state = told.map(|(_, streams)| streams).unwrap_or_default();
    }
}

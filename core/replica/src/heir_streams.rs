//! A secondary's part of clean replies over TCP: the connections to go on with, or to reset, if it takes over
//! (docs/decisions/0081).

use plover_syncvm::message::KnownStream;
use plover_types::SyncNo;

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

    /// A sync is whole, so its state is the guest's in any case.
    pub fn complete(&mut self, sync: SyncNo) {
        let told = self.told.take().filter(|(of, _)| *of == sync);
        self.of_state = told.map(|(_, streams)| streams).unwrap_or_default();
    }
}

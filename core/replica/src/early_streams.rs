//! A secondary's part of clean replies over TCP: the connections to reset if it takes over
//! ([`crate::leader::resets`], docs/decisions/0081).

use plover_syncvm::message::EarlyStream;
use plover_types::SyncNo;

/// The connections that the leader has told of.
#[derive(Debug, Default)]
pub(crate) struct EarlyStreams {
    /// Those of the sync whose end mark is about to come.
    told: Option<(SyncNo, Vec<EarlyStream>)>,
    /// Those of this guest's state.
    pub of_state: Vec<EarlyStream>,
}

impl EarlyStreams {
    /// The leader lists those of a sync.
    pub fn told(&mut self, sync: SyncNo, streams: Vec<EarlyStream>) {
        self.told = Some((sync, streams));
    }

    /// A sync is whole, so its state is the guest's in any case.
    pub fn complete(&mut self, sync: SyncNo) {
        let told = self.told.take().filter(|(of, _)| *of == sync);
        self.of_state = told.map(|(_, streams)| streams).unwrap_or_default();
    }
}

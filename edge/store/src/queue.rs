//! Requests that wait for the next batch.

use crate::record::{self, Base, Kind};
use apus::DurableState;
use plover_types::Viewstamp;
use serde::Serialize;

/// Room that is kept between batches, bytes: a batch of ordinary entries under load fits, while a
/// few large entries do not hold their memory for ever.
const BYTES_KEPT_MAX: usize = 4 << 20;

/// The effect of a queued record on the log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    Entry(Viewstamp),
    Cut(Viewstamp),
    Anew(Base),
    Trim(Base),
}

/// The end of a record in [`Pending::bytes`], and its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub end: usize,
    pub effect: Effect,
}

/// Everything since the last batch. Two of these take turns, so that no batch allocates once both
/// have grown to the size of a batch.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub promise: Option<DurableState>,
    /// Encoded records, still without place and checksum.
    pub bytes: Vec<u8>,
    pub records: Vec<Queued>,
    /// The newest base to trim to.
    pub trim: Option<Base>,
    /// The newest request in here.
    pub ticket: u64,
}

impl Pending {
    pub fn push(&mut self, kind: Kind, body: &impl Serialize, effect: Effect) {
        record::push(&mut self.bytes, kind, body);
        let end = self.bytes.len();
        self.records.push(Queued { end, effect });
    }

    /// Whether the owner waits for this to be written. A trim alone can wait.
    pub fn is_due(&self) -> bool {
        self.promise.is_some() || !self.records.is_empty() || self.ticket > 0
    }

    /// Forgets everything but the room.
    pub fn clear(&mut self) {
        self.promise = None;
        self.bytes.clear();
        self.bytes.shrink_to(BYTES_KEPT_MAX);
        self.records.clear();
        self.trim = None;
        self.ticket = 0;
    }
}

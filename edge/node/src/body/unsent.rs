//! Bulk records that have found no room on their link.
//!
//! Nothing repeats them. Lists of pages and their hashes come without a window: one of a guest that has written many pages is
//! longer than the ring. And a fabric that reports late what the peer has read has no room even within a window. So what is
//! left waits here, in its order, and goes when there is room again.

use plover_types::{Payload, ReplicaId};
use std::collections::{BTreeMap, VecDeque};

/// For each page, in each of two lists: one that was given up may still wait when the next one comes.
const BYTES_PER_PAGE: usize = 2 * 16;

/// For contents: the windows of a syncvm and of a copy, 24 chunks of 128 KiB each, and for state of devices and small guests.
const BYTES_MIN: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct Unsent {
    of: BTreeMap<ReplicaId, Records>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Records {
    records: VecDeque<(Payload, Vec<u8>)>,
    bytes: usize,
}

impl Unsent {
    /// For a guest of so many pages, its disks' blocks among them.
    pub(super) fn new(pages: u32) -> Self {
        Self {
            of: BTreeMap::new(),
            bytes_max: BYTES_MIN + pages as usize * BYTES_PER_PAGE,
        }
    }

    /// Whether records to this peer wait, behind which others have to wait.
    pub(super) fn waits(&self, to: ReplicaId) -> bool {
        self.first(to).is_some()
    }

    /// A record waits. False if there are too many, and it is lost.
    pub(super) fn push(&mut self, to: ReplicaId, payload: Payload, record: &[u8]) -> bool {
        let waiting = self.of.entry(to).or_default();
        let has_room = waiting.bytes + record.len() <= self.bytes_max;
        if has_room {
            waiting.bytes += record.len();
            waiting.records.push_back((payload, record.to_vec()));
        }
        has_room
    }

    /// The first one that waits for this peer.
    pub(super) fn first(&self, to: ReplicaId) -> Option<(Payload, &[u8])> {
        let (payload, record) = self.of.get(&to)?.records.front()?;
        Some((*payload, record))
    }

    /// It was sent, or cannot be.
    pub(super) fn is_done(&mut self, to: ReplicaId) {
        if let Some(waiting) = self.of.get_mut(&to) {
            let first = waiting.records.pop_front();
            waiting.bytes -= first.map_or(0, |(_, record)| record.len());
        }
    }

    /// The link is gone, and with it what the records were about.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.of.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_wait_in_their_order_and_not_without_end() {
        let (one, other) = (ReplicaId(1), ReplicaId(2));
        let mut unsent = Unsent::new(0);
        let record = vec![7; 64 << 10];
        let mut push = |to, payload, record: &[u8]| unsent.push(to, payload, record);
        let taken = (0..1000)
            .take_while(|_| push(one, Payload::Digests, &record))
            .count();
        assert_eq!(taken, BYTES_MIN / record.len());
        let records = [(Payload::Pages, [1]), (Payload::Digests, [2])];
        for (payload, record) in &records {
            assert!(push(other, *payload, record));
        }
        for (payload, record) in &records {
            assert_eq!(unsent.first(other), Some((*payload, &record[..])));
            unsent.is_done(other);
        }
        assert!(!unsent.waits(other));
        unsent.forget(one);
        assert!(!unsent.waits(one));
    }
}

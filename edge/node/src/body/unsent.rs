//! Lists of pages and their hashes that have found no room on their link.
//!
//! Nothing repeats them, and they come without a window: one of a guest that has written many pages is longer than the ring.
//! So what is left of it waits here, in its order, and goes when there is room again.

use plover_types::ReplicaId;
use std::collections::{BTreeMap, VecDeque};

/// For each page, in each of two lists: one that was given up may still wait when the next one comes.
const BYTES_PER_PAGE: usize = 2 * 16;

/// Room for the records of small guests.
const BYTES_MIN: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Unsent {
    of: BTreeMap<ReplicaId, Records>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Records {
    records: VecDeque<Vec<u8>>,
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
    pub(super) fn push(&mut self, to: ReplicaId, record: &[u8]) -> bool {
        let waiting = self.of.entry(to).or_default();
        let has_room = waiting.bytes + record.len() <= self.bytes_max;
        if has_room {
            waiting.bytes += record.len();
            waiting.records.push_back(record.to_vec());
        }
        has_room
    }

    /// The first one that waits for this peer.
    pub(super) fn first(&self, to: ReplicaId) -> Option<&[u8]> {
        self.of.get(&to)?.records.front().map(Vec::as_slice)
    }

    /// It was sent, or cannot be.
    pub(super) fn is_done(&mut self, to: ReplicaId) {
        if let Some(waiting) = self.of.get_mut(&to) {
            let first = waiting.records.pop_front();
            waiting.bytes -= first.map_or(0, |first| first.len());
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
        let taken = (0..100).take_while(|_| unsent.push(one, &record)).count();
        assert_eq!(taken, BYTES_MIN / record.len());
        assert!(unsent.push(other, &[1]) && unsent.push(other, &[2]));
        let mut sent = Vec::new();
        while let Some(first) = unsent.first(other) {
            sent.extend_from_slice(first);
            unsent.is_done(other);
        }
        assert_eq!((sent, unsent.waits(other)), (vec![1, 2], false));
        unsent.forget(one);
        assert!(!unsent.waits(one));
    }
}

//! Bulk records that have come and wait for their turn: to write a copy's pages takes long, and meanwhile a replica would be
//! silent.
//!
//! The windows of syncs and copies bound what a correct peer has under way, and the rings bound nothing here: records leave
//! them when they come. So a peer that sends more than its windows allow is cut off.

use crate::relay::Relayed;
use plover_types::ReplicaId;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of one peer that may wait, beside hashes: the windows of a sync and of a copy (24 chunks of 128 KiB each), the
/// outputs that are reported, and a guest's device state are less than half of it.
const BYTES_MAX: usize = 64 << 20;

/// The list of a sync's hashes comes without a window: 16 bytes for each page that either side has written.
const HASH_BYTES: usize = 16;

/// Memory that a record takes besides its bytes.
const RECORD_WEIGHT: usize = 64;

/// An operator's request is small, and to answer it takes long, some 40 µs: no more than 256 of a peer wait.
const REQUEST_WEIGHT: usize = 256 << 10;

fn weight_of(record: &[u8]) -> usize {
    match Relayed::asks(record) {
        true => record.len() + REQUEST_WEIGHT,
        false => record.len() + RECORD_WEIGHT,
    }
}

/// The records, in the order in which they came.
#[derive(Debug)]
pub(super) struct Waiting {
    records: VecDeque<(ReplicaId, Vec<u8>)>,
    weights: BTreeMap<ReplicaId, usize>,
    weight_max: usize,
}

impl Waiting {
    /// For a guest of so many pages, its disks' blocks among them.
    pub(super) fn new(pages: u32) -> Self {
        Self {
            records: VecDeque::new(),
            weights: BTreeMap::new(),
            weight_max: BYTES_MAX + pages as usize * HASH_BYTES,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record. If the peer has sent too much by now, its records are dropped.
    ///
    /// # Errors
    /// What it has sent, in words.
    pub(super) fn push(&mut self, from: ReplicaId, bytes: Vec<u8>) -> Result<(), String> {
        let weight = self.weights.entry(from).or_default();
        *weight += weight_of(&bytes);
        if *weight > self.weight_max {
            self.forget(from);
            return Err(format!(
                "more than the {} MiB of pages and hashes that may wait here",
                self.weight_max >> 20
            ));
        }
        self.records.push_back((from, bytes));
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<(ReplicaId, Vec<u8>)> {
        let (from, bytes) = self.records.pop_front()?;
        if let Some(weight) = self.weights.get_mut(&from) {
            *weight = weight.saturating_sub(weight_of(&bytes));
        }
        Some((from, bytes))
    }

    /// Drops the records of a peer whose link is cut.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.records.retain(|(from, _)| *from != peer);
        self.weights.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_sends_without_end_is_found_out_and_the_others_are_kept() {
        let (liar, other) = (ReplicaId(1), ReplicaId(2));
        let mut waiting = Waiting::new(0);
        waiting.push(other, vec![7]).unwrap();
        let record = 1 << 20;
        let taken = (0..1000).take_while(|_| waiting.push(liar, vec![0; record]).is_ok());
        assert_eq!(taken.count(), BYTES_MAX / record - 1);
        assert_eq!(waiting.pop(), Some((other, vec![7])));
        assert!(waiting.is_empty());
        // Small records count, too.
        let none = (0..10_000_000).take_while(|_| waiting.push(liar, Vec::new()).is_ok());
        assert!(none.count() < 10_000_000);
        let request = "{}".to_string();
        let asked = Relayed::Ask { id: 7, request }.to_record();
        let asked = (0..1000).take_while(|_| waiting.push(liar, asked.clone()).is_ok());
        assert_eq!(asked.count(), BYTES_MAX / REQUEST_WEIGHT - 1);
    }

    #[test]
    fn records_that_are_taken_make_room() {
        let mut waiting = Waiting::new(0);
        for _ in 0..1000 {
            waiting.push(ReplicaId(1), vec![0; 1 << 20]).unwrap();
            waiting.pop().unwrap();
        }
        assert_eq!(waiting.weights[&ReplicaId(1)], 0);
    }
}

//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::error::SegmentNumber;
use crate::record::{self, HEADER_BYTES};
use crate::state;

const SALT: u64 = 7;
const SEGMENT: SegmentNumber = SegmentNumber(1);

/// A record of the log on disk, with a checksum that holds: its kind, and its body.
pub fn record(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else {
        return;
    };
    let mut record = vec![0; HEADER_BYTES];
    record[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    record[20] = *kind;
    record.extend_from_slice(body);
    record::stamp(&mut record, SALT, SEGMENT, 0);
    let checked = record::check(&record, SALT, SEGMENT).expect("the checksum holds");
    let _ = (checked.decode(), record::begun(&record, SEGMENT));
}

/// A segment of the log on disk as it stands there, and a copy of the promise.
pub fn segment(bytes: &[u8]) {
    let mut at = 0;
    while let Some(checked) = record::check(&bytes[at.min(bytes.len())..], SALT, SEGMENT) {
        let _ = checked.decode();
        at += checked.length;
    }
    let _ = state::read_copy(bytes);
}

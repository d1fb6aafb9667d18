//! One record of a segment, and how recovery tells it from other bytes.
//!
//! ```text
//!   0        4        8                16           20              24
//!   | CRC32C | length | segment number | batch start | kind, 0 0 0 0 | body ... | 0..7 zeros |
//!            '---------------------- covered, seeded with the salt ------------'
//! ```
//!
//! All numbers are little-endian; records begin at multiples of 8. The *salt* is a random number of
//! the directory: guests choose the content of the log's payloads, and without the salt they could
//! place bytes there that look like a record. The *batch start* is the offset of the first record of
//! the batch that was written and synced together. Everything before it had been synced when this
//! record was written, which [`crate::recover`] relies on.

use crate::error::SegmentNumber;
use apus::{Configuration, Entry};
use plover_types::Viewstamp;
use serde::{Deserialize, Serialize};

/// Bytes before the body.
pub(crate) const HEADER_BYTES: usize = 24;

/// Records begin at multiples of this.
pub(crate) const ALIGN_BYTES: usize = 8;

/// Where a log begins: everything up to there is committed, and was reclaimed or came in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The last viewstamp that is not in the log any more.
    pub viewstamp: Viewstamp,
    /// The group and its in-sync set there.
    pub configuration: Configuration,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first record of a segment: the log's base when the segment began, and its last
    /// viewstamp, which must be that of the segment before.
    Begin { base: Base, last: Viewstamp },
    /// The next entry.
    Entry(Entry),
    /// Entries after this viewstamp are cut off.
    Cut(Viewstamp),
    /// The log begins anew.
    Anew(Base),
    /// Entries up to here have been reclaimed.
    Trim(Base),
    /// The segment is complete: the log goes on in the next.
    End,
    /// Everything before this record has been synced.
    Seal,
}

/// The kind of a record; the numbers are the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Begin = 1,
    Entry = 2,
    Cut = 3,
    Anew = 4,
    Trim = 5,
    End = 6,
    Seal = 7,
}

/// Bytes of a record with an empty body.
pub(crate) const EMPTY_BYTES: u64 = HEADER_BYTES as u64;

/// `length` rounded up to where the next record may begin.
pub(crate) fn aligned(length: usize) -> usize {
    length.next_multiple_of(ALIGN_BYTES)
}

/// Appends a record. [`stamp`] adds its place and checksum when the place is known. Allocates nothing
/// if `to` has room.
pub(crate) fn push(to: &mut Vec<u8>, kind: Kind, body: &impl Serialize) {
    let start = to.len();
    to.extend_from_slice(&[0; HEADER_BYTES]);
    to[start + 20] = kind as u8;
    *to = postcard::to_extend(body, std::mem::take(to)).expect("plain data, and a Vec grows");
    let length = (to.len() - start - HEADER_BYTES) as u32;
    to[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    to.resize(start + aligned(to.len() - start), 0);
}

/// Gives the record in `bytes` (padding included or not) its place and checksum.
pub(crate) fn stamp(bytes: &mut [u8], salt: u64, segment: SegmentNumber, batch_start: u64) {
    let batch_start = u32::try_from(batch_start).expect("segments are smaller than 4 GiB");
    bytes[8..16].copy_from_slice(&segment.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&batch_start.to_le_bytes());
    let length = u32_at(bytes, 4) as usize;
    let sum = checksum(salt, &bytes[4..HEADER_BYTES + length]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A record whose checksum holds and which was written to this segment in its present use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    /// Where its batch begins.
    pub batch_start: u64,
    /// Bytes to the next record.
    pub length: usize,
    kind: u8,
    body: &'a [u8],
}

/// The record at the start of `bytes`, if there is a whole one of this `segment`.
pub(crate) fn check(bytes: &[u8], salt: u64, segment: SegmentNumber) -> Option<Checked<'_>> {
    let header = bytes.get(..HEADER_BYTES)?;
    if header[8..16] != segment.0.to_le_bytes() {
        return None;
    }
    let whole = HEADER_BYTES.checked_add(u32_at(header, 4) as usize)?;
    let covered = bytes.get(4..whole)?;
    if checksum(salt, covered) != u32_at(header, 0) {
        return None;
    }
    Some(Checked {
        batch_start: u64::from(u32_at(header, 16)),
        length: aligned(whole),
        kind: header[20],
        body: &bytes[HEADER_BYTES..whole],
    })
}

/// A record's header; the rest of the record may be missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub batch_start: u64,
    /// Bytes to the next record; 0 for a record without a body, such as an End or a Seal.
    pub length: u64,
}

/// The header at the start of `bytes`, if it can be one of this `segment`. Its checksum is not known.
pub(crate) fn begun(bytes: &[u8], segment: SegmentNumber) -> Option<Begun> {
    let header = bytes.get(..HEADER_BYTES)?;
    let ours = header[8..16] == segment.0.to_le_bytes();
    let known = (Kind::Begin as u8..=Kind::Seal as u8).contains(&header[20]);
    if !ours || !known || header[21..] != [0; 3] {
        return None;
    }
    let length = u32_at(header, 4) as usize;
    Some(Begun {
        batch_start: u64::from(u32_at(header, 16)),
        length: match length {
            0 => 0,
            _ => aligned(HEADER_BYTES + length) as u64,
        },
    })
}

impl Checked<'_> {
    pub fn is_seal(&self) -> bool {
        self.kind == Kind::Seal as u8
    }

    /// Decodes the record.
    ///
    /// # Errors
    /// In words, if the body does not decode. The checksum holds, so another release wrote it.
    pub fn decode(&self) -> Result<Record, String> {
        let record = match self.kind {
            1 => {
                let (base, last) = body(self.body)?;
                Record::Begin { base, last }
            }
            2 => Record::Entry(body(self.body)?),
            3 => Record::Cut(body(self.body)?),
            4 => Record::Anew(body(self.body)?),
            5 => Record::Trim(body(self.body)?),
            6 => Record::End,
            7 => Record::Seal,
            other => return Err(format!("a record of unknown kind {other}")),
        };
        Ok(record)
    }
}

fn body<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes too many in a record", rest.len())),
        Err(error) => Err(format!("a record that does not decode: {error}")),
    }
}

//! Records on their way between two replicas, compressed (docs/decisions/0023).
//!
//! ```text
//!  pack ─▶ small, or not of a kind that shrinks, or it did not pay lately ─▶ as it is
//!    └──▶ MARK, flags, CRC-32C, length, what zstd made of it ══▶ unpack ─▶ the record
//! ```
//!
//! Each lane to each peer is one stream of zstd: a record is made of pieces of those before it, since
//! syncs resemble each other. The two ends agree on what came before because a link keeps order and
//! loses nothing while it is up. Where that ends (the link broke, the fabric did not take a record, or
//! every so often) the stream begins anew, and says so. Should the ends ever disagree, the checksum,
//! which is of the record itself, shows it; the record is dropped then, as one that was lost.
//!
//! A record that is not compressed begins with the version of the wire, and one that is with
//! another byte. So every replica understands both, whatever it sends itself.

use plover_types::{Lane, Payload, ReplicaId, wire::WIRE_VERSION};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// The first byte of a compressed record.
const MARK: u8 = 0xf1;
const _: () = assert!(MARK != WIRE_VERSION, "a version is taken for a mark");
/// Flag: the stream begins here.
const ANEW: u8 = 1;
/// Mark, flags, checksum, length.
const HEADER_BYTES: usize = 10;

/// Smaller records go as they are, by lane: they are the ones that somebody waits for, such as the
/// requests of a few clients, and a compressor's call (10 to 20 µs) is longer than their way. A batch
/// of requests is at least two full frames.
const RECORD_BYTES_MIN: [usize; 2] = [2048, 512];
/// Of zstd's levels, on recorded traffic of Redis in batches: 1 leaves 21% of the log at 250 MB/s, -1
/// leaves 28% at 320, 3 leaves 21% at 150; lz4 leaves 40% at 600.
const LEVEL: i32 = 1;
/// How far a stream looks back, by lane, as a power of two: the log has nothing that repeats after
/// long, syncs resemble each other. With 256 KiB a sync's pages and hashes would be a tenth longer.
const WINDOW_LOG: [u32; 2] = [18, 20];
/// And the entries of the table by which it finds things there: a larger one finds a fiftieth more, and
/// no longer fits into a core's cache.
const HASH_LOG: [u32; 2] = [14, 16];
/// A stream begins anew after this many records, so that ends that disagree do not do so for ever.
const RECORDS_A_STREAM: u32 = 4096;
/// What compressing saves is looked at after this many bytes...
const TRIAL_BYTES: usize = 1 << 20;
/// ...and if it was less than an eighth, that many are sent as they are.
const REST_BYTES: usize = 16 << 20;

/// Why a record could not be unpacked. It counts as lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnpackError {
    /// No replica sends such a thing.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// It continues a stream that this side does not have.
    #[error("a part of a stream whose beginning was not seen")]
    NoBeginning,
    /// The two ends do not agree on what came before, or a bug.
    #[error("it does not give the record that was packed")]
    Different,
}

/// Both directions of all links of a replica.
pub(crate) struct Packer {
    on: bool,
    record_bytes_max: [usize; 2],
    sending: BTreeMap<(ReplicaId, Lane), Sending>,
    receiving: BTreeMap<(ReplicaId, Lane), Receiving>,
    packed: Vec<u8>,
    sent: BTreeMap<Payload, u64>,
    plain: u64,
    /// Of the record that was packed last: its kind, its bytes, and those before.
    last: Option<(Payload, u64, u64)>,
}

struct Sending {
    encoder: Encoder<'static>,
    /// Records since the stream began; at the most, it begins anew.
    records: u32,
    /// Bytes of the present trial, before and after.
    tried: (usize, usize),
    /// Bytes still to be sent as they are.
    rest: usize,
}

struct Receiving {
    decoder: Decoder<'static>,
    /// Whether the beginning of the stream was seen.
    begun: bool,
}

impl Packer {
    /// Compresses what it is given if `on`. No record is longer than these, by lane.
    pub fn new(on: bool, record_bytes_max: [usize; 2]) -> Self {
        Self {
            on,
            record_bytes_max,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            packed: Vec::new(),
            sent: BTreeMap::new(),
            plain: 0,
            last: None,
        }
    }

    /// What is to be written in place of `record`, next on this lane.
    pub fn pack<'a>(
        &'a mut self,
        to: ReplicaId,
        lane: Lane,
        payload: Payload,
        record: &'a [u8],
    ) -> &'a [u8] {
        let is_packed = self.on
            && payload.may_shrink()
            && record.len() >= RECORD_BYTES_MIN[lane.index()]
            && self.pack_it(to, lane, record);
        let out = if is_packed { &self.packed } else { record };
        self.last = Some((payload, out.len() as u64, record.len() as u64));
        out
    }

    /// The fabric has taken what was packed last.
    pub fn was_sent(&mut self) {
        if let Some((payload, sent, plain)) = self.last.take() {
            *self.sent.entry(payload).or_insert(0) += sent;
            self.plain += plain;
        }
    }

    /// Packs `record` into `self.packed`, if that is worth it.
    fn pack_it(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> bool {
        let sending = match self.sending.entry((to, lane)) {
            Entry::Occupied(at) => at.into_mut(),
            Entry::Vacant(at) => match Sending::new(lane) {
                Ok(new) => at.insert(new),
                // No memory for a compressor.
                Err(_) => return false,
            },
        };
        if sending.rest > 0 {
            sending.rest = sending.rest.saturating_sub(record.len());
            return false;
        }
        let good = sending.pack(record, &mut self.packed).is_ok()
            && self.packed.len() <= self.record_bytes_max[lane.index()];
        if !good {
            sending.begin_anew();
        }
        good
    }

    /// The fabric did not take what was packed last: the other end will not see it.
    pub fn not_sent(&mut self, to: ReplicaId, lane: Lane) {
        if let Some(sending) = self.sending.get_mut(&(to, lane)) {
            sending.begin_anew();
        }
    }

    /// The link to `peer` came up or went down.
    pub fn begin_anew(&mut self, peer: ReplicaId) {
        for lane in Lane::ALL {
            self.sending.remove(&(peer, lane));
            self.receiving.remove(&(peer, lane));
        }
    }

    /// The record that `peer` packed; `bytes` came next on this lane.
    pub fn unpack(
        &mut self,
        from: ReplicaId,
        lane: Lane,
        bytes: Vec<u8>,
    ) -> Result<Vec<u8>, UnpackError> {
        if bytes.first() != Some(&MARK) {
            return Ok(bytes);
        }
        let header = Header::of(&bytes, self.record_bytes_max[lane.index()])?;
        let receiving = match self.receiving.entry((from, lane)) {
            Entry::Occupied(at) => at.into_mut(),
            Entry::Vacant(at) => at.insert(Receiving::new(lane)?),
        };
        let unpacked = receiving.unpack(&header, &bytes[HEADER_BYTES..]);
        // What follows would be understood wrongly.
        receiving.begun = unpacked.is_ok();
        unpacked
    }

    /// Bytes written so far, by what they were for.
    pub fn bytes_out(&self) -> impl Iterator<Item = (Payload, u64)> + '_ {
        Payload::ALL.into_iter().map(|payload| {
            let bytes = self.sent.get(&payload).copied().unwrap_or(0);
            (payload, bytes)
        })
    }

    /// What they would have been uncompressed.
    pub fn plain_bytes(&self) -> u64 {
        self.plain
    }
}

impl Sending {
    fn new(lane: Lane) -> std::io::Result<Self> {
        let (window, hash) = (WINDOW_LOG[lane.index()], HASH_LOG[lane.index()]);
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(window))?;
        encoder.set_parameter(CParameter::HashLog(hash))?;
        Ok(Self {
            encoder,
            records: RECORDS_A_STREAM,
            tried: (0, 0),
            rest: 0,
        })
    }

    fn begin_anew(&mut self) {
        self.records = RECORDS_A_STREAM;
    }

    fn pack(&mut self, record: &[u8], packed: &mut Vec<u8>) -> std::io::Result<()> {
        let anew = self.records == RECORDS_A_STREAM;
        if anew {
            self.encoder.reinit()?;
            self.records = 0;
        }
        self.records += 1;
        packed.clear();
        packed.extend([MARK, if anew { ANEW } else { 0 }]);
        packed.extend(crc32c::crc32c(record).to_le_bytes());
        packed.extend((record.len() as u32).to_le_bytes());
        // Noise grows by 3 bytes in each 128 KiB, and a stream's beginning has a few of its own.
        packed.resize(HEADER_BYTES + record.len() + record.len() / 1024 + 64, 0);
        let mut out = OutBuffer::around(&mut packed[HEADER_BYTES..]);
        let mut input = InBuffer::around(record);
        while input.pos() < record.len() {
            self.encoder.run(&mut input, &mut out)?;
        }
        if self.encoder.flush(&mut out)? > 0 {
            return Err(std::io::Error::other("no room for what was compressed"));
        }
        let bytes = out.pos();
        packed.truncate(HEADER_BYTES + bytes);
        self.learn(record.len(), packed.len());
        Ok(())
    }

    /// Data that does not shrink is left alone for a while.
    fn learn(&mut self, before: usize, after: usize) {
        self.tried.0 += before;
        self.tried.1 += after;
        if self.tried.0 >= TRIAL_BYTES {
            if self.tried.1 > self.tried.0 / 8 * 7 {
                self.rest = REST_BYTES;
            }
            self.tried = (0, 0);
        }
    }
}

/// What stands before the compressed bytes.
struct Header {
    anew: bool,
    checksum: u32,
    length: usize,
}

impl Header {
    fn of(bytes: &[u8], record_bytes_max: usize) -> Result<Self, UnpackError> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(UnpackError::Malformed("cut short"));
        };
        let [_, flags, c0, c1, c2, c3, l0, l1, l2, l3] = *header;
        if flags & !ANEW != 0 {
            return Err(UnpackError::Malformed("flags of another version"));
        }
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > record_bytes_max {
            return Err(UnpackError::Malformed("longer than any record"));
        }
        Ok(Self {
            anew: flags == ANEW,
            checksum: u32::from_le_bytes([c0, c1, c2, c3]),
            length,
        })
    }
}

impl Receiving {
    fn new(lane: Lane) -> Result<Self, UnpackError> {
        let decoder = Decoder::new().and_then(|mut decoder| {
            decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG[lane.index()]))?;
            Ok(decoder)
        });
        let decoder = decoder.map_err(|_| UnpackError::Malformed("no memory to unpack it"))?;
        Ok(Self {
            decoder,
            begun: false,
        })
    }

    fn unpack(&mut self, header: &Header, packed: &[u8]) -> Result<Vec<u8>, UnpackError> {
        if header.anew {
            let begun = self.decoder.reinit();
            begun.map_err(|_| UnpackError::Malformed("no memory to unpack it"))?;
        } else if !self.begun {
            return Err(UnpackError::NoBeginning);
        }
        let mut record = vec![0; header.length];
        let mut out = OutBuffer::around(&mut record[..]);
        let mut input = InBuffer::around(packed);
        loop {
            let before = (input.pos(), out.pos());
            let went = self.decoder.run(&mut input, &mut out);
            went.map_err(|_| UnpackError::Malformed("not what zstd makes"))?;
            if before == (input.pos(), out.pos()) {
                break;
            }
        }
        let whole = input.pos() == packed.len() && out.pos() == header.length;
        if !whole || crc32c::crc32c(&record) != header.checksum {
            return Err(UnpackError::Different);
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests;

//! Compresses records between two replicas (docs/decisions/0023).
//!
//! ```text
//!  pack ─▶ small, or not of a kind that shrinks, or it did not pay lately ─▶ as it is
//!    └──▶ MARK, flags, CRC-32C, length, what zstd made of it ══▶ unpack ─▶ the record
//! ```
//!
//! Each lane to each peer is one zstd stream, in which a record refers to earlier ones, since syncs
//! resemble each other. The two ends agree on the earlier records because a link keeps order and loses
//! nothing while it is up. When the link breaks or the fabric refuses a record, and also after a fixed
//! number of records, the stream begins anew and says so. If the ends disagree all the same, the checksum
//! of the plain record does not match, and the receiver drops the record as if it were lost.
//!
//! A plain record begins with the version of the wire, a compressed one with another byte. So every
//! replica understands both, whether or not it compresses.

use plover_types::{Lane, Payload, ReplicaId, wire::WIRE_VERSION};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// The first byte of a compressed record.
const MARK: u8 = 0xf1;
const _: () = assert!(MARK > WIRE_VERSION, "a version is taken for a mark");
/// Flag: the stream begins here.
const ANEW: u8 = 1;
/// Mark, flags, checksum, length.
const HEADER_BYTES: usize = 10;

/// Smaller records go uncompressed, by lane. They are the ones that someone waits for, such as the
/// requests of a few clients, and compressing takes longer (10 to 20 µs) than sending them. A batch of
/// requests is at least two full frames.
const RECORD_BYTES_MIN: [usize; 2] = [2048, 512];
/// zstd's level. On recorded traffic of Redis in batches, level 1 leaves 21% of the log at 250 MB/s, -1
/// leaves 28% at 320, 3 leaves 21% at 150; lz4 leaves 40% at 600.
const LEVEL: i32 = 1;
/// How far a stream looks back, by lane, as a power of two. The log repeats only recent bytes; syncs
/// resemble each other. With 256 KiB a sync's pages and hashes would be a tenth longer.
const WINDOW_LOG: [u32; 2] = [18, 20];
/// Entries of the table of earlier bytes, as a power of two. A larger table finds a fiftieth more, and no
/// longer fits into a core's cache.
const HASH_LOG: [u32; 2] = [14, 16];
/// A stream begins anew after this many records, so that a disagreement of the ends does not last.
const RECORDS_A_STREAM: u32 = 4096;
/// The saving is measured over this many bytes...
const TRIAL_BYTES: usize = 1 << 20;
/// ...and if it was less than an eighth, this many bytes are sent uncompressed.
const REST_BYTES: usize = 16 << 20;

/// Why a record could not be unpacked. It counts as lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnpackError {
    /// Its form is wrong. No replica sends such a record.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// It continues a stream of which this side has not seen the beginning.
    #[error("a part of a stream whose beginning was not seen")]
    NoBeginning,
    /// The record does not match its checksum: the two ends do not agree on earlier records, or a bug.
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
    /// The last packed record: its kind, its bytes as sent, and its plain bytes.
    last: Option<(Payload, u64, u64)>,
}

struct Sending {
    encoder: Encoder<'static>,
    /// Records since the stream began. At [`RECORDS_A_STREAM`] it begins anew.
    records: u32,
    /// Bytes of the present trial, before and after compressing.
    tried: (usize, usize),
    /// Bytes still to be sent uncompressed.
    rest: usize,
}

struct Receiving {
    decoder: Decoder<'static>,
    /// Whether the beginning of the stream was seen.
    begun: bool,
}

impl Packer {
    /// A packer that compresses if `on`. No record is longer than `record_bytes_max`, by lane.
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

    /// Compresses from now on, or not any more.
    pub fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// The bytes to write in place of `record`, next on this lane.
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

    /// The fabric has taken the last packed record.
    pub fn was_sent(&mut self) {
        if let Some((payload, sent, plain)) = self.last.take() {
            *self.sent.entry(payload).or_insert(0) += sent;
            self.plain += plain;
        }
    }

    /// Packs `record` into `self.packed`. `false` if it is to go uncompressed.
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

    /// The fabric has refused the last packed record, so the other end will not see it.
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

    /// The record that `from` packed; `bytes` came next on this lane.
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
        // After an error, later records of the stream would be decoded wrongly.
        receiving.begun = unpacked.is_ok();
        unpacked
    }

    /// Bytes written so far, by payload.
    pub fn bytes_out(&self) -> impl Iterator<Item = (Payload, u64)> + '_ {
        Payload::ALL.into_iter().map(|payload| {
            let bytes = self.sent.get(&payload).copied().unwrap_or(0);
            (payload, bytes)
        })
    }

    /// The same bytes uncompressed.
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
        // Incompressible data grows by 3 bytes in each 128 KiB, and a stream's beginning has a few bytes
        // of its own.
        packed.resize(HEADER_BYTES + record.len() + record.len() / 1024 + 64, 0);
        let mut out = OutBuffer::around(&mut packed[HEADER_BYTES..]);
        let mut input = InBuffer::around(record);
        while input.pos() < record.len() {
            self.encoder.run(&mut input, &mut out)?;
        }
        if self.encoder.flush(&mut out)? > 0 {
            return Err(std::io::Error::other(
                "the compressed record does not fit its buffer",
            ));
        }
        let bytes = out.pos();
        packed.truncate(HEADER_BYTES + bytes);
        self.learn(record.len(), packed.len());
        Ok(())
    }

    /// Measures the saving. Data that does not shrink is then sent uncompressed for a while.
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

/// The bytes before the compressed ones.
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

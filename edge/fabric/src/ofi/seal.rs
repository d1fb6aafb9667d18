//! Sealed records: only the two ends of a link can read them, and none but the next one is taken.
//!
//! A network card writes records, and it knows no TLS. So each record is sealed before it goes into the ring, and
//! opened after it was copied out of the ring:
//!
//! ```text
//!   record ─► seal ─► framing of the ring ══ one-sided write ══► ring ─► copy ─► checksum ─► open ─► record
//! ```
//!
//! **Keys.** Each side draws a [`Secret`] for a link and sends it in its greeting, which is under TLS 1.3 with pinned keys.
//! Both secrets together give each ring a key of its own (HKDF-SHA256, RFC 5869): a ring has one writer, one reader and one
//! lane. TLS's own exporter (RFC 8446 §7.5) would do as well, but rustls has none for connections without buffers.
//!
//! **Seal.** AES-256-GCM. The nonce is the record's number in the ring XOR an initial value that belongs to the key, as in
//! TLS 1.3, so it never repeats. The number is not sent: the reader counts. The position in the ring and the length are
//! authenticated as well. So a record opens in its own place only:
//!
//! | the ring shows | and it is refused, because |
//! |---|---|
//! | a record with a changed byte, or cut short | the seal covers all of it, and the length |
//! | an earlier record, or a later one | its number is another one |
//! | a record of the other lane, the other direction, another link | its key is another one |
//!
//! **Whether a record is there** is decided as before, by the ring's checksum: it now covers the sealed bytes. A record whose
//! bytes have not all come does not match it, and is not opened. A record that matches and does not open is an attack
//! or damage, and ends the link.
//!
//! **The limit.** The more AES-GCM has sealed under one key, the easier its output is told from noise: by σ²/2^129 for σ blocks
//! of 16 bytes (RFC 8446 §5.5 has the same bound). After [`BLOCKS_PER_KEY`], 64 GiB, both ends derive the next key from the one before, without a message,
//! since both count the same records. That keeps the chance below 2^-64 for each key. Keys that were used cannot be derived back.

use crate::Lane;
use crate::context::Loss;
use crate::hello::Session;
use crate::ring::Position;
use plover_types::ReplicaId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce};
use ring::hkdf::{self, HKDF_SHA256, KeyType, Prk};
use std::fmt;

/// Bytes that a seal adds to a record.
pub const TAG_BYTES: usize = 16;
/// Bytes of a [`Secret`].
pub const SECRET_BYTES: usize = 32;
/// Blocks of 16 bytes that are sealed under one key at most.
const BLOCKS_PER_KEY: u64 = 1 << 32;
const BLOCK_BYTES: u64 = 16;
/// Blocks that a record costs besides its own: the authenticated data and the tag.
const BLOCKS_PER_RECORD: u64 = 2;

/// One side's part of a link's keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl Secret {
    /// The part of a side that does not seal: it has no keys, so the greeting is not secret.
    pub const NONE: Self = Self([0; SECRET_BYTES]);

    /// A secret that never was before.
    pub fn fresh() -> Self {
        let mut bytes = [0; SECRET_BYTES];
        let drawn = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        // Reads of up to 256 bytes are never cut short once the kernel's pool is ready.
        assert_eq!(drawn, Ok(SECRET_BYTES), "the kernel gives no random bytes");
        Self(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The secrets of both sides of a link.
#[derive(Clone, Copy, Debug)]
pub struct Secrets {
    pub dialled: Secret,
    pub listened: Secret,
}

impl Secrets {
    /// The first key of the ring of `lane` that `writer` writes and `reader` reads.
    fn key(&self, session: Session, writer: ReplicaId, reader: ReplicaId, lane: Lane) -> Key {
        let both = [self.dialled.0, self.listened.0].concat();
        let root = hkdf::Salt::new(HKDF_SHA256, &session.0.to_le_bytes()).extract(&both);
        let ring = [writer.0, reader.0, lane.index() as u8];
        Key::new(expand(&root, &[b"plover ofi ring", &ring]), BLOCKS_PER_KEY)
    }

    /// Seals what `writer` writes into that ring.
    pub fn sealer(
        &self,
        session: Session,
        writer: ReplicaId,
        reader: ReplicaId,
        lane: Lane,
    ) -> Sealer {
        Sealer {
            key: self.key(session, writer, reader, lane),
            sealed: Vec::new(),
        }
    }

    /// Opens what `writer` has written into that ring.
    pub fn opener(
        &self,
        session: Session,
        writer: ReplicaId,
        reader: ReplicaId,
        lane: Lane,
    ) -> Opener {
        Opener {
            key: self.key(session, writer, reader, lane),
        }
    }
}

/// The key of one ring, and how much it has sealed or opened.
struct Key {
    /// The next key comes from this one.
    chain: Prk,
    aead: LessSafeKey,
    initial: [u8; NONCE_LEN],
    /// The number of the next record, counted over all keys of the ring.
    number: u64,
    /// Blocks under this key.
    blocks: u64,
    blocks_max: u64,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("number", &self.number)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl Key {
    fn new(chain: [u8; SECRET_BYTES], blocks_max: u64) -> Self {
        let chain = Prk::new_less_safe(HKDF_SHA256, &chain);
        let key = chain.expand(&[b"key"], &AES_256_GCM);
        let key = key.expect("a key is short enough for HKDF");
        Self {
            aead: LessSafeKey::new(key.into()),
            initial: expand(&chain, &[b"nonce"]),
            chain,
            number: 0,
            blocks: 0,
            blocks_max,
        }
    }

    /// The nonce of the next record, of `bytes`, under a key that may still seal that much.
    fn next(&mut self, bytes: usize) -> Nonce {
        let blocks = (bytes as u64).div_ceil(BLOCK_BYTES) + BLOCKS_PER_RECORD;
        if self.blocks + blocks > self.blocks_max {
            let next = expand(&self.chain, &[b"next"]);
            *self = Self {
                number: self.number,
                ..Self::new(next, self.blocks_max)
            };
        }
        self.blocks += blocks;
        let mut nonce = self.initial;
        for (byte, number) in nonce[NONCE_LEN - 8..]
            .iter_mut()
            .zip(self.number.to_be_bytes())
        {
            *byte ^= number;
        }
        let next = self.number.checked_add(1);
        self.number = next.expect("a ring carries fewer than 2^64 records");
        Nonce::assume_unique_for_key(nonce)
    }
}

/// `N` bytes that follow from `chain` and `label`.
fn expand<const N: usize>(chain: &Prk, label: &[&[u8]]) -> [u8; N] {
    struct Bytes<const N: usize>;
    impl<const N: usize> KeyType for Bytes<N> {
        fn len(&self) -> usize {
            N
        }
    }
    let mut out = [0; N];
    let filled = chain
        .expand(label, Bytes::<N>)
        .and_then(|it| it.fill(&mut out));
    filled.expect("a key is short enough for HKDF");
    out
}

/// The place of a record in the ring and its length: authenticated, and not sealed.
fn place(at: Position, bytes: usize) -> Aad<[u8; 16]> {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&at.0.to_le_bytes());
    place[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
    Aad::from(place)
}

/// The writing end.
#[derive(Debug)]
pub struct Sealer {
    key: Key,
    /// The last record that was sealed.
    sealed: Vec<u8>,
}

impl Sealer {
    /// The sealed form of `record`, which has [`TAG_BYTES`] more. It must be the next one in the ring, at `at`.
    pub fn seal(&mut self, record: &[u8], at: Position) -> &[u8] {
        self.sealed.clear();
        self.sealed.extend_from_slice(record);
        let nonce = self.key.next(record.len());
        let place = place(at, record.len());
        let sealed = self
            .key
            .aead
            .seal_in_place_append_tag(nonce, place, &mut self.sealed);
        sealed.expect("a record is shorter than the largest of AES-GCM");
        &self.sealed
    }
}

/// The record in the ring is not the one that the peer has sealed for this place. End the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {number} at {at} of the {lane} lane was not sealed by it for this place: somebody writes into this replica's \
     ring, or bytes have changed on the way; look at the network that `ofi` uses"
)]
pub struct NotSealed {
    /// Its number, counted from 0.
    pub number: u64,
    /// Where it stands.
    pub at: Position,
    /// The lane of the ring.
    pub lane: Lane,
}

impl From<NotSealed> for Loss {
    fn from(record: NotSealed) -> Self {
        Self::Damage(record.to_string())
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Opener {
    key: Key,
}

impl Opener {
    /// Opens the next record of the ring, which stood at `at`, in its own buffer.
    pub fn open(
        &mut self,
        mut record: Vec<u8>,
        at: Position,
        lane: Lane,
    ) -> Result<Vec<u8>, NotSealed> {
        let number = self.key.number;
        let not_sealed = NotSealed { number, at, lane };
        let bytes = record.len().checked_sub(TAG_BYTES).ok_or(not_sealed)?;
        let nonce = self.key.next(bytes);
        let opened = self
            .key
            .aead
            .open_in_place(nonce, place(at, bytes), &mut record);
        opened.map_err(|_| not_sealed)?;
        record.truncate(bytes);
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SESSION: Session = Session(7);
    const HERE: ReplicaId = ReplicaId(0);
    const THERE: ReplicaId = ReplicaId(1);
    const START: Position = Position(0);

    fn secrets() -> Secrets {
        Secrets {
            dialled: Secret([1; SECRET_BYTES]),
            listened: Secret([2; SECRET_BYTES]),
        }
    }

    fn sealer() -> Sealer {
        secrets().sealer(SESSION, HERE, THERE, Lane::Log)
    }

    fn opener() -> Opener {
        secrets().opener(SESSION, HERE, THERE, Lane::Log)
    }

    fn open(opener: &mut Opener, sealed: &[u8], at: Position) -> Option<Vec<u8>> {
        opener.open(sealed.to_vec(), at, Lane::Log).ok()
    }

    #[test]
    fn records_open_in_their_order_and_show_nothing_before() {
        let (mut sealer, mut opener) = (sealer(), opener());
        for (n, record) in [&b"the guest's memory"[..], b"", &[0; 1000]]
            .iter()
            .enumerate()
        {
            let at = Position(n as u64 * 2048);
            let sealed = sealer.seal(record, at).to_vec();
            assert_eq!(sealed.len(), record.len() + TAG_BYTES);
            let shows = record.len() > 8 && sealed.windows(8).any(|it| it == &record[..8]);
            assert!(!shows, "record {n} is not sealed");
            assert_eq!(open(&mut opener, &sealed, at).as_deref(), Some(*record));
        }
    }

    #[test]
    fn one_record_is_never_sealed_to_the_same_bytes() {
        let mut sealer = sealer();
        let first = sealer.seal(b"a record", START).to_vec();
        assert_ne!(sealer.seal(b"a record", START), first);
    }

    #[test]
    fn an_earlier_record_is_refused() {
        let (mut sealer, mut opener) = (sealer(), opener());
        let sealed = sealer.seal(b"first", START).to_vec();
        assert!(open(&mut opener, &sealed, START).is_some());
        assert_eq!(open(&mut opener, &sealed, START), None);
    }

    #[test]
    fn a_later_record_is_refused() {
        let (mut sealer, mut opener) = (sealer(), opener());
        sealer.seal(b"first", START);
        let second = sealer.seal(b"other", START).to_vec();
        assert_eq!(open(&mut opener, &second, START), None);
    }

    #[test]
    fn a_record_in_another_place_is_refused() {
        let sealed = sealer().seal(b"a record", START).to_vec();
        assert_eq!(open(&mut opener(), &sealed, Position(8)), None);
        assert!(open(&mut opener(), &sealed, START).is_some());
    }

    #[test]
    fn a_record_of_any_other_ring_is_refused() {
        let sealed = sealer().seal(b"a record", START).to_vec();
        let of = |secrets: Secrets, session, writer, reader, lane| {
            open(
                &mut secrets.opener(session, writer, reader, lane),
                &sealed,
                START,
            )
        };
        let mut others = secrets();
        others.listened = Secret([3; SECRET_BYTES]);
        let log = Lane::Log;
        assert!(of(secrets(), SESSION, HERE, THERE, log).is_some());
        assert_eq!(of(secrets(), SESSION, HERE, THERE, Lane::Bulk), None);
        assert_eq!(of(secrets(), SESSION, THERE, HERE, log), None);
        assert_eq!(of(secrets(), SESSION, HERE, ReplicaId(2), log), None);
        assert_eq!(of(secrets(), Session(8), HERE, THERE, log), None);
        assert_eq!(of(others, SESSION, HERE, THERE, log), None);
    }

    #[test]
    fn a_key_is_followed_by_the_next_on_both_sides() {
        let (mut sealer, mut opener) = (sealer(), opener());
        for key in [&mut sealer.key, &mut opener.key] {
            key.blocks_max = 10;
        }
        let first = sealer.key.initial;
        for n in 0..50u64 {
            // One of them is more than a whole key's share.
            let record = vec![n as u8; n as usize * 7];
            let sealed = sealer.seal(&record, Position(n)).to_vec();
            assert_eq!(open(&mut opener, &sealed, Position(n)), Some(record));
        }
        assert_ne!(sealer.key.initial, first);
        assert_eq!(sealer.key.number, 50, "nonces go on");
        // A reader that stays with the first key is left behind.
        let mut late = self::opener();
        late.key.number = 50;
        let sealed = sealer.seal(b"x", START).to_vec();
        assert_eq!(open(&mut late, &sealed, START), None);
    }

    #[test]
    fn a_refusal_says_what_and_where() {
        let why = opener().open(vec![0; 3], Position(64), Lane::Bulk);
        let words = why.expect_err("three bytes").to_string();
        assert!(words.contains("record 0 at 64 of the bulk lane"), "{words}");
        assert!(words.contains("look at the network"), "{words}");
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_refused(record in prop::collection::vec(any::<u8>(), 0..200), bit in any::<prop::sample::Index>()) {
            let mut sealed = sealer().seal(&record, START).to_vec();
            let bit = bit.index(sealed.len() * 8);
            sealed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(open(&mut opener(), &sealed, START), None);
        }

        #[test]
        fn another_length_is_refused(record in prop::collection::vec(any::<u8>(), 0..200), bytes in 0usize..250) {
            let mut sealed = sealer().seal(&record, START).to_vec();
            prop_assume!(bytes != sealed.len());
            sealed.resize(bytes, 0);
            prop_assert_eq!(open(&mut opener(), &sealed, START), None);
        }
    }
}

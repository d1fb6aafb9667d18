//! Universal hashes: two different contents hash to the same value with a probability that is known, over a random key
//! that was not known when the contents were chosen (docs/decisions/0055).
//!
//! ```text
//!   page, 512 words ──▶ NH, twice ──▶ 4 words ──▶ multilinear, twice ──▶ 128 bits    2^-128 + 2^-128 = 2^-127
//!   subpage, 16 words ───────────────────────────▶ multilinear ─────────▶  64 bits    2^-64
//! ```
//!
//! * *NH* (Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC", CRYPTO '99, with words of 64 bits) adds products of pairs of
//!   words, each with a key added. Two inputs of one length collide with 2^-64. Once more with the key shifted by two
//!   words ("Toeplitz"), both collide with 2^-128.
//! * *Multilinear* (Lemire and Kaser, "Strongly universal string hashing is fast", The Computer Journal 57, 2014) is a sum
//!   of words, each times a key of 128 bits, modulo 2^128. Its upper 64 bits are strongly universal, so two inputs
//!   of one length collide with 2^-64.
//!
//! Both are multiplications of the processor alone: no instruction that some processors lack, and no table. All inputs
//! of one function have one length, which the proofs need.

use plover_types::{Digest, PAGE_BYTES, SUBPAGE_BYTES};

const WORD_BYTES: usize = size_of::<u64>();
const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;
const SUBPAGE_WORDS: usize = SUBPAGE_BYTES / WORD_BYTES;

/// Words that NH makes of a page.
const NH_WORDS: usize = 4;
/// Its keys, with those of the shift.
const NH_KEYS: usize = PAGE_WORDS + 2;

/// Bytes that a key is expanded to, from which keys of words are taken one after the other.
struct Expanded {
    bytes: Vec<u8>,
    taken: usize,
}

impl Expanded {
    /// All at once: BLAKE3 makes 64 bytes at a time, and drops what is not taken of them.
    fn new(purpose: &str, key: &[u8; 32], bytes: usize) -> Self {
        let mut expanded = vec![0; bytes];
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(key).finalize_xof().fill(&mut expanded);
        Self {
            bytes: expanded,
            taken: 0,
        }
    }

    fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let rest = &self.bytes[self.taken..];
        self.taken += BYTES;
        *rest
            .first_chunk()
            .expect("as many bytes as the keys of words have")
    }
}

/// The words' keys, and the one that is added.
struct Multilinear<const WORDS: usize>([u128; WORDS], u128);

impl<const WORDS: usize> Multilinear<WORDS> {
    const KEY_BYTES: usize = size_of::<Self>();

    fn new(keys: &mut Expanded) -> Self {
        let mut next = || u128::from_le_bytes(keys.take());
        Self(std::array::from_fn(|_| next()), next())
    }

    fn hash(&self, words: impl Iterator<Item = u64>) -> u64 {
        let terms = words
            .zip(&self.0)
            .map(|(word, key)| u128::from(word).wrapping_mul(*key));
        (terms.fold(self.1, u128::wrapping_add) >> 64) as u64
    }
}

/// Hashes pages.
pub(super) struct Pages {
    nh: Box<[u64; NH_KEYS]>,
    lower: Multilinear<NH_WORDS>,
    upper: Multilinear<NH_WORDS>,
}

impl Pages {
    /// Expands the key to 4 KiB, which takes some times as long as hashing a page.
    pub fn new(key: &[u8; 32]) -> Self {
        let bytes = NH_KEYS * WORD_BYTES + 2 * Multilinear::<NH_WORDS>::KEY_BYTES;
        let mut keys = Expanded::new("plover 2026 page hash: NH, multilinear", key, bytes);
        Self {
            nh: Box::new(std::array::from_fn(|_| u64::from_le_bytes(keys.take()))),
            lower: Multilinear::new(&mut keys),
            upper: Multilinear::new(&mut keys),
        }
    }

    pub fn digest(&self, page: &[u8; PAGE_BYTES]) -> Digest {
        let (mut one, mut two) = (0_u128, 0_u128);
        let pairs = page.chunks_exact(2 * WORD_BYTES);
        for (bytes, keys) in pairs.zip(self.nh.windows(4).step_by(2)) {
            let (a, b) = (word(bytes), word(&bytes[WORD_BYTES..]));
            one = one.wrapping_add(product(a, b, keys[0], keys[1]));
            two = two.wrapping_add(product(a, b, keys[2], keys[3]));
        }
        let words = [one, one >> 64, two, two >> 64].map(|it| it as u64);
        let half = |hash: &Multilinear<NH_WORDS>| u128::from(hash.hash(words.into_iter()));
        Digest(half(&self.lower) | (half(&self.upper) << 64))
    }
}

/// Hashes subpages.
pub(super) struct Subpages(Multilinear<SUBPAGE_WORDS>);

impl Subpages {
    pub fn new(key: &[u8; 32]) -> Self {
        let bytes = Multilinear::<SUBPAGE_WORDS>::KEY_BYTES;
        let mut keys = Expanded::new("plover 2026 subpage hash: multilinear", key, bytes);
        Self(Multilinear::new(&mut keys))
    }

    /// `subpage` has [`SUBPAGE_BYTES`].
    pub fn hash(&self, subpage: &[u8]) -> u64 {
        self.0.hash(subpage.chunks_exact(WORD_BYTES).map(word))
    }
}

/// A term of NH.
fn product(a: u64, b: u64, key_of_a: u64, key_of_b: u64) -> u128 {
    u128::from(a.wrapping_add(key_of_a)) * u128::from(b.wrapping_add(key_of_b))
}

/// The first word of `bytes`.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..WORD_BYTES].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::SplitMix64;

    fn random_page(random: &mut SplitMix64) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        for word in page.chunks_exact_mut(WORD_BYTES) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        page
    }

    /// The sums as the papers write them, index by index.
    #[test]
    fn the_digest_is_what_the_papers_say() {
        let hasher = Pages::new(&[7; 32]);
        let mut random = SplitMix64::new(1);
        for _ in 0..20 {
            let page = random_page(&mut random);
            let m = |i: usize| word(&page[i * WORD_BYTES..]);
            let nh = |shift: usize| {
                let mut sum = 0_u128;
                for i in 0..PAGE_WORDS / 2 {
                    let a = m(2 * i).wrapping_add(hasher.nh[shift + 2 * i]);
                    let b = m(2 * i + 1).wrapping_add(hasher.nh[shift + 2 * i + 1]);
                    sum = sum.wrapping_add(u128::from(a) * u128::from(b));
                }
                sum
            };
            let (one, two) = (nh(0), nh(2));
            let s = [
                one as u64,
                (one >> 64) as u64,
                two as u64,
                (two >> 64) as u64,
            ];
            let half = |h: &Multilinear<NH_WORDS>| {
                let mut sum = h.1;
                for (key, s) in h.0.iter().zip(s) {
                    sum = sum.wrapping_add(key.wrapping_mul(u128::from(s)));
                }
                sum >> 64
            };
            let due = half(&hasher.lower) | (half(&hasher.upper) << 64);
            assert_eq!(hasher.digest(&page), Digest(due));
        }
    }

    /// Every word of a page and of a subpage counts, and its place.
    #[test]
    fn every_word_and_its_place_count() {
        let pages = Pages::new(&[8; 32]);
        let subpages = Subpages::new(&[8; 32]);
        let zero = pages.digest(&[0; PAGE_BYTES]);
        let mut seen = std::collections::HashSet::from([zero]);
        let mut seen_64 = std::collections::HashSet::from([subpages.hash(&[0; SUBPAGE_BYTES])]);
        for at in 0..PAGE_WORDS {
            let mut page = [0; PAGE_BYTES];
            page[at * WORD_BYTES] = 1;
            assert!(seen.insert(pages.digest(&page)), "word {at}");
        }
        for at in 0..SUBPAGE_WORDS {
            let mut subpage = [0; SUBPAGE_BYTES];
            subpage[at * WORD_BYTES] = 1;
            assert!(seen_64.insert(subpages.hash(&subpage)), "word {at}");
        }
    }

    /// NH with words of three bits, over all keys of two pairs: it collides no more often than the paper says, with and
    /// without the shift.
    #[test]
    fn small_words_collide_as_seldom_as_the_paper_says() {
        const BITS: u32 = 3;
        const MASK: u32 = (1 << BITS) - 1;
        const KEY_BITS: u32 = 6 * BITS;
        let nh = |words: u32, keys: u32, shift: u32| {
            let at = |bits: u32, place: u32| (bits >> (BITS * place)) & MASK;
            let sum = |place| (at(words, place) + at(keys, place + shift)) & MASK;
            (sum(0) * sum(1) + sum(2) * sum(3)) % (1 << (2 * BITS))
        };
        let mut random = SplitMix64::new(1);
        for _ in 0..50 {
            let [x, y] = [(); 2].map(|()| random.next_u64() as u32 % (1 << (4 * BITS)));
            if x == y {
                continue;
            }
            let (mut once, mut twice) = (0, 0);
            for keys in 0..1 << KEY_BITS {
                let same = |shift| nh(x, keys, shift) == nh(y, keys, shift);
                once += u32::from(same(0));
                twice += u32::from(same(0) && same(2));
            }
            assert!(once <= 1 << (KEY_BITS - BITS), "{x:o} {y:o}: {once}");
            assert!(twice <= 1 << (KEY_BITS - 2 * BITS), "{x:o} {y:o}: {twice}");
        }
    }
}

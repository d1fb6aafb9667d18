//! Keyed page hashes.
//!
//! Two replicas compare pages by 128-bit digests instead of by bytes. If a guest could make two
//! different pages with the same digest, it could make its two copies diverge unseen. So the hash is [`universal`]
//! under a key that no guest sees. A group of wire version 2 compares by XXH3 instead.
//!
//! A page is first copied out of guest memory into a buffer on the stack, which stays in the
//! first-level cache. That costs little and keeps Rust references out of guest memory. Large batches
//! go to all cores. Small ones stay on the caller's: waking workers costs as much as hashing hundreds
//! of pages.

mod universal;

use crate::regions::Regions;
use plover_types::{Digest, HashKey, PAGE_BYTES, PageNo, SUBPAGE_BYTES};
use rayon::prelude::*;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_128_with_secret};

/// Batches up to this size are hashed by the caller. For the 170 pages of a usual slot, waking workers and
/// waiting for the last of them took 240 µs against 60 µs without (measured with XXH3, on two cores that had
/// other work, too).
const INLINE_PAGES: usize = 512;

/// Pages that a worker takes at once: 10 µs of work, so that the split costs little and the cores still
/// finish together.
const CHUNK_PAGES: usize = 32;

/// From this batch size on, looking up which pages were never touched saves time.
const SPARSE_PAGES: usize = 8192;
/// From this number of consecutive pages on, asking whether any of them was touched saves time.
const SPARSE_ROW: usize = 64;

/// Hashes pages under one key.
pub struct PageHasher(Pages);

enum Pages {
    /// With a secret that is expanded from the key.
    Xxh3([u8; 192]),
    Universal(universal::Pages),
}

// Does not print the secret.
impl std::fmt::Debug for PageHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageHasher").finish_non_exhaustive()
    }
}

impl PageHasher {
    /// Expands the key, which takes longer than hashing a page.
    pub fn new(key: &HashKey) -> Self {
        Self(match key {
            HashKey::Xxh3(key) => Pages::Xxh3(xxh3_secret(key)),
            HashKey::Universal(key) => Pages::Universal(universal::Pages::new(key)),
        })
    }

    /// The digest of a page's bytes.
    pub fn digest(&self, page: &[u8; PAGE_BYTES]) -> Digest {
        match &self.0 {
            Pages::Xxh3(secret) => Digest(xxh3_128_with_secret(page, secret)),
            Pages::Universal(hasher) => hasher.digest(page),
        }
    }
}

fn xxh3_secret(key: &[u8; 32]) -> [u8; 192] {
    let mut secret = [0; 192];
    blake3::Hasher::new_derive_key("plover 2025 page hash: XXH3-128 secret")
        .update(key)
        .finalize_xof()
        .fill(&mut secret);
    secret
}

/// Adds the hashes of the subpages of `pages` to `hashes`, in order; `read` copies a page out.
pub fn hash_subpages(
    read: impl Fn(PageNo, &mut [u8]),
    key: &HashKey,
    pages: &[PageNo],
    hashes: &mut Vec<u64>,
) {
    match key {
        HashKey::Xxh3(key) => {
            let secret = xxh3_secret(key);
            let hash = |subpage: &[u8]| xxh3_64_with_secret(subpage, &secret);
            hash_subpages_by(read, hash, pages, hashes);
        }
        HashKey::Universal(key) => {
            let hasher = universal::Subpages::new(key);
            hash_subpages_by(read, |subpage| hasher.hash(subpage), pages, hashes);
        }
    }
}

fn hash_subpages_by(
    read: impl Fn(PageNo, &mut [u8]),
    hash: impl Fn(&[u8]) -> u64,
    pages: &[PageNo],
    hashes: &mut Vec<u64>,
) {
    let mut bytes = [0; PAGE_BYTES];
    for page in pages {
        read(*page, &mut bytes);
        hashes.extend(bytes.chunks_exact(SUBPAGE_BYTES).map(&hash));
    }
}

/// The digests of `pages`, in order, added to `digests`.
pub(crate) fn hash_pages(
    regions: Regions<'_>,
    key: &HashKey,
    pages: &[PageNo],
    digests: &mut Vec<Digest>,
) {
    let hasher = PageHasher::new(key);
    let one = |page: &PageNo| {
        let mut bytes = [0; PAGE_BYTES];
        regions.read(*page, &mut bytes);
        hasher.digest(&bytes)
    };
    let (Some(first), Some(last)) = (pages.first(), pages.last()) else {
        return;
    };
    // All lists of pages rise.
    let in_a_row = last.0.checked_sub(first.0) == Some(pages.len() as u32 - 1);
    let zero = hasher.digest(&[0; PAGE_BYTES]);
    if in_a_row && pages.len() >= SPARSE_ROW && regions.first_data(*first) > *last {
        digests.extend(std::iter::repeat_n(zero, pages.len()));
        return;
    }
    let touched = (pages.len() >= SPARSE_PAGES).then(|| regions.touched(*last));
    let digest = |page: &PageNo| match &touched {
        Some(touched) if !touched.contains(*page) => zero,
        _ => one(page),
    };
    if pages.len() <= INLINE_PAGES {
        digests.extend(pages.iter().map(digest));
    } else {
        let hashed = pages.par_iter().with_min_len(CHUNK_PAGES).map(digest);
        digests.par_extend(hashed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::Ram;

    fn only(ram: &Ram) -> Regions<'_> {
        Regions { ram, disks: None }
    }

    /// Both functions.
    fn keys(byte: u8) -> [HashKey; 2] {
        [HashKey::Xxh3([byte; 32]), HashKey::Universal([byte; 32])]
    }

    /// All ways to hash a batch give what hashing page by page gives.
    #[test]
    fn every_batch_size_gives_the_same_digests() {
        let pages = SPARSE_PAGES as u32 + 100;
        let mut ram = Ram::new(pages as usize * PAGE_BYTES).unwrap();
        for page in (0..pages).step_by(7) {
            ram.write(PageNo(page), &[(page % 251) as u8; PAGE_BYTES]);
        }
        let all: Vec<PageNo> = (0..pages).map(PageNo).collect();
        for key in keys(9) {
            let hasher = PageHasher::new(&key);
            let mut bytes = [0; PAGE_BYTES];
            let expected: Vec<Digest> = all
                .iter()
                .map(|page| {
                    ram.read(*page, &mut bytes);
                    hasher.digest(&bytes)
                })
                .collect();
            for len in [
                0,
                1,
                INLINE_PAGES,
                INLINE_PAGES + 1,
                SPARSE_PAGES - 1,
                pages as usize,
            ] {
                let mut digests = vec![Digest(1)];
                hash_pages(only(&ram), &key, &all[..len], &mut digests);
                assert_eq!(digests[0], Digest(1), "what is there is kept");
                assert_eq!(digests[1..], expected[..len], "{len} pages");
            }
        }
    }

    #[test]
    fn another_key_byte_or_function_gives_another_digest() {
        let mut page = [0; PAGE_BYTES];
        let mut seen = std::collections::HashSet::new();
        for last in [0, 1] {
            page[PAGE_BYTES - 1] = last;
            for key in [keys(1), keys(2)].concat() {
                let digest = PageHasher::new(&key).digest(&page);
                assert_eq!(digest, PageHasher::new(&key).digest(&page));
                assert!(seen.insert(digest), "{key:?}");
            }
        }
    }

    #[test]
    fn subpages_are_hashed_apart() {
        let pages = [PageNo(3), PageNo(4)];
        for key in keys(1) {
            let hash = |written: usize| {
                let mut hashes = Vec::new();
                let read = |page: PageNo, to: &mut [u8]| {
                    to.fill(0);
                    if page == pages[1] {
                        to[written] = 1;
                    }
                };
                hash_subpages(read, &key, &pages, &mut hashes);
                hashes
            };
            let (first, last) = (hash(0), hash(PAGE_BYTES - 1));
            let differs = first.iter().zip(&last).map(|(a, b)| a != b);
            let places: Vec<usize> = differs
                .enumerate()
                .filter_map(|(at, it)| it.then_some(at))
                .collect();
            let (of_page, end) = (PAGE_BYTES / SUBPAGE_BYTES, 2 * PAGE_BYTES / SUBPAGE_BYTES);
            assert_eq!(places, [of_page, end - 1], "{key:?}");
        }
    }

    /// Hashing all of a guest that was never started allocates nothing.
    #[test]
    fn untouched_memory_is_hashed_without_allocating_it() {
        let ram = Ram::new(2 * SPARSE_PAGES * PAGE_BYTES).unwrap();
        let all: Vec<PageNo> = (0..ram.pages()).map(PageNo).collect();
        hash_pages(only(&ram), &keys(0)[1], &all, &mut Vec::new());
        assert_eq!(rustix::fs::fstat(ram.fd()).unwrap().st_blocks, 0);
    }
}

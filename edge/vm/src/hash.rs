//! Keyed page hashes.
//!
//! Two replicas compare pages by 128-bit digests instead of by bytes. If a guest could make two
//! different pages with the same digest, it could make its two copies diverge unseen; so the hash
//! is XXH3-128 under a secret that is expanded from the session's key and that no guest sees.
//!
//! A page is first copied out of guest memory into a buffer on the stack, which stays in the
//! first-level cache. That costs little and keeps Rust references out of guest memory. Large batches
//! go to all cores. Small ones stay on the caller's: waking workers costs as much as hashing hundreds
//! of pages.

use crate::regions::Regions;
use plover_types::{Digest, PAGE_BYTES, PageNo, SUBPAGE_BYTES};
use rayon::prelude::*;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_128_with_secret};

/// Batches up to this size are hashed by the caller. A page takes 0.3 µs. For the 170 pages of a usual
/// slot, waking workers and waiting for the last of them took 240 µs against 60 µs without (measured on
/// two cores that had other work, too).
const INLINE_PAGES: usize = 512;

/// Pages that a worker takes at once: 10 µs of work, so that the split costs little and the cores still
/// finish together.
const CHUNK_PAGES: usize = 32;

/// From this batch size on, looking up which pages were never touched saves time.
const SPARSE_PAGES: usize = 8192;
/// From this number of consecutive pages on, asking whether any of them was touched saves time.
const SPARSE_ROW: usize = 64;

/// Hashes pages under a session's key: XXH3-128 with a secret of 192 bytes, expanded from it.
pub struct PageHasher([u8; 192]);

// Does not print the secret.
impl std::fmt::Debug for PageHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageHasher").finish_non_exhaustive()
    }
}

impl PageHasher {
    /// Expands the secret, which takes longer than hashing a page.
    pub fn new(key: &[u8; 32]) -> Self {
        let mut secret = [0; 192];
        blake3::Hasher::new_derive_key("plover 2025 page hash: XXH3-128 secret")
            .update(key)
            .finalize_xof()
            .fill(&mut secret);
        Self(secret)
    }

    /// The digest of a page's bytes.
    pub fn digest(&self, page: &[u8; PAGE_BYTES]) -> Digest {
        Digest(xxh3_128_with_secret(page, &self.0))
    }
}

/// Adds the hashes of the subpages of `pages` to `hashes`, in order; `read` copies a page out.
pub fn hash_subpages(
    read: impl Fn(PageNo, &mut [u8]),
    key: &[u8; 32],
    pages: &[PageNo],
    hashes: &mut Vec<u64>,
) {
    let hasher = PageHasher::new(key);
    let mut bytes = [0; PAGE_BYTES];
    for page in pages {
        read(*page, &mut bytes);
        let subpages = bytes.chunks_exact(SUBPAGE_BYTES);
        hashes.extend(subpages.map(|bytes| xxh3_64_with_secret(bytes, &hasher.0)));
    }
}

/// The digests of `pages`, in order, added to `digests`.
pub(crate) fn hash_pages(
    regions: Regions<'_>,
    key: &[u8; 32],
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

    /// All ways to hash a batch give what hashing page by page gives.
    #[test]
    fn every_batch_size_gives_the_same_digests() {
        let pages = SPARSE_PAGES as u32 + 100;
        let mut ram = Ram::new(pages as usize * PAGE_BYTES).unwrap();
        for page in (0..pages).step_by(7) {
            ram.write(PageNo(page), &[(page % 251) as u8; PAGE_BYTES]);
        }
        let key = [9; 32];
        let all: Vec<PageNo> = (0..pages).map(PageNo).collect();
        let expected: Vec<Digest> = all
            .iter()
            .map(|page| {
                let mut bytes = [0; PAGE_BYTES];
                ram.read(*page, &mut bytes);
                PageHasher::new(&key).digest(&bytes)
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

    #[test]
    fn another_key_or_byte_gives_another_digest() {
        let digest_page =
            |key: &[u8; 32], page: &[u8; PAGE_BYTES]| PageHasher::new(key).digest(page);
        let mut page = [0; PAGE_BYTES];
        let first = digest_page(&[1; 32], &page);
        assert_eq!(first, digest_page(&[1; 32], &page));
        assert_ne!(first, digest_page(&[2; 32], &page));
        page[PAGE_BYTES - 1] = 1;
        assert_ne!(first, digest_page(&[1; 32], &page));
    }

    /// Hashing all of a guest that was never started allocates nothing.
    #[test]
    fn untouched_memory_is_hashed_without_allocating_it() {
        let ram = Ram::new(2 * SPARSE_PAGES * PAGE_BYTES).unwrap();
        let all: Vec<PageNo> = (0..ram.pages()).map(PageNo).collect();
        hash_pages(only(&ram), &[0; 32], &all, &mut Vec::new());
        assert_eq!(rustix::fs::fstat(ram.fd()).unwrap().st_blocks, 0);
    }
}

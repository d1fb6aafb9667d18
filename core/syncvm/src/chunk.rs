//! Page contents on the wire: a chunk is a sequence of `page number, kind, bytes`.
//!
//! A zero page is its number and one byte. If only some subpages of a page are sent, a mask of 8 bytes
//! names them. Nothing is compressed here: the receiver writes a chunk into memory as it is. On its way
//! it may be compressed (docs/decisions/0023).

use crate::subpages::SubpageMask;
use plover_types::{PAGE_BYTES, PageNo, SUBPAGE_BYTES};

/// Pages a chunk holds at most. 32 pages are 128 KiB: large enough that the per-message cost
/// vanishes, small enough that a full copy never occupies the loop for long.
pub const CHUNK_PAGES_MAX: usize = 32;

const KIND_ZERO: u8 = 0;
const KIND_RAW: u8 = 1;
const KIND_SUBPAGES: u8 = 2;

/// Builds a chunk.
#[derive(Debug, Default)]
pub struct ChunkWriter {
    bytes: Vec<u8>,
    pages: usize,
}

impl ChunkWriter {
    /// An empty chunk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one page of [`PAGE_BYTES`] bytes.
    pub fn push(&mut self, page: PageNo, content: &[u8]) {
        assert_eq!(content.len(), PAGE_BYTES, "a page has {PAGE_BYTES} bytes");
        self.bytes.extend_from_slice(&page.0.to_le_bytes());
        if content.iter().all(|b| *b == 0) {
            self.bytes.push(KIND_ZERO);
        } else {
            self.bytes.push(KIND_RAW);
            self.bytes.extend_from_slice(content);
        }
        self.pages += 1;
    }

    /// Adds the subpages that `mask` names of a page of [`PAGE_BYTES`] bytes, or the whole page where
    /// that is shorter.
    pub fn push_subpages(&mut self, page: PageNo, mask: SubpageMask, content: &[u8]) {
        if mask == SubpageMask::ALL || content.iter().all(|b| *b == 0) {
            return self.push(page, content);
        }
        self.bytes.extend_from_slice(&page.0.to_le_bytes());
        self.bytes.push(KIND_SUBPAGES);
        self.bytes.extend_from_slice(&mask.0.to_le_bytes());
        for range in mask.ranges() {
            self.bytes.extend_from_slice(&content[range]);
        }
        self.pages += 1;
    }

    /// How many pages it holds.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The chunk's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// The content of one page in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent<'a> {
    /// All zero.
    Zero,
    /// These [`PAGE_BYTES`] bytes.
    Raw(&'a [u8]),
    /// These subpages, one after the other; the others are as they were.
    Subpages(SubpageMask, &'a [u8]),
}

impl PageContent<'_> {
    /// Writes this content into `page`, which has [`PAGE_BYTES`] bytes.
    pub fn apply(&self, page: &mut [u8]) {
        match self {
            Self::Zero => page.fill(0),
            Self::Raw(bytes) => page.copy_from_slice(bytes),
            Self::Subpages(mask, bytes) => {
                for (range, subpage) in mask.ranges().zip(bytes.chunks_exact(SUBPAGE_BYTES)) {
                    page[range].copy_from_slice(subpage);
                }
            }
        }
    }

    /// Whether it is the content of the whole page.
    pub fn is_whole(&self) -> bool {
        !matches!(self, Self::Subpages(..))
    }
}

/// The bytes are no chunk for this guest: a bug of the peer. The sync is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed page chunk at byte {at}")]
pub struct ChunkError {
    /// The place of the first byte that cannot be read.
    pub at: usize,
}

/// Reads the pages of `chunk`, each inside a guest of `pages` pages.
pub fn read(
    chunk: &[u8],
    pages: u32,
) -> impl Iterator<Item = Result<(PageNo, PageContent<'_>), ChunkError>> {
    let mut at = 0;
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || at == chunk.len() {
            return None;
        }
        let next = read_one(&chunk[at..], pages);
        Some(match next {
            Some((page, content, used)) => {
                at += used;
                Ok((page, content))
            }
            None => {
                failed = true;
                Err(ChunkError { at })
            }
        })
    })
}

fn read_one(bytes: &[u8], pages: u32) -> Option<(PageNo, PageContent<'_>, usize)> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    let page = PageNo(u32::from_le_bytes(*number));
    if page.0 >= pages {
        return None;
    }
    match rest.split_first()? {
        (&KIND_ZERO, _) => Some((page, PageContent::Zero, 5)),
        (&KIND_RAW, body) => Some((
            page,
            PageContent::Raw(body.get(..PAGE_BYTES)?),
            5 + PAGE_BYTES,
        )),
        (&KIND_SUBPAGES, body) => {
            let (mask, body) = body.split_first_chunk::<8>()?;
            let mask = SubpageMask(u64::from_le_bytes(*mask));
            if mask.is_empty() || mask.0 & !SubpageMask::ALL.0 != 0 {
                return None;
            }
            let bytes = mask.len() as usize * SUBPAGE_BYTES;
            let subpages = PageContent::Subpages(mask, body.get(..bytes)?);
            Some((page, subpages, 13 + bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_types::forms::assert_form;
    use proptest::prelude::*;

    #[test]
    fn round_trip_and_zero_pages_are_small() {
        let mut writer = ChunkWriter::new();
        writer.push(PageNo(3), &[0; PAGE_BYTES]);
        writer.push(PageNo(9), &[7; PAGE_BYTES]);
        let chunk = writer.finish();
        assert_eq!(chunk.len(), 5 + 5 + PAGE_BYTES);
        let pages: Result<Vec<_>, _> = read(&chunk, 10).collect();
        let raw = [7; PAGE_BYTES];
        assert_eq!(
            pages.unwrap(),
            [
                (PageNo(3), PageContent::Zero),
                (PageNo(9), PageContent::Raw(&raw))
            ]
        );
        assert!(
            read(&chunk, 9).any(|p| p.is_err()),
            "page 9 lies outside 9 pages"
        );
        assert!(read(&chunk[..20], 10).any(|p| p.is_err()), "cut short");
    }

    #[test]
    fn the_form_of_chunks_is_that_of_their_version() {
        let content: Vec<u8> = (0..PAGE_BYTES).map(|at| (at / 16) as u8).collect();
        let mut writer = ChunkWriter::new();
        writer.push(PageNo(1001), &[0; PAGE_BYTES]);
        writer.push(PageNo(1002), &content);
        writer.push_subpages(PageNo(1003), SubpageMask(0b1010), &content);
        assert_form("page chunks", &[writer.finish()]);
    }

    #[test]
    fn subpages_change_only_the_bytes_that_they_name() {
        let (old, mut new) = ([1u8; PAGE_BYTES], [1u8; PAGE_BYTES]);
        new[SUBPAGE_BYTES] = 2;
        new[PAGE_BYTES - 1] = 3;
        let mask = SubpageMask((1 << 1) | (1 << (PAGE_BYTES / SUBPAGE_BYTES - 1)));
        let mut writer = ChunkWriter::new();
        writer.push_subpages(PageNo(4), mask, &new);
        writer.push_subpages(PageNo(5), SubpageMask::ALL, &new);
        writer.push_subpages(PageNo(6), mask, &[0; PAGE_BYTES]);
        let chunk = writer.finish();
        assert_eq!(chunk.len(), 13 + 2 * SUBPAGE_BYTES + 5 + PAGE_BYTES + 5);
        let read: Vec<_> = read(&chunk, 7).map(Result::unwrap).collect();
        let whole: Vec<_> = read.iter().map(|(_, content)| content.is_whole()).collect();
        assert_eq!(whole, [false, true, true]);
        let mut page = old;
        read[0].1.apply(&mut page);
        assert_eq!(page, new);
    }

    proptest! {
        #[test]
        fn noise_never_panics_or_leaves_the_guest(bytes: Vec<u8>, pages in 0u32..50) {
            for page in read(&bytes, pages).flatten() {
                prop_assert!(page.0.0 < pages);
            }
        }
    }
}

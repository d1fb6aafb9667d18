//! Page contents on the wire: a chunk is a sequence of `page number, kind, bytes`.
//!
//! A zero page is its number and one byte. Nothing is compressed: at the speeds of a local
//! network that cost more than it saved in every system of the papers that tried.

use plover_types::{PAGE_BYTES, PageNo};

/// Pages a chunk holds at most. 32 pages are 128 KiB: large enough that the per-message cost
/// vanishes, small enough that a full copy never occupies the loop for long.
pub const CHUNK_PAGES_MAX: usize = 32;

const KIND_ZERO: u8 = 0;
const KIND_RAW: u8 = 1;

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

    /// How many pages it holds.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The chunk's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// What a chunk says of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent<'a> {
    /// All zero.
    Zero,
    /// These [`PAGE_BYTES`] bytes.
    Raw(&'a [u8]),
}

/// The bytes are no chunk for this guest: a bug of the peer. The sync is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed page chunk at byte {at}")]
pub struct ChunkError {
    /// Where it stops making sense.
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
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    proptest! {
        #[test]
        fn noise_never_panics_or_leaves_the_guest(bytes: Vec<u8>, pages in 0u32..50) {
            for page in read(&bytes, pages).flatten() {
                prop_assert!(page.0.0 < pages);
            }
        }
    }
}

//! Work on pages that are blocks of disks, done on a thread that can wait for the disk.

use plover_disk::{Batch, Blocks};
use plover_syncvm::chunk::{self, ChunkWriter, PageContent};
use plover_syncvm::subpages::Divergent;
use plover_types::{BlockNo, Digest, HashKey, PAGE_BYTES, PageLayout, PageNo};
use plover_vm::PageHasher;
use std::ops::Range;

/// More pages than this are divided among several threads. The cost of starting them is then small, and a
/// disk serves several requests at a time.
const ALONE_PAGES: usize = 512;

/// The disks' blocks under their page numbers, which follow those of guest RAM.
pub(crate) struct DiskPages<'a> {
    pub(crate) blocks: &'a Blocks,
    pub(crate) layout: PageLayout,
}

/// The last range in which data was looked for, so that each hole is looked up once.
struct Data<'a> {
    disk: &'a DiskPages<'a>,
    looked: Range<u32>,
    /// The first run of data in `looked`.
    data: Range<u32>,
}

impl Data<'_> {
    /// Whether `block` is in a hole; blocks rise.
    fn is_hole(&mut self, block: u32) -> bool {
        if !self.looked.contains(&block) {
            let found = self.disk.blocks.next_data(BlockNo(block));
            let (start, end) = found.unwrap_or((u32::MAX, u32::MAX));
            self.looked = block..end;
            self.data = start..end;
        }
        !self.data.contains(&block)
    }
}

impl DiskPages<'_> {
    fn block(&self, page: PageNo) -> BlockNo {
        let block = self.layout.block(page);
        block.expect("only pages of disks are asked of disks")
    }

    fn looker(&self) -> Data<'_> {
        Data {
            disk: self,
            looked: 0..0,
            data: 0..0,
        }
    }

    /// The keyed hashes of `pages`, which rise.
    pub(crate) fn hash(&self, key: &HashKey, pages: &[PageNo]) -> Vec<Digest> {
        let hasher = PageHasher::new(key);
        let zero = hasher.digest(&[0; PAGE_BYTES]);
        in_parts(pages, |pages| {
            let (mut data, mut bytes) = (self.looker(), [0; PAGE_BYTES]);
            let one = |page: &PageNo| {
                let block = self.block(*page);
                if data.is_hole(block.0) {
                    return zero;
                }
                self.blocks.read(block, &mut bytes);
                hasher.digest(&bytes)
            };
            pages.iter().map(one).collect()
        })
    }

    /// The keyed hashes of the subpages of `pages`.
    pub(crate) fn hash_subpages(&self, key: &HashKey, pages: &[PageNo]) -> Vec<u64> {
        in_parts(pages, |pages| {
            let read = |page, to: &mut [u8]| self.blocks.read(self.block(page), to);
            let mut hashes = Vec::new();
            plover_vm::hash_subpages(read, key, pages, &mut hashes);
            hashes
        })
    }

    /// Adds these subpages of `pages` to a chunk.
    pub(crate) fn read(&self, pages: &[Divergent], chunk: &mut ChunkWriter) {
        let (mut data, mut bytes) = (self.looker(), [0; PAGE_BYTES]);
        for (page, mask) in pages {
            let block = self.block(*page);
            if data.is_hole(block.0) {
                chunk.push(*page, &[0; PAGE_BYTES]);
            } else {
                self.blocks.read(block, &mut bytes);
                chunk.push_subpages(*page, *mask, &bytes);
            }
        }
    }

    /// The disk blocks in `chunks`, with their new content.
    fn changed<'c>(
        &'c self,
        chunks: &'c [Vec<u8>],
    ) -> impl Iterator<Item = (BlockNo, PageContent<'c>)> {
        of_disks(chunks, self.layout).map(|(page, content)| (self.block(page), content))
    }

    /// Writes the blocks that are in `chunks`.
    pub(crate) fn write(&self, chunks: &[Vec<u8>]) {
        let mut bytes = [0; PAGE_BYTES];
        for (block, content) in self.changed(chunks) {
            match content {
                PageContent::Raw(content) => self.blocks.write(block, content),
                // A block that was never written is zero already.
                PageContent::Zero if self.blocks.first_data(block) > block.0 => {}
                content => {
                    self.fill(block, &content, &mut bytes);
                    self.blocks.write(block, &bytes);
                }
            }
        }
    }

    /// The blocks in `chunks` for the journal, which has whole blocks even if only a part of one was
    /// sent.
    pub(crate) fn batch(&self, chunks: &[Vec<u8>]) -> Batch {
        let (mut batch, mut bytes) = (Batch::new(), [0; PAGE_BYTES]);
        for (block, content) in self.changed(chunks) {
            self.fill(block, &content, &mut bytes);
            batch.push(block, &bytes);
        }
        batch
    }

    fn fill(&self, block: BlockNo, content: &PageContent<'_>, bytes: &mut [u8; PAGE_BYTES]) {
        if !content.is_whole() {
            self.blocks.read(block, bytes);
        }
        content.apply(bytes);
    }
}

/// The pages of disks in `chunks`, which were checked when they came.
pub(crate) fn of_disks(
    chunks: &[Vec<u8>],
    layout: PageLayout,
) -> impl Iterator<Item = (PageNo, PageContent<'_>)> {
    let pages = chunks.iter().flat_map(|bytes| chunk::read(bytes, u32::MAX));
    pages
        .flatten()
        .filter(move |(page, _)| layout.is_disk(*page))
}

/// The result of `one` on `pages`, divided among as many threads as pay.
fn in_parts<T: Send>(pages: &[PageNo], one: impl Fn(&[PageNo]) -> Vec<T> + Sync) -> Vec<T> {
    if pages.len() <= ALONE_PAGES {
        return one(pages);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = pages.len().div_ceil(threads).max(ALONE_PAGES / 2);
    let one = &one;
    std::thread::scope(|scope| {
        let parts = pages.chunks(part);
        let begin = |part| {
            let thread = std::thread::Builder::new();
            // Where there can be no more threads, this one does it.
            thread
                .spawn_scoped(scope, move || one(part))
                .map_err(|_| part)
        };
        let parts: Vec<_> = parts.map(begin).collect();
        let made = parts.into_iter().flat_map(|part| match part {
            Err(part) => one(part),
            Ok(thread) => match thread.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            },
        });
        made.collect()
    })
}

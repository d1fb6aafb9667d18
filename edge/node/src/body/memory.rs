//! Work on the guest's memory and disks that the core asks for.
//!
//! When it is done, and how much of it in one turn: [`super::work`]. Blocks of disks are left to a thread
//! that can wait for them (`disk_pages`); its results come back through [`Body::take_answers`].

use super::guest::LOOK_AFTER;
use super::work::Work;
use super::{Body, BoxError};
use crate::clock;
use crate::disk_pages::{DiskPages, of_disks};
use plover_disk::{Attachment, Batch, Blocks};
use plover_replica::{Event, JobId};
use plover_syncvm::chunk::{self, ChunkWriter, PageContent};
use plover_syncvm::subpages::Divergent;
use plover_types::{
    Digest, HashKey, PAGE_BYTES, PageLayout, PageNo, PageSet, SUBPAGES_PER_PAGE, SyncNo,
};
use plover_vm::QemuVm;
use serde_json::json;

impl Body {
    /// Adds the digests of these pages of memory.
    pub(super) fn hash(&self, key: &HashKey, pages: &[PageNo], digests: &mut Vec<Digest>) {
        match &self.vm {
            Some(vm) => vm.hash_pages(key, pages, digests),
            None => digests.resize(digests.len() + pages.len(), Digest::default()),
        }
    }

    /// Adds the digests of these blocks, and answers.
    pub(super) fn hash_blocks(
        &mut self,
        job: JobId,
        key: HashKey,
        blocks: Vec<PageNo>,
        mut digests: Vec<Digest>,
    ) {
        let Some(disks) = disks_for(&self.vm, &blocks) else {
            digests.resize(digests.len() + blocks.len(), Digest::default());
            return self.answer(Event::Hashed(job, digests));
        };
        let (layout, answer) = (self.layout, self.answers.later());
        disks.begin(move |disk| {
            digests.extend(pages_of(disk, layout).hash(&key, &blocks));
            // Fails only when the receiver is gone.
            let _ = answer.send(Event::Hashed(job, digests));
        });
    }

    /// Adds the hashes of the subpages of these pages of memory.
    pub(super) fn hash_subpages(&self, key: &HashKey, pages: &[PageNo], hashes: &mut Vec<u64>) {
        match &self.vm {
            Some(vm) => vm.hash_subpages(key, pages, hashes),
            None => hashes.resize(hashes.len() + pages.len() * SUBPAGES_PER_PAGE, 0),
        }
    }

    /// Adds the hashes of the subpages of these blocks, and answers.
    pub(super) fn hash_subpages_of_blocks(
        &mut self,
        job: JobId,
        key: HashKey,
        blocks: Vec<PageNo>,
        mut hashes: Vec<u64>,
    ) {
        let Some(disks) = disks_for(&self.vm, &blocks) else {
            hashes.resize(hashes.len() + blocks.len() * SUBPAGES_PER_PAGE, 0);
            return self.answer(Event::SubpagesHashed(job, hashes));
        };
        let (layout, answer) = (self.layout, self.answers.later());
        disks.begin(move |disk| {
            hashes.extend(pages_of(disk, layout).hash_subpages(&key, &blocks));
            let _ = answer.send(Event::SubpagesHashed(job, hashes));
        });
    }

    /// Reads subpages of pages, and answers with them.
    pub(super) fn read(&mut self, job: JobId, mut pages: Vec<Divergent>) {
        let blocks = pages.split_off(self.first_block(pages.iter().map(|(page, _)| page)));
        let mut chunk = self.read_memory(&pages);
        let Some(disks) = disks_for(&self.vm, &blocks) else {
            return self.answer(Event::PagesRead(job, chunk.finish()));
        };
        let (layout, answer) = (self.layout, self.answers.later());
        disks.begin(move |disk| {
            pages_of(disk, layout).read(&blocks, &mut chunk);
            let _ = answer.send(Event::PagesRead(job, chunk.finish()));
        });
    }

    /// The number of `pages`, which rise, that are guest RAM.
    pub(super) fn first_block<'a>(&self, pages: impl Iterator<Item = &'a PageNo>) -> usize {
        let (mut count, mut last) = (0, None);
        for page in pages {
            assert!(last < Some(page.0), "pages are asked for in rising order");
            last = Some(page.0);
            count += usize::from(self.layout.is_ram(*page));
        }
        count
    }

    fn answer(&mut self, answer: Event) {
        self.events.extend(self.answers.now(answer));
    }

    /// Applies the answers whose turn has come, one by one: new jobs that the brain then asks for are
    /// answered after the others. The disk's thread notes a failure before it sends an answer that the
    /// failure makes void. So a failure is looked for after each answer was taken, and reported before
    /// it.
    pub(super) fn take_answers(&mut self) -> Result<(), BoxError> {
        loop {
            let answer = self.answers.take();
            if let Some(why) = self.vm.as_ref().and_then(QemuVm::disk_failure) {
                let gone = self.guest_is_gone(why);
                self.apply(gone)?;
            }
            match answer {
                Some(answer) => self.apply(answer)?,
                None => return Ok(()),
            }
        }
    }

    fn read_memory(&self, pages: &[Divergent]) -> ChunkWriter {
        let mut writer = ChunkWriter::new();
        let mut buffer = [0u8; PAGE_BYTES];
        let Some(vm) = &self.vm else {
            return writer;
        };
        // A part of a copy is consecutive pages. There it pays to look for holes, which reading would
        // allocate.
        let in_a_row = |(first, last): (&Divergent, &Divergent)| {
            pages.len() > 1 && last.0.0.checked_sub(first.0.0) == Some(pages.len() as u32 - 1)
        };
        let ends = pages.first().zip(pages.last());
        let data = match ends.filter(|ends| in_a_row(*ends)) {
            Some((first, _)) => vm.first_data(first.0),
            None => PageNo(0),
        };
        for (page, mask) in pages {
            if *page < data {
                writer.push(*page, &[0; PAGE_BYTES]);
            } else {
                vm.read_page(*page, &mut buffer);
                writer.push_subpages(*page, *mask, &buffer);
            }
        }
        writer
    }

    /// Writes the blocks that these chunks have, and answers.
    pub(super) fn write_blocks(&mut self, job: JobId, chunks: Vec<Vec<u8>>) {
        let layout = self.layout;
        let any: Vec<_> = of_disks(&chunks, layout).take(1).collect();
        let Some(disks) = disks_for(&self.vm, &any) else {
            return self.answer(Event::ChunksWritten(job));
        };
        let answer = self.answers.later();
        disks.begin_writing(move |disk| {
            pages_of(disk, layout).write(&chunks);
            let _ = answer.send(Event::ChunksWritten(job));
        });
    }

    /// Writes the pages of memory that this chunk has.
    pub(super) fn write_memory(&mut self, chunk: &[u8]) {
        let layout = self.layout;
        let Some(vm) = &mut self.vm else { return };
        let mut buffer = [0u8; PAGE_BYTES];
        for page in chunk::read(chunk, layout.pages()) {
            match page {
                Ok((number, _)) if layout.is_disk(number) => {}
                // A page that was never touched is zero already.
                Ok((number, PageContent::Zero)) if vm.first_data(number) > number => {}
                Ok((number, content)) => {
                    self.backup.wrote(number);
                    if let PageContent::Raw(bytes) = content {
                        vm.write_page(number, bytes);
                        continue;
                    }
                    if !content.is_whole() {
                        vm.read_page(number, &mut buffer);
                    }
                    content.apply(&mut buffer);
                    vm.write_page(number, &buffer);
                }
                Err(error) => tracing::error!(
                    event = "chunk_rejected",
                    "pages that the leader sent were not written: {error}"
                ),
            }
        }
    }

    pub(super) fn stage_disks(&mut self, sync: SyncNo, chunks: Vec<Vec<u8>>) {
        let (Some(disks), Some(_)) = (&mut self.disks, &self.vm) else {
            return self.events.push_back(Event::DisksStaged(sync));
        };
        let layout = self.layout;
        if of_disks(&chunks, layout).next().is_none() {
            return disks.stage(sync, Batch::new());
        }
        self.staging = Some((sync, clock::now()));
        disks.stage_with(sync, move |disk| pages_of(disk, layout).batch(&chunks));
    }

    /// Scans at once, or once QEMU has said what it has written.
    pub(super) fn scan(&mut self, job: JobId) {
        if self.vm.as_ref().is_none_or(QemuVm::is_collected) {
            return self.scan_now(job);
        }
        self.collect(Some(job));
    }

    pub(super) fn scan_now(&mut self, job: JobId) {
        let mut set = PageSet::new(self.layout.pages());
        let scanned = self.vm.as_mut().map(|vm| vm.scan_dirty(&mut set));
        self.scanned_at = clock::now();
        self.look_at_written_at = self.scanned_at + LOOK_AFTER;
        self.backup.scanned(&set);
        self.events.push_back(Event::Scanned(job, set));
        if let Some(Err(error)) = scanned {
            let event = self.guest_is_gone(format!("cannot scan the guest's memory: {error}"));
            self.events.push_back(event);
        }
    }

    pub(super) fn checksum(&mut self, sync: u64) {
        if self.config.debug.checksum_each_sync {
            self.begin(Work::Checksum(sync));
        }
    }

    pub(super) fn checksum_now(&mut self, sync: u64) {
        let Some(vm) = &self.vm else { return };
        vm.disks()
            .into_iter()
            .for_each(Attachment::wait_until_written);
        let pages: Vec<PageNo> = (0..self.layout.pages()).map(PageNo).collect();
        let mut digests = Vec::with_capacity(pages.len());
        vm.hash_pages(&HashKey::Universal([0; 32]), &pages, &mut digests);
        let mut all = blake3::Hasher::new();
        for digest in &digests {
            all.update(&digest.0.to_le_bytes());
        }
        let value = json!({"what": "checksum", "sync": sync, "memory": all.finalize().to_string()});
        self.trace.write(clock::now(), value);
    }
}

/// The disks of the guest, unless there is no guest, it has no disks, or `blocks` is empty.
fn disks_for<'a, T>(vm: &'a Option<QemuVm>, blocks: &[T]) -> Option<&'a Attachment> {
    vm.as_ref().filter(|_| !blocks.is_empty())?.disks()
}

fn pages_of(blocks: &Blocks, layout: PageLayout) -> DiskPages<'_> {
    DiskPages { blocks, layout }
}

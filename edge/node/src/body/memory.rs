//! Work on the guest's memory and disks that the core asks for.

use super::Body;
use crate::clock;
use plover_disk::{Batch, BlockNo, Disks};
use plover_replica::Event;
use plover_syncvm::blocks::Divergent;
use plover_syncvm::chunk::{self, ChunkWriter, PageContent};
use plover_types::{BLOCKS_PER_PAGE, PAGE_BYTES, PageNo, PageSet, SyncNo};
use plover_vm::Vm;
use serde_json::json;

impl Body {
    pub(super) fn hash(&mut self, key: &[u8; 32], pages: &[PageNo]) {
        let mut digests = Vec::with_capacity(pages.len());
        match &self.vm {
            Some(vm) => vm.hash_pages(key, pages, &mut digests),
            None => digests.resize(pages.len(), Default::default()),
        }
        self.look_at_disks();
        self.events.push_back(Event::Hashed(digests));
    }

    pub(super) fn hash_blocks(&mut self, key: &[u8; 32], pages: &[PageNo]) {
        let mut hashes = Vec::with_capacity(pages.len() * BLOCKS_PER_PAGE);
        match &self.vm {
            Some(vm) => vm.hash_blocks(key, pages, &mut hashes),
            None => hashes.resize(pages.len() * BLOCKS_PER_PAGE, 0),
        }
        self.look_at_disks();
        self.events.push_back(Event::BlocksHashed(hashes));
    }

    /// Answers with the blocks asked for.
    pub(super) fn answer_read(&mut self, pages: &[Divergent]) {
        let chunk = self.read_blocks(pages);
        self.look_at_disks();
        self.events.push_back(Event::PagesRead(chunk));
    }

    fn read_blocks(&self, pages: &[Divergent]) -> Vec<u8> {
        let mut writer = ChunkWriter::new();
        let mut buffer = [0u8; PAGE_BYTES];
        let Some(vm) = &self.vm else {
            return writer.finish();
        };
        // A part of a copy is pages in a row: looking pays, and reading would allocate them.
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
                writer.push_blocks(*page, *mask, &buffer);
            }
        }
        writer.finish()
    }

    pub(super) fn write_chunks(&mut self, chunks: &[Vec<u8>]) {
        let Some(vm) = &mut self.vm else { return };
        let mut buffer = [0u8; PAGE_BYTES];
        for chunk in chunks {
            for page in chunk::read(chunk, vm.pages()) {
                match page {
                    Ok((number, PageContent::Raw(bytes))) => vm.write_page(number, bytes),
                    // What was never touched is zero already.
                    Ok((number, PageContent::Zero)) if vm.first_data(number) > number => {}
                    Ok((number, content)) => {
                        if !content.is_whole() {
                            vm.read_page(number, &mut buffer);
                        }
                        content.apply(&mut buffer);
                        vm.write_page(number, &buffer);
                    }
                    Err(error) => tracing::error!(%error, "a staged chunk"),
                }
            }
        }
    }

    pub(super) fn stage_disks(&mut self, sync: SyncNo, chunks: &[Vec<u8>]) {
        let (Some(disks), Some(vm)) = (&mut self.disks, &self.vm) else {
            return self.events.push_back(Event::DisksStaged(sync));
        };
        let (ram, mut buffer) = (self.qemu.pages(), [0u8; PAGE_BYTES]);
        let mut batch = Batch::new();
        let pages = chunks
            .iter()
            .flat_map(|chunk| chunk::read(chunk, ram + disks.blocks()))
            .flatten();
        for (page, content) in pages.filter(|(page, _)| page.0 >= ram) {
            // The journal has whole blocks of the disk, whatever part of them was sent.
            if !content.is_whole() {
                vm.read_page(page, &mut buffer);
            }
            content.apply(&mut buffer);
            batch.push(BlockNo(page.0 - ram), &buffer);
        }
        disks.stage(sync, batch);
        self.look_at_disks();
    }

    pub(super) fn scan(&mut self) {
        let blocks = self.disks.as_ref().map_or(0, Disks::blocks);
        let mut set = PageSet::new(self.qemu.pages() + blocks);
        let scanned = self.vm.as_mut().map(|vm| vm.scan_dirty(&mut set));
        self.events.push_back(Event::Scanned(set));
        if let Some(Err(error)) = scanned {
            let event = self.guest_is_gone(format!("cannot scan the guest's memory: {error}"));
            self.events.push_back(event);
        }
    }

    /// What went wrong in the last work on pages goes before its answer, which is void then.
    pub(super) fn look_at_disks(&mut self) {
        if let Some(why) = self.vm.as_mut().and_then(Vm::take_disk_failure) {
            let event = self.guest_is_gone(why);
            self.events.push_back(event);
        }
    }

    pub(super) fn checksum(&mut self, sync: u64) {
        if !self.config.debug.checksum_each_sync {
            return;
        }
        let Some(vm) = &self.vm else { return };
        let pages: Vec<PageNo> = (0..vm.pages()).map(PageNo).collect();
        let mut digests = Vec::with_capacity(pages.len());
        vm.hash_pages(&[0; 32], &pages, &mut digests);
        let mut all = blake3::Hasher::new();
        for digest in &digests {
            all.update(&digest.0.to_le_bytes());
        }
        let value = json!({"what": "checksum", "sync": sync, "memory": all.finalize().to_string()});
        self.trace.write(clock::now(), value);
    }
}

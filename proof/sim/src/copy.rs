//! The disks of a replica's guest after its host has died.
//!
//! The blocks themselves are the guest's last pages, which its hypervisor holds; a real guest's
//! blocks are in files that the process writes. A syncvm changes them in three steps, and a host may
//! die at each:
//!
//! ```text
//!   stage (durable)      WriteChunks            Resume
//!   journal in force ──▶ some blocks are new ──▶ all are, and the journal is void
//!                        └ died here: any of them may be the old ones, but for the journal
//! ```

use std::collections::BTreeMap;

/// Blocks with their content, by page.
pub type Blocks = BTreeMap<u32, u64>;

/// The state of a replica's copy of the guest's disks, without the blocks.
#[derive(Debug, Default)]
pub struct Copy {
    /// The blocks are those of one moment of a guest, and not of a full copy under way.
    whole: bool,
    /// The blocks in the durable journal, which are not yet known to be written in place.
    journal: Option<Blocks>,
    /// The old content of blocks that the syncvm under way has overwritten.
    before: Blocks,
}

impl Copy {
    /// A guest is started. If `is_copied`, it does not boot from its disks: a copy overwrites them
    /// first.
    pub fn start(&mut self, is_copied: bool) {
        *self = Self {
            whole: !is_copied,
            ..Self::default()
        };
    }

    /// The staged blocks are durable in the journal, and so are all earlier writes.
    pub fn staged(&mut self, blocks: Blocks) {
        self.whole = true;
        self.before.clear();
        self.journal = Some(blocks);
    }

    /// A block is overwritten from outside of the guest.
    pub fn overwrite(&mut self, page: u32, old: u64) {
        if self.whole {
            self.before.entry(page).or_insert(old);
        }
    }

    /// The guest runs: the written blocks are in place, and the journal is void.
    pub fn settle(&mut self) {
        self.before.clear();
        self.journal = None;
    }

    /// The blocks that a host that dies now finds again; `None` while a full copy is under way. `now`
    /// are the blocks as the guest sees them; `reached` draws for each new block whether it had reached
    /// the disk.
    pub fn after_crash(
        &self,
        now: &[(u32, u64)],
        mut reached: impl FnMut() -> bool,
    ) -> Option<Vec<u64>> {
        let block = |&(page, value): &(u32, u64)| {
            let old = self.before.get(&page).copied();
            let left = old.filter(|_| !reached()).unwrap_or(value);
            let journal = self.journal.as_ref().and_then(|blocks| blocks.get(&page));
            journal.copied().unwrap_or(left)
        };
        self.whole.then(|| now.iter().map(block).collect())
    }
}

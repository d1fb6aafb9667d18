//! What a replica's host keeps of its guest's disks when it dies.
//!
//! The blocks themselves are the guest's last pages, which its hypervisor holds; a real guest's
//! are in files that the process writes. What a host that dies leaves of them is decided here:
//!
//! ```text
//!   stage (durable)      WriteChunks            Resume
//!   journal in force ──▶ some blocks are new ──▶ all are, and the journal is void
//!                        └ died here: any of them may be the old ones, but for the journal
//! ```

use std::collections::BTreeMap;

/// Blocks with their content, by page.
pub type Blocks = BTreeMap<u32, u64>;

/// The disks of one replica's guest, beside their blocks.
#[derive(Debug, Default)]
pub struct Copy {
    /// The blocks are a guest's, and not a full copy under way.
    whole: bool,
    /// Durable, and not yet known to be in the blocks.
    journal: Option<Blocks>,
    /// What was there before the syncvm that is being written.
    before: Blocks,
}

impl Copy {
    /// A guest is started; one that does not boot from its disks is overwritten first.
    pub fn start(&mut self, is_copied: bool) {
        *self = Self {
            whole: !is_copied,
            ..Self::default()
        };
    }

    /// What was staged is durable.
    pub fn staged(&mut self, blocks: Blocks) {
        self.whole = true;
        self.journal = Some(blocks);
    }

    /// A block is overwritten from outside of the guest.
    pub fn overwrite(&mut self, page: u32, old: u64) {
        if self.whole {
            self.before.entry(page).or_insert(old);
        }
    }

    /// The guest runs, with what was written.
    pub fn settle(&mut self) {
        self.before.clear();
        self.journal = None;
    }

    /// What a host that dies now finds again, if that is of use; `now` are the blocks as they are,
    /// `reached` says of each whether it was written already.
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

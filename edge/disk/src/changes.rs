//! Which parts of an image were written since a backup, so that the next one holds only those.
//!
//! A cluster is noted before it is written, and a snapshot is taken while no write is under way. So each write is noted
//! either before the snapshot or after it. The notes are in memory: who opens the disks anew knows of no backup.

use fixedbitset::FixedBitSet;
use plover_types::DISK_BLOCK_BYTES;
use std::ops::Range;

/// Blocks of a cluster, which is that of a qcow2 image: 64 KiB.
pub(crate) const CLUSTER_BLOCKS: u32 = (64 << 10) / DISK_BLOCK_BYTES as u32;

/// The clusters of an image that were written since a moment.
#[derive(Clone, Debug)]
pub(crate) struct Since {
    /// Names the moment.
    mark: u64,
    /// One bit a cluster that there was then.
    clusters: FixedBitSet,
}

impl Since {
    fn new(mark: u64, blocks: u32) -> Self {
        Self {
            mark,
            clusters: FixedBitSet::with_capacity(blocks.div_ceil(CLUSTER_BLOCKS) as usize),
        }
    }

    fn note(&mut self, blocks: &Range<u32>) {
        let clusters = blocks.start / CLUSTER_BLOCKS..blocks.end.div_ceil(CLUSTER_BLOCKS);
        let end = (clusters.end as usize).min(self.clusters.len());
        let start = (clusters.start as usize).min(end);
        self.clusters.insert_range(start..end);
    }

    /// The moment's name.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Whether this cluster was written; one by which the image has grown since counts as such.
    pub fn contains(&self, cluster: u32) -> bool {
        let cluster = cluster as usize;
        cluster >= self.clusters.len() || self.clusters.contains(cluster)
    }
}

/// The notes about an image.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Since the last backup that is finished.
    finished: Option<Since>,
    /// Since the snapshot of one that is not.
    begun: Option<Since>,
}

impl Changes {
    /// Whether there was no backup.
    pub fn are_not_noted(&self) -> bool {
        self.begun.is_none() && self.finished.is_none()
    }

    /// `blocks` are about to be written.
    pub fn note(&mut self, blocks: &Range<u32>) {
        if let Some(written) = self.begun.as_mut().or(self.finished.as_mut()) {
            written.note(blocks);
        }
    }

    /// A snapshot with this mark is taken of an image of so many blocks. Returns what was written since the last finished
    /// backup.
    pub fn begin(&mut self, mark: u64, blocks: u32) -> Option<Since> {
        let given_up = self.begun.replace(Since::new(mark, blocks));
        if let (Some(finished), Some(given_up)) = (&mut self.finished, given_up) {
            // Clusters by which the image has grown count as written in any case.
            let clusters = given_up.clusters.ones();
            let known = clusters.filter(|cluster| *cluster < finished.clusters.len());
            finished.clusters.extend(known.collect::<Vec<_>>());
        }
        self.finished.clone()
    }

    /// The backup of the snapshot with this mark is finished.
    pub fn finish(&mut self, mark: u64) {
        if let Some(begun) = self.begun.take_if(|begun| begun.mark == mark) {
            self.finished = Some(begun);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u32, u32),
        Begin,
        Finish,
        Grow,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..2000u32, 1..70u32).prop_map(|(block, count)| Step::Write(block, count)),
            1 => Just(Step::Begin),
            1 => Just(Step::Finish),
            1 => Just(Step::Grow),
        ]
    }

    proptest! {
        /// Against a list of all writes: what a snapshot is told holds each cluster that was written since the last backup
        /// that was finished, and no other one.
        #[test]
        fn a_backup_is_told_what_was_written_since_the_last_one(steps in prop::collection::vec(step(), 0..60)) {
            let (mut changes, mut mark, mut blocks) = (Changes::default(), 0, 1000u32);
            // The clusters written since the backup with a mark, and how many there were then.
            let mut finished: Option<(u64, u32, BTreeSet<u32>)> = None;
            let mut begun = finished.clone();
            for step in steps {
                match step {
                    Step::Write(block, count) => {
                        let run = block.min(blocks - 1)..(block + count).min(blocks);
                        changes.note(&run);
                        for (_, _, written) in [&mut finished, &mut begun].into_iter().flatten() {
                            written.extend(run.clone().map(|block| block / CLUSTER_BLOCKS));
                        }
                    }
                    Step::Begin => {
                        mark += 1;
                        let told = changes.begin(mark, blocks);
                        prop_assert_eq!(told.as_ref().map(Since::mark), finished.as_ref().map(|it| it.0));
                        if let (Some(told), Some((_, then, written))) = (told, &finished) {
                            for cluster in 0..blocks.div_ceil(CLUSTER_BLOCKS) {
                                let is_new = cluster >= then.div_ceil(CLUSTER_BLOCKS);
                                prop_assert_eq!(told.contains(cluster), is_new || written.contains(&cluster));
                            }
                        }
                        begun = Some((mark, blocks, BTreeSet::new()));
                    }
                    Step::Finish => {
                        // Another one's end is none.
                        changes.finish(mark + 1);
                        changes.finish(mark);
                        if begun.is_some() {
                            finished = begun.take();
                        }
                    }
                    Step::Grow => blocks += 100,
                }
            }
        }
    }
}

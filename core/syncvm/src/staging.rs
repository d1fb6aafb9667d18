//! The secondary's static buffer: everything of one syncvm, before any of it touches the guest.
//!
//! PLOVER §4.4: "if the secondary starts applying pages while receiving, and the leader fails
//! in the middle, the secondary will end in a corrupted state". So chunks are kept here until
//! [`Staging::finish`] has seen the end mark and found them complete.

use crate::chunk;
use plover_types::{DeviceState, PageNo, PageSet, SyncNo, Unconsumed};

/// The received parts do not fit together. The sync is given up and its pages stay owed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// A chunk is missing or came twice.
    #[error("chunk {got} arrived where {expected} was due")]
    OutOfOrder {
        /// The chunk that was due.
        expected: u32,
        /// The chunk that came.
        got: u32,
    },
    /// A chunk's bytes make no sense.
    #[error(transparent)]
    Chunk(#[from] chunk::ChunkError),
    /// Neither side has written this page, or it has come already: a leader that sends such pages would fill the memory.
    #[error("page {} was not to come, or has come already", .0.0)]
    Unexpected(PageNo),
    /// The end mark names another number of chunks.
    #[error("the end mark counts {expected} chunks, {got} arrived")]
    Incomplete {
        /// By the end mark.
        expected: u32,
        /// Staged.
        got: u32,
    },
}

/// Collects one syncvm. Each page comes once at most, so it takes no more memory than the pages that may come.
#[derive(Debug)]
pub struct Staging {
    sync: SyncNo,
    /// The pages that may come and have not.
    expected: PageSet,
    chunks: Vec<Vec<u8>>,
    touched: PageSet,
}

/// A complete syncvm: applying it makes this side equal to the leader at the cut.
#[derive(Debug)]
pub struct Staged {
    /// Its number.
    pub sync: SyncNo,
    /// Page chunks, to be written in this order.
    pub chunks: Vec<Vec<u8>>,
    /// The pages that they hold whole.
    pub touched: PageSet,
    /// The pages that may still be added.
    pub expected: PageSet,
    /// Device and CPU state.
    pub device: DeviceState,
    /// Inputs from before the cut that the leader's hypervisor had not consumed; both sides
    /// feed them again after it.
    pub refeed: Unconsumed,
}

impl Staging {
    /// An empty buffer for `sync`, in which these pages may come: those that either side has written.
    pub fn new(sync: SyncNo, expected: PageSet) -> Self {
        Self {
            sync,
            touched: PageSet::new(expected.capacity()),
            expected,
            chunks: Vec::new(),
        }
    }

    /// Takes chunk number `seq`.
    pub fn push(&mut self, seq: u32, bytes: Vec<u8>) -> Result<(), StagingError> {
        let expected = self.chunks.len() as u32;
        if seq != expected {
            return Err(StagingError::OutOfOrder { expected, got: seq });
        }
        note(&bytes, &mut self.expected, &mut self.touched)?;
        self.chunks.push(bytes);
        Ok(())
    }

    /// How many chunks have arrived.
    pub fn chunks(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// The end mark has come, counting `chunks`.
    pub fn finish(
        self,
        chunks: u32,
        device: DeviceState,
        refeed: Unconsumed,
    ) -> Result<Staged, StagingError> {
        if chunks != self.chunks() {
            return Err(StagingError::Incomplete {
                expected: chunks,
                got: self.chunks(),
            });
        }
        Ok(Staged {
            sync: self.sync,
            chunks: self.chunks,
            touched: self.touched,
            expected: PageSet::new(self.expected.capacity()),
            device,
            refeed,
        })
    }
}

/// Notes the pages that the chunk holds, and those that it holds whole.
fn note(bytes: &[u8], expected: &mut PageSet, touched: &mut PageSet) -> Result<(), StagingError> {
    for page in chunk::read(bytes, expected.capacity()) {
        let (page, content) = page?;
        if !expected.contains(page) {
            return Err(StagingError::Unexpected(page));
        }
        expected.remove(page);
        if content.is_whole() {
            touched.insert(page);
        }
    }
    Ok(())
}

impl Staged {
    /// The chunks that hold a page from `first` on, copied.
    pub fn chunks_from(&self, first: PageNo) -> Vec<Vec<u8>> {
        let holds = |chunk: &&Vec<u8>| {
            chunk::read(chunk, self.expected.capacity())
                .flatten()
                .any(|(page, _)| page >= first)
        };
        self.chunks.iter().filter(holds).cloned().collect()
    }

    /// Adds some of the [expected](Self::expected) pages, which were asked for after the end mark: those that a device
    /// reset wrote, on machine types that need one.
    pub fn add(&mut self, bytes: Vec<u8>) -> Result<(), StagingError> {
        note(&bytes, &mut self.expected, &mut self.touched)?;
        self.chunks.push(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::ChunkWriter;
    use plover_types::PAGE_BYTES;

    fn chunk_of(page: u32) -> Vec<u8> {
        let mut writer = ChunkWriter::new();
        writer.push(PageNo(page), &[1; PAGE_BYTES]);
        writer.finish()
    }

    #[test]
    fn nothing_incomplete_is_ever_applied() {
        let mut staging = Staging::new(SyncNo(1), PageSet::all(10));
        staging.push(0, chunk_of(4)).unwrap();
        assert_eq!(
            staging.push(2, chunk_of(5)),
            Err(StagingError::OutOfOrder {
                expected: 1,
                got: 2
            })
        );
        assert!(matches!(
            staging.finish(2, DeviceState::default(), Unconsumed::default()),
            Err(StagingError::Incomplete {
                expected: 2,
                got: 1
            })
        ));
    }

    #[test]
    fn chunks_with_pages_of_disks_are_told_apart() {
        let mut staging = Staging::new(SyncNo(1), PageSet::all(10));
        for (seq, page) in [3, 8, 7].into_iter().enumerate() {
            staging.push(seq as u32, chunk_of(page)).unwrap();
        }
        let staged = staging
            .finish(3, DeviceState::default(), Unconsumed::default())
            .unwrap();
        let chunks = staged.chunks_from(PageNo(7));
        assert_eq!(chunks, [chunk_of(8), chunk_of(7)]);
    }

    #[test]
    fn a_page_outside_the_guest_is_refused() {
        let mut staging = Staging::new(SyncNo(1), PageSet::all(4));
        assert!(matches!(
            staging.push(0, chunk_of(4)),
            Err(StagingError::Chunk(_))
        ));
    }

    /// The fear: a leader that sends pages without end fills the memory of the secondary.
    #[test]
    fn a_page_comes_once_and_only_if_it_was_to_come() {
        let mut may_come = PageSet::new(10);
        may_come.insert_run(3, 5);
        let mut staging = Staging::new(SyncNo(1), may_come.clone());
        staging.push(0, chunk_of(4)).unwrap();
        let mut refuses = |page| {
            let unexpected = StagingError::Unexpected(PageNo(page));
            assert_eq!(staging.push(1, chunk_of(page)), Err(unexpected));
        };
        refuses(4);
        refuses(7);
        let mut staged = staging
            .finish(1, DeviceState::default(), Unconsumed::default())
            .unwrap();
        assert!(staged.add(chunk_of(3)).is_err(), "nothing was asked for");
        staged.expected = may_come;
        staged.add(chunk_of(3)).unwrap();
        assert!(staged.add(chunk_of(3)).is_err());
        assert_eq!(staged.chunks.len(), 2);
    }
}

//! A log in memory for `openraft`, and a state machine that only counts.
//!
//! Entries are kept as they are, in an ordered map behind a lock; nothing is encoded. A store can hardly
//! do less, so the library is measured.

use bytes::Bytes;
use openraft::storage::{
    LogFlushed, LogState, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine,
    Snapshot,
};
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftLogId, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership, Vote,
};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

openraft::declare_raft_types!(
    /// Entries are bytes, nodes have no address, the answer is the number of bytes applied.
    pub(crate) Types:
        D = Payload,
        R = usize,
        Node = (),
);

/// An entry's bytes. A clone shares them.
#[derive(Clone, Debug)]
pub(crate) struct Payload(pub Bytes);

type Result<T> = std::result::Result<T, StorageError<u64>>;

#[derive(Debug, Default)]
struct Inner {
    entries: BTreeMap<u64, Entry<Types>>,
    purged: Option<LogId<u64>>,
    vote: Option<Vote<u64>>,
}

/// The log; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogStore(Arc<Mutex<Inner>>);

impl LogStore {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>> {
        let inner = self.inner();
        Ok(inner
            .entries
            .range(range)
            .map(|(_, entry)| entry.clone())
            .collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let inner = self.inner();
        let last = inner
            .entries
            .values()
            .next_back()
            .map(|entry| *entry.get_log_id());
        Ok(LogState {
            last_purged_log_id: inner.purged,
            last_log_id: last.or(inner.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.inner().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.inner().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let added = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        self.inner().entries.extend(added);
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<()> {
        self.inner().entries.split_off(&from.index);
        Ok(())
    }

    async fn purge(&mut self, up_to: LogId<u64>) -> Result<()> {
        let mut inner = self.inner();
        inner.purged = Some(up_to);
        inner.entries = inner.entries.split_off(&(up_to.index + 1));
        Ok(())
    }
}

/// The fields that a state machine must keep, and no state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, ()>,
}

impl Counter {
    fn meta(&self) -> SnapshotMeta<u64, ()> {
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: self.applied.map_or_else(String::new, |id| id.to_string()),
        }
    }
}

impl RaftSnapshotBuilder<Types> for Counter {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        Ok(Snapshot {
            meta: self.meta(),
            snapshot: Box::new(Cursor::new(Vec::new())),
        })
    }
}

impl RaftStateMachine<Types> for Counter {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, ()>)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<usize>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        for entry in entries {
            self.applied = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => 0,
                EntryPayload::Normal(payload) => payload.0.len(),
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), members);
                    0
                }
            });
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, ()>,
        _snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        // A node that fell behind would make the benchmark measure something else.
        let error = std::io::Error::other("a follower fell behind the log");
        Err(StorageIOError::write_snapshot(Some(meta.signature()), &error).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        Ok(None)
    }
}

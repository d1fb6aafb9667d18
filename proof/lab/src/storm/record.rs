//! The record of issued and acknowledged writes: a text file, and the state that follows from it.
//!
//! ```text
//! storm 1 BLOCKS CONNECTIONS
//! issue CONNECTION NUMBER BLOCK COUNT
//! durable CONNECTION NUMBER
//! again
//! ```
//!
//! After `again` a later storm goes on with the same disk over new connections. Writes in flight on the
//! old connections may have happened or not, and no later acknowledgement covers them.
//!
//! Lines are only appended, each by one system call, so the file holds all that a killed process had
//! noted. A last line without its end is ignored.

use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

/// A write of a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Counts the writes of its connection, from 1.
    pub number: u64,
    /// Its first block.
    pub block: u64,
    /// How many blocks it has.
    pub count: u64,
}

/// The writes that a block may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The newest write to it that was acknowledged.
    pub durable: Option<u64>,
    /// Writes that were issued after that one and may have happened or not.
    pub pending: Vec<u64>,
}

/// The state that follows from all lines of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Blocks of the disk.
    pub blocks: u64,
    /// Connections, and as many parts of the disk.
    pub connections: u64,
    /// Every block that was written.
    pub expected: BTreeMap<u64, Expected>,
    /// Acknowledged writes.
    pub durable: u64,
    /// The highest number issued on each connection.
    pub issued: BTreeMap<u64, u64>,
    open: BTreeMap<u64, VecDeque<Issue>>,
}

impl State {
    /// The state of a storm that is about to begin.
    pub fn new(blocks: u64, connections: u64) -> Self {
        Self {
            blocks,
            connections,
            ..Self::default()
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// When it cannot be read, or a line that is whole makes no sense.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the storm's record {}", path.display()))?;
        let mut state = Self::default();
        for (number, line) in text.split_inclusive('\n').enumerate() {
            if let Some(line) = line.strip_suffix('\n') {
                state
                    .take_line(line)
                    .with_context(|| format!("{}:{}: {line:?}", path.display(), number + 1))?;
            }
        }
        ensure!(
            state.connections > 0,
            "{} is no storm's record",
            path.display()
        );
        Ok(state)
    }

    fn take_line(&mut self, line: &str) -> Result<()> {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let numbers = words
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .context("a number was due")?;
        match (word, &numbers[..]) {
            ("storm", &[1, blocks, connections]) if self.connections == 0 => {
                (self.blocks, self.connections) = (blocks, connections);
            }
            ("issue", &[connection, number, block, count]) => {
                let issue = Issue {
                    number,
                    block,
                    count,
                };
                self.issue(connection, issue)?;
            }
            ("durable", &[connection, number]) => self.durable(connection, number),
            ("again", &[]) => self.again(),
            _ => bail!("not a line of a storm's record"),
        }
        Ok(())
    }

    /// Notes that a write is about to be sent.
    ///
    /// # Errors
    /// Its number is not higher than all before it on its connection.
    pub fn issue(&mut self, connection: u64, issue: Issue) -> Result<()> {
        let newest = self.issued.entry(connection).or_default();
        ensure!(
            issue.number > *newest,
            "write {} after {newest}",
            issue.number
        );
        *newest = issue.number;
        for block in issue.block..issue.block + issue.count {
            let expected = self.expected.entry(block).or_default();
            expected.pending.push(issue.number);
        }
        self.open.entry(connection).or_default().push_back(issue);
        Ok(())
    }

    /// Notes that all connections are new.
    pub fn again(&mut self) {
        self.open.clear();
    }

    /// Notes that all writes of a connection up to `number` are durable.
    pub fn durable(&mut self, connection: u64, number: u64) {
        let open = self.open.entry(connection).or_default();
        while let Some(issue) = open.front().filter(|issue| issue.number <= number) {
            for block in issue.block..issue.block + issue.count {
                let expected = self.expected.entry(block).or_default();
                expected.durable = Some(issue.number);
                expected.pending.retain(|pending| *pending > issue.number);
            }
            self.durable += 1;
            open.pop_front();
        }
    }
}

/// A record that is being written, and its [`State`].
#[derive(Debug)]
pub struct Record {
    inner: Mutex<(File, State)>,
}

impl Record {
    /// Begins a record, or goes on with the record in `path`. The disk must then be the same one, and
    /// the guest that served the storm before must have ended, or a late write of it could come after
    /// newer ones.
    pub fn open(path: &Path, blocks: u64, connections: u64) -> Result<Self> {
        let old = path.exists().then(|| State::load(path)).transpose()?;
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot write the storm's record {}", path.display()))?;
        let state = match old {
            Some(mut old) => {
                ensure!(
                    (old.blocks, old.connections) == (blocks, connections),
                    "{} is of a storm with {} connections on a disk of {} blocks",
                    path.display(),
                    old.connections,
                    old.blocks
                );
                // Cuts off a last line without its end.
                let text = std::fs::read(path)?;
                let whole = text.iter().rposition(|byte| *byte == b'\n');
                file.set_len(whole.map_or(0, |last| last as u64 + 1))?;
                old.again();
                file.write_all(b"again\n")?;
                old
            }
            None => {
                file.write_all(format!("storm 1 {blocks} {connections}\n").as_bytes())?;
                State::new(blocks, connections)
            }
        };
        Ok(Self {
            inner: Mutex::new((file, state)),
        })
    }

    /// Notes that a write is about to be sent.
    pub fn issue(&self, connection: u64, issue: Issue) -> Result<()> {
        let Issue {
            number,
            block,
            count,
        } = issue;
        self.note(
            format!("issue {connection} {number} {block} {count}\n"),
            |state| state.issue(connection, issue),
        )
    }

    /// Notes that all writes of a connection up to `number` were acknowledged.
    pub fn durable(&self, connection: u64, number: u64) -> Result<()> {
        self.note(format!("durable {connection} {number}\n"), |state| {
            state.durable(connection, number);
            Ok(())
        })
    }

    fn note(&self, line: String, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let mut inner = self.lock();
        let (file, state) = &mut *inner;
        change(state)?;
        file.write_all(line.as_bytes())
            .context("cannot write the storm's record")
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.lock().1.clone()
    }

    /// Reads from the state without copying it.
    pub fn ask<T>(&self, question: impl FnOnce(&State) -> T) -> T {
        question(&self.lock().1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (File, State)> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(number: u64, block: u64, count: u64) -> Issue {
        Issue {
            number,
            block,
            count,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let record = Record::open(&path, 100, 2).unwrap();
        record.issue(0, issue(1, 0, 4)).unwrap();
        record.issue(0, issue(2, 2, 4)).unwrap();
        record.issue(1, issue(1, 50, 1)).unwrap();
        record.durable(0, 2).unwrap();
        record.issue(0, issue(3, 3, 1)).unwrap();
        assert!(record.issue(0, issue(3, 3, 1)).is_err(), "numbers grow");
        let state = record.state();
        drop(record);

        let expected = |block: u64| state.expected[&block].clone();
        let may = |durable, pending: &[u64]| Expected {
            durable,
            pending: pending.into(),
        };
        assert_eq!(state.durable, 2);
        assert_eq!(expected(0), may(Some(1), &[]));
        assert_eq!(expected(2), may(Some(2), &[]), "overwritten");
        assert_eq!(expected(3), may(Some(2), &[3]), "one more may be there");
        assert_eq!(expected(50), may(None, &[1]), "nothing was promised");

        let record = Record::open(&path, 100, 2).unwrap();
        record.issue(0, issue(4, 90, 1)).unwrap();
        record.durable(0, 4).unwrap();
        let state = record.state();
        assert_eq!(
            state.expected[&3],
            may(Some(2), &[3]),
            "4 says nothing of 3"
        );
        assert_eq!(state.durable, 3);
        drop(record);

        // A line that was cut off was not noted, so its write was not sent.
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"issue 1 2 51 1").unwrap();
        assert_eq!(State::load(&path).unwrap(), state);
        Record::open(&path, 100, 2).unwrap();
        assert_eq!(State::load(&path).unwrap().expected, state.expected);
        assert!(Record::open(&path, 100, 3).is_err(), "another storm's");
    }

    #[test]
    fn nonsense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        for bad in [
            "",
            "storm 2 1 1\n",
            "storm 1 9 1\nissue 0 1 0\n",
            "storm 1 9 1\ndurable x\n",
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = format!("{:#}", State::load(&path).unwrap_err());
            assert!(error.contains("record"), "{error}");
        }
    }
}

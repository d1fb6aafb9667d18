//! The storm: threads that write, flush and wait, each on a connection of its own that is never
//! renewed.

use super::audit::{audit, judge};
use super::record::{Issue, Record, State};
use super::{BLOCK_BYTES, BLOCKS_MAX};
use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_types::SplitMix64;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writes before a flush, at most.
const WRITES_MAX: u64 = 4;

/// After one flush in this many, something acknowledged is read back while the storm goes on.
const READ_EACH: u64 = 8;

/// The longest time for an answer, with a failover and on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to a guest's `plover-storm-server`.
#[derive(Debug)]
pub struct Link {
    stream: BufReader<TcpStream>,
    blocks: u64,
}

impl Link {
    /// Connects. To be called in the network namespace of the guest's clients.
    pub fn open(address: SocketAddrV4) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address.into(), PATIENCE)
            .with_context(|| format!("cannot connect to the storm's server at {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut link = Self {
            stream: BufReader::new(stream),
            blocks: 0,
        };
        link.blocks = link.answer("plover-storm 1")?;
        Ok(link)
    }

    /// As many connections as a storm wants.
    pub fn open_many(address: SocketAddrV4, count: u64) -> Result<Vec<Self>> {
        (0..count).map(|_| Self::open(address)).collect()
    }

    /// Blocks of the disk that it writes to.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn say(&mut self, text: &str) -> Result<()> {
        let stream = self.stream.get_mut();
        stream
            .write_all(text.as_bytes())
            .context("the connection to the storm's server is lost")
    }

    /// Reads a line that begins with `word` and returns the number after it.
    fn answer(&mut self, word: &str) -> Result<u64> {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .context("the connection to the storm's server is lost")?;
        ensure!(!line.is_empty(), "the storm's server closed the connection");
        let number = line.trim_end().strip_prefix(word).map(str::trim_start);
        match number.map(str::parse) {
            Some(Ok(number)) => Ok(number),
            _ => bail!("the storm's server answers {:?}", line.trim_end()),
        }
    }

    /// Blocks as the guest's disk holds them.
    pub fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>> {
        self.say(&format!("read {block} {count}\n"))?;
        let length = self.answer("data")?;
        ensure!(
            length == count * BLOCK_BYTES as u64,
            "{length} bytes instead of {count} blocks"
        );
        let mut bytes = vec![0; length as usize];
        self.stream
            .read_exact(&mut bytes)
            .context("the connection to the storm's server is lost")?;
        Ok(bytes)
    }
}

/// Reads back, through the guest of a lab, what a storm wrote.
///
/// # Errors
/// An acknowledged write is lost or torn.
pub fn read_back(lab: &Lab, state: &State) -> Result<()> {
    let service = lab.service();
    let mut link = lab.topology().client().run(|| Link::open(service))?;
    let audit = audit(state, &mut link)?;
    eprintln!("{audit}");
    ensure!(audit.is_clean(), "{audit}");
    Ok(())
}

/// A running storm.
#[derive(Debug)]
pub struct Storm {
    record: Arc<Record>,
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Result<()>>>,
    /// Their connections.
    streams: Vec<TcpStream>,
}

impl Storm {
    /// Begins a storm of `writers` connections from the client's host of a lab, with a new record.
    pub fn in_lab(lab: &Lab, writers: u64, record: &Path) -> Result<Self> {
        let service = lab.service();
        let links = lab
            .topology()
            .client()
            .run(|| Link::open_many(service, writers))?;
        Self::start(links, record, 1)
    }

    /// Ends it, and reads everything back.
    ///
    /// # Errors
    /// A writer failed, or an acknowledged write is lost or torn.
    pub fn settle(self, lab: &Lab) -> Result<()> {
        read_back(lab, &self.finish()?.state())
    }

    /// Begins a storm on these connections with a new record, or goes on with the record of an earlier
    /// storm on the same disk. `seed` decides the places and sizes of the writes.
    ///
    /// # Errors
    /// The disk is too small, or the record is of another storm.
    pub fn start(links: Vec<Link>, record: &Path, seed: u64) -> Result<Self> {
        let blocks = links.first().context("a storm needs connections")?.blocks;
        let part = blocks / links.len() as u64;
        ensure!(
            part >= BLOCKS_MAX,
            "a disk of {blocks} blocks is too small for {} writers",
            links.len()
        );
        let record = Arc::new(Record::open(record, blocks, links.len() as u64)?);
        let stop = Arc::new(AtomicBool::new(false));
        let streams: std::io::Result<Vec<_>> = links
            .iter()
            .map(|link| link.stream.get_ref().try_clone())
            .collect();
        let streams = streams.context("cannot hold on to the storm's connections")?;
        let writers = links.into_iter().zip(0..).map(|(link, connection)| {
            let mut writer = Writer {
                connection,
                part,
                link,
                record: record.clone(),
                random: SplitMix64::new(seed.wrapping_add(connection)),
                number: record.ask(|state| *state.issued.get(&connection).unwrap_or(&0)),
            };
            let stop = stop.clone();
            std::thread::spawn(move || {
                writer
                    .run(&stop)
                    .with_context(|| format!("writer {connection}"))
            })
        });
        Ok(Self {
            writers: writers.collect(),
            record,
            stop,
            streams,
        })
    }

    /// Acknowledged writes so far.
    pub fn durable(&self) -> u64 {
        self.record.ask(|state| state.durable)
    }

    /// Whether a writer has failed; [`Storm::finish`] says why.
    pub fn has_failed(&self) -> bool {
        self.writers.iter().any(JoinHandle::is_finished)
    }

    /// Waits until `count` writes have been acknowledged, or a writer has failed.
    pub fn wait_for(&self, count: u64) {
        while self.durable() < count && !self.has_failed() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the writers of a guest that is gone, without waiting for writes in flight.
    pub fn abandon(self) {
        for stream in &self.streams {
            // This fails on a connection that is closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        // The writers fail because their connections are lost, which is expected.
        let _ = self.finish();
    }

    /// Stops the writers, and waits for writes in flight.
    ///
    /// # Errors
    /// A connection was lost, or a block that was read back during the storm was wrong. After an
    /// intended crash this is expected, and the record is whole all the same.
    pub fn finish(self) -> Result<Arc<Record>> {
        self.stop.store(true, Ordering::Relaxed);
        let ends: Vec<_> = self.writers.into_iter().map(JoinHandle::join).collect();
        for end in ends {
            end.map_err(|_| anyhow::anyhow!("a writer panicked"))??;
        }
        Ok(self.record)
    }
}

struct Writer {
    connection: u64,
    /// Blocks in its part of the disk.
    part: u64,
    link: Link,
    record: Arc<Record>,
    random: SplitMix64,
    number: u64,
}

impl Writer {
    fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut flushes = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut lines = String::new();
            let mut last = None;
            for _ in 0..self.random.range(1, WRITES_MAX) {
                let issue = self.choose();
                self.record.issue(self.connection, issue)?;
                let Issue {
                    number,
                    block,
                    count,
                } = issue;
                lines += &format!("write {number} {block} {count}\n");
                last = Some(issue);
            }
            lines += &format!("flush {}\n", self.number);
            self.link.say(&lines)?;
            let answered = self.link.answer("durable")?;
            ensure!(
                answered == self.number,
                "flush {} is answered by {answered}",
                self.number
            );
            self.record.durable(self.connection, self.number)?;
            flushes += 1;
            if let Some(last) = last.filter(|_| flushes % READ_EACH == 0) {
                self.read_back(last)?;
            }
        }
        Ok(())
    }

    /// The next write: any place of the part, any size.
    fn choose(&mut self) -> Issue {
        self.number += 1;
        let count = self.random.range(1, BLOCKS_MAX);
        let block = self.connection * self.part + self.random.range(0, self.part - count);
        Issue {
            number: self.number,
            block,
            count,
        }
    }

    fn read_back(&mut self, issue: Issue) -> Result<()> {
        let bytes = self.link.read(issue.block, issue.count)?;
        for (bytes, block) in bytes.chunks_exact(BLOCK_BYTES).zip(issue.block..) {
            let expected = self.record.ask(|state| state.expected[&block].clone());
            if let Err(finding) = judge(block, &expected, bytes) {
                bail!("{finding}");
            }
        }
        Ok(())
    }
}

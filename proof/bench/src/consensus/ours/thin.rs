//! A replica on disk, as thin as it can be: the consensus core, a fabric, storage, and the loop
//! between them.
//!
//! What gathered is synced in the same thread, after it has been handed to the
//! backups: they sync theirs at the same time, and what comes meanwhile is the next batch.
//!
//! One thread. It waits for the fabric, takes what came, applies it, carries out what follows and
//! hands the fabric what gathered. What the loop does beside that would be measured as the
//! protocol's cost.

use super::node::{HEARTBEAT, LOG_BYTES_MAX, TIMEOUT};
use anyhow::{Context, Result, bail};
use apus::{Apus, Command, Config, Durability, EntryKind, Event, Phase, ProposeError, Start};
use plover_fabric::{Fabric, FabricEvent, Lane};
use plover_store::{Completion, Counters, Options, Store};
use plover_types::{Micros, ReplicaId, ReplicaSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is kept of the log at the least. Nobody comes late here, so little: buffers then go round
/// instead of growing old in the log.
const TRIM_BYTES: usize = 32 << 10;
const MESSAGE_BYTES_MAX: usize = 1 << 20;
const LEADER: ReplicaId = ReplicaId(0);

/// A replica of the benchmark.
pub(super) struct Thin {
    me: ReplicaId,
    core: Apus,
    fabric: Box<dyn Fabric + Send>,
    began: Instant,
    commands: Vec<Command>,
    events: Vec<FabricEvent>,
    store: Store,
    completions: Vec<Completion>,
    up: ReplicaSet,
    /// Entries of the application that were delivered since they were last taken.
    delivered: usize,
}

impl Thin {
    pub fn new(
        me: ReplicaId,
        replicas: usize,
        folder: &Path,
        fabric: Box<dyn Fabric + Send>,
    ) -> Result<Self> {
        let durability = Durability::Disk;
        let (store, _) = Store::open(folder, &Options::new("bench", durability))?;
        let config = Config {
            me,
            members: ReplicaSet::of((0..replicas as u8).map(ReplicaId)),
            first_leader: LEADER,
            any_voter_stands: true,
            thrifty: true,
            heartbeat: HEARTBEAT,
            timeout: TIMEOUT,
            durability,
            log_bytes_max: LOG_BYTES_MAX,
            message_bytes_max: MESSAGE_BYTES_MAX.min(fabric.record_bytes_max(Lane::Log)),
            seed: u64::from(std::process::id()),
            canary: apus::Canary::None,
        };
        let mut core = Apus::new(config, Start::Fresh, Micros(1));
        core.set_holds_state(me == LEADER);
        Ok(Self {
            me,
            core,
            fabric,
            began: Instant::now(),
            commands: Vec::new(),
            events: Vec::new(),
            store,
            completions: Vec::new(),
            up: ReplicaSet::EMPTY,
            delivered: 0,
        })
    }

    fn now(&self) -> Micros {
        Micros(self.began.elapsed().as_micros() as u64 + 1)
    }

    /// Whether it leads and reaches so many backups.
    pub fn leads(&self, backups: usize) -> bool {
        self.core.status().phase == Phase::Leading && self.up.len() == backups
    }

    /// Puts an entry into the log; `false` while the log is full.
    pub fn propose(&mut self, payload: &[u8]) -> Result<bool> {
        let mut bytes = self.core.buffer(payload.len());
        bytes.extend_from_slice(payload);
        let proposed = self.core.propose(self.now(), EntryKind::App, bytes);
        match proposed {
            Ok(_) => Ok(true),
            Err(ProposeError::LogFull) => Ok(false),
            Err(error) => Err(error).context("the leader cannot propose"),
        }
    }

    /// How many entries were committed since this was last asked.
    pub fn take_delivered(&mut self) -> usize {
        std::mem::take(&mut self.delivered)
    }

    /// One turn of the loop: hands over what gathered, sleeps until something happens but not
    /// longer than `patience`, takes it in.
    pub fn turn(&mut self, patience: Option<Duration>) -> Result<()> {
        self.core.flush(self.now(), &mut self.commands);
        self.act()?;
        self.fabric.flush();
        self.sync()?;
        self.wait(patience);
        let mut events = std::mem::take(&mut self.events);
        self.fabric.progress(&mut events);
        for event in events.drain(..) {
            self.take(event)?;
        }
        self.events = events;
        let now = self.now();
        if now >= self.core.deadline() {
            self.core.apply(now, Event::Tick, &mut self.commands);
        }
        self.act()?;
        self.trim();
        Ok(())
    }

    fn wait(&self, patience: Option<Duration>) {
        let due = Duration::from_micros(self.core.deadline().since(self.now()).0.min(1_000_000));
        let spans = [Some(due), self.fabric.timeout(), patience];
        let span = spans.into_iter().flatten().min().unwrap_or(due);
        let timeout = Timespec {
            tv_sec: span.as_secs() as i64,
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        // SAFETY: the fabric outlives the call and keeps its descriptor open.
        let fabric = unsafe { BorrowedFd::borrow_raw(self.fabric.wait_fd()) };
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(&fabric, PollFlags::IN)], Some(&timeout));
    }

    fn take(&mut self, event: FabricEvent) -> Result<()> {
        let now = self.now();
        match event {
            FabricEvent::Up(peer) => {
                self.up.insert(peer);
                let event = Event::Link { peer, up: true };
                self.core.apply(now, event, &mut self.commands);
            }
            FabricEvent::Down(peer) => bail!("the link to replica {peer} is lost"),
            FabricEvent::Record { from, bytes, .. } => {
                let event = Event::Received {
                    from,
                    bytes: &bytes,
                };
                self.core.apply(now, event, &mut self.commands);
                self.fabric.recycle(bytes);
            }
            FabricEvent::Room { .. } => {}
        }
        Ok(())
    }

    /// Carries out what the core asked for, and what follows from that.
    fn act(&mut self) -> Result<()> {
        while !self.commands.is_empty() {
            let mut commands = std::mem::take(&mut self.commands);
            for command in commands.drain(..) {
                self.carry_out(command)?;
            }
            if self.commands.is_empty() {
                self.commands = commands;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) -> Result<()> {
        match command {
            // What is lost because a ring is full or a link not yet up, the core repeats.
            Command::Write { to, bytes } => {
                let _ = self.fabric.write(to, Lane::Log, &bytes);
                self.core.recycle(bytes);
            }
            Command::Deliver(entry) => {
                self.delivered += usize::from(entry.kind == EntryKind::App);
                self.core.recycle(entry.payload);
            }
            Command::PersistState(state) => self.store.persist_state(state),
            Command::PersistEntries {
                after,
                anew,
                entries,
            } => {
                self.store.persist_entries(after, anew, &entries);
                for entry in entries {
                    self.core.recycle(entry.payload);
                }
            }
            Command::GroupEmpty { .. } if self.me == LEADER => {
                let now = self.now();
                self.core.bootstrap(now, &mut self.commands);
            }
            // A jump to the very beginning is how a group begins.
            Command::Jump { base, .. } if base.index.0 > 0 => bail!("a backup fell behind the log"),
            Command::GroupEmpty { .. }
            | Command::Jump { .. }
            | Command::Lead { .. }
            | Command::Follow { .. }
            | Command::PeerAlive { .. } => {}
        }
        Ok(())
    }

    /// Makes durable what was queued, and carries out what follows: acknowledgements, commits.
    fn sync(&mut self) -> Result<()> {
        if !self.store.is_busy() {
            return Ok(());
        }
        self.store.sync();
        self.store.completions(&mut self.completions);
        for completion in self.completions.drain(..) {
            let event = match completion {
                Completion::StatePersisted(view) => Event::StatePersisted(view),
                Completion::EntriesPersisted(viewstamp) => Event::EntriesPersisted(viewstamp),
                Completion::Failed(error) => bail!("{error}"),
            };
            let now = Micros(self.began.elapsed().as_micros() as u64 + 1);
            self.core.apply(now, event, &mut self.commands);
        }
        self.act()?;
        self.fabric.flush();
        Ok(())
    }

    /// Where consensus stands.
    pub fn status(&self) -> apus::Status {
        self.core.status()
    }

    /// Entries and syncs of the storage so far.
    pub fn synced(&self) -> Counters {
        self.store.counters()
    }

    /// Gives log space back when there is something worth it, as far as every backup has come: one that
    /// is slow holds the proposers up in the end, and is not left behind.
    fn trim(&mut self) {
        let status = self.core.status();
        if status.phase == Phase::Leading && status.log_bytes > TRIM_BYTES {
            let matched = self.up.iter().map(|peer| self.core.matched(peer));
            if let Some(Some(index)) = matched.min() {
                self.core.trim(index.min(status.commit));
            }
        }
        self.store.trim(status.base);
    }
}

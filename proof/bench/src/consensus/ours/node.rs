//! One replica as the load sees it: the log server that a program would use (`plover-log`), driven
//! by its proposers. They submit and take its turns, as threads of an intercepted server would.

use super::super::plan::Medium;
use super::ReplicaOptions;
use anyhow::{Context, Result};
use plover_fabric::Fabric;
use plover_log::{Address, Config, Counters, Durability, Error, LogOnly, Server};
use plover_types::{Index, Micros, ReplicaId, ReplicaSet};
use std::time::Duration;

/// As etcd's defaults, so that no replica is suspected because two cores are busy.
const HEARTBEAT: Micros = Micros::from_ms(100);
const TIMEOUT: Micros = Micros::from_ms(1000);
/// Far more than what is outstanding, so that a backup can be behind for a moment.
const LOG_BYTES_MAX: usize = 64 << 20;
/// Bytes kept for a backup that is behind.
const RETAIN_BYTES: usize = 4 << 20;

/// A replica of the benchmark.
pub(super) struct Node(Server<LogOnly>);

impl Node {
    pub fn start(options: &ReplicaOptions, fabric: Box<dyn Fabric + Send>) -> Result<Self> {
        let me = ReplicaId(options.me);
        let replicas = options.replicas.len();
        let folder = options.folder.join(format!("replica{}", options.me));
        let mut config = Config::new(me, ReplicaSet::of((0..replicas as u8).map(ReplicaId)));
        config.heartbeat = HEARTBEAT;
        config.timeout = TIMEOUT;
        config.log_bytes_max = LOG_BYTES_MAX;
        config.retain_bytes = RETAIN_BYTES;
        let mut server = match options.medium {
            Medium::Memory => Server::in_memory(config, fabric, LogOnly)?,
            Medium::Disk => {
                config.durability = Durability::Disk;
                Server::in_directory(config, fabric, LogOnly, &folder, "bench")?
            }
        };
        if let Some(address) = options.clients.filter(|_| options.me == 0) {
            server.listen(&Address::Tcp(address))?;
        }
        Ok(Self(server))
    }

    /// Whether it leads and reaches so many backups.
    pub fn leads(&self, backups: usize) -> bool {
        self.0.leads() && self.0.report().linked.len() == backups
    }

    /// Puts an entry into the log; `false` while the log is full.
    pub fn propose(&mut self, payload: &[u8]) -> Result<bool> {
        match self.0.submit(payload) {
            Ok(_) => Ok(true),
            Err(Error::Full) => Ok(false),
            Err(error) => Err(error).context("the leader cannot propose"),
        }
    }

    /// How many of the entries were committed since this was last asked. They commit in the order
    /// in which they were proposed.
    pub fn take_committed(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some(completion) = self.0.completed() {
            completion.result.context("an entry was lost")?;
            count += 1;
        }
        Ok(count)
    }

    /// One turn of the loop. Sleeps until something happens, but not longer than `patience`.
    pub fn turn(&mut self, patience: Option<Duration>) -> Result<()> {
        Ok(self.0.turn(patience)?)
    }

    /// The last entry, and the last of those that are reclaimed.
    pub fn last_and_base(&self) -> (Index, Index) {
        let status = self.0.status();
        (status.last.index, status.base)
    }

    /// Counts of what its storage has written.
    pub fn stored(&self) -> Counters {
        self.0.stored()
    }
}

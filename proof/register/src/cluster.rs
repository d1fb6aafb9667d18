//! Replicas as processes, which are started, killed, stopped and cut off.

use anyhow::{Context, bail};
use plover_log::wire::StatusReport;
use plover_log::{Address, Durability, Phase, remote};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a group may take to be whole again.
const RECOVERY: Duration = Duration::from_secs(30);

/// A group of processes. All of them end with it.
#[derive(Debug)]
pub struct Cluster {
    program: PathBuf,
    durability: Durability,
    peers: Vec<SocketAddr>,
    doors: Vec<SocketAddr>,
    dir: TempDir,
    children: Vec<Option<Child>>,
}

/// Free addresses, from a part of 127.0.0.0/8 that nothing else uses.
fn free_addresses(count: usize) -> std::io::Result<Vec<SocketAddr>> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(
        127,
        64 | high & 63,
        low,
        NEXT.fetch_add(1, Ordering::Relaxed),
    );
    let bind = |_| TcpListener::bind((ip, 0));
    let held: Vec<_> = (0..count).map(bind).collect::<Result<_, _>>()?;
    held.iter().map(TcpListener::local_addr).collect()
}

impl Cluster {
    /// Starts `size` replicas, each a process of `program`.
    pub fn start(program: PathBuf, size: usize, durability: Durability) -> anyhow::Result<Self> {
        let mut addresses = free_addresses(2 * size)?;
        let mut cluster = Self {
            program,
            durability,
            doors: addresses.split_off(size),
            peers: addresses,
            dir: tempfile::tempdir()?,
            children: (0..size).map(|_| None).collect(),
        };
        for id in 0..size {
            cluster.launch(id)?;
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// How many replicas it has.
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// Where clients are served.
    pub fn doors(&self) -> Vec<Address> {
        self.doors.iter().copied().map(Address::Tcp).collect()
    }

    /// Starts replica `id`, which must be down.
    pub fn launch(&mut self, id: usize) -> anyhow::Result<()> {
        let durability = match self.durability {
            Durability::Memory => "memory",
            Durability::Disk => "disk",
        };
        let child = Command::new(&self.program)
            .args(["replica", &id.to_string(), durability])
            .arg(self.dir.path().join(id.to_string()))
            .arg(self.doors[id].to_string())
            .args(self.peers.iter().map(SocketAddr::to_string))
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.children[id] = Some(child);
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self, id: usize) -> anyhow::Result<()> {
        if let Some(mut child) = self.children[id].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// SIGSTOP or SIGCONT.
    pub fn pause(&self, id: usize, paused: bool) -> anyhow::Result<()> {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        if let Some(child) = &self.children[id] {
            kill_process(Pid::from_child(child), signal)?;
        }
        Ok(())
    }

    /// Cuts or heals the links between `id` and all others. Clients still reach it.
    pub fn cut(&mut self, id: usize, cut: bool) -> anyhow::Result<()> {
        let what = if cut { "cut" } else { "heal" };
        for other in (0..self.size()).filter(|other| *other != id) {
            self.order(id, what, other)?;
            self.order(other, what, id)?;
        }
        Ok(())
    }

    fn order(&mut self, id: usize, what: &str, other: usize) -> anyhow::Result<()> {
        let child = self.children[id].as_mut();
        if let Some(stdin) = child.and_then(|child| child.stdin.as_mut()) {
            writeln!(stdin, "{what} {other}")?;
        }
        Ok(())
    }

    /// What replica `id` says of itself.
    pub fn status(&self, id: usize) -> Option<StatusReport> {
        remote::status(&Address::Tcp(self.doors[id]), None).ok()
    }

    /// The leader that a majority reports.
    pub fn leader(&self) -> Option<usize> {
        let told = (0..self.size()).filter_map(|id| self.status(id)?.leader);
        let told: Vec<_> = told.map(|leader| usize::from(leader.0)).collect();
        let most = |id: &usize| told.iter().filter(|it| *it == id).count() > self.size() / 2;
        (0..self.size()).find(most)
    }

    /// Waits until all replicas hold the log and follow one leader: only then is the next fault
    /// the first again.
    pub fn wait_until_whole(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + RECOVERY;
        loop {
            for (id, child) in self.children.iter_mut().enumerate() {
                let ended = child.as_mut().map(Child::try_wait).transpose()?.flatten();
                if let Some(status) = ended {
                    bail!("replica {id} has ended by itself, with {status}; its reason is above");
                }
            }
            let reports: Vec<_> = (0..self.size()).filter_map(|id| self.status(id)).collect();
            let member = |it: &StatusReport| matches!(it.phase, Phase::Leading | Phase::Following);
            let leader = reports.first().and_then(|it| it.leader);
            let same = reports.iter().all(|it| member(it) && it.leader == leader);
            let linked = reports.iter().all(|it| it.linked.len() + 1 == self.size());
            if reports.len() == self.size() && same && linked && leader.is_some() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the group is not whole again after {RECOVERY:?}: {reports:#?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for id in 0..self.size() {
            let _ = self.kill(id);
        }
    }
}

//! Which sockets a program has open, asked of the kernel.
//!
//! The library counts the descriptors of each connection in all processes of the program. It cannot count those that the
//! kernel closes by itself: of a child that is killed, or that executes another program. Without this, such a
//! connection would never end.

use crate::program::{Stat, unless_gone};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// The time between two searches at least, and at most.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(5);
/// A search that takes long is made less often.
const REST_PER_SEARCH: u32 = 50;

/// An accepted connection: its slot, which use of the slot, and the inode of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub slot: usize,
    pub generation: u32,
    pub inode: u64,
}

/// Searches for connections that no process has open any more.
#[derive(Debug)]
pub(super) struct Holders {
    running: Option<Receiver<Found>>,
    next_at: Instant,
    /// Those that the search before has found. A descriptor may be on its way from one process to another during a search, so
    /// only two searches are believed.
    before: BTreeSet<Held>,
}

#[derive(Debug)]
struct Found {
    /// `None`: a process of the program does not let itself be looked at.
    deserted: Option<BTreeSet<Held>>,
    took: Duration,
}

impl Holders {
    pub fn new() -> Self {
        Self {
            running: None,
            next_at: Instant::now(),
            before: BTreeSet::new(),
        }
    }

    /// Whether it is time for the next search.
    pub fn is_due(&self) -> bool {
        self.running.is_none() && Instant::now() >= self.next_at
    }

    /// Searches for the holders of these connections, in a thread of its own. `program` is the number of the program's
    /// first process.
    pub fn search(&mut self, program: u32, connections: Vec<Held>) {
        self.next_at = Instant::now() + REST_MIN;
        let (answer, found) = channel();
        let search = move || {
            let began = Instant::now();
            let deserted = deserted(program, connections).ok();
            let took = began.elapsed();
            // Nobody waits for it if the program has ended meanwhile.
            let _ = answer.send(Found { deserted, took });
        };
        let thread = std::thread::Builder::new().name("holders".into());
        // Without a thread it is tried again.
        self.running = thread.spawn(search).ok().map(|_| found);
    }

    /// Connections that no process had open in the last two searches.
    pub fn take(&mut self) -> Vec<Held> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let found = match running.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) => return Vec::new(),
            Err(TryRecvError::Disconnected) => {
                self.running = None;
                return Vec::new();
            }
        };
        self.running = None;
        let rest = found.took * REST_PER_SEARCH;
        self.next_at = Instant::now() + rest.clamp(REST_MIN, REST_MAX);
        let now = found.deserted.unwrap_or_default();
        let twice = now.intersection(&self.before).copied().collect();
        self.before = now;
        twice
    }
}

/// The connections that no process but this one has open. An error says that it cannot be known.
fn deserted(program: u32, connections: Vec<Held>) -> io::Result<BTreeSet<Held>> {
    let mut held = BTreeSet::new();
    let own = std::process::id();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|it| it.parse::<u32>().ok());
        let Some(process) = number.filter(|it| *it != own) else {
            continue;
        };
        if let Err(error) = add_sockets_of(process, &mut held) {
            if may_be_of(program, process) {
                return Err(error);
            }
        }
    }
    let is_deserted = |it: &Held| !held.contains(&it.inode);
    Ok(connections.into_iter().filter(is_deserted).collect())
}

/// Adds the inodes of the sockets that a process has open.
fn add_sockets_of(process: u32, to: &mut BTreeSet<u64>) -> io::Result<()> {
    let Some(stat) = unless_gone(Stat::of(process))? else {
        return Ok(());
    };
    let folder = PathBuf::from(format!("/proc/{process}"));
    if !stat.is_ending() {
        return add_sockets_in(&folder, to);
    }
    // Its first thread has none any more. Others may go on.
    let Some(threads) = unless_gone(std::fs::read_dir(folder.join("task")))? else {
        return Ok(());
    };
    for thread in threads {
        let thread = thread?;
        if thread.file_name() != *process.to_string() {
            add_sockets_in(&thread.path(), to)?;
        }
    }
    Ok(())
}

/// The same, by the folder of a process or of a thread in `/proc`.
fn add_sockets_in(folder: &Path, to: &mut BTreeSet<u64>) -> io::Result<()> {
    let Some(files) = unless_gone(std::fs::read_dir(folder.join("fd")))? else {
        return Ok(());
    };
    for file in files {
        let target = file.and_then(|it| std::fs::read_link(it.path()));
        to.extend(unless_gone(target)?.as_deref().and_then(inode_of));
    }
    Ok(())
}

/// The number in `socket:[number]`.
fn inode_of(target: &Path) -> Option<u64> {
    let inode = target.to_str()?.strip_prefix("socket:[")?;
    inode.strip_suffix(']')?.parse().ok()
}

/// Whether a process may be one of the program's: those are younger, and stay in its control group.
fn may_be_of(program: u32, process: u32) -> bool {
    let group = |number: u32| std::fs::read(format!("/proc/{number}/cgroup"));
    let (Ok(first), Ok(other)) = (Stat::of(program), Stat::of(process)) else {
        return true;
    };
    let (Ok(its), Ok(others)) = (group(program), group(process)) else {
        return true;
    };
    other.started >= first.started && its == others
}

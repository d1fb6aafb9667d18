//! A program that reads its clients itself, through the preloaded library (`plover-preload`, APUS §4.1).
//!
//! ```text
//!   client ─► listener ─► offer: a slot, and a connection that makes the program's accept() return
//!                                        │ the library fetches the client's socket at the door
//!                                        ▼
//!   ring: Accept, Bytes, End, Close ─► pump ─► entries of the log ─► commit ─► output leaves
//! ```
//!
//! On a follower a slot only tells the program the client's address; the connection is of [`Sockets`].
//!
//! *Epochs.* A connection is read as long as its epoch is the present one. When this replica leads no more, or a
//! checkpoint is due, the next epoch begins. Input that a thread takes from an older connection in that moment
//! still comes through the ring. It is not proposed, and makes the program tainted.
//!
//! [`Sockets`]: crate::sockets::Sockets

mod connections;
mod door;
mod holders;
mod launch;
mod memory;
mod pump;
mod refused;
#[cfg(test)]
mod tests;

pub(crate) use launch::Launch;
pub(crate) use pump::Happened;
pub(crate) use refused::refuse;

use crate::clients::ends_in_order;
use crate::config::{Clock, RunConfig};
use crate::program::{Stat, unless_gone};
use connections::Connections;
use door::Door;
use holders::Holders;
use memory::{Memory, Terms};
use plover_program::{Client, ConnectionId, Entrance};
use plover_types::Viewstamp;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// How often it is looked whether the program leaves its clients unread.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An entry that the program has executed, or waits to execute, and which is not committed.
#[derive(Debug)]
struct Outstanding {
    at: Viewstamp,
    number: u64,
    /// The connection's slot and its generation; the clock has none.
    of: Option<(usize, u32)>,
}

/// A connection that no process of the program has open any more.
#[derive(Clone, Copy, Debug)]
struct Deserted {
    slot: usize,
    generation: u32,
    /// The records up to this byte of the ring come first.
    behind: u64,
}

/// The leader's side of a preloaded program, and the memory that both share.
#[derive(Debug)]
pub(crate) struct Direct {
    terms: Terms,
    library: PathBuf,
    wake: OwnedFd,
    door: Door,
    /// Of the program that runs.
    memory: Option<Memory>,
    connections: Connections,
    outstanding: VecDeque<Outstanding>,
    /// Clients' connections that the program has ended, with an entry that is not committed: so far they end by a reset.
    closing: VecDeque<(Viewstamp, TcpStream)>,
    happened: VecDeque<Happened>,
    holders: Holders,
    deserted: VecDeque<Deserted>,
    /// The number of the last record that was taken.
    number: u64,
    /// The thread that had the lock at the last two looks, and had ended.
    dead_owner: Option<u32>,
    /// The one that had it at the last look, and what the program had filled then.
    suspect: Option<(u32, u64)>,
    epoch: u32,
    /// Input of older epochs cannot be proposed any more.
    epoch_min: u32,
    quiesces: bool,
    /// The log has no room for the next record.
    is_full: bool,
    /// Something was committed, and the program's threads are not told.
    rings: bool,
    /// Records but the clock's that the program has filled in, and when it was seen to go on.
    filled: u64,
    leased_until: Instant,
    progress: (u64, Instant),
    looked_at: Instant,
}

impl Direct {
    /// `kind` tells the tokens of its descriptors from others.
    pub fn new(config: &RunConfig, epoll: Arc<OwnedFd>, kind: u64, waker: u64) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        // Reported once for each write, so it needs no read.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&*epoll, &wake, EventData::new_u64(waker), flags)?;
        let door = Door::open(epoll.clone(), kind)?;
        let program = &config.program;
        let terms = Terms {
            wait_read: config.entrance() == Entrance::HoldsInput,
            copies_output: program.check.0.is_some(),
            allows_outgoing: program.outgoing,
            log_clock: program.clock == Clock::Log,
            port: program.port,
            listen: program.listen,
            secret: door.secret,
            door: door.name.clone(),
        };
        Ok(Self {
            terms,
            library: launch::write_library(&config.paths.state_dir)?,
            wake,
            door,
            memory: None,
            connections: Connections::new(program.port),
            outstanding: VecDeque::new(),
            closing: VecDeque::new(),
            happened: VecDeque::new(),
            holders: Holders::new(),
            deserted: VecDeque::new(),
            number: 0,
            dead_owner: None,
            suspect: None,
            epoch: 1,
            epoch_min: 1,
            quiesces: false,
            is_full: false,
            rings: false,
            filled: 0,
            leased_until: Instant::now(),
            progress: (0, Instant::now()),
            looked_at: Instant::now(),
        })
    }

    /// The memory of a program that is started now at its time, µs since 1970, and what it is given.
    pub fn launch(&mut self, time_us: u64) -> io::Result<Launch> {
        self.clear();
        let memory = Memory::new(&self.terms, time_us)?;
        memory.begin_epoch(self.epoch);
        let launch = Launch {
            library: self.library.clone(),
            memory: memory.file().try_clone_to_owned()?,
            wake: self.wake.try_clone()?,
        };
        self.memory = Some(memory);
        Ok(launch)
    }

    /// The program has ended: all connections do.
    pub fn clear(&mut self) {
        self.connections.clear();
        self.memory = None;
        self.outstanding.clear();
        self.closing.clear();
        self.happened.clear();
        self.holders = Holders::new();
        self.deserted.clear();
        (self.number, self.dead_owner, self.suspect) = (0, None, None);
        (self.quiesces, self.is_full, self.rings) = (false, false, false);
    }

    /// Whether the program listens at its port, and the library knows.
    pub fn listens(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|it| it.shared().listens.load(SeqCst) != 0)
    }

    /// How long the loop may sleep; the program wakes it from now on.
    pub fn before_sleep(&self, patience: Duration) -> Duration {
        let Some(memory) = &self.memory else {
            return patience;
        };
        memory.shared().sleeps.store(1, SeqCst);
        let has_more = memory.has_more() || self.next_deserted(memory).is_some();
        let is_busy = (has_more && !self.is_full) || !self.happened.is_empty();
        if is_busy { Duration::ZERO } else { patience }
    }

    /// The loop is awake.
    pub fn after_sleep(&mut self) {
        self.is_full = false;
        if let Some(memory) = &self.memory {
            memory.shared().sleeps.store(0, SeqCst);
        }
    }

    // ---- connections

    /// Offers the program a client. If it cannot be offered, its connection is closed.
    pub fn offer(&mut self, stream: TcpStream, client: Client) {
        if let Some(memory) = &self.memory {
            memory.follow_host_in(self.epoch);
            let offered = self.connections.offer(memory, self.epoch, stream, client);
            if let Err(error) = offered {
                tracing::warn!(%error, "a client was turned away");
            }
        }
    }

    /// Prepares a connection on which the log is replayed, from this port of this host.
    pub fn replay(&mut self, port: u16, client: Client) {
        if let Some(memory) = &self.memory {
            self.connections.replay(memory, port, client);
        }
    }

    /// The time of the next input, µs since 1970.
    pub fn set_next_time(&mut self, us: u64) {
        if let Some(memory) = &self.memory {
            memory.set_next_time(us);
        }
    }

    /// Connections from these ports, on which the log was replayed, are over.
    pub fn gone(&mut self, ports: Vec<u16>) {
        if let Some(memory) = &self.memory {
            for port in ports {
                self.connections.gone(memory, port);
            }
        }
    }

    /// A descriptor of the door is ready.
    pub fn ready(&mut self, token: u64) {
        let (connections, memory) = (&mut self.connections, &self.memory);
        self.door.ready(token, |slot, generation| {
            let memory = memory.as_ref()?;
            connections.hand_over(memory, slot, generation)
        });
    }

    /// The log says that a connection is over, and the program has to notice.
    pub fn close(&mut self, id: ConnectionId) {
        match self.connections.find(id) {
            Some(connection) => {
                connection.closes = true;
                if let Some(stream) = &connection.stream {
                    connections::reset(stream);
                }
            }
            None => self.happened.push_back(Happened::Noticed(id)),
        }
    }

    /// Resets all clients' connections, which the program notices.
    pub fn reset_clients(&mut self) {
        if let Some(memory) = &self.memory {
            self.connections.cut_off(memory);
        }
    }

    /// Clients of the program that are connected.
    pub fn clients(&self) -> usize {
        self.connections.clients()
    }

    fn begin_epoch(&mut self) {
        self.epoch += 1;
        if let Some(memory) = &self.memory {
            memory.begin_epoch(self.epoch);
        }
        self.reset_clients();
    }

    /// This replica leads no more: nothing is read from clients, and nothing is sent to them.
    pub fn cut_off(&mut self) {
        self.begin_epoch();
        self.closing.clear();
        self.epoch_min = self.epoch;
        self.quiesces = false;
    }

    /// The same for a checkpoint: what was read before is still proposed.
    pub fn quiesce(&mut self) {
        self.begin_epoch();
        self.quiesces = true;
    }

    /// Whether it waits until all that was read is proposed.
    pub fn quiesces(&self) -> bool {
        self.quiesces
    }

    // ---- commits

    /// Input that the program has read up to here is committed.
    pub fn release(&mut self, at: Viewstamp) {
        while let Some(first) = self
            .outstanding
            .front()
            .filter(|it| it.at.index <= at.index)
        {
            if let Some(memory) = &mut self.memory {
                memory.commit(first.number);
                self.rings = true;
            }
            self.outstanding.pop_front();
        }
        let committed = self.closing.partition_point(|it| it.0.index <= at.index);
        for (_, stream) in self.closing.drain(..committed) {
            ends_in_order(&stream);
        }
    }

    /// Input that was read and not released is not in the log.
    pub fn forget(&mut self) {
        let Some(memory) = &self.memory else { return };
        for lost in self.outstanding.drain(..) {
            let Some((slot, generation)) = lost.of else {
                continue;
            };
            if self.connections.generation(slot) == generation {
                let word = &memory.slot(slot).lost_from;
                memory.set(word, word.load(SeqCst).min(lost.number));
            }
        }
        self.rings = true;
    }

    /// Tells the program's threads what was committed.
    pub fn flush(&mut self) {
        // Without clients the program's time stands still: the log is not filled with it.
        if let Some(memory) = self.memory.as_ref().filter(|_| self.connections.are_none()) {
            memory.follow_host_in(0);
        }
        if std::mem::take(&mut self.rings) {
            if let Some(memory) = &self.memory {
                memory.ring();
            }
        }
    }

    /// No other replica leads before `until`: the program's output leaves until then.
    pub fn lease(&mut self, until: Instant) {
        self.leased_until = until;
        if let Some(memory) = &self.memory {
            memory.lease(memory::of_the_boot_clock(until));
        }
    }

    // ---- what nothing announces

    /// Whether it is time to look at what nothing announces.
    pub fn looks(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.memory.is_some() && now >= self.looked_at + LOOK_EVERY;
        if is_due {
            self.looked_at = now;
        }
        is_due
    }

    /// Looks for what processes have left that were killed: `program` is the number of the first one.
    pub fn look_for_the_dead(&mut self, program: u32) {
        let Some(memory) = &self.memory else { return };
        // Twice, and with nothing filled in between: another process's thread may have a number that none has here.
        let (_, filled) = memory.taken_and_filled();
        let is_dead = |owner: &u32| {
            let stat = unless_gone(Stat::of(*owner));
            stat.is_ok_and(|it| it.is_none_or(Stat::is_ending))
        };
        let owner = memory.lock_owner().filter(is_dead);
        let suspect = owner.map(|owner| (owner, filled));
        self.dead_owner = owner.filter(|_| suspect == self.suspect);
        self.suspect = suspect;
        if memory.forks() == 0 {
            return;
        }
        // When the whole program ends, that is told in another way.
        let gone = self.holders.take();
        let ends = Stat::of(program).map_or(true, Stat::is_ending);
        if self.deserted.is_empty() && !ends {
            let (_, behind) = memory.taken_and_filled();
            self.deserted.extend(gone.iter().map(|it| Deserted {
                slot: it.slot,
                generation: it.generation,
                behind,
            }));
        }
        if self.holders.is_due() {
            let held = self.connections.held();
            if !held.is_empty() {
                self.holders.search(program, held);
            }
        }
    }

    /// The first connection that no process has open any more, if its records were taken.
    fn next_deserted(&self, memory: &Memory) -> Option<Deserted> {
        let (taken, _) = memory.taken_and_filled();
        let first = self.deserted.front().copied();
        first.filter(|it| it.behind <= taken)
    }

    // ---- a program that stands still

    /// Whether the program has left clients unread for longer than `stall`.
    pub fn stands_still(&mut self, stall: Duration) -> bool {
        let now = Instant::now();
        // While input is not committed the program waits for this process, and without the lease it may.
        let waits = self.quiesces
            || (now < self.leased_until
                && !self.outstanding.iter().any(|it| it.of.is_some())
                && !self.is_full
                && self.connections.are_unread());
        if self.filled != self.progress.0 || !waits {
            self.progress = (self.filled, now);
        }
        now > self.progress.1 + stall
    }

    /// Whether a thread is in the middle of a read.
    pub fn is_locked(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.and_then(Memory::lock_owner).is_some()
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.library);
    }
}

//! The floor of shared memory: a payload copied into mapped memory, a number that says that it is
//! there, an eventfd for who sleeps.

use super::needed;
use crate::ring::{Capacity, RingMemory};
use crate::shm::bare::{Bell, Cell, Inbound, Layout, Nap, Outbound, eventfd_of_sleeper};
use crate::spin::Spinner;
use crate::{Lane, Spin};
use plover_types::{Awaited, ReplicaId};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::{self, JoinHandle};

/// As much memory as payloads are laid one after the other in, before the first place is used
/// again: as in a ring, the caches see new places all the time.
const LAP_BYTES: usize = 4 << 20;
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Every nap is for whoever it concerns to end.
const ANYONE: ReplicaId = ReplicaId(0);

/// One side of a link: what it reads, what it writes, whom it wakes when that one naps.
#[derive(Debug)]
struct End {
    inbound: Inbound,
    outbound: Outbound,
    bell: Bell,
    nap: Arc<AtomicU64>,
}

impl End {
    fn tell(&mut self, round: u64) {
        let cell = self.outbound.cell(Cell::Tail(Lane::Log));
        cell.store(round, Ordering::Release);
        self.bell.ring(&self.nap, ANYONE);
    }

    fn told(&self) -> u64 {
        let cell = self.inbound.cell(Cell::Tail(Lane::Log));
        cell.load(Ordering::Acquire)
    }
}

/// Who sleeps: its eventfd, its naps.
#[derive(Debug)]
struct Sleeper {
    eventfd: OwnedFd,
    naps: u64,
    nap: Arc<AtomicU64>,
    spinner: Spinner,
}

impl Sleeper {
    fn new(spin: Spin) -> io::Result<Self> {
        Ok(Self {
            eventfd: eventfd_of_sleeper()?,
            naps: 0,
            nap: Arc::default(),
            spinner: Spinner::new(spin),
        })
    }

    /// Waits until `ready`.
    fn wait(&mut self, ready: impl Fn() -> bool) -> io::Result<()> {
        while !ready() && !self.spinner.spin(&ready) {
            if !self.spinner.may_sleep() {
                continue;
            }
            self.naps += 1;
            let nap = Nap {
                number: self.naps,
                awaited: Awaited::ANY,
            };
            self.nap.store(nap.word(), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !ready() {
                // A ring for an earlier nap may be left: then it is asked again.
                rustix::io::read(&self.eventfd, &mut [0; 8])?;
            }
            self.nap.store(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Leader {
    ends: Vec<End>,
    sleeper: Sleeper,
    payload: Vec<u8>,
    place: Places,
    rounds: u64,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Where in the memory the payload of each round lies; both sides count alike.
#[derive(Clone, Copy, Debug)]
struct Places {
    payload_bytes: usize,
    capacity: Capacity,
}

impl Places {
    fn per_lap(self) -> u64 {
        (self.capacity.bytes() / self.payload_bytes) as u64
    }

    fn of(self, round: u64) -> usize {
        (round % self.per_lap()) as usize * self.payload_bytes
    }
}

impl Leader {
    pub fn start(payload_bytes: usize, backups: usize, spin: Spin) -> io::Result<Self> {
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let capacity = |bytes| Capacity::new(bytes).expect("a multiple of 8 in bounds");
        let lap = capacity(LAP_BYTES);
        let layout = Layout::new([lap, capacity(Capacity::MIN)]);
        let place = Places {
            payload_bytes,
            capacity: lap,
        };
        let sleeper = Sleeper::new(spin)?;
        let over = Arc::new(AtomicBool::new(false));
        let (mut ends, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..backups {
            let there = Sleeper::new(spin)?;
            let (mine, theirs) = pair(layout, &sleeper, &there)?;
            ends.push(mine);
            let over = Arc::clone(&over);
            threads.push(thread::spawn(move || back_up(theirs, there, place, &over)));
        }
        Ok(Self {
            ends,
            sleeper,
            payload: vec![7; payload_bytes],
            place,
            rounds: 0,
            over,
            threads,
        })
    }

    pub fn round(&mut self) -> io::Result<()> {
        self.rounds += 1;
        let (round, place) = (self.rounds, self.place.of(self.rounds));
        for end in &mut self.ends {
            end.outbound.write(Lane::Log, place, &self.payload);
            end.tell(round);
        }
        let needed = needed(self.ends.len());
        let ends = &self.ends;
        let answered = || ends.iter().filter(|end| end.told() >= round).count() >= needed;
        self.sleeper.wait(answered)?;
        // The slowest may lag, as long as the next round does not overwrite what it reads.
        let read_by = round.saturating_sub(self.place.per_lap() - 1);
        let free = || ends.iter().all(|end| end.told() >= read_by);
        self.sleeper.wait(free)
    }
}

/// The two ends of one link.
fn pair(layout: Layout, here: &Sleeper, there: &Sleeper) -> io::Result<(End, End)> {
    let end = |inbound, memory: &OwnedFd, other: &Sleeper| -> io::Result<End> {
        Ok(End {
            inbound,
            outbound: Outbound::map(memory, layout).map_err(io::Error::other)?,
            bell: Bell::bare(other.eventfd.try_clone()?),
            nap: Arc::clone(&other.nap),
        })
    };
    let (to_here, memory_here) = Inbound::create(layout)?;
    let (to_there, memory_there) = Inbound::create(layout)?;
    Ok((
        end(to_here, &memory_there, there)?,
        end(to_there, &memory_here, here)?,
    ))
}

fn back_up(end: End, mut sleeper: Sleeper, places: Places, over: &AtomicBool) {
    let mut ends = [end];
    let mut payload = vec![0; places.payload_bytes];
    let mut due = 0;
    loop {
        due += 1;
        let ready = || ends[0].told() >= due || over.load(Ordering::Acquire);
        if sleeper.wait(ready).is_err() || over.load(Ordering::Acquire) {
            return;
        }
        // Round for round, as a log has to be read.
        ends[0]
            .inbound
            .ring(Lane::Log)
            .copy_out(places.of(due), &mut payload);
        ends[0].tell(due);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for end in &mut self.ends {
            end.bell.ring_anyway();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

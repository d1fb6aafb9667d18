//! The floor of shared memory: threads that copy a payload into memory, store a number that says
//! that it is there, and write to an eventfd if the reader sleeps.

use super::Round;
use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::{self, JoinHandle};

/// Payloads are laid one after the other in this much memory before the first place is used again. As in
/// a ring, the caches meet new places all the time.
const LAP_BYTES: usize = 4 << 20;
const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// Memory that one thread writes and another one reads.
struct Mailbox {
    bytes: Box<[UnsafeCell<u8>]>,
    payload_bytes: usize,
    /// The last round whose payload is there.
    round: AtomicU64,
}

// SAFETY: `bytes` is only accessed by `put` and `take`, whose callers keep the places apart.
unsafe impl Sync for Mailbox {}

impl Mailbox {
    fn new(bytes: usize, payload_bytes: usize) -> Self {
        Self {
            bytes: (0..bytes).map(|_| UnsafeCell::new(0)).collect(),
            payload_bytes,
            round: AtomicU64::new(0),
        }
    }

    fn rounds_per_lap(&self) -> u64 {
        (self.bytes.len() / self.payload_bytes) as u64
    }

    /// Where the payload of `round` lies.
    fn place(&self, round: u64) -> *mut u8 {
        let at = (round % self.rounds_per_lap()) as usize * self.payload_bytes;
        self.bytes[at..at + self.payload_bytes][0].get()
    }

    fn put(&self, round: u64, payload: &[u8]) {
        assert_eq!(payload.len(), self.payload_bytes);
        // SAFETY: `place` has checked that as many bytes are there. The leader waits until the
        // backup has read the place's last payload before it comes here (`Leader::round`).
        unsafe { std::ptr::copy_nonoverlapping(payload.as_ptr(), self.place(round), payload.len()) }
    }

    fn take(&self, round: u64, payload: &mut [u8]) {
        assert_eq!(payload.len(), self.payload_bytes);
        // SAFETY: as above; the backup has seen `round`, which is stored after the payload.
        unsafe {
            std::ptr::copy_nonoverlapping(self.place(round), payload.as_mut_ptr(), payload.len())
        }
    }
}

/// A thread that may sleep.
struct Sleeper {
    eventfd: OwnedFd,
    /// The number of its sleep; 0 while it is awake.
    sleep: AtomicU64,
}

impl Sleeper {
    fn new() -> Result<Arc<Self>> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
        let sleep = AtomicU64::new(0);
        Ok(Arc::new(Self { eventfd, sleep }))
    }

    /// Sleeps until `ready`. Counts in `sleeps`.
    fn wait(&self, sleeps: &mut u64, ready: impl Fn() -> bool) -> Result<()> {
        while !ready() {
            *sleeps += 1;
            self.sleep.store(*sleeps, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !ready() {
                // A wake-up for an earlier sleep may be left: then `ready` is asked again.
                rustix::io::read(&self.eventfd, &mut [0; 8])?;
            }
            self.sleep.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Ends its sleep, if it sleeps and was not woken from that sleep already (`woken`).
    fn wake(&self, woken: &mut u64) {
        fence(Ordering::SeqCst);
        let sleep = self.sleep.load(Ordering::Relaxed);
        if sleep != 0 && std::mem::replace(woken, sleep) != sleep {
            self.wake_anyway();
        }
    }

    fn wake_anyway(&self) {
        // This only fails if the counter is at its limit, after 2^64 wake-ups.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

struct Backup {
    mailbox: Arc<Mailbox>,
    /// The last round that it has answered.
    answered: Arc<AtomicU64>,
    sleeper: Arc<Sleeper>,
    woken: u64,
    thread: JoinHandle<()>,
}

/// The leader's side.
pub(super) struct Leader {
    backups: Vec<Backup>,
    sleeper: Arc<Sleeper>,
    sleeps: u64,
    payload: Vec<u8>,
    rounds: u64,
    over: Arc<AtomicBool>,
}

impl Leader {
    /// Starts `backups` threads that wait for payloads of `bytes` bytes.
    pub fn start(backups: usize, bytes: usize) -> Result<Self> {
        let fits = (1..=PAYLOAD_BYTES_MAX).contains(&bytes);
        ensure!(fits, "the floor of shm has no payloads of {bytes} bytes");
        let sleeper = Sleeper::new()?;
        let over = Arc::new(AtomicBool::new(false));
        let start = || {
            let mailbox = Arc::new(Mailbox::new(LAP_BYTES, bytes));
            let (answered, there) = (Arc::new(AtomicU64::new(0)), Sleeper::new()?);
            let (leader, over) = (Arc::clone(&sleeper), Arc::clone(&over));
            let (sleeper, payloads) = (Arc::clone(&there), Arc::clone(&mailbox));
            let answers = Arc::clone(&answered);
            let thread =
                thread::spawn(move || back_up(&sleeper, &payloads, &answers, &leader, &over));
            Ok(Backup {
                mailbox,
                answered,
                sleeper: there,
                woken: 0,
                thread,
            })
        };
        Ok(Self {
            backups: (0..backups).map(|_| start()).collect::<Result<_>>()?,
            sleeper,
            sleeps: 0,
            payload: vec![7; bytes],
            rounds: 0,
            over,
        })
    }
}

impl Round for Leader {
    fn round(&mut self) -> Result<()> {
        self.rounds += 1;
        let round = self.rounds;
        for backup in &mut self.backups {
            backup.mailbox.put(round, &self.payload);
            backup.mailbox.round.store(round, Ordering::Release);
            backup.sleeper.wake(&mut backup.woken);
        }
        let backups = &self.backups;
        let needed = backups.len().div_ceil(2);
        let answered = |backup: &&Backup, round| backup.answered.load(Ordering::Acquire) >= round;
        let enough = || backups.iter().filter(|it| answered(it, round)).count() >= needed;
        self.sleeper.wait(&mut self.sleeps, enough)?;
        // The slowest may lag, as long as the next round does not overwrite what it reads.
        let laps = backups.first().map_or(1, |it| it.mailbox.rounds_per_lap());
        let read = round.saturating_sub(laps - 1);
        let all_read = || backups.iter().all(|it| answered(&it, read));
        self.sleeper.wait(&mut self.sleeps, all_read)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for backup in self.backups.drain(..) {
            backup.sleeper.wake_anyway();
            let _ = backup.thread.join();
        }
    }
}

/// Reads and answers round for round, as a log has to be read.
fn back_up(
    sleeper: &Sleeper,
    mailbox: &Mailbox,
    answered: &AtomicU64,
    leader: &Sleeper,
    over: &AtomicBool,
) {
    let mut payload = vec![0; mailbox.payload_bytes];
    let (mut sleeps, mut woken) = (0, 0);
    for round in 1.. {
        let is_over = || over.load(Ordering::Acquire);
        let ready = || mailbox.round.load(Ordering::Acquire) >= round || is_over();
        if sleeper.wait(&mut sleeps, ready).is_err() || is_over() {
            return;
        }
        mailbox.take(round, &mut payload);
        answered.store(round, Ordering::Release);
        leader.wake(&mut woken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_answered() {
        for (backups, bytes) in [(1, 1), (2, 256), (4, 64 << 10), (2, PAYLOAD_BYTES_MAX)] {
            let mut leader = Leader::start(backups, bytes).unwrap();
            (0..50).for_each(|_| leader.round().unwrap());
        }
    }
}

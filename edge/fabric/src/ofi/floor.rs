//! The floor under consensus on libfabric: what the same bytes cost without any protocol. See
//! [`crate::floor`], whose shape this has.
//!
//! A bare leader writes a payload to each of its backups, with immediate data, and each writes 8
//! bytes back at once. No ring, no framing, no checksum, no credit. As in the fabric, each pair
//! has endpoints and queues of its own, so that the difference between the two is the protocol's
//! alone; and as there, nobody waits for the completion of a write.

use super::native::{Event, NativeError, Port, Posted, Provider, Run};
use super::{OfiError, Session, sleep};
use crate::Spin;
use crate::spin::Spinner;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What an acknowledgement has, bytes.
const ACKNOWLEDGEMENT_BYTES: usize = 8;
/// One write in so many asks for a report, so that the provider's queue is emptied.
const SIGNALLED_EVERY: u64 = 16;
/// How long a sleeper sleeps where nothing wakes it, and at most where something should.
const NAP: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A bare leader with its backups running. They end when it is dropped.
#[derive(Debug)]
pub struct Floor {
    ends: Vec<End>,
    sleeper: Sleeper,
    payload_bytes: usize,
    rounds: u32,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// One side of a pair.
#[derive(Debug)]
struct End {
    port: Port,
    writes: u64,
    /// The last round that arrived.
    heard: u32,
}

impl End {
    /// Takes in what has come; `true` if it is `round` or a later one.
    fn has_heard(&mut self, round: u32) -> Result<bool, NativeError> {
        let mut events = [Event::default(); 4];
        let count = self.port.arrivals(&mut events)?;
        if let Some(last) = events[..count].iter().rfind(|event| event.arrived != 0) {
            self.heard = last.immediate;
        }
        Ok(self.heard.wrapping_sub(round) as i32 >= 0)
    }

    /// Writes `bytes` with `round` as immediate data, as soon as the provider takes them.
    fn tell(&mut self, bytes: usize, round: u32) -> Result<(), NativeError> {
        let run = Run {
            offset: 0,
            bytes,
            immediate: round,
        };
        loop {
            self.writes += 1;
            let signalled = self.writes % SIGNALLED_EVERY == 0;
            if signalled {
                self.port.completions(&mut [Event::default(); 64])?;
            }
            match self.port.write(run, self.writes, signalled)? {
                Posted::Taken => return Ok(()),
                // Connecting, or the queue is full: it gets on when it is driven.
                Posted::NotNow | Posted::NoCall => {
                    self.has_heard(round)?;
                    thread::yield_now();
                }
            }
        }
    }
}

/// How one thread waits.
#[derive(Debug)]
struct Sleeper(Spinner);

impl Sleeper {
    /// Waits, until `ready` or for a bounded time, on all of `ends`.
    fn wait(
        &mut self,
        ends: &mut [End],
        mut ready: impl FnMut(&mut [End]) -> bool,
    ) -> Result<(), NativeError> {
        if sleep::look(&mut self.0, || ready(ends)) || !self.0.may_sleep() {
            return Ok(());
        }
        for end in &mut *ends {
            if end.port.wait_fd().is_some() && !end.port.may_sleep()? {
                return Ok(());
            }
        }
        let fds = ends.iter().filter_map(|end| end.port.wait_fd());
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| {
                // SAFETY: the port that owns the descriptor is borrowed for the whole call.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                PollFd::from_borrowed_fd(fd, PollFlags::IN)
            })
            .collect();
        let timeout = if fds.is_empty() { NAP } else { SLEEP_MAX };
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        Ok(())
    }
}

impl Floor {
    /// Starts `replicas - 1` backups (at least one) that wait for payloads of `payload_bytes`
    /// (at least one) over `provider` on the loopback interface.
    ///
    /// # Errors
    /// As [`OfiFabric::new`](super::OfiFabric::new): no such provider, or one that cannot wake a
    /// sleeper with [`Spin::Never`].
    pub fn start(
        provider: &str,
        payload_bytes: usize,
        replicas: usize,
        spin: Spin,
    ) -> Result<Self, OfiError> {
        assert!(replicas >= 2, "a leader and {replicas} replicas in all");
        assert!(payload_bytes > 0, "nothing to send");
        let (provider, waits) = super::open_provider(provider, None, "127.0.0.1", spin)?;
        let provider = Arc::new(provider);
        let over = Arc::new(AtomicBool::new(false));
        let mut floor = Self {
            ends: Vec::new(),
            sleeper: Sleeper(Spinner::new(spin)),
            payload_bytes,
            rounds: 0,
            over: Arc::clone(&over),
            threads: Vec::new(),
        };
        for _ in 1..replicas {
            let pair = pair(&provider, waits, payload_bytes);
            let [leader, backup] = pair.map_err(|source| OfiError::Provider {
                provider: provider.traits.name.clone(),
                source,
            })?;
            floor.ends.push(leader);
            let over = Arc::clone(&over);
            let sleeper = Sleeper(Spinner::new(spin));
            floor
                .threads
                .push(thread::spawn(move || answer(backup, sleeper, &over)));
        }
        Ok(floor)
    }

    /// Sends one payload to all backups and waits until enough have answered.
    ///
    /// # Errors
    /// What libfabric said, if a write failed or no answer comes any more.
    pub fn round(&mut self) -> io::Result<()> {
        self.rounds = self.rounds.wrapping_add(1);
        let (round, bytes) = (self.rounds, self.payload_bytes);
        let needed = self.ends.len().div_ceil(2);
        let result = (|| {
            self.ends
                .iter_mut()
                .try_for_each(|end| end.tell(bytes, round))?;
            let start = Instant::now();
            let heard = |ends: &mut [End]| count(ends, round).map(|count| count >= needed);
            while !heard(&mut self.ends)? {
                if start.elapsed() > Duration::from_secs(10) {
                    return Err(NativeError::of_system(
                        "waiting for an answer",
                        &io::ErrorKind::TimedOut.into(),
                    ));
                }
                // An error shows again in the loop's own look.
                self.sleeper
                    .wait(&mut self.ends, |ends| heard(ends).unwrap_or(true))?;
            }
            Ok(())
        })();
        result.map_err(io::Error::other)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A backup that panicked has said so; there is nobody to tell in a drop.
            let _ = thread.join();
        }
    }
}

/// Times `rounds` rounds, after a tenth as many that are not counted; nanoseconds each, in the
/// order of measuring. See [`Floor::start`].
///
/// # Errors
/// As [`Floor::start`] and [`Floor::round`].
pub fn run(
    provider: &str,
    payload_bytes: usize,
    replicas: usize,
    rounds: usize,
    spin: Spin,
) -> io::Result<Vec<u64>> {
    let floor = Floor::start(provider, payload_bytes, replicas, spin);
    let mut floor = floor.map_err(io::Error::other)?;
    for _ in 0..rounds / 10 {
        floor.round()?;
    }
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            floor.round()?;
            Ok(start.elapsed().as_nanos() as u64)
        })
        .collect()
}

/// How many have answered `round`.
fn count(ends: &mut [End], round: u32) -> Result<usize, NativeError> {
    let mut count = 0;
    for end in ends {
        count += usize::from(end.has_heard(round)?);
    }
    Ok(count)
}

/// Two ends that know each other.
fn pair(provider: &Arc<Provider>, waits: bool, bytes: usize) -> Result<[End; 2], NativeError> {
    let bytes = bytes.max(ACKNOWLEDGEMENT_BYTES);
    // Half as wide as it may be, so that it fits every provider's keys.
    let open = || Port::open(provider, waits, bytes, Session::fresh().0 >> 32);
    let (mut leader, leader_address) = open()?;
    let (mut backup, backup_address) = open()?;
    leader.connect(&backup_address)?;
    backup.connect(&leader_address)?;
    Ok([leader, backup].map(|port| End {
        port,
        writes: 0,
        heard: 0,
    }))
}

/// A backup: answers each round, until it is over or the leader is gone.
fn answer(end: End, mut sleeper: Sleeper, over: &AtomicBool) {
    let mut ends = [end];
    let mut round: u32 = 1;
    while !over.load(Ordering::Relaxed) {
        let outcome = ends[0].has_heard(round).and_then(|heard| {
            if heard {
                // The slower of two backups may find more than one round: one answer will do.
                let last = ends[0].heard;
                round = last.wrapping_add(1);
                return ends[0].tell(ACKNOWLEDGEMENT_BYTES, last);
            }
            sleeper.wait(&mut ends, |ends| ends[0].has_heard(round).unwrap_or(true))
        });
        if outcome.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_answered() {
        for (provider, spin) in [("tcp", Spin::Never), ("shm", Spin::Adaptive)] {
            for (replicas, bytes) in [(2, 1), (3, 256), (4, 64 << 10)] {
                let times = run(provider, bytes, replicas, 20, spin).unwrap();
                assert_eq!(times.len(), 20, "{provider}");
            }
        }
    }

    #[test]
    fn no_sleep_without_a_wait_object() {
        let refused = Floor::start("shm", 8, 2, Spin::Never);
        assert!(matches!(refused, Err(OfiError::CannotSleep { .. })));
    }
}

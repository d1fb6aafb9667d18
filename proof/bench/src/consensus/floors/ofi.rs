//! The floor of libfabric: a bare leader writes a payload with immediate data to each backup, and each
//! backup writes 8 bytes back at once. No ring, no framing, no checksum, no credit. As in the fabric,
//! each pair has endpoints and queues of its own, and no thread waits for the completion of a write.

use super::super::ours::fabrics::OFI_PROVIDER;
use super::Round;
use anyhow::{Context, Result, ensure};
use plover_fabric::ofi::native::{Event, NativeError, Port, Posted, Provider, Run};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const ACKNOWLEDGEMENT_BYTES: usize = 8;
/// The longest sleep, should nothing wake the sleeper.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// A round that takes longer has failed.
const ROUND_MAX: Duration = Duration::from_secs(10);

/// One side of a pair.
struct End {
    port: Port,
    writes: u64,
    /// The last round that arrived.
    heard: u32,
}

impl End {
    /// Takes in what has come. Returns whether it is `round` or a later one.
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
            // A signalled write now and then lets the provider's queue be emptied.
            let signalled = self.writes % 16 == 0;
            if signalled {
                self.port.completions(&mut [Event::default(); 64])?;
            }
            match self.port.write(run, self.writes, signalled)? {
                Posted::Taken => return Ok(()),
                // Connecting, or the queue is full. Driving the provider makes progress.
                Posted::NotNow | Posted::NoCall => {
                    self.port.completions(&mut [Event::default(); 64])?;
                    self.has_heard(round)?;
                    thread::yield_now();
                }
            }
        }
    }
}

/// Sleeps until something comes at one of `ends`, for a bounded time.
fn sleep(ends: &mut [End]) -> Result<(), NativeError> {
    for end in &mut *ends {
        if !end.port.may_sleep()? {
            return Ok(());
        }
    }
    let fds = ends.iter().filter_map(|end| end.port.wait_fd());
    let fd = |fd| {
        // SAFETY: the port that owns the descriptor is borrowed for the whole call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        PollFd::from_borrowed_fd(fd, PollFlags::IN)
    };
    let mut fds: Vec<PollFd<'_>> = fds.map(fd).collect();
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(SLEEP_MAX.subsec_nanos()),
    };
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, Some(&timeout));
    Ok(())
}

/// The leader's side. The backups end when it is dropped.
pub(super) struct Leader {
    ends: Vec<End>,
    payload_bytes: usize,
    rounds: u32,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Leader {
    /// Starts `backups` threads that wait for payloads of `bytes` bytes on the loopback interface.
    pub fn start(backups: usize, bytes: usize) -> Result<Self> {
        let provider = Provider::open(OFI_PROVIDER, "127.0.0.1")?;
        let provider = Arc::new(provider);
        let mut leader = Self {
            ends: Vec::new(),
            payload_bytes: bytes,
            rounds: 0,
            over: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..backups as u64 {
            let key = 1 + 4 * number;
            let pair = pair(&provider, bytes.max(ACKNOWLEDGEMENT_BYTES), key);
            let [end, backup] = pair.context("cannot open a pair of endpoints")?;
            leader.ends.push(end);
            let over = Arc::clone(&leader.over);
            let backup = thread::spawn(move || {
                // To the leader, a backup that fails is one that does not answer.
                let _ = answer(backup, &over);
            });
            leader.threads.push(backup);
        }
        Ok(leader)
    }
}

impl Round for Leader {
    fn round(&mut self) -> Result<()> {
        self.rounds = self.rounds.wrapping_add(1);
        let (round, needed) = (self.rounds, self.ends.len().div_ceil(2));
        for end in &mut self.ends {
            end.tell(self.payload_bytes, round)?;
        }
        let start = Instant::now();
        loop {
            let mut heard = 0;
            for end in &mut self.ends {
                heard += usize::from(end.has_heard(round)?);
            }
            if heard >= needed {
                return Ok(());
            }
            ensure!(start.elapsed() < ROUND_MAX, "the backups do not answer");
            sleep(&mut self.ends)?;
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Two ends that know each other.
fn pair(provider: &Arc<Provider>, bytes: usize, key: u64) -> Result<[End; 2], NativeError> {
    let (mut leader, leader_address) = Port::open(provider, true, bytes, key)?;
    let (mut backup, backup_address) = Port::open(provider, true, bytes, key + 2)?;
    leader.connect(&backup_address)?;
    backup.connect(&leader_address)?;
    Ok([leader, backup].map(|port| End {
        port,
        writes: 0,
        heard: 0,
    }))
}

/// A backup: answers each round until it is over.
fn answer(end: End, over: &AtomicBool) -> Result<(), NativeError> {
    let mut ends = [end];
    let mut round: u32 = 1;
    while !over.load(Ordering::Relaxed) {
        if ends[0].has_heard(round)? {
            // The slower of two backups may find more than one round: one answer will do.
            let last = ends[0].heard;
            round = last.wrapping_add(1);
            ends[0].tell(ACKNOWLEDGEMENT_BYTES, last)?;
        } else {
            sleep(&mut ends)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_answered() {
        for (backups, bytes) in [(1, 1), (2, 256), (3, 64 << 10)] {
            let mut leader = Leader::start(backups, bytes).unwrap();
            (0..20).for_each(|_| leader.round().unwrap());
        }
    }
}

//! Clients that read and write, and record what they saw.

use crate::check::{Event, Histories};
use crate::registers;
use plover_log::{Address, Remote};
use plover_types::SplitMix64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Operations of one client on one key.
const OPERATIONS: usize = 10;
/// An operation without an answer for so long is given up: about what an election takes, so that
/// some faults are seen as a delay and others as a loss.
const PATIENCE: Duration = Duration::from_millis(400);
/// The pause between operations, so that a key lives through a fault.
const PAUSE_US_MAX: u64 = 40_000;

/// What clients share.
#[derive(Debug, Default)]
pub struct Shared {
    /// What happened.
    pub histories: Histories,
    /// Set when they are to end.
    pub stop: AtomicBool,
    /// Operations that were answered.
    pub answered: AtomicU64,
    /// Operations that were given up.
    pub unanswered: AtomicU64,
    names: AtomicU64,
    values: AtomicU64,
}

/// One client, until it is told to stop. All clients go through the same keys, one after the
/// other and nearly together.
pub fn work(shared: &Shared, doors: &[Address], seed: u64) {
    let mut random = SplitMix64::new(seed);
    let mut key = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let mut client = Remote::new(doors.to_vec(), PATIENCE);
        let name = shared.names.fetch_add(1, Ordering::Relaxed);
        for _ in 0..OPERATIONS {
            if !operate(shared, &mut client, name, key, &mut random) {
                // Whether it happened is unknown: the name is spent.
                break;
            }
            std::thread::sleep(Duration::from_micros(random.range(0, PAUSE_US_MAX)));
        }
        key += 1;
    }
}

fn operate(
    shared: &Shared,
    client: &mut Remote,
    name: u64,
    key: u64,
    random: &mut SplitMix64,
) -> bool {
    let histories = &shared.histories;
    let write = random.range(0, 1) == 1;
    let entry = if write {
        // No two writes write the same, so that a read tells which write it saw.
        let value = shared.values.fetch_add(1, Ordering::Relaxed) + 1;
        histories.note(key, name, Event::Write(value));
        registers::write(key, value)
    } else {
        histories.note(key, name, Event::Read);
        registers::read(key)
    };
    let mut answer = Vec::new();
    if client.call(&entry, &mut answer).is_err() {
        shared.unanswered.fetch_add(1, Ordering::Relaxed);
        return false;
    }
    let value = answer.try_into().map(u64::from_le_bytes);
    let found = Event::Found(value.expect("registers answer with eight bytes"));
    histories.note(key, name, if write { Event::Written } else { found });
    shared.answered.fetch_add(1, Ordering::Relaxed);
    true
}

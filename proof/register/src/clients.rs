//! Clients that read and write, and record what they saw.

use crate::history::{Action, Answer, Operation};
use crate::registers;
use plover_log::{Address, Remote};
use plover_types::SplitMix64;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations of one client on one key.
const OPERATIONS: usize = 10;
/// An operation without an answer for so long is given up: about what an election takes, so that
/// some faults are seen as a delay and others as a loss.
const PATIENCE: Duration = Duration::from_millis(400);
/// The pause between operations, so that a key lives through a fault.
const PAUSE_US_MAX: u64 = 40_000;

/// What clients share.
#[derive(Debug)]
pub struct Shared {
    /// What they did and saw.
    pub history: Mutex<Vec<Operation>>,
    /// When the clock of the history began.
    begun: Instant,
    /// Set when they are to end.
    pub stop: AtomicBool,
    /// Operations that were answered.
    pub answered: AtomicU64,
    /// Operations that were given up.
    pub unanswered: AtomicU64,
    names: AtomicU64,
    values: AtomicU64,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            history: Mutex::default(),
            begun: Instant::now(),
            stop: AtomicBool::default(),
            answered: AtomicU64::default(),
            unanswered: AtomicU64::default(),
            names: AtomicU64::default(),
            values: AtomicU64::default(),
        }
    }
}

impl Shared {
    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }
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
    key: u32,
    random: &mut SplitMix64,
) -> bool {
    let (action, entry) = if random.range(0, 1) == 1 {
        // No two writes write the same, so that a read tells which write it saw.
        let value = shared.values.fetch_add(1, Ordering::Relaxed) + 1;
        (Action::Write(value), registers::write(key.into(), value))
    } else {
        (Action::Read, registers::read(key.into()))
    };
    let invoked_us = shared.now_us();
    let mut bytes = Vec::new();
    let answer = client.call(&entry, &mut bytes).is_ok().then(|| {
        let value = bytes.try_into().map(u64::from_le_bytes);
        let found = value.expect("registers answer with eight bytes");
        // A register that nobody has written holds zero.
        let answer = match action {
            Action::Read => Answer::Found((found != 0).then_some(found)),
            Action::Write(_) | Action::Swap(_) => Answer::Done,
        };
        (shared.now_us(), answer)
    });
    let count = match answer {
        Some(_) => &shared.answered,
        None => &shared.unanswered,
    };
    count.fetch_add(1, Ordering::Relaxed);
    let mut history = shared
        .history
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    history.push(Operation {
        client: name,
        key,
        action,
        invoked_us,
        answer,
    });
    answer.is_some()
}

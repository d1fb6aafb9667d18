//! Proposers in other threads of the server's process.
//!
//! ```text
//!   Client::submit ─► Inbox (entries of one batch, back to back in one buffer) ─► Server
//!   Client::wait   ◄─ Slot (this handle's completions and answers)            ◄─┘
//! ```
//!
//! The server swaps the inbox for an empty one and gives the buffers back later, so that neither
//! side allocates for an entry once the buffers have grown. It is woken through an eventfd, and
//! only while it sleeps: under load nobody makes that system call.

use crate::Error;
use plover_types::Viewstamp;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait in the inbox; one entry more is always taken when it is empty.
const INBOX_BYTES_MAX: usize = 4 << 20;
/// Entries that may wait in the inbox.
const INBOX_ENTRIES_MAX: usize = 4096;

/// Names one entry of one [`Client`]: 0 for its first, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which entry.
    pub ticket: Ticket,
    /// Where it stands in the log, and so that it is committed; or why it was not appended.
    pub result: Result<Viewstamp, Error>,
}

/// A handle for one proposer. A clone is a proposer of its own, with its own completions.
///
/// Works on the leader; elsewhere every entry completes with [`Error::NotLeader`].
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    next: u64,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let slot = Arc::default();
        Self {
            shared,
            slot,
            next: 0,
        }
    }

    /// Appends an entry and waits until it is committed and applied here. Waits also while too
    /// much is waiting for the log. Other completions that come meanwhile are kept.
    pub fn append(&mut self, entry: &[u8]) -> Result<Viewstamp, Error> {
        self.call(entry, &mut Vec::new())
    }

    /// [`append`](Self::append), and appends the state machine's answer to `answer`.
    pub fn call(&mut self, entry: &[u8], answer: &mut Vec<u8>) -> Result<Viewstamp, Error> {
        let ticket = Ticket(self.next);
        self.shared.push(&self.slot, ticket, entry, true)?;
        self.next += 1;
        let mut done = self.slot.lock();
        loop {
            if let Some(place) = done.place_of(ticket) {
                return done.take(place, answer).result;
            }
            done = self.slot.wait(done, None);
        }
    }

    /// Hands an entry over and returns at once; [`poll`](Self::poll) or [`wait`](Self::wait)
    /// tell what became of it.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] when too much is waiting, [`Error::Stopped`].
    pub fn submit(&mut self, entry: &[u8]) -> Result<Ticket, Error> {
        let ticket = Ticket(self.next);
        self.shared.push(&self.slot, ticket, entry, false)?;
        self.next += 1;
        Ok(ticket)
    }

    /// The next completion, if there is one. Entries complete in the order of the log, which
    /// is the order of submitting while one replica leads.
    pub fn poll(&mut self) -> Option<Completion> {
        self.slot.lock().take_first(&mut Vec::new())
    }

    /// The next completion; waits for it, at most for `patience` if that is given.
    pub fn wait(&mut self, patience: Option<Duration>) -> Option<Completion> {
        let until = patience.map(|patience| Instant::now() + patience);
        let mut done = self.slot.lock();
        loop {
            if let Some(completion) = done.take_first(&mut Vec::new()) {
                return Some(completion);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            done = self.slot.wait(done, until);
        }
    }
}

/// Where a client's completions arrive.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    done: Mutex<Done>,
    changed: Condvar,
}

/// Completions, with the answers of all of them one after the other.
#[derive(Debug, Default)]
struct Done {
    completions: VecDeque<(Completion, usize)>,
    answers: VecDeque<u8>,
    waiting: bool,
}

impl Done {
    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        let same = |(completion, _): &(Completion, usize)| completion.ticket == ticket;
        self.completions.iter().position(same)
    }

    fn take(&mut self, place: usize, answer: &mut Vec<u8>) -> Completion {
        let before: usize = self.completions.iter().take(place).map(|it| it.1).sum();
        let (completion, length) = self
            .completions
            .remove(place)
            .expect("the caller has found it there");
        answer.extend(self.answers.drain(before..before + length));
        completion
    }

    fn take_first(&mut self, answer: &mut Vec<u8>) -> Option<Completion> {
        (!self.completions.is_empty()).then(|| self.take(0, answer))
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Done> {
        // Nothing panics while it holds this lock.
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &'a self,
        mut done: MutexGuard<'a, Done>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Done> {
        done.waiting = true;
        let span = until.map_or(Duration::MAX, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let woken = if span == Duration::MAX {
            self.changed.wait(done)
        } else {
            let result = self.changed.wait_timeout(done, span);
            result.map(|it| it.0).map_err(|error| {
                let (guard, _) = error.into_inner();
                PoisonError::new(guard)
            })
        };
        let mut done = woken.unwrap_or_else(PoisonError::into_inner);
        done.waiting = false;
        done
    }

    /// Says what became of `ticket`.
    pub fn complete(&self, ticket: Ticket, result: Result<Viewstamp, Error>, answer: &[u8]) {
        let mut done = self.lock();
        let completion = Completion { ticket, result };
        done.completions.push_back((completion, answer.len()));
        done.answers.extend(answer);
        let waiting = done.waiting;
        drop(done);
        if waiting {
            self.changed.notify_one();
        }
    }
}

/// An entry on its way to the server.
#[derive(Debug)]
pub(crate) struct Request {
    pub slot: Arc<Slot>,
    pub ticket: Ticket,
    pub bytes: usize,
}

/// Entries on their way to the server, their bytes one after the other.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub requests: VecDeque<Request>,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Gate {
    inbox: Inbox,
    stopped: bool,
    /// Proposers that wait for room.
    waiting: usize,
}

/// What the server and its clients share.
#[derive(Debug)]
pub(crate) struct Shared {
    gate: Mutex<Gate>,
    room: Condvar,
    /// The server sleeps, or is about to look for the last time before it does.
    sleeping: AtomicBool,
    /// The server is to stop running.
    stop: AtomicBool,
    pub wake: OwnedFd,
}

impl Shared {
    pub fn new() -> Result<Self, rustix::io::Errno> {
        Ok(Self {
            gate: Mutex::default(),
            room: Condvar::new(),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(
        &self,
        slot: &Arc<Slot>,
        ticket: Ticket,
        entry: &[u8],
        patient: bool,
    ) -> Result<(), Error> {
        let mut gate = self.lock();
        loop {
            if gate.stopped {
                return Err(Error::Stopped);
            }
            let inbox = &gate.inbox;
            let room = inbox.requests.len() < INBOX_ENTRIES_MAX
                && inbox.bytes.len() + entry.len() <= INBOX_BYTES_MAX;
            if room || inbox.requests.is_empty() {
                break;
            }
            if !patient {
                return Err(Error::Full);
            }
            gate.waiting += 1;
            gate = self.room.wait(gate).unwrap_or_else(PoisonError::into_inner);
            gate.waiting -= 1;
        }
        gate.inbox.requests.push_back(Request {
            slot: Arc::clone(slot),
            ticket,
            bytes: entry.len(),
        });
        gate.inbox.bytes.extend_from_slice(entry);
        drop(gate);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.wake_server();
        }
        Ok(())
    }

    /// Ends the server's sleep.
    pub fn wake_server(&self) {
        // A full counter means that it is being woken already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the server stop running.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake_server();
    }

    /// Whether the server was asked to stop; asked once, it stops once.
    pub fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::SeqCst)
    }

    /// The server is about to sleep. False if entries came in meanwhile: then it must not.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.lock().inbox.requests.is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// The server is awake.
    pub fn woke(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Takes the wake-up calls that have been answered.
    pub fn hush(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Swaps what has come in for `empty`.
    pub fn take(&self, empty: &mut Inbox) {
        debug_assert!(empty.requests.is_empty(), "entries would be lost");
        empty.bytes.clear();
        let mut gate = self.lock();
        std::mem::swap(&mut gate.inbox, empty);
        let waiting = gate.waiting > 0;
        drop(gate);
        if waiting {
            self.room.notify_all();
        }
    }

    /// Refuses everything from now on, and fails what has come in.
    pub fn stop(&self) {
        let mut gate = self.lock();
        gate.stopped = true;
        let inbox = std::mem::take(&mut gate.inbox);
        drop(gate);
        self.room.notify_all();
        for request in inbox.requests {
            request
                .slot
                .complete(request.ticket, Err(Error::Stopped), &[]);
        }
    }
}

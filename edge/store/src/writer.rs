//! The thread that writes, and the state that it shares with the store's owner.
//!
//! ```text
//!   owner: queue, queue, queue, submit ──▶ pending ──▶ thread: take all of it
//!                                             ▲                write, one fdatasync
//!   owner: completions ◀── durable ticket ◀───┼─────── publish, write the eventfd
//!                                             │                tidy up, seal if idle
//!          queue, queue, submit ──────────────┘                again
//! ```
//!
//! Requests that are queued while a sync runs are the next batch. So batches form by themselves under
//! load, and without load nothing waits. The owner can also write in its own thread; the engine's lock
//! decides which of them writes.

use crate::directory::Directory;
use crate::engine::{Counters, Engine};
use crate::error::{StoreError, io_error};
use crate::queue::Pending;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    called: Condvar,
    hand: Mutex<Hand>,
    done: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    pending: Pending,
    /// Work was submitted to the thread.
    called: bool,
    stopping: bool,
    /// Everything up to this ticket is durable.
    durable: u64,
    /// How often the thread has written the eventfd, or is about to, that the owner has not read.
    rings: u64,
    failed: bool,
    failure: Option<StoreError>,
    counters: Counters,
}

/// Whether to wake the owner when a batch is durable. The owner need not be woken by its own write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Owner,
    Nobody,
}

/// The engine and its batch. The thread that writes holds the lock.
#[derive(Debug)]
struct Hand {
    engine: Engine,
    batch: Pending,
}

/// Takes a lock even if its holder has panicked, because the queue is plain data. Nothing is written
/// after a panic; [`Writer::take_done`] passes the thread's panic on to the owner.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer {
    pub fn start(directory: &Directory, engine: Engine) -> Result<Self, StoreError> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let path = directory.path();
        let done = done.map_err(|e| io_error("cannot make an eventfd for", path)(e.into()))?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            called: Condvar::new(),
            hand: Mutex::new(Hand {
                engine,
                batch: Pending::default(),
            }),
            done,
        });
        let work = shared.clone();
        let thread = std::thread::Builder::new()
            .name("plover-store".into())
            .spawn(move || work.run())
            .map_err(io_error("cannot start a thread for", path))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Adds to what is pending.
    pub fn queue(&self, add: impl FnOnce(&mut Pending)) {
        let mut queue = lock(&self.shared.queue);
        if !queue.failed {
            add(&mut queue.pending);
        }
    }

    pub fn submit(&self) {
        let mut queue = lock(&self.shared.queue);
        if queue.pending.is_due() && !queue.called {
            queue.called = true;
            // The thread needs the lock as soon as it wakes.
            drop(queue);
            self.shared.called.notify_one();
        }
    }

    pub fn write_here(&self) {
        self.shared.write_batch(Wake::Nobody);
    }

    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.shared.done.as_fd()
    }

    /// The newest durable ticket, and the failure if there is one that has not been taken.
    ///
    /// # Panics
    /// If the thread has panicked: nothing will become durable any more.
    pub fn take_done(&self) -> (u64, Option<StoreError>) {
        let ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        assert!(!ended, "the store's thread has panicked");
        let mut queue = lock(&self.shared.queue);
        if queue.rings > 0 {
            let mut count = [0; 8];
            // Of a ring that is still to come there is nothing to read.
            if rustix::io::read(&self.shared.done, &mut count).is_ok() {
                queue.rings = queue.rings.saturating_sub(u64::from_ne_bytes(count));
            }
        }
        (queue.durable, queue.failure.take())
    }

    pub fn counters(&self) -> Counters {
        lock(&self.shared.queue).counters
    }
}

impl Drop for Writer {
    /// Writes what is queued, and leaves no thread behind.
    fn drop(&mut self) {
        lock(&self.shared.queue).stopping = true;
        self.shared.called.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.write_batch(Wake::Nobody);
        lock(&self.shared.hand).engine.finish();
    }
}

impl Shared {
    fn run(&self) {
        let _wake = WakeAtEnd(self);
        while self.wait_for_work() {
            self.write_batch(Wake::Owner);
        }
    }

    fn wait_for_work(&self) -> bool {
        let mut queue = lock(&self.queue);
        while !queue.called && !queue.stopping {
            queue = self
                .called
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        queue.called = false;
        !queue.stopping
    }

    /// Wakes the owner, and gives the lock back first: an owner that woke while this thread had it would wait until this
    /// thread gets a processor again, which a busy guest can delay by milliseconds.
    fn ring(&self, mut queue: MutexGuard<'_, Queue>) {
        queue.rings += 1;
        drop(queue);
        let _ = rustix::io::write(&self.done, &1u64.to_ne_bytes());
    }

    /// Takes what is pending and makes it durable.
    fn write_batch(&self, wake: Wake) {
        let Ok(mut hand) = self.hand.lock() else {
            // The thread that wrote has panicked and left the engine half changed.
            return;
        };
        let Hand { engine, batch } = &mut *hand;
        {
            let mut queue = lock(&self.queue);
            if queue.failed || !queue.pending.is_due() {
                return;
            }
            std::mem::swap(batch, &mut queue.pending);
        }
        let result = engine.write(batch);
        {
            let mut queue = lock(&self.queue);
            queue.counters = engine.counters;
            match result {
                Ok(()) => queue.durable = queue.durable.max(batch.ticket),
                Err(error) => queue.fail(error),
            }
            if wake == Wake::Owner {
                self.ring(queue);
            }
        }
        batch.clear();
        self.tidy(engine);
    }

    /// Runs after the acknowledgement, so the owner does not wait for it.
    fn tidy(&self, engine: &mut Engine) {
        let (failed, idle) = {
            let queue = lock(&self.queue);
            (queue.failed, !queue.pending.is_due())
        };
        if failed {
            return;
        }
        let result = match idle {
            true => engine.tidy().and_then(|()| engine.seal()),
            false => engine.tidy(),
        };
        if let Err(error) = result {
            let mut queue = lock(&self.queue);
            queue.fail(error);
            self.ring(queue);
        }
    }
}

/// Wakes the owner when the thread ends, so that a panic does not leave it asleep.
struct WakeAtEnd<'a>(&'a Shared);

impl Drop for WakeAtEnd<'_> {
    fn drop(&mut self) {
        self.0.ring(lock(&self.0.queue));
    }
}

impl Queue {
    fn fail(&mut self, error: StoreError) {
        tracing::error!(event = "storage_failed", %error, "stable storage has failed; nothing is acknowledged any more");
        self.failed = true;
        self.failure = Some(error);
        self.pending.clear();
    }
}

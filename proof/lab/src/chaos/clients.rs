//! Clients that read, write and swap registers, each on a connection of its own, and note what they did.
//!
//! Some are *patient*: they wait for an answer as long as the group may take to recover. Their connections live from the
//! first step to the last, so a connection that stands still is found. Others give up soon, drop the connection and open
//! another one: their operation stays ambiguous, and connections are opened while the group fails over. One client
//! moves large values.

use super::registers::{self, LARGE_KEY, LARGE_KEYS, SMALL_KEYS, ask};
use crate::redis::Connection;
use anyhow::{Context, Result, ensure};
use plover_lab::net::Namespace;
use plover_lab::progress::Progress;
use plover_lab::trace::now_us;
use plover_register_proof::history::{Action, Key, Operation};
use plover_types::SplitMix64;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A patient client's connection that has no answer for this long has failed: a violation.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The others drop theirs then.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// How long a client waits before it connects again.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);

/// All clients count the same ticks. At each even one, all with small values use the same key at the same time: if the
/// leader's guest and the secondary's carry their requests out in different orders, their states differ. At each odd one, a
/// single client uses that key, so that somebody has seen the outcome, and histories can be cut there ([`super::check`]).
const TICK_US: u64 = 10_000;

/// The client with large values uses a key each so many ticks.
const LARGE_EACH: u64 = 5;

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Patient,
    Impatient,
    /// With large values, and patient.
    Large,
}

impl Kind {
    fn patience(self) -> Duration {
        match self {
            Self::Patient | Self::Large => PATIENCE,
            Self::Impatient => IMPATIENCE,
        }
    }
}

/// The clients. All but the last have small values.
const KINDS: [Kind; 7] = [
    Kind::Patient,
    Kind::Patient,
    Kind::Patient,
    Kind::Impatient,
    Kind::Impatient,
    Kind::Impatient,
    Kind::Large,
];

/// What all clients share.
#[derive(Debug)]
struct Shared {
    namespace: Option<Namespace>,
    address: SocketAddrV4,
    /// The last value that was written, and the last name of a client.
    values: AtomicU64,
    names: AtomicU64,
    paused: AtomicBool,
    /// Connections of an older generation are dropped.
    generation: AtomicU64,
    /// Connections may break: the guest reboots.
    lenient: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    /// Tries once to connect. `patience` is for answers.
    fn connect(&self, patience: Duration) -> io::Result<Connection> {
        let open = || Ok(Connection::open(self.address, IMPATIENCE));
        let opened = match &self.namespace {
            Some(namespace) => namespace.run(open),
            None => open(),
        };
        let connection = opened.map_err(io::Error::other)??;
        connection.stream()?.set_read_timeout(Some(patience))?;
        Ok(connection)
    }

    /// Tries until it is connected.
    fn connect_at_last(&self) -> Result<Connection> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.connect(PATIENCE) {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("cannot connect to the guest");
                }
                Err(_) => std::thread::sleep(CONNECT_AGAIN),
            }
        }
    }
}

/// What one client has done since it was last asked.
#[derive(Debug, Default)]
struct Journal {
    operations: Vec<Operation>,
    /// Connections that were lost and should not have been, with the error of each.
    broken: Vec<String>,
    /// It does nothing until clients go on.
    idle: bool,
    connection: Option<TcpStream>,
}

/// Clients at work. Dropping it ends them.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    journals: Vec<Arc<Mutex<Journal>>>,
    threads: Vec<JoinHandle<()>>,
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Begins, paused, with the operations that `seed` gives.
    pub fn start(namespace: Option<Namespace>, address: SocketAddrV4, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            namespace,
            address,
            values: AtomicU64::new(0),
            names: AtomicU64::new(KINDS.len() as u64),
            paused: AtomicBool::new(true),
            generation: AtomicU64::new(0),
            lenient: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut clients = Self {
            shared,
            journals: Vec::new(),
            threads: Vec::new(),
        };
        for (number, kind) in KINDS.into_iter().enumerate() {
            let journal = Arc::new(Mutex::default());
            clients.journals.push(Arc::clone(&journal));
            let client = Client {
                shared: Arc::clone(&clients.shared),
                journal,
                kind,
                name: number as u64,
                number,
                random: SplitMix64::new(seed ^ number as u64),
                last_us: 0,
            };
            clients.threads.push(std::thread::spawn(|| client.work()));
        }
        clients
    }

    /// Lets them go on.
    pub fn resume(&self) {
        self.shared.paused.store(false, Ordering::SeqCst);
        for journal in &self.journals {
            lock(journal).idle = false;
        }
    }

    /// Connections may break from now on, or no longer.
    pub fn be_lenient(&self, lenient: bool) {
        self.shared.lenient.store(lenient, Ordering::SeqCst);
    }

    /// Drops all connections. The clients open others.
    pub fn reconnect(&self) {
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        for journal in &self.journals {
            if let Some(connection) = &lock(journal).connection {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }

    /// Pauses them, and waits until none has an operation under way.
    ///
    /// # Errors
    /// One waits for longer than the most patient one may, or Ctrl-C.
    pub fn pause(&self, progress: &Progress) -> Result<()> {
        self.shared.paused.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE + IMPATIENCE;
        while !self.journals.iter().all(|journal| lock(journal).idle) {
            ensure!(Instant::now() < deadline, "a client does not come to rest");
            progress.sleep(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// What they did since the last time, by client, and the connections that were lost.
    pub fn take(&self) -> (Vec<Vec<Operation>>, Vec<String>) {
        let mut broken = Vec::new();
        let take = |journal: &Arc<Mutex<Journal>>| {
            let mut journal = lock(journal);
            broken.append(&mut journal.broken);
            std::mem::take(&mut journal.operations)
        };
        (self.journals.iter().map(take).collect(), broken)
    }

    /// When each client had its answers since the last [`Clients::take`].
    pub fn answers_us(&self) -> Vec<Vec<u64>> {
        let times = |journal: &Arc<Mutex<Journal>>| {
            let journal = lock(journal);
            let answered = journal.operations.iter().filter_map(Operation::returned_us);
            answered.collect()
        };
        self.journals.iter().map(times).collect()
    }

    /// The connections that were lost.
    pub fn broken(&self) -> Vec<String> {
        let all = self.journals.iter();
        all.flat_map(|journal| lock(journal).broken.clone())
            .collect()
    }

    /// Reads every register, as one more client.
    ///
    /// # Errors
    /// The guest does not answer.
    pub fn read_all(&self) -> Result<Vec<Operation>> {
        let mut connection = self.shared.connect_at_last()?;
        let client = self.shared.names.fetch_add(1, Ordering::SeqCst);
        let read = |key| {
            let mut operation = Operation {
                client,
                key,
                action: Action::Read,
                invoked_us: now_us(),
                answer: None,
            };
            let answer = ask(&mut connection, key, Action::Read)?;
            operation.answer = Some((now_us(), answer));
            Ok(operation)
        };
        registers::keys().map(read).collect()
    }

    /// Sets a mark that is gone when the guest has rebooted.
    ///
    /// # Errors
    /// The guest does not answer.
    pub fn mark(&self) -> Result<()> {
        let mut connection = self.shared.connect_at_last()?;
        Ok(connection.set("mark", "1")?)
    }

    /// Whether the guest answers and the mark is gone.
    pub fn mark_is_gone(&self) -> bool {
        let ask = || self.shared.connect(IMPATIENCE)?.get("mark");
        matches!(ask(), Ok(None))
    }

    /// Ends them.
    pub fn end(&mut self) {
        self.be_lenient(true);
        self.shared.stop.store(true, Ordering::SeqCst);
        self.reconnect();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.end();
    }
}

/// One client, on a thread of its own.
struct Client {
    shared: Arc<Shared>,
    journal: Arc<Mutex<Journal>>,
    kind: Kind,
    /// For the checker: changes after each ambiguous operation.
    name: u64,
    /// For people.
    number: usize,
    random: SplitMix64,
    /// When its last operation ended.
    last_us: u64,
}

impl Client {
    fn work(mut self) {
        let (mut connection, mut generation) = (None, 0);
        while !self.shared.stop.load(Ordering::SeqCst) {
            let idle = {
                let mut journal = lock(&self.journal);
                journal.idle = self.shared.paused.load(Ordering::SeqCst);
                journal.idle
            };
            if idle {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            let newest = self.shared.generation.load(Ordering::SeqCst);
            let Some(open) = connection.as_mut().filter(|_| generation == newest) else {
                generation = newest;
                connection = self.connect();
                continue;
            };
            let key = self.wait_for_turn();
            if let Err(error) = self.operate(open, key) {
                let gave_up = is_late(&error) && self.kind == Kind::Impatient;
                let was_told = generation != self.shared.generation.load(Ordering::SeqCst);
                self.lost(&error, gave_up || was_told);
                lock(&self.journal).connection = None;
                connection = None;
            }
        }
    }

    /// Sleeps until a tick at which this client does something. Returns the key.
    fn wait_for_turn(&mut self) -> Key {
        let mut tick = now_us() / TICK_US;
        loop {
            tick += 1;
            if let Some(key) = self.key_at(tick) {
                let left = (tick * TICK_US).saturating_sub(now_us());
                std::thread::sleep(Duration::from_micros(left));
                return key;
            }
        }
    }

    /// The key that it uses at this tick.
    fn key_at(&mut self, tick: u64) -> Option<Key> {
        if self.kind == Kind::Large {
            let key = LARGE_KEY + self.random.range(0, u64::from(LARGE_KEYS) - 1) as Key;
            return (tick % LARGE_EACH == 0).then_some(key);
        }
        let (round, alone) = (tick / 2, tick % 2 == 1);
        let mine = round % (KINDS.len() as u64 - 1) == self.number as u64;
        (mine || !alone).then_some((round % u64::from(SMALL_KEYS)) as Key)
    }

    fn connect(&mut self) -> Option<Connection> {
        let opened = self.shared.connect(self.kind.patience());
        let opened = opened.and_then(|it| Ok((it.stream()?, it)));
        match opened {
            Ok((stream, connection)) => {
                lock(&self.journal).connection = Some(stream);
                Some(connection)
            }
            Err(error) => {
                // Nobody answers while nobody leads.
                let nobody = is_late(&error) || error.kind() == ErrorKind::HostUnreachable;
                self.lost(&error, nobody);
                std::thread::sleep(CONNECT_AGAIN);
                None
            }
        }
    }

    /// One operation, noted whether it is answered or not.
    fn operate(&mut self, connection: &mut Connection, key: Key) -> io::Result<()> {
        let new = || self.shared.values.fetch_add(1, Ordering::SeqCst) + 1;
        let action = match self.random.range(0, 9) {
            0..=3 => Action::Read,
            4..=7 => Action::Write(new()),
            _ => Action::Swap(new()),
        };
        // The checker takes two moments of one µs for the same moment.
        while now_us() <= self.last_us {
            std::hint::spin_loop();
        }
        let mut operation = Operation {
            client: self.name,
            key,
            action,
            invoked_us: now_us(),
            answer: None,
        };
        let answer = ask(connection, key, action);
        self.last_us = now_us();
        operation.answer = answer.as_ref().ok().map(|answer| (self.last_us, *answer));
        lock(&self.journal).operations.push(operation);
        if answer.is_err() {
            self.name = self.shared.names.fetch_add(1, Ordering::SeqCst);
        }
        answer.map(|_| ())
    }

    /// A connection is lost, or was not opened.
    fn lost(&self, error: &io::Error, allowed: bool) {
        if !allowed && !self.shared.lenient.load(Ordering::SeqCst) {
            let said = if is_late(error) {
                let seconds = PATIENCE.as_secs();
                format!("client {}: no answer for {seconds} s", self.number)
            } else {
                format!("client {}: {error}", self.number)
            };
            lock(&self.journal).broken.push(said);
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unless the guest reboots.
    #[test]
    fn a_refused_connection_is_reported() {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let address = SocketAddrV4::new([127, 0, 0, 1].into(), port);
        for lenient in [false, true] {
            let clients = Clients::start(None, address, 1);
            clients.be_lenient(lenient);
            clients.resume();
            std::thread::sleep(Duration::from_millis(50));
            assert!(lenient || wait_for_one(&clients), "no error was reported");
            let progress = Progress::silent(AtomicBool::new(false).into());
            clients.pause(&progress).unwrap();
            let (operations, broken) = clients.take();
            assert_eq!(broken.is_empty(), lenient, "{broken:?}");
            assert!(operations.iter().all(Vec::is_empty));
        }
    }

    fn wait_for_one(clients: &Clients) -> bool {
        let deadline = Instant::now() + Duration::from_secs(30);
        while clients.broken().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        !clients.broken().is_empty()
    }
}

//! The client that judges a Redis guest. It writes numbered values over connections that it never
//! renews, notes which writes were acknowledged, and at the end reads every one of them back.
//!
//! Connection *c* sets `plover:c:0` to 0, then `plover:c:1` to 1, and so on, each after the
//! acknowledgement of the one before. So the number of acknowledgements says exactly which writes
//! must be there. A write that was sent and not acknowledged is not among them.

use crate::redis::Connection;
use anyhow::{Context, Result};
use plover_lab::net::Namespace;
use plover_lab::trace::now_us;
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A connection without an answer for this long counts as lost. TCP itself gives up only after many
/// minutes, a user long before that.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that are read back in one go.
const AUDIT_KEYS: u64 = 256;

/// The load of the client.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    /// Connections, all open from the beginning to the end.
    pub connections: u32,
    /// At most this many writes a second on each: enough to keep an emulated guest busy, and
    /// few enough that all values of a run fit into the guest's memory on a fast machine.
    pub writes_per_second: u32,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            connections: 10,
            writes_per_second: 100,
        }
    }
}

/// The client's counts so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// The fewest acknowledged on any one connection.
    pub acked_min: u64,
    /// Connections that were lost, with the error of each.
    pub resets: Vec<String>,
}

/// Times without an answer around a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The longest time without any acknowledgement on any connection.
    pub silence_us: u64,
    /// The time of the acknowledgement that ended it, on the clock of the traces.
    pub first_reply_us: u64,
    /// The longest time without an acknowledgement on the connection that waited longest.
    pub slowest_us: u64,
    /// Whether every connection has had an acknowledgement since.
    pub all_replied: bool,
}

/// The result of reading everything back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Acknowledged writes that are missing or have another value.
    pub lost: u64,
    /// When each of them was acknowledged, on the clock of the traces.
    pub lost_acked_us: Vec<u64>,
    /// The keys of the first few of them.
    pub lost_keys: Vec<String>,
    /// Connections that were lost, with the error of each.
    pub resets: Vec<String>,
}

/// One connection's account.
#[derive(Debug, Default)]
struct Account {
    /// When each write was acknowledged.
    acks_us: Vec<u64>,
    lost: Option<String>,
}

#[derive(Debug)]
struct Writer {
    account: Mutex<Account>,
    stream: TcpStream,
}

impl Writer {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writers at work, one thread a connection. Dropping it closes the connections.
#[derive(Debug)]
pub struct Client {
    namespace: Option<Namespace>,
    address: SocketAddrV4,
    writers: Vec<Arc<Writer>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Client {
    /// Opens the connections from a host of a lab (or from here) and begins to write.
    ///
    /// # Errors
    /// Not all connections could be opened.
    pub fn start(
        namespace: Option<Namespace>,
        address: SocketAddrV4,
        pressure: Pressure,
    ) -> Result<Self> {
        let pace = Duration::from_secs(1) / pressure.writes_per_second.max(1);
        let mut client = Self {
            namespace,
            address,
            writers: Vec::new(),
            threads: Vec::new(),
            stop: Arc::default(),
        };
        for number in 0..pressure.connections {
            let connection = client.connect()?;
            let writer = Arc::new(Writer {
                account: Mutex::default(),
                stream: connection.stream()?,
            });
            client.writers.push(Arc::clone(&writer));
            let stop = Arc::clone(&client.stop);
            client.threads.push(std::thread::spawn(move || {
                write_until(&stop, connection, number, pace, &writer);
            }));
        }
        Ok(client)
    }

    fn connect(&self) -> Result<Connection> {
        let address = self.address;
        let open = || {
            Connection::open(address, PATIENCE)
                .with_context(|| format!("cannot connect to {address}"))
        };
        match &self.namespace {
            Some(namespace) => namespace.run(open),
            None => open(),
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            acked_min: u64::MAX,
            ..Counts::default()
        };
        for writer in &self.writers {
            let account = writer.account();
            let acked = account.acks_us.len() as u64;
            counts.acked += acked;
            counts.acked_min = counts.acked_min.min(acked);
            counts.resets.extend(account.lost.clone());
        }
        counts
    }

    /// The times without an answer that end after `since_us`.
    pub fn gap(&self, since_us: u64) -> Gap {
        let all: Vec<Vec<u64>> = self
            .writers
            .iter()
            .map(|w| w.account().acks_us.clone())
            .collect();
        gap_of(&all, since_us)
    }

    /// Stops the writers and reads everything back over a fresh connection, so that only the guest's own
    /// content counts.
    pub fn audit(mut self) -> Result<Audit> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let Counts { acked, resets, .. } = self.counts();
        let mut audit = Audit {
            acked,
            resets,
            ..Audit::default()
        };
        let mut connection = self.connect().context("the audit")?;
        for (number, writer) in self.writers.iter().enumerate() {
            let acks_us = writer.account().acks_us.clone();
            let written = acks_us.len() as u64;
            for from in (0..written).step_by(AUDIT_KEYS as usize) {
                let values: Vec<u64> = (from..written.min(from + AUDIT_KEYS)).collect();
                let keys: Vec<String> = values.iter().map(|n| key(number as u32, *n)).collect();
                let found = connection
                    .get_many(&keys)
                    .context("the audit could not read")?;
                for ((value, key), found) in values.into_iter().zip(keys).zip(found) {
                    if found.as_deref() != Some(value.to_string().as_bytes()) {
                        audit.lost += 1;
                        audit.lost_acked_us.push(acks_us[value as usize]);
                        if audit.lost_keys.len() < 10 {
                            audit.lost_keys.push(key);
                        }
                    }
                }
            }
        }
        Ok(audit)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for writer in &self.writers {
            // A writer that waits for an answer ends at once. A lost connection is closed already.
            let _ = writer.stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn key(connection: u32, number: u64) -> String {
    format!("plover:{connection}:{number}")
}

fn write_until(
    stop: &AtomicBool,
    mut connection: Connection,
    number: u32,
    pace: Duration,
    writer: &Writer,
) {
    let mut next = Instant::now();
    for value in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match connection.set(&key(number, value), &value.to_string()) {
            Ok(()) => writer.account().acks_us.push(now_us()),
            Err(error) => {
                writer.account().lost = Some(format!("connection {number}: {error}"));
                return;
            }
        }
        // After a silence the pace begins anew. Missed writes are not made up for.
        next = (next + pace).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// The silences that end after `since_us`, from each connection's acknowledgements.
pub(crate) fn gap_of(all: &[Vec<u64>], since_us: u64) -> Gap {
    let mut together: Vec<u64> = all.iter().flatten().copied().collect();
    together.sort_unstable();
    let (silence_us, first_reply_us) = longest(&together, since_us);
    Gap {
        silence_us,
        first_reply_us,
        slowest_us: all
            .iter()
            .map(|acks| longest(acks, since_us).0)
            .max()
            .unwrap_or(0),
        all_replied: all
            .iter()
            .all(|acks| acks.last().is_some_and(|last| *last > since_us)),
    }
}

/// The longest time between two neighbours of which the later one comes after `since_us`, and the later
/// one.
fn longest(acks: &[u64], since_us: u64) -> (u64, u64) {
    acks.windows(2)
        .filter(|pair| pair[1] > since_us)
        .map(|pair| (pair[1] - pair[0], pair[1]))
        .max_by_key(|(gap, _)| *gap)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};

    #[test]
    fn silences_are_measured_across_the_fault() {
        let all = [vec![10, 20, 500, 510], vec![15, 30, 900, 905]];
        // Together: 10 15 20 30 | 500 510 900 905.
        let gap = gap_of(&all, 40);
        assert_eq!((gap.silence_us, gap.first_reply_us), (470, 500));
        assert_eq!(gap.slowest_us, 870);
        assert!(gap.all_replied);
        assert!(
            !gap_of(&all, 600).all_replied,
            "the first has not heard anything since"
        );
        assert_eq!(gap_of(&[vec![1], vec![]], 0), Gap::default());
    }

    /// A Redis of a few lines, which forgets the key `forget`.
    fn forgetful_redis(forget: &'static str) -> SocketAddrV4 {
        use std::collections::HashMap;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let memory: Arc<Mutex<HashMap<String, String>>> = Arc::default();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, memory) = (stream.unwrap(), Arc::clone(&memory));
                std::thread::spawn(move || {
                    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let mut next = || lines.next().and_then(std::io::Result::ok);
                    while let Some(count) = next() {
                        let count: usize = count[1..].parse().unwrap();
                        let words: Vec<String> =
                            (0..count).map(|_| (next(), next().unwrap()).1).collect();
                        let mut memory = memory.lock().unwrap();
                        let answer = if words[0] == "SET" {
                            if words[1] != forget {
                                memory.insert(words[1].clone(), words[2].clone());
                            }
                            "+OK\r\n".to_owned()
                        } else {
                            let mut answer = format!("*{}\r\n", count - 1);
                            for key in &words[1..] {
                                answer += &memory.get(key).map_or("$-1\r\n".into(), |value| {
                                    format!("${}\r\n{value}\r\n", value.len())
                                });
                            }
                            answer
                        };
                        (&stream).write_all(answer.as_bytes()).unwrap();
                    }
                });
            }
        });
        SocketAddrV4::new([127, 0, 0, 1].into(), port)
    }

    fn client(address: SocketAddrV4, connections: u32, writes_per_second: u32) -> Client {
        let pressure = Pressure {
            connections,
            writes_per_second,
        };
        Client::start(None, address, pressure).unwrap()
    }

    fn audit_after(address: SocketAddrV4, writes: u64) -> Audit {
        let client = client(address, 3, 10_000);
        let deadline = Instant::now() + Duration::from_secs(30);
        while client.counts().acked_min < writes {
            assert!(Instant::now() < deadline, "{:?}", client.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
        client.audit().unwrap()
    }

    #[test]
    fn an_audit_finds_the_write_that_was_lost() {
        let audit = audit_after(forgetful_redis("plover:1:17"), 300);
        assert!(audit.acked >= 900);
        assert_eq!(
            (audit.lost, audit.lost_keys),
            (1, vec!["plover:1:17".into()])
        );
        assert!(audit.resets.is_empty());
        let [acked_us] = audit.lost_acked_us[..] else {
            panic!("{:?}", audit.lost_acked_us);
        };
        assert!(acked_us > 0 && acked_us < now_us());
        let audit = audit_after(forgetful_redis(""), 300);
        assert_eq!(audit.lost, 0);
    }

    #[test]
    fn a_closed_connection_is_a_reset() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address =
            SocketAddrV4::new([127, 0, 0, 1].into(), listener.local_addr().unwrap().port());
        let client = client(address, 1, 10);
        drop(listener.accept().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while client.counts().resets.is_empty() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(client.counts().resets[0].starts_with("connection 0"));
    }
}

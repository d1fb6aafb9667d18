//! The client whose word counts: it writes numbered values over connections that it never
//! renews, notes which writes were acknowledged, and at the end reads every one of them back.
//!
//! It is a process of its own, because it lives in another network namespace than the command
//! that drives it: [`serve`] is what runs there (`plover lab-client`), [`Client`] is the other
//! end. Between them go one JSON object a line, a question and an answer. The client ends when
//! its input does, so that it never outlives who started it.
//!
//! Connection *c* sets `plover:c:0` to 0, then `plover:c:1` to 1, and so on, each after the
//! acknowledgement of the one before; so the number of acknowledgements says exactly which
//! writes must be there, and a write whose fate is unknown is not among them.

use crate::net::Namespace;
use crate::redis::Connection;
use crate::trace::now_us;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A connection without an answer for this long counts as lost. TCP itself gives up only after
/// many minutes; a person long before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that are read back in one go.
const AUDIT_KEYS: u64 = 256;

/// What is asked of the client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Question {
    /// How far it is → [`Counts`].
    Count,
    /// How long it heard nothing, from this moment on → [`Gap`].
    Gap { since_us: u64 },
    /// Stop writing, and read everything back → [`Audit`].
    Audit,
}

/// How far the client is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// The fewest acknowledged on any one connection.
    pub acked_min: u64,
    /// Connections that were lost, and what was seen.
    pub resets: Vec<String>,
}

/// The silence around a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The longest time without any acknowledgement on any connection.
    pub silence_us: u64,
    /// The acknowledgement that ended it, on the clock of the traces.
    pub first_reply_us: u64,
    /// The longest time without one on the connection that waited longest.
    pub slowest_us: u64,
    /// Whether every connection has heard an acknowledgement since.
    pub all_replied: bool,
}

/// What reading everything back found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Writes that were acknowledged.
    pub acked: u64,
    /// Of those, not there or with another value.
    pub lost: u64,
    /// The first few of them.
    pub lost_keys: Vec<String>,
    /// Connections that were lost, and what was seen.
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
}

impl Writer {
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client's own process: writes until asked for the audit, and answers questions on its
/// standard input and output until the input ends.
///
/// # Errors
/// When not all connections can be opened, or the standard output is closed.
pub fn serve(address: SocketAddrV4, connections: u32, writes_per_second: u32) -> Result<()> {
    let mut load = Load::start(address, connections, writes_per_second)?;
    let mut output = std::io::stdout();
    for line in std::io::stdin().lines() {
        let question = serde_json::from_str(&line?).context("not a question")?;
        let answer = match question {
            Question::Count => serde_json::to_value(load.counts())?,
            Question::Gap { since_us } => serde_json::to_value(load.gap(since_us))?,
            Question::Audit => match load.audit() {
                Ok(audit) => serde_json::to_value(audit)?,
                Err(error) => serde_json::json!({ "error": format!("{error:#}") }),
            },
        };
        writeln!(output, "{answer}")?;
    }
    Ok(())
}

/// Writers at work.
struct Load {
    address: SocketAddrV4,
    writers: Vec<Arc<Writer>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    fn start(address: SocketAddrV4, connections: u32, writes_per_second: u32) -> Result<Self> {
        let pace = Duration::from_secs(1) / writes_per_second.max(1);
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Self {
            address,
            writers: Vec::new(),
            threads: Vec::new(),
            stop,
        };
        for number in 0..connections {
            let connection = Connection::open(address, PATIENCE)
                .with_context(|| format!("cannot connect to {address}"))?;
            let writer = Arc::new(Writer {
                account: Mutex::default(),
            });
            load.writers.push(Arc::clone(&writer));
            let stop = Arc::clone(&load.stop);
            load.threads.push(std::thread::spawn(move || {
                write_until(&stop, connection, number, pace, &writer);
            }));
        }
        Ok(load)
    }

    fn counts(&self) -> Counts {
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

    fn gap(&self, since_us: u64) -> Gap {
        let all: Vec<Vec<u64>> = self
            .writers
            .iter()
            .map(|w| w.account().acks_us.clone())
            .collect();
        gap_of(&all, since_us)
    }

    /// Over a fresh connection: what counts is what the guest holds, not what an old connection
    /// may still have in flight.
    fn audit(&mut self) -> Result<Audit> {
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
        let mut connection = Connection::open(self.address, PATIENCE)
            .context("the audit's connection was refused")?;
        for (number, writer) in self.writers.iter().enumerate() {
            let written = writer.account().acks_us.len() as u64;
            for from in (0..written).step_by(AUDIT_KEYS as usize) {
                let values: Vec<u64> = (from..written.min(from + AUDIT_KEYS)).collect();
                let keys: Vec<String> = values.iter().map(|n| key(number as u32, *n)).collect();
                let found = connection
                    .get_many(&keys)
                    .context("the audit could not read")?;
                for ((value, key), found) in values.into_iter().zip(keys).zip(found) {
                    if found.as_deref() != Some(value.to_string().as_bytes()) {
                        audit.lost += 1;
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
        // After a silence the pace begins anew; what was missed is not made up for.
        next = (next + pace).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// The silences that end after `since_us`, given each connection's acknowledgements.
fn gap_of(all: &[Vec<u64>], since_us: u64) -> Gap {
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

/// The longest time between two neighbours of which the later comes after `since_us`, and that
/// later one.
fn longest(acks: &[u64], since_us: u64) -> (u64, u64) {
    acks.windows(2)
        .filter(|pair| pair[1] > since_us)
        .map(|pair| (pair[1] - pair[0], pair[1]))
        .max_by_key(|(gap, _)| *gap)
        .unwrap_or_default()
}

/// The other end of [`serve`].
#[derive(Debug)]
pub struct Client {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// How hard a client writes.
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

impl Client {
    /// Starts `program lab-client` in a network namespace.
    pub fn start(
        program: &Path,
        namespace: &Namespace,
        address: SocketAddrV4,
        pressure: Pressure,
    ) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command
            .args(["lab-client", &address.to_string()])
            .args([
                pressure.connections.to_string(),
                pressure.writes_per_second.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for who started the client; the audit may still be wanted.
            .process_group(0);
        let mut child = namespace
            .exec_in(command)?
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let questions = questions.context("the client has no standard input")?;
        let answers = BufReader::new(answers.context("the client has no standard output")?);
        Ok(Self {
            child,
            questions,
            answers,
        })
    }

    /// How far it is.
    pub fn counts(&mut self) -> Result<Counts> {
        self.ask(Question::Count)
    }

    /// How long it heard nothing, from `since_us` on.
    pub fn gap(&mut self, since_us: u64) -> Result<Gap> {
        self.ask(Question::Gap { since_us })
    }

    /// Stops the writers and reads everything back.
    pub fn audit(mut self) -> Result<Audit> {
        self.ask(Question::Audit)
    }

    fn ask<T: DeserializeOwned>(&mut self, question: Question) -> Result<T> {
        let mut line = String::new();
        writeln!(self.questions, "{}", serde_json::to_string(&question)?)
            .and_then(|()| self.answers.read_line(&mut line))
            .context("the client has ended")?;
        if line.is_empty() {
            bail!("the client has ended; its last words are above");
        }
        let answer: serde_json::Value = serde_json::from_str(&line)?;
        if let Some(error) = answer.get("error").and_then(|error| error.as_str()) {
            bail!("{error}");
        }
        Ok(serde_json::from_value(answer)?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// A Redis of a few lines, with a memory that may be made to forget.
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

    fn audit_after(address: SocketAddrV4, writes: u64) -> Audit {
        let mut load = Load::start(address, 3, 10_000).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while load.counts().acked_min < writes {
            assert!(Instant::now() < deadline, "{:?}", load.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
        load.audit().unwrap()
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
        let audit = audit_after(forgetful_redis(""), 300);
        assert_eq!(audit.lost, 0);
    }

    #[test]
    fn a_closed_connection_is_a_reset() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address =
            SocketAddrV4::new([127, 0, 0, 1].into(), listener.local_addr().unwrap().port());
        let load = Load::start(address, 1, 10).unwrap();
        drop(listener.accept().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while load.counts().resets.is_empty() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(load.counts().resets[0].starts_with("connection 0"));
    }
}

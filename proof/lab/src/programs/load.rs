//! The clients: writers of keys of their own, whose acknowledged writes are read back in the end, and clients that
//! write and read the same keys, whose histories are checked for linearizability.

use super::group::{LISTEN, WITHIN};
use super::subject::{Client, Subject, Wrong};
use anyhow::Result;
use plover_register_proof::history::{Action, Answer, Key, Operation};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A client that waits longer for an answer connects anew.
const PATIENCE: Duration = Duration::from_millis(1000);
/// An attempt to connect that takes longer is given up.
const FOUND_WITHIN: Duration = Duration::from_millis(100);
/// A pause before the next try to connect.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
/// All clients of the registers use one key for so long. The check searches the orders of one key's operations.
const KEY_FOR: Duration = Duration::from_millis(250);
/// The pause of a register's client, so that a key has some dozens of operations.
const PAUSE: Duration = Duration::from_millis(15);

/// State that the clients share.
#[derive(Debug)]
pub struct Shared {
    subject: &'static dyn Subject,
    files: std::path::PathBuf,
    pub stop: AtomicBool,
    began: Instant,
    names: AtomicU64,
    values: AtomicU64,
    pub history: Mutex<Vec<Operation>>,
    /// Wrong answers to the clients of registers.
    pub wrong: Mutex<Vec<String>>,
}

/// The observations of one writer.
#[derive(Clone, Debug, Default)]
pub struct Written {
    pub acknowledged: Vec<(String, String)>,
    /// Keys whose write may have happened.
    pub open: Vec<String>,
    pub wrong: Vec<String>,
    pub connections: usize,
    /// The times of the answers.
    pub answered: Vec<Instant>,
}

impl Shared {
    pub fn new(subject: &'static dyn Subject, files: &Path) -> Self {
        Self {
            subject,
            files: files.into(),
            stop: AtomicBool::new(false),
            began: Instant::now(),
            names: AtomicU64::new(0),
            values: AtomicU64::new(0),
            history: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    /// Connects. Linux repeats a connection attempt that was lost after 1 s, which is longer than a failover takes. So
    /// the client looks with short attempts whether there is a leader.
    fn open(&self) -> Option<Box<dyn Client>> {
        let client = TcpStream::connect_timeout(&LISTEN.into(), FOUND_WITHIN)
            .map_err(anyhow::Error::from)
            .and_then(|_| self.subject.open(&self.files, LISTEN, PATIENCE));
        if client.is_err() {
            std::thread::sleep(AGAIN_AFTER);
        }
        client.ok()
    }

    /// One client that writes keys of its own until it is told to stop.
    pub fn write(&self, name: usize) -> Written {
        let mut written = Written::default();
        let mut number = 0_u64;
        let mut connection = None;
        while self.goes_on() {
            let Some(client) = &mut connection else {
                connection = self.open();
                written.connections += usize::from(connection.is_some());
                continue;
            };
            number += 1;
            let (key, value) = (format!("w{name}-{number}"), number.to_string());
            match client.write(&key, &value) {
                Ok(()) => {
                    written.acknowledged.push((key, value));
                    written.answered.push(Instant::now());
                    continue;
                }
                Err(error) if error.is::<Wrong>() => written.wrong.push(format!("{error:#}")),
                Err(_) => written.open.push(key),
            }
            connection = None;
        }
        written
    }

    /// One client that writes and reads keys that others write and read, too.
    pub fn use_register(&self) -> Result<()> {
        let mut connection = None;
        let mut name = 0;
        while self.goes_on() {
            let Some(client) = &mut connection else {
                // An operation without an answer may happen at any later time, so its client's name is spent.
                name = self.names.fetch_add(1, Ordering::SeqCst);
                connection = self.open();
                continue;
            };
            let value = self.values.fetch_add(1, Ordering::SeqCst) + 1;
            let key = (self.began.elapsed().as_millis() / KEY_FOR.as_millis()) as Key;
            let invoked_us = self.now_us();
            let action = match value % 2 {
                0 => Action::Write(value),
                _ => Action::Read,
            };
            let answer = operate(client.as_mut(), register(key), action);
            if let Err(error) = &answer {
                connection = None;
                if error.is::<Wrong>() {
                    let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    wrong.push(format!("r-{key}: {error:#}"));
                }
            }
            let operation = Operation {
                client: name,
                key,
                action,
                invoked_us,
                answer: answer.ok().map(|answer| (self.now_us(), answer)),
            };
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            history.push(operation);
            drop(history);
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// One operation of a register. A value that nobody can have written is a wrong answer.
fn operate(client: &mut dyn Client, word: String, action: Action) -> Result<Answer> {
    if let Some(value) = action.writes() {
        client.write(&word, &value.to_string())?;
        return Ok(Answer::Done);
    }
    let found = client.read(&[word])?.into_iter().next().flatten();
    let number = |text: String| {
        let number = text.parse::<u64>();
        number.map_err(|_| Wrong(format!("{text:?} is no number")))
    };
    Ok(Answer::Found(found.map(number).transpose()?))
}

/// The key of a register.
pub fn register(key: Key) -> String {
    format!("r-{key}")
}

/// Reads keys, `at_once` with one request. A connection that is lost is opened again: a checkpoint may end it, and reads fill
/// the log, too.
pub fn read_all(
    mut open: impl FnMut() -> Result<Box<dyn Client>>,
    keys: &[String],
    at_once: usize,
) -> Result<Vec<Option<String>>> {
    let mut values = Vec::new();
    let mut connection = None;
    for some in keys.chunks(at_once) {
        let deadline = Instant::now() + WITHIN;
        loop {
            let client = match &mut connection {
                Some(client) => Ok(client),
                None => open().map(|client| connection.insert(client)),
            };
            match client.and_then(|client| client.read(some)) {
                Ok(read) => break values.extend(read),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => {
                    connection = None;
                    std::thread::sleep(AGAIN_AFTER * 10);
                }
            }
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that reads this.
    struct Reads(Option<&'static str>);

    impl Client for Reads {
        fn write(&mut self, _key: &str, _value: &str) -> Result<()> {
            Ok(())
        }

        fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
            Ok(keys.iter().map(|_| self.0.map(str::to_owned)).collect())
        }
    }

    #[test]
    fn a_value_that_nobody_can_have_written_is_wrong() {
        let read = |text| operate(&mut Reads(text), register(1), Action::Read);
        assert_eq!(read(None).unwrap(), Answer::Found(None));
        assert_eq!(read(Some("7")).unwrap(), Answer::Found(Some(7)));
        assert!(read(Some("OK")).unwrap_err().is::<Wrong>());
        let written = operate(&mut Reads(None), register(1), Action::Write(7));
        assert_eq!(written.unwrap(), Answer::Done);
    }
}

//! Thousands of connections to a Redis. Each counts a key of its own up, and expects to find it where it left it.

use crate::redis::Connection;
use anyhow::{Context, Result, ensure};
use plover_lab::net::Namespace;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::SocketAddrV4;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// A connection without an answer for this long counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections that wait for an answer at one time.
const THREADS: usize = 32;

/// Files that this process has open beside the connections.
const OTHER_FILES: u64 = 1000;

/// Connections that are never renewed. Dropping it closes them.
#[derive(Debug)]
pub struct Crowd {
    /// The connections of each thread.
    parts: Vec<Vec<Connection>>,
    /// How often each has counted.
    rounds: i64,
}

impl Crowd {
    /// Opens `count` connections from a host of a lab.
    ///
    /// # Errors
    /// Not all could be opened.
    pub fn open(namespace: &Namespace, address: SocketAddrV4, count: usize) -> Result<Self> {
        let mut limit = getrlimit(Resource::Nofile);
        let files = count as u64 + OTHER_FILES;
        if limit.current.is_some_and(|now| now < files) {
            limit.current = Some(files);
            limit.maximum = limit.maximum.map(|most| most.max(files));
            setrlimit(Resource::Nofile, limit)
                .context("this process may not open so many files")?;
        }
        let open = |part: usize| {
            namespace.run(|| {
                let numbers = (part..count).step_by(THREADS);
                let open = |number| {
                    let opened = Connection::open(address, PATIENCE);
                    opened.with_context(|| format!("connection {number} to {address}"))
                };
                numbers.map(open).collect::<Result<Vec<_>>>()
            })
        };
        let parts = in_threads(0..THREADS, open)?;
        Ok(Self { parts, rounds: 0 })
    }

    /// How often each connection has counted.
    pub fn rounds(&self) -> i64 {
        self.rounds
    }

    /// Each connection counts once, and finds its key where it left it.
    ///
    /// # Errors
    /// A connection was lost, or a count.
    pub fn count_up(&mut self) -> Result<()> {
        let due = self.rounds + 1;
        let count = |(part, connections): (usize, &mut Vec<Connection>)| {
            let numbers = (part..).step_by(THREADS);
            for (number, connection) in numbers.zip(connections) {
                let key = format!("plover:crowd:{number}");
                let found = connection.incr(&key);
                let found = found.with_context(|| format!("connection {number}"))?;
                ensure!(found == due, "{key} is {found}, not {due}");
            }
            Ok(())
        };
        in_threads(self.parts.iter_mut().enumerate(), count)?;
        self.rounds = due;
        Ok(())
    }
}

/// Does `work` for each item, each in a thread of its own.
fn in_threads<I: Send, T: Send>(
    items: impl Iterator<Item = I>,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<ScopedJoinHandle<'_, Result<T>>> =
            items.map(|item| scope.spawn(move || work(item))).collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.collect()
    })
}

//! Writing from a thread of its own.
//!
//! Logs, traces and the console's log go to files and sockets that can stand still: a disk that hangs, a
//! journal that is stopped. The loop of a replica must not stand still with them, or the others take its
//! host for dead.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Writes that wait at most. More are lost.
const WAITING_MAX: usize = 8192;

/// The threads of this process, by name: the log's is started before there is a replica.
static THREADS: Mutex<BTreeMap<String, ErrorCounter>> = Mutex::new(BTreeMap::new());

/// A writer that never waits.
#[derive(Debug)]
pub struct Background {
    writer: NonBlocking,
    /// When it is dropped, what still waits is written, for a second at most.
    _rest: WorkerGuard,
}

impl Background {
    /// Starts the thread that writes to `to`. A process that forks starts it after that.
    pub fn start(name: &str, to: impl Write + Send + 'static) -> Self {
        let builder = NonBlockingBuilder::default().thread_name(name);
        let (writer, rest) = builder.buffered_lines_limit(WAITING_MAX).finish(to);
        let mut all = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.to_owned(), writer.error_counter());
        drop(all);
        Self {
            writer,
            _rest: rest,
        }
    }

    /// A writer that sends to the same thread.
    pub fn writer(&self) -> NonBlocking {
        self.writer.clone()
    }

    /// How many writes each thread of this process has lost, because too many others waited.
    pub fn lost() -> BTreeMap<String, usize> {
        let all = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = all.iter();
        lost.map(|(name, counter)| (name.clone(), counter.dropped_lines()))
            .collect()
    }
}

impl Write for Background {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    /// A file that hangs until the channel's other end is gone.
    struct Hung(Receiver<()>);

    impl Write for Hung {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_that_hangs_stops_nobody_and_its_losses_are_counted() {
        let (hangs, until) = channel();
        let mut background = Background::start("hung", Hung(until));
        for _ in 0..2 * WAITING_MAX {
            background.write_all(b"line\n").unwrap();
        }
        assert!(Background::lost()["hung"] >= WAITING_MAX - 2);
        drop(hangs);
    }

    #[test]
    fn what_waits_is_written_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut background = Background::start("test", std::fs::File::create(&path).unwrap());
        for _ in 0..1000 {
            background.write_all(b"line\n").unwrap();
        }
        drop(background);
        assert_eq!(std::fs::read(&path).unwrap().len(), 5000);
    }
}

//! The connections that are open at the same time.
//!
//! When all places are taken, a further connection waits for at most about a second. Then the oldest connection of the host that has
//! the most is closed for it. So slow clients, however many, do not keep a scrape out.

use plover_fabric::most_crowded;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    /// How many there are.
    max: usize,
    /// How long each connection keeps its place at least.
    kept_for: Duration,
    /// The open connections, oldest first.
    open: Mutex<Vec<Open>>,
    /// A connection has left.
    left: Condvar,
}

/// An open connection.
#[derive(Debug)]
struct Open {
    host: String,
    stream: Arc<TcpStream>,
    since: Instant,
    /// It was closed for another one. It has its place until its thread has found that out.
    is_closed: bool,
}

/// A place that a connection has until this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    stream: Arc<TcpStream>,
}

impl Places {
    pub fn new(max: usize, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self {
            max,
            kept_for,
            open: Mutex::default(),
            left: Condvar::new(),
        })
    }

    /// Waits for a place for a connection from `host`.
    pub fn enter(self: &Arc<Self>, stream: TcpStream, host: IpAddr) -> Place {
        let stream = Arc::new(stream);
        let mut open = self.open();
        while open.len() >= self.max {
            let wait = self.close_one(&mut open);
            let woken = self.left.wait_timeout(open, wait);
            open = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        open.push(Open {
            host: host.to_string(),
            stream: Arc::clone(&stream),
            since: Instant::now(),
            is_closed: false,
        });
        Place {
            places: Arc::clone(self),
            stream,
        }
    }

    /// Closes the oldest connection of the host that has the most, if it has had its time. Returns after how long to look
    /// again.
    fn close_one(&self, open: &mut [Open]) -> Duration {
        let mut living: Vec<_> = open.iter_mut().filter(|it| !it.is_closed).collect();
        let hosts: Vec<&str> = living.iter().map(|it| &*it.host).collect();
        let crowded = most_crowded(&hosts);
        let Some(crowded) = living.get_mut(crowded) else {
            return self.kept_for;
        };
        let rest = self.kept_for.saturating_sub(crowded.since.elapsed());
        if !rest.is_zero() {
            return rest;
        }
        crowded.is_closed = true;
        // The thread that reads from it or writes to it finds its end.
        let _ = crowded.stream.shutdown(Shutdown::Both);
        self.kept_for
    }

    fn open(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many places are taken.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.open().len()
    }
}

impl Place {
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.places.open();
        open.retain(|it| !Arc::ptr_eq(&it.stream, &self.stream));
        self.places.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn the_host_that_has_the_most_connections_makes_room() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let places = Places::new(3, Duration::from_millis(10));
        let enter = |host: [u8; 4]| {
            let client = TcpStream::connect(address).unwrap();
            let place = places.enter(listener.accept().unwrap().0, host.into());
            std::thread::spawn(move || place.stream().read_to_end(&mut Vec::new()).is_ok());
            client
        };
        let mut alone = enter([192, 0, 2, 1]);
        let mut many = [2; 3].map(|host| enter([192, 0, 2, host]));
        assert_eq!(places.taken(), 3);
        let mut nothing = Vec::new();
        let ended = many[0].read_to_end(&mut nothing);
        assert!(ended.is_ok(), "the oldest one of the many");
        // The others are open, so that reading from them ends by the timeout.
        for client in many[1..].iter_mut().chain([&mut alone]) {
            let soon = Duration::from_millis(10);
            client.set_read_timeout(Some(soon)).unwrap();
            assert!(client.read_to_end(&mut nothing).is_err());
        }
    }
}

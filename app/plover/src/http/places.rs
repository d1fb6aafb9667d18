//! The connections that are open at the same time.
//!
//! When all places are taken, the oldest connection of the host that has the most is closed for a further one. If that host has more than
//! a quarter of the places, this happens at once, and otherwise when the connection is a second old. So slow clients of a few
//! hosts do not keep a scrape by another host out. Clients of many hosts that connect again and again may keep it out: only a
//! firewall helps then.

use plover_fabric::most_crowded;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    /// How many there are.
    max: usize,
    /// How long each connection keeps its place at least, unless its host has more than a quarter of them.
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

    /// Closes the oldest connection of the host that has the most, if it has had its time, or the host has too many. Returns after
    /// how long to look again.
    fn close_one(&self, open: &mut [Open]) -> Duration {
        let mut living: Vec<_> = open.iter_mut().filter(|it| !it.is_closed).collect();
        let hosts: Vec<&str> = living.iter().map(|it| &*it.host).collect();
        let crowded = most_crowded(&hosts);
        let same = |host: &&&str| Some(*host) == hosts.get(crowded);
        let has_too_many = hosts.iter().filter(same).count() > self.max / 4;
        let Some(crowded) = living.get_mut(crowded) else {
            return self.kept_for;
        };
        let rest = self.kept_for.saturating_sub(crowded.since.elapsed());
        if !rest.is_zero() && !has_too_many {
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

    /// A server with this many places, and a client of it from a host.
    fn server(max: usize, kept_for: Duration) -> (Arc<Places>, impl Fn([u8; 4]) -> TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let places = Places::new(max, kept_for);
        let of = Arc::clone(&places);
        let enter = move |host: [u8; 4]| {
            let client = TcpStream::connect(address).unwrap();
            let place = of.enter(listener.accept().unwrap().0, host.into());
            std::thread::spawn(move || place.stream().read_to_end(&mut Vec::new()).is_ok());
            client
        };
        (places, enter)
    }

    /// The test would wait for an hour otherwise.
    #[test]
    fn a_host_that_has_more_than_a_quarter_makes_room_at_once() {
        let (places, enter) = server(4, Duration::from_secs(3600));
        let _clients: Vec<_> = (0..40).map(|_| enter([192, 0, 2, 1])).collect();
        let _other = enter([192, 0, 2, 2]);
        assert_eq!(places.taken(), 4);
    }

    #[test]
    fn the_host_that_has_the_most_connections_makes_room() {
        let (places, enter) = server(3, Duration::from_millis(10));
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

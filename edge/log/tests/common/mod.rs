//! Groups of log servers in threads of one process.

#![allow(dead_code, reason = "each test binary uses its own part")]

use plover_fabric::{TcpConfig, TcpFabric};
use plover_log::{Client, Config, Server, StateMachine, Stopper};
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on the busiest machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Addresses that nobody listens on, out of a part of 127.0.0.0/8 that no other test uses, so
/// that a replica can come back to its port.
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let third = NEXT.fetch_add(1, Ordering::Relaxed);
    let ip = Ipv4Addr::new(127, 128 | high & 63, low, third);
    let held: Vec<_> = (0..count)
        .map(|_| TcpListener::bind((ip, 0)).expect("loopback has free ports"))
        .collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("bound");
    held.iter().map(address).collect()
}

/// Adds what it is given to a sum, and answers with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub sum: u64,
    pub entries: u64,
}

impl StateMachine for Sum {
    fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
        self.entries += 1;
        self.sum += entry.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        answer.extend_from_slice(&self.sum.to_le_bytes());
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sum.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
    }

    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
        let Some(bytes) = snapshot else {
            *self = Self::default();
            return Ok(());
        };
        let (sum, entries) = bytes.split_first_chunk().ok_or("too short")?;
        let entries = entries.try_into().map_err(|_| "of another length")?;
        self.sum = u64::from_le_bytes(*sum);
        self.entries = u64::from_le_bytes(entries);
        Ok(())
    }
}

/// A replica over TCP.
pub fn tcp(me: usize, addresses: &[SocketAddr]) -> TcpFabric {
    let all = addresses.iter().enumerate();
    let peers = all
        .filter(|(id, _)| *id != me)
        .map(|(id, address)| (ReplicaId(id as u8), *address))
        .collect();
    let config = TcpConfig::new("test", ReplicaId(me as u8), addresses[me], peers);
    TcpFabric::new(config).expect("loopback works")
}

/// The configuration of replica `me` of `size`.
pub fn config(me: usize, size: usize) -> Config {
    let members = ReplicaSet::of((0..size).map(|id| ReplicaId(id as u8)));
    let mut config = Config::new(ReplicaId(me as u8), members);
    // The tests share the machine with whatever else it does.
    config.heartbeat = Micros::from_ms(100);
    config.timeout = Micros::from_ms(1000);
    config
}

/// A replica in a thread of its own; gives its server back when it is stopped.
pub struct Running<M> {
    pub client: Client,
    stopper: Stopper,
    thread: JoinHandle<Server<M>>,
}

impl<M: StateMachine + Send + 'static> Running<M> {
    pub fn start(server: Server<M>) -> Self {
        let (client, stopper) = (server.client(), server.stopper());
        let thread = std::thread::spawn(move || {
            let mut server = server;
            server.run().expect("the server runs");
            server
        });
        Self {
            client,
            stopper,
            thread,
        }
    }

    pub fn stop(self) -> Server<M> {
        self.stopper.stop();
        self.thread.join().expect("the server's thread ends")
    }
}

/// Appends through whoever leads, trying again while nobody does.
pub fn append<M>(group: &mut [Running<M>], entry: &[u8]) -> (usize, Viewstamp) {
    let until = Instant::now() + PATIENCE;
    loop {
        for (id, replica) in group.iter_mut().enumerate() {
            if let Ok(at) = replica.client.append(entry) {
                return (id, at);
            }
        }
        assert!(Instant::now() < until, "nobody leads");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Turns all `servers` in this thread until `happened`.
pub fn turn_until<M: StateMachine>(
    servers: &mut [Server<M>],
    mut happened: impl FnMut(&[Server<M>]) -> bool,
) {
    let until = Instant::now() + PATIENCE;
    while !happened(servers) {
        assert!(Instant::now() < until, "it does not happen: {servers:?}");
        for server in servers.iter_mut() {
            server
                .turn(Some(Duration::from_micros(200)))
                .expect("it runs");
        }
    }
}

/// What threads have sent until all of them have ended.
pub fn collect<T>(start: impl FnOnce(std::sync::mpsc::Sender<T>)) -> Vec<T> {
    let (sender, receiver): (_, Receiver<T>) = channel();
    start(sender);
    receiver.iter().collect()
}

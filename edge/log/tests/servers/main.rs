//! Groups of log servers in one process.

mod disk;
mod generations;
mod group;
mod remote;
mod tls;

use plover_fabric::{BoxedFabric, Keys, TcpConfig, TcpFabric};
use plover_log::{Address, Config, Server, StateMachine, Stopper};
use plover_types::{Micros, ReplicaId, ReplicaSet, Viewstamp};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Free addresses in a part of 127.0.0.0/8 that no other test uses, so that a replica can come back to
/// its port.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
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

/// Adds the bytes of each entry to a sum, and answers with the sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sum {
    sum: u64,
    entries: u64,
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

/// A replica over TCP, with links to all others.
fn tcp(me: usize, addresses: &[SocketAddr]) -> BoxedFabric {
    let all: Vec<_> = (0..addresses.len()).collect();
    tcp_to(&all, me, addresses)
}

/// A replica over TCP, with links to those of `peers` that it is not itself.
fn tcp_to(peers: &[usize], me: usize, addresses: &[SocketAddr]) -> BoxedFabric {
    let peers = peers.iter().filter(|id| **id != me);
    let peers = peers
        .map(|id| (ReplicaId(*id as u8), addresses[*id]))
        .collect();
    let config = TcpConfig::new("test", ReplicaId(me as u8), addresses[me], peers);
    Box::new(TcpFabric::new(config).expect("loopback works"))
}

/// The configuration of replica `me` of `size`.
fn config(me: usize, size: usize) -> Config {
    let members = ReplicaSet::of((0..size).map(|id| ReplicaId(id as u8)));
    Config::new(ReplicaId(me as u8), members)
}

/// A replica in memory, set up by `change`.
fn server(
    me: usize,
    addresses: &[SocketAddr],
    machine: Sum,
    change: impl Fn(&mut Config),
) -> Server<Sum> {
    let mut config = config(me, addresses.len());
    change(&mut config);
    Server::in_memory(config, tcp(me, addresses), machine).expect("it opens")
}

/// Replicas in memory, each set up by `change`.
fn servers(size: usize, change: impl Fn(&mut Config)) -> Vec<Server<Sum>> {
    let addresses = free_addresses(size);
    let open = |me| server(me, &addresses, Sum::default(), &change);
    (0..size).map(open).collect()
}

/// Longer timeouts for replicas in threads of their own. They may run late on a busy machine, and must
/// not elect another leader.
fn patient(config: &mut Config) {
    config.heartbeat = Micros::from_ms(100);
    config.timeout = Micros::from_ms(1000);
}

/// A replica in a thread of its own, which serves clients at `address`, until this is dropped.
struct Running {
    address: Address,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(server: Server<Sum>) -> Self {
        Self::start_with(server, None)
    }

    /// With keys, clients need one, too.
    fn start_with(mut server: Server<Sum>, keys: Option<Arc<Keys>>) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let address = server.listen_with(&Address::Tcp(any), keys);
        let address = address.expect("it listens");
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || server.run().expect("the server runs"));
        Self {
            address,
            stopper,
            thread: Some(thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        let ended = ended.is_some_and(|it| it.is_ok());
        assert!(ended || std::thread::panicking(), "a server has failed");
    }
}

/// Turns all `servers` in this thread until `happened`.
fn turn_until(servers: &mut [Server<Sum>], mut happened: impl FnMut(&mut [Server<Sum>]) -> bool) {
    let until = Instant::now() + PATIENCE;
    while !happened(servers) {
        assert!(Instant::now() < until, "it does not happen: {servers:?}");
        for server in servers.iter_mut() {
            server.turn(Some(Duration::ZERO)).expect("it runs");
        }
    }
}

/// Turns all `servers` until each of them has this sum.
fn turn_until_sum(servers: &mut [Server<Sum>], sum: u64) {
    turn_until(servers, |all| all.iter().all(|it| it.machine().sum == sum));
}

/// Appends through the leader, and tries again while there is none. Returns the leader and the answer.
fn append(servers: &mut [Server<Sum>], entry: &[u8]) -> (usize, Vec<u8>) {
    loop {
        let mut leader = 0;
        turn_until(servers, |all| {
            leader = all.iter().position(Server::leads).unwrap_or(0);
            all[leader].submit(entry).is_ok()
        });
        let mut done = None;
        turn_until(servers, |all| {
            done = all[leader].completed();
            done.is_some()
        });
        if let Some(done) = done.filter(|it| it.result.is_ok()) {
            return (leader, done.answer);
        }
    }
}

/// The files of the log on disk, oldest first.
fn segments(dir: &Path) -> Vec<std::path::PathBuf> {
    let names = std::fs::read_dir(dir).expect("a directory");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let is_segment = |path: &std::path::PathBuf| path.to_string_lossy().contains("/log.0");
    let mut segments: Vec<_> = paths.filter(is_segment).collect();
    segments.sort();
    segments
}

/// Flips a bit at byte `at` of the oldest segment.
fn damage(dir: &Path, at: usize) {
    let segment = &segments(dir)[0];
    let mut bytes = std::fs::read(segment).expect("it can be read");
    bytes[at] ^= 4;
    std::fs::write(segment, bytes).expect("it can be written");
}

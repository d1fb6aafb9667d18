//! Well-known systems, run beside ours: three nodes each on the loopback interface.
//!
//! They are the distribution's packages with their default settings. Only addresses and folders are
//! ours, and ZooKeeper's heap is bounded. Clients connect to the leader, which spares the peers a hop
//! that a client of a follower would pay for.

pub(crate) mod etcd;
pub(crate) mod zookeeper;

use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How long a cluster may take until it has a leader.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to answer a question about itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Free addresses. A node binds its own later, so the ports cannot be held. They stay free because no
/// other process is likely to use the same address of 127.0.0.0/8.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(
        127,
        128 | high & 63,
        low,
        NEXT.fetch_add(1, Ordering::Relaxed),
    );
    let held: Vec<_> = (0..count)
        .map(|_| TcpListener::bind((ip, 0)))
        .collect::<Result<_, _>>()
        .context("the loopback interface has no free ports")?;
    let addresses = held.iter().map(TcpListener::local_addr);
    Ok(addresses.collect::<Result<_, _>>()?)
}

/// Sends `question` and returns all that comes back until the node closes the connection.
fn ask(address: SocketAddr, question: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Asks all nodes again and again until one says that it leads. `check` returns an error if there is a
/// reason to give up early.
fn await_leader(
    nodes: &[SocketAddr],
    question: &str,
    leads: impl Fn(&str) -> bool,
    mut check: impl FnMut() -> Result<()>,
) -> Result<SocketAddr> {
    let start = Instant::now();
    while start.elapsed() < START_WITHIN {
        check()?;
        for &node in nodes {
            if ask(node, question).is_ok_and(|answer| leads(&answer)) {
                return Ok(node);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("no node leads after {} s", START_WITHIN.as_secs())
}

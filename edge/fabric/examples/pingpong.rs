//! How long a record takes there and back: 256 bytes each way over [`TcpFabric`], driven by
//! events as a replica drives it, next to a raw blocking TCP socket in the same run. The two
//! take turns in rounds, so that a change of the machine's mood hits both. Then, how fast bulk
//! records flow one way.
//!
//! ```text
//! cargo run --release -p plover-fabric --example pingpong [-- ROUNDS PINGS_PER_ROUND]
//! ```

use plover_fabric::{Fabric, FabricEvent, Lane, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

const BYTES: usize = 256;
const R: [ReplicaId; 2] = [ReplicaId(0), ReplicaId(1)];

/// Sleeps until the fabric has something to do, then lets it.
fn turn(fabric: &mut TcpFabric, events: &mut Vec<FabricEvent>) {
    let timeout = fabric.timeout().map(|t| Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    // SAFETY: the fabric outlives the call and keeps its descriptor open.
    let fd = unsafe { BorrowedFd::borrow_raw(fabric.wait_fd()) };
    // An interrupted wait is a short one.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
    fabric.progress(events);
}

/// Answers every record until the link goes down.
fn echo_fabric(mut fabric: TcpFabric) {
    let mut events = Vec::new();
    loop {
        turn(&mut fabric, &mut events);
        for event in events.drain(..) {
            match event {
                FabricEvent::Record {
                    from,
                    lane: lane @ Lane::Log,
                    bytes,
                } => {
                    fabric.write(from, lane, &bytes).expect("one record fits");
                }
                FabricEvent::Down(_) => return,
                _ => {}
            }
        }
        fabric.flush();
    }
}

fn ping_fabric(fabric: &mut TcpFabric, pings: usize, into: &mut Vec<Duration>) {
    let mut events = Vec::new();
    for _ in 0..pings {
        let start = Instant::now();
        fabric
            .write(R[1], Lane::Log, &[7; BYTES])
            .expect("one record fits");
        fabric.flush();
        while !matches!(events.pop(), Some(FabricEvent::Record { .. })) {
            turn(fabric, &mut events);
        }
        into.push(start.elapsed());
    }
}

/// Writes records on the bulk lane as fast as the ring takes them. The last ring's worth may
/// still be under way at the end, so there have to be many.
fn flood(fabric: &mut TcpFabric, records: usize, record: &[u8]) -> Duration {
    let mut events = Vec::new();
    let start = Instant::now();
    let mut written = 0;
    while written < records {
        match fabric.write(R[1], Lane::Bulk, record) {
            Ok(()) => written += 1,
            Err(_) => {
                events.clear();
                while !events
                    .iter()
                    .any(|event| matches!(event, FabricEvent::Room { .. }))
                {
                    turn(fabric, &mut events);
                }
            }
        }
    }
    fabric.flush();
    start.elapsed()
}

fn echo_raw(mut stream: TcpStream) {
    let mut buffer = [0; BYTES];
    while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
}

fn ping_raw(stream: &mut TcpStream, pings: usize, into: &mut Vec<Duration>) -> std::io::Result<()> {
    let mut buffer = [7; BYTES];
    for _ in 0..pings {
        let start = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        into.push(start.elapsed());
    }
    Ok(())
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000].as_secs_f64() * 1e6;
    println!(
        "{name:22} p50 {:7.1} us   p90 {:7.1} us   p99 {:7.1} us",
        at(500),
        at(900),
        at(990)
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|argument| argument.parse::<usize>());
    let rounds = arguments.next().unwrap_or(Ok(20))?;
    let pings = arguments.next().unwrap_or(Ok(2000))?;

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut raw = TcpStream::connect(listener.local_addr()?)?;
    let (answering, _) = listener.accept()?;
    raw.set_nodelay(true)?;
    answering.set_nodelay(true)?;
    let raw_echo = thread::spawn(move || echo_raw(answering));

    let any: SocketAddr = "127.0.0.1:0".parse()?;
    // The higher id only listens; the lower one only needs to know where.
    let listening = TcpFabric::new(TcpConfig::new("pingpong", R[1], any, vec![(R[0], any)]))?;
    let there = listening.listen_address()?;
    let mut fabric = TcpFabric::new(TcpConfig::new("pingpong", R[0], any, vec![(R[1], there)]))?;
    let fabric_echo = thread::spawn(move || echo_fabric(listening));
    let mut events = Vec::new();
    while !events.contains(&FabricEvent::Up(R[1])) {
        turn(&mut fabric, &mut events);
    }

    let (mut over_fabric, mut over_raw) = (Vec::new(), Vec::new());
    // Not counted: caches, congestion windows.
    ping_fabric(&mut fabric, pings, &mut Vec::new());
    ping_raw(&mut raw, pings, &mut Vec::new())?;
    for _ in 0..rounds {
        ping_fabric(&mut fabric, pings, &mut over_fabric);
        ping_raw(&mut raw, pings, &mut over_raw)?;
    }
    println!("{BYTES} bytes there and back, {rounds} rounds of {pings}, loopback");
    report("TcpFabric, events", over_fabric);
    report("TCP, blocking", over_raw);
    let (records, record) = (16 << 10, vec![7; 64 << 10]);
    let seconds = flood(&mut fabric, records, &record).as_secs_f64();
    let mib = (records * record.len()) as f64 / f64::from(1 << 20);
    println!(
        "TcpFabric, bulk        {:.0} MiB/s in records of 64 KiB",
        mib / seconds
    );

    drop((fabric, raw));
    fabric_echo
        .join()
        .map_err(|_| "the echoing fabric panicked")?;
    raw_echo.join().map_err(|_| "the echoing socket panicked")?;
    Ok(())
}

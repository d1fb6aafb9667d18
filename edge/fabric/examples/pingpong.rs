//! How long a record takes there and an answer back, driven by events as a replica drives a
//! fabric, beside the bare floor of the same kind in the same run, with one backup and with two of
//! which the first to answer counts. They take turns in rounds, so that a change of the machine's
//! mood hits all. Then, how fast bulk records flow one way.
//!
//! ```text
//! cargo run --release -p plover-fabric --example pingpong [-- tcp|shm|both SPIN ROUNDS PINGS]
//! ```
//!
//! SPIN is `never` (the default), `adaptive` or `always`; it holds for `shm` and all floors.

use plover_fabric::floor::{Floor, FloorKind};
use plover_fabric::{Fabric, FabricEvent, Lane, ShmConfig, ShmFabric, Spin, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

const THERE_BYTES: usize = 256;
const BACK_BYTES: usize = 8;
const R: [ReplicaId; 2] = [ReplicaId(0), ReplicaId(1)];

type AnyFabric = Box<dyn Fabric + Send>;

/// Sleeps until the fabric has something to do, then lets it.
fn turn(fabric: &mut AnyFabric, events: &mut Vec<FabricEvent>) {
    let timeout = fabric.timeout();
    if timeout != Some(Duration::ZERO) {
        fabric.wait(timeout);
    }
    fabric.progress(events);
}

/// Answers every record of the log lane until the link goes down.
fn echo(mut fabric: AnyFabric) {
    let mut events = Vec::new();
    loop {
        turn(&mut fabric, &mut events);
        for event in events.drain(..) {
            match event {
                FabricEvent::Record { from, lane, bytes } => {
                    if lane == Lane::Log {
                        fabric
                            .write(from, lane, &bytes[..BACK_BYTES])
                            .expect("one record fits");
                    }
                    fabric.recycle(bytes);
                }
                FabricEvent::Down(_) => return,
                _ => {}
            }
        }
        fabric.flush();
    }
}

fn ping(fabric: &mut AnyFabric, pings: usize, into: &mut Vec<Duration>) {
    let mut events = Vec::new();
    for _ in 0..pings {
        let start = Instant::now();
        fabric
            .write(R[1], Lane::Log, &[7; THERE_BYTES])
            .expect("one record fits");
        fabric.flush();
        let answer = loop {
            match events.pop() {
                Some(FabricEvent::Record { bytes, .. }) => break bytes,
                _ => turn(fabric, &mut events),
            }
        };
        into.push(start.elapsed());
        fabric.recycle(answer);
    }
}

fn ping_floor(
    floor: &mut Floor,
    pings: usize,
    into: &mut Vec<Duration>,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..pings {
        let start = Instant::now();
        floor.round()?;
        into.push(start.elapsed());
    }
    Ok(())
}

/// Writes records on the bulk lane as fast as the ring takes them. The last ring's worth may
/// still be under way at the end, so there have to be many.
fn flood(fabric: &mut AnyFabric, records: usize, record: &[u8]) -> Duration {
    let mut events = Vec::new();
    let start = Instant::now();
    let mut written = 0;
    let room = |event: &FabricEvent| matches!(event, FabricEvent::Room { .. });
    while written < records {
        match fabric.write(R[1], Lane::Bulk, record) {
            Ok(()) => written += 1,
            Err(_) => {
                events.clear();
                while !events.iter().any(room) {
                    turn(fabric, &mut events);
                }
            }
        }
    }
    fabric.flush();
    start.elapsed()
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

/// What is measured: a fabric of two, and the floor of the same kind.
struct Subject {
    name: &'static str,
    fabric: AnyFabric,
    echo: thread::JoinHandle<()>,
    floor: Floor,
    quorum: Floor,
    over_fabric: Vec<Duration>,
    over_floor: Vec<Duration>,
    over_quorum: Vec<Duration>,
}

impl Subject {
    fn new(name: &'static str, kind: FloorKind, spin: Spin) -> Result<Self, Box<dyn Error>> {
        let (mut fabric, echoing) = match kind {
            FloorKind::Tcp => tcp()?,
            FloorKind::Shm => shm(spin)?,
        };
        let echo = thread::spawn(move || echo(echoing));
        let mut events = Vec::new();
        while !events.contains(&FabricEvent::Up(R[1])) {
            turn(&mut fabric, &mut events);
        }
        Ok(Self {
            name,
            fabric,
            echo,
            floor: Floor::start(kind, THERE_BYTES, 2, spin)?,
            quorum: Floor::start(kind, THERE_BYTES, 3, spin)?,
            over_fabric: Vec::new(),
            over_floor: Vec::new(),
            over_quorum: Vec::new(),
        })
    }

    fn round(&mut self, pings: usize) -> Result<(), Box<dyn Error>> {
        ping(&mut self.fabric, pings, &mut self.over_fabric);
        ping_floor(&mut self.floor, pings, &mut self.over_floor)?;
        ping_floor(&mut self.quorum, pings, &mut self.over_quorum)
    }

    fn finish(mut self) -> Result<(), Box<dyn Error>> {
        report(self.name, self.over_fabric);
        report("  its floor", self.over_floor);
        report("  floor of a quorum", self.over_quorum);
        let (records, record) = (16 << 10, vec![7; 64 << 10]);
        let seconds = flood(&mut self.fabric, records, &record).as_secs_f64();
        let mib = (records * record.len()) as f64 / f64::from(1 << 20);
        println!("  bulk {:.0} MiB/s in records of 64 KiB", mib / seconds);
        drop(self.fabric);
        self.echo
            .join()
            .map_err(|_| "the echoing fabric panicked".into())
    }
}

fn tcp() -> Result<(AnyFabric, AnyFabric), Box<dyn Error>> {
    let any: SocketAddr = "127.0.0.1:0".parse()?;
    // The higher id only listens; the lower one only needs to know where.
    let echoing = TcpFabric::new(TcpConfig::new("pingpong", R[1], any, vec![(R[0], any)]))?;
    let there = echoing.listen_address()?;
    let fabric = TcpFabric::new(TcpConfig::new("pingpong", R[0], any, vec![(R[1], there)]))?;
    Ok((Box::new(fabric), Box::new(echoing)))
}

fn shm(spin: Spin) -> Result<(AnyFabric, AnyFabric), Box<dyn Error>> {
    let group = format!("pingpong-{}", std::process::id());
    let open = |me, other| {
        let mut config = ShmConfig::new(group.clone(), me, vec![other]);
        config.spin = spin;
        ShmFabric::new(config)
    };
    Ok((Box::new(open(R[0], R[1])?), Box::new(open(R[1], R[0])?)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let which = arguments.next().unwrap_or("both".into());
    let spin: Spin = arguments.next().unwrap_or("never".into()).parse()?;
    let rounds: usize = arguments.next().unwrap_or("20".into()).parse()?;
    let pings: usize = arguments.next().unwrap_or("2000".into()).parse()?;

    let mut subjects = Vec::new();
    if which != "shm" {
        subjects.push(Subject::new("TcpFabric", FloorKind::Tcp, spin)?);
    }
    if which != "tcp" {
        subjects.push(Subject::new("ShmFabric", FloorKind::Shm, spin)?);
    }
    for round in 0..=rounds {
        for subject in &mut subjects {
            if round == 1 {
                // The first round is not counted: caches, fresh memory, congestion windows.
                subject.over_fabric.clear();
                subject.over_floor.clear();
                subject.over_quorum.clear();
            }
            subject.round(pings)?;
        }
    }
    println!(
        "{THERE_BYTES} bytes there, {BACK_BYTES} back, {rounds} rounds of {pings}, spin {spin:?}"
    );
    for subject in subjects {
        subject.finish()?;
    }
    Ok(())
}

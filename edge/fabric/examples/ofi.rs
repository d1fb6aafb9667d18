//! How long a record takes there and an answer back over libfabric, beside the bare floor of the
//! same provider in the same run, with one backup and with two of which the first to answer
//! counts. They take turns in rounds, so that a change of the machine's mood hits all.
//!
//! ```text
//! cargo run --release -p plover-fabric --features ofi --example ofi [-- PROVIDER SPIN ROUNDS PINGS]
//! ```
//!
//! PROVIDER is `tcp` (the default), `shm` or another one of this host; SPIN is `never` (the
//! default), `adaptive` or `always`.

use plover_fabric::ofi::floor::Floor;
use plover_fabric::ofi::{OfiConfig, OfiFabric};
use plover_fabric::{Fabric, FabricEvent, Lane, Spin};
use plover_types::ReplicaId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::error::Error;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

const THERE_BYTES: usize = 256;
const BACK_BYTES: usize = 8;
const R: [ReplicaId; 2] = [ReplicaId(0), ReplicaId(1)];

/// Sleeps until the fabric has something to do, then lets it.
fn turn(fabric: &mut OfiFabric, events: &mut Vec<FabricEvent>) {
    let timeout = fabric.timeout();
    if timeout != Some(Duration::ZERO) {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        // SAFETY: the fabric outlives the call and keeps its descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(fabric.wait_fd()) };
        // An interrupted wait is a short one.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], timeout.as_ref());
    }
    fabric.progress(events);
}

/// Answers every record until the link goes down.
fn echo(mut fabric: OfiFabric) {
    let mut events = Vec::new();
    loop {
        turn(&mut fabric, &mut events);
        for event in events.drain(..) {
            match event {
                FabricEvent::Record { from, lane, bytes } => {
                    let answer = &bytes[..BACK_BYTES];
                    fabric.write(from, lane, answer).expect("one record fits");
                    fabric.recycle(bytes);
                }
                FabricEvent::Down(_) => return,
                _ => {}
            }
        }
        fabric.flush();
    }
}

fn ping(fabric: &mut OfiFabric) -> Duration {
    let mut events = Vec::new();
    let start = Instant::now();
    let written = fabric.write(R[1], Lane::Log, &[7; THERE_BYTES]);
    written.expect("one record fits");
    fabric.flush();
    loop {
        if let Some(FabricEvent::Record { bytes, .. }) = events.pop() {
            let elapsed = start.elapsed();
            fabric.recycle(bytes);
            return elapsed;
        }
        turn(fabric, &mut events);
    }
}

fn timed(floor: &mut Floor) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    floor.round()?;
    Ok(start.elapsed())
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000].as_secs_f64() * 1e6;
    println!(
        "{name:22} p50 {:7.1} us   p90 {:7.1} us   p99 {:7.1} us   max {:9.1} us",
        at(500),
        at(900),
        at(990),
        at(1000)
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let provider = arguments.next().unwrap_or("tcp".into());
    let spin: Spin = arguments.next().unwrap_or("never".into()).parse()?;
    let rounds: usize = arguments.next().unwrap_or("20".into()).parse()?;
    let pings: usize = arguments.next().unwrap_or("1000".into()).parse()?;

    let any = "127.0.0.1:0".parse()?;
    let open = |me, peer| {
        let mut config = OfiConfig::new("pingpong", me, any, vec![peer], provider.clone());
        config.spin = spin;
        OfiFabric::new(config)
    };
    // The higher id only listens; the lower one only needs to know where.
    let echoing = open(R[1], (R[0], any))?;
    let mut fabric = open(R[0], (R[1], echoing.listen_address()?))?;
    let named = fabric.provider().to_owned();
    let echo = thread::spawn(move || echo(echoing));
    let mut events = Vec::new();
    while !events.contains(&FabricEvent::Up(R[1])) {
        turn(&mut fabric, &mut events);
    }
    let mut floor = Floor::start(&provider, THERE_BYTES, 2, spin)?;
    let mut quorum = Floor::start(&provider, THERE_BYTES, 3, spin)?;
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..=rounds {
        if round == 1 {
            // The first round is not counted: connections, caches, fresh memory.
            times.iter_mut().for_each(Vec::clear);
        }
        for _ in 0..pings {
            times[0].push(ping(&mut fabric));
        }
        for (floor, times) in [&mut floor, &mut quorum].into_iter().zip(&mut times[1..]) {
            for _ in 0..pings {
                times.push(timed(floor)?);
            }
        }
    }
    println!(
        "{THERE_BYTES} bytes there, {BACK_BYTES} back, {rounds} rounds of {pings}, '{named}', \
         spin {spin:?}"
    );
    let names = ["OfiFabric", "  its floor", "  floor of a quorum"];
    for (name, times) in names.into_iter().zip(times) {
        report(name, times);
    }
    drop(fabric);
    echo.join()
        .map_err(|_| "the echoing fabric panicked".into())
}

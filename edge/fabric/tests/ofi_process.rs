//! Peers over libfabric that are killed and stopped, and what they leave behind.
#![cfg(feature = "ofi")]

mod common;

use common::free_addresses;
use plover_fabric::ofi::{OfiConfig, OfiFabric};
use plover_fabric::{Fabric, FabricEvent, Lane, Spin, WriteError};
use plover_types::ReplicaId;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
/// Tells a process started by a test what to be: provider and the two addresses.
const OTHER: &str = "PLOVER_TEST_OFI_OTHER";

/// The software providers, and how each of them may wait.
const PROVIDERS: [(&str, Spin); 2] = [("tcp", Spin::Never), ("shm", Spin::Adaptive)];

fn open(provider: &str, addresses: &[SocketAddr], me: ReplicaId) -> OfiFabric {
    let other = ReplicaId(1 - me.0);
    let at = |id: ReplicaId| addresses[usize::from(id.0)];
    // A group for each pair of addresses, since tests run beside each other.
    let group = format!("processes {}", at(R0));
    let mut config = OfiConfig::new(group, me, at(me), vec![(other, at(other))], provider);
    config.spin = PROVIDERS
        .into_iter()
        .find(|(name, _)| *name == provider)
        .map_or(Spin::Adaptive, |(_, spin)| spin);
    config.log_ring_bytes = 64 << 10;
    config.bulk_ring_bytes = 256 << 10;
    OfiFabric::new(config).expect("a software provider works everywhere")
}

fn drive(
    fabric: &mut OfiFabric,
    events: &mut Vec<FabricEvent>,
    done: impl Fn(&[FabricEvent], &OfiFabric) -> bool,
) {
    let start = Instant::now();
    while !done(events, fabric) {
        let late = start.elapsed() > Duration::from_secs(60);
        assert!(!late, "reported: {events:?}");
        fabric.progress(events);
        thread::sleep(Duration::from_micros(200));
    }
}

/// The process at the other end: answers every record, and ends when replica 0 does. Does
/// nothing when it runs as a test.
#[test]
fn other_process() {
    let Ok(what) = std::env::var(OTHER) else {
        return;
    };
    let words: Vec<&str> = what.split(' ').collect();
    let addresses: Vec<SocketAddr> = words[1..].iter().map(|a| a.parse().unwrap()).collect();
    let mut fabric = open(words[0], &addresses, R1);
    let mut events = Vec::new();
    loop {
        fabric.progress(&mut events);
        for event in events.drain(..) {
            match event {
                // A full ring of answers is not what is tested.
                FabricEvent::Record { from, lane, bytes } => {
                    let _ = fabric.write(from, lane, &bytes[..8]);
                }
                FabricEvent::Down(_) => return,
                _ => {}
            }
        }
        fabric.flush();
        thread::sleep(Duration::from_micros(100));
    }
}

fn start_other(provider: &str, addresses: &[SocketAddr]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process"])
        .env(
            OTHER,
            format!("{provider} {} {}", addresses[0], addresses[1]),
        )
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A question is answered on both lanes.
fn answers(fabric: &mut OfiFabric) {
    let before = fabric.stats();
    for lane in Lane::ALL {
        fabric.write(R1, lane, b"question").unwrap();
    }
    fabric.flush();
    drive(fabric, &mut Vec::new(), |_, fabric| {
        let now = fabric.stats();
        now.log.records_in > before.log.records_in && now.bulk.records_in > before.bulk.records_in
    });
}

/// The files that the shm provider has made for `process`.
fn files_of(process: u32) -> usize {
    let prefix = format!("{process}:");
    let files = Path::new("/dev/shm").read_dir().unwrap();
    let names = files.map(|file| file.unwrap().file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .count()
}

#[test]
fn a_killed_peer_goes_down_and_its_next_life_comes_up() {
    for (provider, _) in PROVIDERS {
        let addresses = free_addresses(2);
        let mut fabric = open(provider, &addresses, R0);
        let mut events = Vec::new();
        let mut killed = Vec::new();
        for life in 1..=3 {
            let mut other = start_other(provider, &addresses);
            drive(&mut fabric, &mut events, |_, fabric| fabric.is_up(R1));
            answers(&mut fabric);
            for &process in &killed {
                assert_eq!(files_of(process), 0, "{provider} of a killed life");
            }
            if life < 3 {
                signal(&other, Signal::KILL);
                other.wait().unwrap();
                drive(&mut fabric, &mut events, |_, fabric| !fabric.is_up(R1));
                let write = fabric.write(R1, Lane::Log, b"lost");
                assert_eq!(write, Err(WriteError::Down(R1)));
                killed.push(other.id());
                continue;
            }
            // The last one ends by itself, and so do we: nothing is left.
            drop(fabric);
            assert!(other.wait().unwrap().success());
            assert_eq!(files_of(other.id()), 0, "{provider}");
            break;
        }
        let down_and_up = [FabricEvent::Down(R1), FabricEvent::Up(R1)];
        let expected = [&[FabricEvent::Up(R1)][..], &down_and_up, &down_and_up].concat();
        assert_eq!(events, expected, "{provider}");
    }
}

/// A stopped process is slow, not gone: its rings fill up and refuse, and when it runs again
/// everything arrives. Not over the shm provider, whose locks lie in the shared memory: who writes
/// to a process that was stopped while it held one waits for it.
#[test]
fn a_stopped_peer_pushes_back_and_keeps_its_link() {
    let addresses = free_addresses(2);
    let mut fabric = open("tcp", &addresses, R0);
    let mut other = start_other("tcp", &addresses);
    drive(&mut fabric, &mut Vec::new(), |_, fabric| fabric.is_up(R1));
    answers(&mut fabric);
    signal(&other, Signal::STOP);
    let stopped = waitpid(Some(Pid::from_child(&other)), WaitOptions::UNTRACED).unwrap();
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    let before = fabric.stats().log;
    let record = [5; 1000];
    let mut events = Vec::new();
    let start = Instant::now();
    // Longer than a peer whose host is silent would keep its link.
    while start.elapsed() < Duration::from_secs(1) {
        let _ = fabric.write(R1, Lane::Log, &record);
        fabric.progress(&mut events);
        thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(events, []);
    let stopped = fabric.stats().log;
    assert!(stopped.full > before.full, "it never refused");
    let written = stopped.records_out - before.records_out;
    assert!(written <= 64, "{written} records of 1000 bytes in 64 KiB");
    signal(&other, Signal::CONT);
    drive(&mut fabric, &mut events, |_, fabric| {
        fabric.stats().log.records_in == before.records_in + written
    });
    let room = FabricEvent::Room {
        peer: R1,
        lane: Lane::Log,
    };
    assert!(events.contains(&room), "it never said room");
    drop(fabric);
    assert!(other.wait().unwrap().success());
}

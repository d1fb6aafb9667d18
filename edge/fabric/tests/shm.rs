//! What only the shared-memory fabric has: peers that are killed and stopped, what they leave
//! behind, refusals, noise at the door.

mod common;

use common::ShmMaker;
use plover_fabric::contract::Maker;
use plover_fabric::{Fabric, FabricEvent, Lane, ShmConfig, ShmFabric, ShmPlace, WriteError};
use plover_types::ReplicaId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);
/// Tells a process started by a test which directory to meet in.
const DIRECTORY: &str = "PLOVER_TEST_SHM_DIRECTORY";

fn drive(
    fabrics: &mut [&mut ShmFabric],
    done: impl Fn(&[Vec<FabricEvent>], &[&mut ShmFabric]) -> bool,
) {
    let mut events = vec![Vec::new(); fabrics.len()];
    let start = Instant::now();
    while !done(&events, fabrics) {
        let late = start.elapsed() > Duration::from_secs(60);
        assert!(!late, "reported: {events:?}");
        for (fabric, events) in fabrics.iter_mut().zip(&mut events) {
            fabric.progress(events);
        }
        thread::sleep(Duration::from_micros(200));
    }
}

fn pair_of(group: &str, directory: &Path, me: ReplicaId, other: ReplicaId) -> ShmConfig {
    let mut config = ShmConfig::new(group, me, vec![other]);
    config.place = ShmPlace::Directory(directory.into());
    config.log_ring_bytes = 64 << 10;
    config.bulk_ring_bytes = 256 << 10;
    config
}

/// The process at the other end: answers every record, and ends when replica 0 does. Does
/// nothing when it runs as a test.
#[test]
fn other_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let config = pair_of("processes", Path::new(&directory), R1, R0);
    let mut fabric = ShmFabric::new(config).unwrap();
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

fn start_other(directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "other_process"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn answers(fabric: &mut ShmFabric) {
    let before = fabric.stats().log.records_in;
    fabric.write(R1, Lane::Log, b"question").unwrap();
    fabric.flush();
    drive(&mut [fabric], |_, fabrics| {
        fabrics[0].stats().log.records_in > before
    });
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn a_killed_peer_goes_down_and_its_next_life_comes_up() {
    let directory = tempfile::tempdir().unwrap();
    let config = pair_of("processes", directory.path(), R0, R1);
    let mut fabric = ShmFabric::new(config).unwrap();
    for life in 1..=3 {
        let mut other = start_other(directory.path());
        drive(&mut [&mut fabric], |_, fabrics| fabrics[0].is_up(R1));
        answers(&mut fabric);
        assert_eq!(files(directory.path()), 2, "two sockets and nothing else");
        if life < 3 {
            signal(&other, Signal::KILL);
            other.wait().unwrap();
            drive(&mut [&mut fabric], |_, fabrics| !fabrics[0].is_up(R1));
            let write = fabric.write(R1, Lane::Log, b"lost");
            assert_eq!(write, Err(WriteError::Down(R1)));
            assert_eq!(fabric.stats().downs, life);
            continue;
        }
        // The last one ends by itself, and so do we: nothing is left.
        drop(fabric);
        assert!(other.wait().unwrap().success());
        assert_eq!(files(directory.path()), 0);
        break;
    }
}

/// A stopped process is slow, not gone: its rings fill up and refuse, the other lane and this
/// side go on, and when it runs again everything arrives.
#[test]
fn a_stopped_peer_pushes_back_and_keeps_its_link() {
    let directory = tempfile::tempdir().unwrap();
    let config = pair_of("processes", directory.path(), R0, R1);
    let mut fabric = ShmFabric::new(config).unwrap();
    let mut other = start_other(directory.path());
    drive(&mut [&mut fabric], |_, fabrics| fabrics[0].is_up(R1));
    answers(&mut fabric);
    let before = fabric.stats();
    signal(&other, Signal::STOP);
    let pid = Pid::from_child(&other);
    let stopped = rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    let record = [5; 1000];
    let mut events = Vec::new();
    for _ in 0..2000 {
        // Both outcomes are fine; never waiting is the point.
        let _ = fabric.write(R1, Lane::Bulk, &record);
        fabric.progress(&mut events);
    }
    let written = fabric.stats().bulk.bytes_out - before.bulk.bytes_out;
    assert!(
        written <= 256 << 10,
        "{written} bytes into a ring of 256 KiB"
    );
    assert_eq!(
        fabric.write(R1, Lane::Bulk, &record),
        Err(WriteError::Full(R1))
    );
    assert_eq!(fabric.write(R1, Lane::Log, b"heartbeat"), Ok(()));
    assert!(fabric.is_up(R1), "{events:?}");
    signal(&other, Signal::CONT);
    let room = FabricEvent::Room {
        peer: R1,
        lane: Lane::Bulk,
    };
    drive(&mut [&mut fabric], |events, _| events[0].contains(&room));
    answers(&mut fabric);
    drop(fabric);
    assert!(other.wait().unwrap().success());
}

#[test]
fn other_rings_are_refused() {
    let maker = ShmMaker::new();
    let mut other = maker.config(R1);
    other.bulk_ring_bytes *= 2;
    let mut a = ShmFabric::new(maker.config(R0)).unwrap();
    let mut b = ShmFabric::new(other).unwrap();
    drive(&mut [&mut a, &mut b], |events, fabrics| {
        assert!(events.iter().all(Vec::is_empty), "{events:?}");
        fabrics.iter().all(|fabric| fabric.stats().rejected > 0)
    });
}

/// Whoever claims to be a peer that is there is refused, and that says nothing of the link to the peer.
#[test]
fn a_stranger_with_a_peers_name_is_no_refusal_of_the_peer() {
    let maker = ShmMaker::in_directory();
    let directory = maker.directory.as_ref().unwrap().path();
    let mut a = ShmFabric::new(maker.config(R0)).unwrap();
    let mut b = ShmFabric::new(maker.config(R1)).unwrap();
    drive(&mut [&mut a, &mut b], |_, fabrics| {
        fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    // It lives elsewhere, and finds the door of replica 1 there.
    let elsewhere = tempfile::tempdir().unwrap();
    for door in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if door.file_name().to_string_lossy().ends_with("-1.sock") {
            let there = elsewhere.path().join(door.file_name());
            std::os::unix::fs::symlink(door.path(), there).unwrap();
        }
    }
    let mut stranger = maker.config(R0);
    stranger.place = ShmPlace::Directory(elsewhere.path().into());
    stranger.bulk_ring_bytes *= 2;
    let mut stranger = ShmFabric::new(stranger).unwrap();
    drive(&mut [&mut a, &mut b, &mut stranger], |_, fabrics| {
        fabrics[2].refusal(R1).is_some()
    });
    assert!(b.stats().rejected > 0, "it knocked");
    assert!(b.is_up(R0));
    assert_eq!(b.refusal(R0), None);
}

#[test]
fn a_replica_that_is_no_member_is_refused() {
    let maker = ShmMaker::new();
    let mut other = maker.config(R1);
    other.peers.retain(|id| *id != R0);
    let mut a = ShmFabric::new(maker.config(R0)).unwrap();
    let mut b = ShmFabric::new(other).unwrap();
    drive(&mut [&mut a, &mut b], |events, fabrics| {
        assert!(events.iter().all(Vec::is_empty), "{events:?}");
        fabrics.iter().all(|fabric| fabric.stats().rejected > 0)
    });
}

fn knock(directory: &Path) -> OwnedFd {
    let door = std::fs::read_dir(directory).unwrap().next().unwrap();
    let address = SocketAddrUnix::new(door.unwrap().path()).unwrap();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// Whoever says something else than a greeting is turned away, and replicas still find each other.
#[test]
fn noise_at_the_door_does_no_harm() {
    let mut maker = ShmMaker::in_directory();
    let directory = maker.directory.as_ref().unwrap().path().to_owned();
    let mut b = maker.open(R1);
    let mut noisy = Vec::new();
    for n in 0..50u8 {
        let socket = knock(&directory);
        // Some say nothing, some too little or too much, some as much as a greeting has.
        if n % 4 > 0 {
            let bytes = vec![n; [0, 1, 128, 4000][usize::from(n % 4)]];
            rustix::io::write(&socket, &bytes).unwrap();
        }
        noisy.push(socket);
        b.progress(&mut Vec::new());
    }
    let mut a = maker.open(R0);
    drive(&mut [&mut a, &mut b], |_, fabrics| {
        fabrics[0].is_up(R1) && fabrics[1].is_up(R0) && fabrics[1].stats().rejected >= 50
    });
    for socket in &noisy {
        // An end, or a reset where the noise was not even read.
        let ended = matches!(rustix::io::read(socket, &mut [0; 1]), Ok(0) | Err(_));
        assert!(ended, "still open");
    }
}

#[test]
fn a_door_in_use_is_said_clearly() {
    for mut maker in [ShmMaker::new(), ShmMaker::in_directory()] {
        let _first = maker.open(R0);
        let error = ShmFabric::new(maker.config(R0)).unwrap_err().to_string();
        assert!(error.contains("is this replica running already"), "{error}");
    }
}

/// A buffer given back carries the next record.
#[test]
fn a_recycled_buffer_is_used_again() {
    let mut maker = ShmMaker::new();
    let (mut a, mut b) = (maker.open(R0), maker.open(R1));
    drive(&mut [&mut a, &mut b], |_, fabrics| {
        fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    let (mut events, mut last) = (Vec::new(), None);
    for n in 0..10u8 {
        a.write(R1, Lane::Log, &[n; 200]).unwrap();
        b.progress(&mut events);
        let Some(FabricEvent::Record { bytes, .. }) = events.pop() else {
            panic!("what was written is there at once")
        };
        assert_eq!(bytes, [n; 200]);
        let place = bytes.as_ptr();
        assert!(last.is_none_or(|last| last == place), "a new allocation");
        last = Some(place);
        b.recycle(bytes);
    }
}

/// A replica is let in while others run, and let go.
#[test]
fn peers_come_and_go() {
    let mut maker = ShmMaker::tuned(|config| config.peers.clear());
    let (mut a, mut b) = (maker.open(R0), maker.open(R1));
    a.set_peer(R1, Some("somewhere")).unwrap();
    b.set_peer(R0, Some("somewhere")).unwrap();
    let up = FabricEvent::Up(R1);
    drive(&mut [&mut a, &mut b], |events, fabrics| {
        events[0].contains(&up) && fabrics[1].is_up(R0)
    });
    a.set_peer(R1, Some("elsewhere")).unwrap();
    assert!(a.is_up(R1), "it is the same replica");
    a.write(R1, Lane::Log, b"record").unwrap();
    drive(&mut [&mut a, &mut b], |_, fabrics| {
        fabrics[1].stats().log.records_in == 1
    });
    a.set_peer(R1, None).unwrap();
    let write = a.write(R1, Lane::Log, b"record");
    assert_eq!(write, Err(WriteError::Down(R1)));
    let down = FabricEvent::Down(R0);
    drive(&mut [&mut a, &mut b], |events, _| events[1].contains(&down));
}

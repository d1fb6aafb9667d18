//! What only the shared-memory fabric has: peers that are killed and stopped, connections that are
//! not replicas.

use crate::contract::{How, Maker};
use crate::makers::{LOG_RING_BYTES, ShmMaker};
use crate::processes::{self, Process};
use plover_fabric::{BoxedFabric, Fabric, ShmConfig, ShmFabric, ShmPlace};
use plover_types::ReplicaId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

const PEER: Process = Process {
    test: "shm::other_process",
    open,
};

/// One of two replicas that meet in a directory.
fn open(directory: &str, me: ReplicaId) -> BoxedFabric {
    let mut config = ShmConfig::new("processes", me, vec![ReplicaId(1 - me.0)]);
    config.place = ShmPlace::Directory(directory.into());
    config.ring_bytes = [LOG_RING_BYTES, 256 << 10];
    Box::new(ShmFabric::new(config).unwrap())
}

#[test]
fn other_process() {
    processes::other_process(PEER);
}

#[test]
fn a_killed_peer_goes_down_and_comes_up_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    processes::a_killed_peer_goes_down_and_comes_up_again(PEER, path.to_str().unwrap());
    assert_eq!(
        std::fs::read_dir(path).unwrap().count(),
        0,
        "files are left"
    );
}

#[test]
fn a_stopped_peer_pushes_back_and_keeps_its_link() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    processes::a_stopped_peer_pushes_back_and_keeps_its_link(PEER, path, Duration::ZERO);
}

fn connect(directory: &Path) -> OwnedFd {
    let socket = std::fs::read_dir(directory).unwrap().next().unwrap();
    let address = SocketAddrUnix::new(socket.unwrap().path()).unwrap();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

/// A connection that sends something else is turned away, and replicas still find each other.
#[test]
fn connections_that_are_no_replicas_do_no_harm() {
    let mut maker = ShmMaker::in_directory();
    let directory = maker.directory.as_ref().unwrap().path().to_owned();
    let mut b = maker.open(R1);
    let mut noisy = Vec::new();
    for n in 0..50u8 {
        let socket = connect(&directory);
        // Some say nothing, some too little or too much, some as much as a greeting has.
        if n % 4 > 0 {
            let bytes = vec![n; [0, 1, 128, 4000][usize::from(n % 4)]];
            rustix::io::write(&socket, &bytes).unwrap();
        }
        noisy.push(socket);
        b.progress(&mut Vec::new());
    }
    let mut a = maker.open(R0);
    let start = Instant::now();
    while !(a.is_up(R1) && b.is_up(R0) && b.stats().rejected >= 50) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", b.stats());
        a.progress(&mut Vec::new());
        b.progress(&mut Vec::new());
        thread::sleep(Duration::from_micros(200));
    }
    for socket in &noisy {
        // An end, or a reset where the noise was not even read.
        let ended = matches!(rustix::io::read(socket, &mut [0; 1]), Ok(0) | Err(_));
        assert!(ended, "still open");
    }
}

#[test]
fn an_address_in_use_is_said_clearly() {
    for mut maker in [ShmMaker::new(), ShmMaker::in_directory()] {
        let _first = maker.open(R0);
        let error = ShmFabric::new(maker.config(R0, How::default()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is this replica running already"), "{error}");
    }
}

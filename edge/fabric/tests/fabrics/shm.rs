//! What only the shared-memory fabric has: peers that are killed and stopped, connections that are
//! not replicas.

use crate::contract::strangers_do_no_harm;
use crate::makers::{LOG_RING_BYTES, ShmMaker};
use crate::processes::{self, Process};
use plover_fabric::{BoxedFabric, ShmConfig, ShmFabric, ShmPlace};
use plover_types::ReplicaId;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::time::Duration;

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

fn connect(maker: &ShmMaker) -> OwnedFd {
    let directory = maker.directory.as_ref().unwrap().path();
    let socket = std::fs::read_dir(directory).unwrap().next().unwrap();
    let address = SocketAddrUnix::new(socket.unwrap().path()).unwrap();
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

#[test]
fn connections_that_are_no_replicas_do_no_harm() {
    strangers_do_no_harm(ShmMaker::in_directory(), connect);
}

//! Silent cuts, without privileges: a socket filter that drops everything makes one end's
//! kernel deaf, and a deaf kernel acknowledges nothing.

use super::*;
use crate::socket::SILENT_AFTER;
use crate::{Fabric, FabricEvent};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

fn pair() -> (TcpFabric, TcpFabric) {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut b = TcpFabric::new(TcpConfig::new("test", R1, any, vec![(R0, any)])).expect("loopback");
    let there = b.listen_address().expect("bound");
    let config = TcpConfig::new("test", R0, any, vec![(R1, there)]);
    let mut a = TcpFabric::new(config).expect("loopback");
    drive(&mut a, &mut b, are_up);
    (a, b)
}

fn are_up(a: &TcpFabric, b: &TcpFabric) -> bool {
    a.is_up(R1) && b.is_up(R0)
}

/// Drives both until `done`; returns what was reported.
fn drive(
    a: &mut TcpFabric,
    b: &mut TcpFabric,
    done: impl Fn(&TcpFabric, &TcpFabric) -> bool,
) -> Vec<FabricEvent> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while !done(a, b) {
        let late = start.elapsed() > Duration::from_secs(60);
        assert!(!late, "{:?} {:?}", a.stats(), b.stats());
        a.progress(&mut events);
        b.progress(&mut events);
        std::thread::sleep(Duration::from_millis(2));
    }
    events
}

/// Lets the kernel drop whatever comes for this descriptor.
fn deafen(fd: RawFd) {
    // "Return 0": keep no byte of the packet.
    let mut nothing = libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut nothing,
    };
    // SAFETY: `program` names one instruction that lives until after the call, and the length
    // is that of the structure; the kernel copies both.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn cut(fabric: &TcpFabric) {
    for lane in &fabric.link().lanes {
        deafen(lane.socket().as_raw_fd());
    }
}

/// The link is given up and made anew.
fn comes_back(a: &mut TcpFabric, b: &mut TcpFabric) {
    drive(a, b, |a, b| a.stats().silent + b.stats().silent > 0);
    drive(a, b, are_up);
}

#[test]
fn a_cut_under_load_is_noticed_and_healed() {
    let (mut a, mut b) = pair();
    cut(&b);
    a.write(R1, Lane::Log, b"never acknowledged").expect("up");
    comes_back(&mut a, &mut b);
}

#[test]
fn a_cut_while_idle_is_noticed_and_healed() {
    let (mut a, mut b) = pair();
    cut(&b);
    comes_back(&mut a, &mut b);
}

/// A peer that takes nothing off the wire is busy, not gone: its host answers.
#[test]
fn a_busy_peer_is_not_cut_off() {
    let (mut a, mut b) = pair();
    while a.write(R1, Lane::Bulk, &[1; 60_000]).is_ok() {}
    a.flush();
    let busy_until = Instant::now() + SILENT_AFTER * 3;
    let mut events = Vec::new();
    while Instant::now() < busy_until {
        a.progress(&mut events);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(a.link().lanes.iter().any(LaneLink::is_blocked));
    let expected = a.stats().bulk.bytes_out;
    events.extend(drive(&mut a, &mut b, |_, b| {
        b.stats().bulk.bytes_in == expected
    }));
    let lost = |event: &FabricEvent| matches!(event, FabricEvent::Down(_));
    assert!(!events.iter().any(lost));
}

/// Records that one call left in the ring are on no socket any more: only the timeout can announce
/// them.
#[test]
fn records_left_in_the_ring_ask_for_another_call() {
    let (mut a, mut b) = pair();
    // One write to the kernel, one read from it, more records than one call delivers.
    for _ in 0..2000 {
        a.write(R1, Lane::Log, b"x").expect("room");
    }
    a.flush();
    drive(&mut a, &mut b, |_, b| b.stats().log.bytes_in > 0);
    assert!(b.stats().log.bytes_in < 2000, "one call is bounded");
    assert_eq!(b.timeout(), Some(Duration::ZERO));
    drive(&mut a, &mut b, |_, b| b.stats().log.bytes_in == 2000);
}

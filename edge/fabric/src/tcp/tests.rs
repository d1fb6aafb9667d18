//! Silent cuts, without privileges: a socket filter that drops everything makes one end's
//! kernel deaf, and a deaf kernel acknowledges nothing.

use super::*;
use crate::socket::SILENT_AFTER;
use crate::tests::{Pair, R0, R1};
use crate::{Fabric, FabricEvent};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

fn pair() -> Pair<Tcp> {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let open =
        |me, peer| TcpFabric::new(TcpConfig::new("test", me, any, vec![peer])).expect("loopback");
    let higher = open(R1, (R0, any));
    let there = higher.listen_address().expect("bound");
    Pair::linked(open(R0, (R1, there)), higher)
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
        deafen(lane.line.socket.as_raw_fd());
    }
}

/// The link is given up and made anew.
fn comes_back(mut pair: Pair<Tcp>) {
    pair.until(|it| it.lower.stats().silent + it.higher.stats().silent > 0);
    pair.until(Pair::is_up);
}

#[test]
fn a_cut_under_load_is_noticed_and_healed() {
    let mut pair = pair();
    cut(&pair.higher);
    let written = pair.lower.write(R1, Lane::Log, b"never acknowledged");
    written.expect("up");
    comes_back(pair);
}

#[test]
fn a_cut_while_idle_is_noticed_and_healed() {
    let pair = pair();
    cut(&pair.higher);
    comes_back(pair);
}

/// A process whose host is gone has a link that looks well for a moment. Another process of the replica gets its place.
#[test]
fn a_process_whose_host_is_gone_is_replaced() {
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let open = |me, peer, process| {
        let mut config = TcpConfig::new("test", me, any, vec![peer]);
        config.process = process;
        TcpFabric::new(config).expect("loopback")
    };
    let higher = open(R1, (R0, any), 1);
    let there = higher.listen_address().expect("bound");
    let pair = Pair::linked(open(R0, (R1, there), 2), higher);
    cut(&pair.lower);
    let mut pair = Pair {
        lower: open(R0, (R1, there), 3),
        ..pair
    };
    let links = [FabricEvent::Down(R0), FabricEvent::Up(R0)];
    pair.until(|it| it.at_higher.ends_with(&links));
    pair.until(Pair::is_up);
    assert_eq!(pair.lower.twin(), None);
}

/// A peer that takes nothing off the wire is busy, not gone: its host answers.
#[test]
fn a_busy_peer_is_not_cut_off() {
    let mut pair = pair();
    let busy = &mut pair.lower;
    while busy.write(R1, Lane::Bulk, &[1; 60_000]).is_ok() {}
    busy.flush();
    let busy_until = Instant::now() + SILENT_AFTER * 3;
    while Instant::now() < busy_until {
        busy.progress(&mut pair.at_lower);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(busy.link().lanes.iter().any(|lane| lane.blocked));
    let expected = busy.stats().bulk.bytes_out;
    pair.until(|it| it.higher.stats().bulk.bytes_in == expected);
    let lost = |event: &FabricEvent| matches!(event, FabricEvent::Down(_));
    assert!(!pair.at_lower.iter().chain(&pair.at_higher).any(lost));
}

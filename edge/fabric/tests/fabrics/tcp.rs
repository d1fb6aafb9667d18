//! What only the TCP fabric has, or all fabrics have in common: refusals, damage on the wire,
//! connections that are not replicas, configuration errors.

use crate::contract::{How, Maker, both_up, drive, strangers_do_no_harm};
use crate::makers::{TcpMaker, free_addresses};
use plover_fabric::{Fabric, FabricError, FabricEvent, Lane, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

fn open(config: TcpConfig) -> TcpFabric {
    TcpFabric::new(config).expect("loopback works")
}

/// Both sides say why, for as long as it goes on, and what to do. A stranger with the id of a peer that
/// is linked is refused, too, which says nothing of the peer's link.
#[test]
fn a_refusal_is_known_to_both_sides() {
    let maker = TcpMaker::new();
    let [a, b] = [R0, R1].map(|id| open(maker.config(id, How::default())));
    let mut stranger = maker.config(R0, How::default());
    stranger.group = "another".into();
    stranger.listen.set_port(0);
    let mut fabrics = [a, b];
    drive(&mut fabrics, |_, events| both_up(events));
    let [a, b] = fabrics;
    let mut fabrics = [open(stranger), b, a];
    let says = |why: Option<String>| why.is_some_and(|why| why.contains("compare `group`"));
    drive(&mut fabrics, |fabrics, _| says(fabrics[0].refusal(R1)));
    let [_, b, a] = &fabrics;
    assert!(b.stats().rejected > 0, "it knocked");
    assert!(a.is_up(R1) && b.is_up(R0));
    assert_eq!((a.refusal(R1), b.refusal(R0)), (None, None));
    let [stranger, b, a] = fabrics;
    drop(a);
    drive(&mut [stranger, b], |fabrics, _| {
        says(fabrics[1].refusal(R0))
    });
}

/// The side that dials refuses a process that was replaced, and the process that is dialled learns that, too.
#[test]
fn a_replaced_process_that_is_dialled_learns_it() {
    let maker = TcpMaker::new();
    let first = open(maker.config(R1, How::default()));
    let second = maker.open_second_with(R1, How::default());
    let places = [&first, &second].map(|it| it.listen_address().unwrap().to_string());
    let mut fabrics = [open(maker.config(R0, How::default())), first, second];
    for (n, place) in [(1, &places[0]), (2, &places[1])] {
        fabrics[0].set_peer(R1, Some(place)).unwrap();
        drive(&mut fabrics, |fabrics, _| {
            fabrics[0].is_up(R1) && fabrics[n].is_up(R0)
        });
    }
    fabrics[0].set_peer(R1, Some(&places[0])).unwrap();
    let says = |why: Option<String>| {
        why.is_some_and(|why| why.contains("both have lived at the same time"))
    };
    drive(&mut fabrics, |fabrics, events| {
        assert!(!events[0].contains(&FabricEvent::Up(R1)), "{events:?}");
        says(fabrics[0].refusal(R1)) && says(fabrics[1].refusal(R0))
    });
    assert!(fabrics.iter().all(|fabric| fabric.twin().is_none()));
}

#[test]
fn connections_that_are_no_replicas_do_no_harm() {
    strangers_do_no_harm(TcpMaker::new(), |maker| {
        TcpStream::connect(maker.addresses[1]).unwrap().into()
    });
}

/// Two linked replicas, the first of which reaches the other one through a relay, and the relay's
/// connections. Those of the first session are damaged at a byte, later ones are not.
fn relayed(damage_at: Option<usize>) -> ([TcpFabric; 2], Receiver<TcpStream>) {
    let maker = TcpMaker::new();
    let relay = TcpListener::bind(free_addresses(1)[0]).unwrap();
    let mut config = maker.config(R0, How::default());
    config.peers.retain(|(id, _)| *id == R1);
    config.peers[0].1 = relay.local_addr().unwrap();
    let to = maker.addresses[1];
    let (hand_over, connections) = channel();
    // The thread ends with the process.
    thread::spawn(move || {
        for (n, stream) in relay.incoming().enumerate() {
            let stream = stream.unwrap();
            let _ = hand_over.send(stream.try_clone().unwrap());
            relay_both_ways(stream, to, damage_at.filter(|_| n < 2));
        }
    });
    let mut fabrics = [open(config), open(maker.config(R1, How::default()))];
    drive(&mut fabrics, |_, events| both_up(events));
    (fabrics, connections)
}

/// One byte is flipped on the way: the receiver notices, drops the link, and both come back over a
/// connection that is whole.
#[test]
fn damage_ends_the_session_and_is_counted() {
    let (mut fabrics, _) = relayed(Some(5000));
    for n in 0..20 {
        fabrics[0].write(R1, Lane::Log, &[n; 1000]).unwrap();
    }
    let mut records = Vec::new();
    drive(&mut fabrics, |fabrics, events| {
        records = events[1].clone();
        fabrics[1].stats().damaged > 0 && fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    assert_eq!(fabrics[1].stats().damaged, 1);
    let arrived = records.iter().filter_map(|event| match event {
        FabricEvent::Record { bytes, .. } => Some(bytes),
        _ => None,
    });
    for (n, bytes) in arrived.enumerate() {
        assert_eq!(
            *bytes, [n as u8; 1000],
            "what came before the damage is whole"
        );
    }
    let whole = fabrics[1].stats().log.bytes_in / 1000;
    assert!(whole < 20, "the damaged record did not come out");
}

fn relay_both_ways(client: TcpStream, to: SocketAddr, damage_at: Option<usize>) {
    let server = TcpStream::connect(to).unwrap();
    let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || relay_one_way(client, server, damage_at));
    thread::spawn(move || relay_one_way(back.0, back.1, None));
}

fn relay_one_way(mut from: TcpStream, mut to: TcpStream, damage_at: Option<usize>) {
    let (mut buffer, mut passed) = ([0; 4096], 0);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Some(at) = damage_at.filter(|at| (passed..passed + count).contains(at)) {
            buffer[at - passed] ^= 0x10;
        }
        passed += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Either end may be gone already.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// One lane lost is the link lost, and it comes back.
#[test]
fn losing_one_lane_takes_both_down() {
    let (mut fabrics, connections) = relayed(None);
    connections
        .recv()
        .unwrap()
        .shutdown(Shutdown::Both)
        .unwrap();
    let again = |peer| vec![FabricEvent::Down(peer), FabricEvent::Up(peer)];
    drive(&mut fabrics, |_, events| events == [again(R1), again(R0)]);
    assert!(fabrics.iter().all(|it| it.stats().damaged == 0));
}

#[test]
fn an_address_in_use_is_said_clearly() {
    let mut maker = TcpMaker::new();
    let _first = maker.open(R0);
    let error = TcpFabric::new(maker.config(R0, How::default())).unwrap_err();
    assert!(matches!(error, FabricError::Listen { .. }));
    let text = error.to_string();
    assert!(text.contains(&maker.addresses[0].to_string()), "{text}");
    assert!(text.contains("another process listens there"), "{text}");
}

#[test]
fn impossible_configurations_are_refused() {
    let maker = TcpMaker::new();
    let refuse = |change: fn(&mut TcpConfig)| {
        let mut config = maker.config(R0, How::default());
        change(&mut config);
        TcpFabric::new(config).expect_err("impossible")
    };
    assert!(matches!(refuse(|c| c.group.clear()), FabricError::Group(_)));
    assert!(matches!(
        refuse(|c| c.group = "x".repeat(65)),
        FabricError::Group(_)
    ));
    assert!(matches!(
        refuse(|c| c.peers[0].0 = R0),
        FabricError::Member(R0)
    ));
    assert!(matches!(
        refuse(|c| c.peers[0].0 = c.peers[1].0),
        FabricError::Member(_)
    ));
    assert!(matches!(
        refuse(|c| c.ring_bytes[0] = 100),
        FabricError::Ring {
            lane: Lane::Log,
            ..
        }
    ));
    assert!(matches!(
        refuse(|c| c.ring_bytes[1] = 0),
        FabricError::Ring {
            lane: Lane::Bulk,
            ..
        }
    ));
    // TEST-NET-1, on no interface.
    let error = refuse(|c| c.listen = "192.0.2.1:7000".parse().expect("an address"));
    assert!(
        error.to_string().contains("no interface of this host"),
        "{error}"
    );
}

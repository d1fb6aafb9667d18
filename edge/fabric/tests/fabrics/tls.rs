//! What TLS adds to the TCP fabric: keys that are wrong, missing or changed, strangers, and hostile bytes.

use crate::contract::{How, both_up, drive, strangers_do_no_harm};
use crate::makers::{TcpMaker, private_key};
use plover_fabric::keys::{PrivateKey, PublicKey, trust};
use plover_fabric::{Fabric, FabricEvent, Keys, Lane, Stream, TcpConfig, TcpFabric};
use plover_types::ReplicaId;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

fn open(config: TcpConfig) -> TcpFabric {
    TcpFabric::new(config).expect("loopback works")
}

/// Replicas 0 and 1, changed by `change`, which gets replica 0's configuration and replica 1's.
fn two(change: impl FnOnce(&mut TcpConfig, &mut TcpConfig)) -> [TcpFabric; 2] {
    let maker = TcpMaker::encrypted();
    let [mut a, mut b] = [R0, R1].map(|id| maker.config(id, How::default()));
    // Where connections of this machine come from. The other side does not dial there.
    b.peers[0].1.set_ip(Ipv4Addr::LOCALHOST.into());
    change(&mut a, &mut b);
    [open(a), open(b)]
}

/// Both sides say why there is no link: `why` has a part of what the dialling side says, and of what the other one says.
#[track_caller]
fn refused(mut fabrics: [TcpFabric; 2], why: [&str; 2]) {
    let mut said = [None, None];
    drive(&mut fabrics, |fabrics, events| {
        let up = |event: &FabricEvent| matches!(event, FabricEvent::Up(_));
        assert!(!events.iter().flatten().any(up), "they are linked");
        said = [fabrics[0].refusal(R1), fabrics[1].refusal(R0)];
        said.iter().all(Option::is_some)
    });
    for (said, why) in said.iter().flatten().zip(why) {
        assert!(said.contains(why), "{said}");
    }
}

fn keys(own: PrivateKey, trusted: &[(ReplicaId, &PrivateKey)]) -> Option<Arc<Keys>> {
    let trusted = trusted.iter().map(|(id, key)| (*id, key.public()));
    Some(Arc::new(Keys::new(own, trusted.collect())))
}

#[test]
fn a_key_that_the_dialling_side_does_not_trust() {
    refused(
        two(|a, _| a.keys = keys(private_key(), &[(R1, &private_key())])),
        ["is not trusted", "does not trust this replica's key"],
    );
}

#[test]
fn a_key_that_the_listening_side_does_not_trust() {
    let [one, other] = [private_key(), private_key()];
    let (one_public, other_public) = (one.public(), other.public());
    refused(
        two(|a, b| {
            a.keys = Some(Arc::new(Keys::new(one, vec![(R1, other_public)])));
            b.keys = keys(other, &[(R0, &private_key())]);
            assert_ne!(one_public, other_public);
        }),
        ["does not trust this replica's key", "is not trusted"],
    );
}

/// A replica that may talk is not believed to be another one.
#[test]
fn the_key_of_another_replica() {
    let maker = TcpMaker::encrypted();
    let [mut a, b] = [R0, R1].map(|id| maker.config(id, How::default()));
    a.keys = Some(maker.keys[2].clone());
    refused(
        [open(a), open(b)],
        [
            "takes this replica's key for another one's",
            "it says that it is r0",
        ],
    );
    let mut a = maker.config(R0, How::default());
    a.peers.retain(|(id, _)| *id == R1);
    a.peers[0].1 = maker.addresses[2];
    let c = open(maker.config(ReplicaId(2), How::default()));
    let mut fabrics = [open(a), c];
    drive(&mut fabrics, |fabrics, _| {
        fabrics[0]
            .refusal(R1)
            .is_some_and(|why| why.contains("it shows the key of r2"))
    });
}

#[test]
fn one_side_alone_has_keys() {
    refused(
        two(|a, _| a.keys = None),
        ["this replica has no keys", "it does not speak TLS"],
    );
    refused(
        two(|_, b| b.keys = None),
        [
            "it has no keys, and this replica speaks TLS",
            "this replica has no keys",
        ],
    );
}

/// Two peers on one host are not told apart before they have greeted, so neither is blamed.
#[test]
fn a_stranger_is_no_peers_fault() {
    let mut config = TcpMaker::encrypted().config(ReplicaId(2), How::default());
    for (_, address) in &mut config.peers {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let mut here = open(config);
    let address = here.listen_address().unwrap();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[b'x'; 200]).unwrap();
    while here.stats().rejected == 0 {
        here.progress(&mut Vec::new());
    }
    assert_eq!((here.refusal(R0), here.refusal(R1)), (None, None));
}

/// A replica changes its key while its peers trust both keys, and its old one is forgotten afterwards. A key that is
/// forgotten while a link rests on it ends the link.
#[test]
fn a_key_is_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trusted");
    let key_file = |n: usize| dir.path().join(format!("{n}.key"));
    let all = [private_key(), private_key(), private_key()];
    for (n, key) in all.iter().enumerate() {
        key.write_new(&key_file(n)).unwrap();
    }
    let [zero, old, new] = all.each_ref().map(PrivateKey::public);
    trust(&file, plover_fabric::keys::Holder::Replica(R0), zero).unwrap();
    trust(&file, plover_fabric::keys::Holder::Replica(R1), old).unwrap();
    let load = |me: ReplicaId, n| {
        let keys = Keys::load(&key_file(n), &file, me, [R0, R1]);
        Some(Arc::new(keys.expect("they fit")))
    };
    let maker = TcpMaker::new();
    let config = |me: ReplicaId, n| {
        let mut config = maker.config(me, How::default());
        config.keys = load(me, n);
        config
    };
    let mut fabrics = [open(config(R0, 0)), open(config(R1, 1))];
    drive(&mut fabrics, |_, events| both_up(events));
    trust(&file, plover_fabric::keys::Holder::Replica(R1), new).unwrap();
    let [a, b] = fabrics;
    drop(b);
    let mut fabrics = [a, open(config(R1, 2))];
    drive(&mut fabrics, |fabrics, _| {
        fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    let forget = |key: PublicKey| {
        let text = std::fs::read_to_string(&file).unwrap();
        let key = key.to_string();
        let rest: Vec<_> = text.lines().filter(|line| !line.ends_with(&key)).collect();
        std::fs::write(&file, rest.join("\n")).unwrap();
    };
    forget(old);
    let mut before = maker.config(R1, How::default());
    let own = PrivateKey::read(&key_file(1)).unwrap();
    before.keys = Some(Arc::new(Keys::new(own, vec![(R0, zero)])));
    let [a, b] = fabrics;
    drop(b);
    let mut fabrics = [a, open(before)];
    let refuses = |fabrics: &[TcpFabric], why| {
        let said = fabrics[0].refusal(R1);
        said.is_some_and(|said| said.contains(why))
    };
    drive(&mut fabrics, |fabrics, _| {
        refuses(fabrics, "is not trusted")
    });
    let [a, b] = fabrics;
    drop(b);
    let mut fabrics = [a, open(config(R1, 2))];
    drive(&mut fabrics, |fabrics, _| {
        fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    forget(new);
    let down = FabricEvent::Down(R1);
    let mut is_down = false;
    drive(&mut fabrics, |fabrics, events| {
        is_down |= events[0].contains(&down);
        is_down && refuses(fabrics, "trusted no more")
    });
}

#[test]
fn strangers_do_no_harm_to_tls() {
    strangers_do_no_harm(TcpMaker::encrypted(), |maker| {
        TcpStream::connect(maker.addresses[1]).unwrap().into()
    });
}

/// Whatever a stranger says, nothing of ours comes before it has shown a key: neither the greeting's first
/// bytes nor the group's name.
#[test]
fn a_stranger_learns_nothing() {
    let maker = TcpMaker::encrypted();
    let mut here = open(maker.config(R1, How::default()));
    let plain = open(TcpConfig {
        keys: None,
        ..maker.config(R0, How::default())
    });
    drop(plain);
    let greeting = b"PLOVERf\x01".repeat(16);
    let hello = client_hello();
    for said in [&greeting[..], &hello[..], &hello[..100]] {
        let mut stranger = TcpStream::connect(maker.addresses[1]).unwrap();
        stranger.write_all(said).unwrap();
        stranger.set_nonblocking(true).unwrap();
        let mut heard = Vec::new();
        loop {
            here.progress(&mut Vec::new());
            match stranger.read_to_end(&mut heard) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The end, or a reset.
                _ => break,
            }
            here.wait(Some(Duration::from_millis(5)));
        }
        for ours in [&b"PLOVER"[..], b"test"] {
            assert!(
                !heard.windows(ours.len()).any(|part| part == ours),
                "{heard:?}"
            );
        }
    }
    assert!(here.stats().rejected >= 3);
}

/// The first message of a replica that dials.
fn client_hello() -> Vec<u8> {
    let maker = TcpMaker::encrypted();
    let listener = TcpListener::bind(maker.addresses[1]).unwrap();
    let mut fabric = open(maker.config(R0, How::default()));
    let (mut socket, _) = thread::scope(|threads| {
        let accepted = threads.spawn(|| listener.accept().unwrap());
        while !accepted.is_finished() {
            fabric.progress(&mut Vec::new());
        }
        accepted.join().unwrap()
    });
    socket.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 4096];
    loop {
        fabric.progress(&mut Vec::new());
        match socket.read(&mut bytes) {
            Ok(count) => break bytes[..count].to_vec(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// A peer that has a trusted key and talks nonsense, or stops talking, is turned away, and costs nothing else.
#[test]
fn a_trusted_peer_that_talks_nonsense_is_turned_away() {
    let maker = TcpMaker::encrypted();
    let mut fabrics = [R0, R1].map(|id| open(maker.config(id, How::default())));
    drive(&mut fabrics, |_, events| both_up(events));
    let (keys, address) = (maker.keys[0].clone(), maker.addresses[1]);
    let nonsense = thread::spawn(move || {
        let greeting = [&b"PLOVERf\x01"[..], &[0xff; 120]].concat();
        for said in [&[7; 128][..], &greeting, &[1; 100_000], &[]] {
            let socket = TcpStream::connect(address).unwrap();
            let mut stream = Stream::to(R1, socket, Some(&keys)).unwrap();
            // The other side may have had enough already.
            let _ = stream.write_all(said);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 128, "{answer:?}");
        }
    });
    drive(&mut fabrics, |fabrics, events| {
        let lost = |event: &FabricEvent| matches!(event, FabricEvent::Down(_));
        assert!(!events.iter().flatten().any(lost), "a link went down");
        nonsense.is_finished() && fabrics[1].stats().rejected >= 4
    });
    nonsense.join().unwrap();
}

/// A peer that stops in the middle of its handshake, or dribbles, is given up in time and dialled again.
#[test]
fn a_peer_that_hangs_in_the_handshake_is_given_up() {
    let maker = TcpMaker::encrypted();
    let listener = TcpListener::bind(maker.addresses[1]).unwrap();
    let mut here = open(maker.config(R0, How::default()));
    let (hand_over, dials) = channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            // The beginning of an answer, and no more.
            let mut socket = socket.unwrap();
            let _ = socket.write_all(&[22, 3, 3]);
            if hand_over.send(socket).is_err() {
                break;
            }
        }
    });
    let mut sockets = Vec::new();
    // Both lanes, and both again.
    while sockets.len() < 4 {
        here.progress(&mut Vec::new());
        here.wait(Some(Duration::from_millis(5)));
        sockets.extend(dials.try_iter());
    }
    assert!(!here.is_up(R1));
}

/// Bytes that are changed on the way end the link, and it comes back.
#[test]
fn a_changed_byte_is_noticed() {
    let maker = TcpMaker::encrypted();
    let relay = TcpListener::bind((maker.addresses[0].ip(), 0)).unwrap();
    let mut config = maker.config(R0, How::default());
    config.peers.retain(|(id, _)| *id == R1);
    config.peers[0].1 = relay.local_addr().unwrap();
    let to = maker.addresses[1];
    thread::spawn(move || {
        for (n, stream) in relay.incoming().enumerate() {
            pass_on(stream.unwrap(), to, n < 2);
        }
    });
    let mut fabrics = [open(config), open(maker.config(R1, How::default()))];
    drive(&mut fabrics, |_, events| both_up(events));
    for n in 0..20 {
        fabrics[0].write(R1, Lane::Log, &[n; 1000]).unwrap();
    }
    drive(&mut fabrics, |fabrics, _| {
        fabrics[1].stats().damaged > 0 && fabrics[0].is_up(R1) && fabrics[1].is_up(R0)
    });
    assert!(fabrics[1].stats().log.bytes_in < 20_000);
}

/// Relays a connection; of what the client says, byte 5000 is flipped if `damages`.
fn pass_on(client: TcpStream, to: SocketAddr, damages: bool) {
    let server = TcpStream::connect(to).unwrap();
    let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || {
        let _ = std::io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(std::net::Shutdown::Both);
    });
    let (mut from, mut to) = (client, server);
    thread::spawn(move || {
        let (mut buffer, mut passed) = ([0; 4096], 0);
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let at = 5000_usize.wrapping_sub(passed);
            if damages && at < count {
                buffer[at] ^= 0x10;
            }
            passed += count;
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

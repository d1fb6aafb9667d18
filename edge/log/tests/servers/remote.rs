//! Remote clients. They run in this process, which the servers cannot tell.

use crate::{PATIENCE, Running, patient, servers};
use plover_log::remote::{self, TailEvent};
use plover_log::wire::MemberChange;
use plover_log::{Address, Remote, RemoteError};
use plover_types::{Index, ReplicaId};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::time::Duration;

fn group(size: usize) -> (Vec<Running>, Vec<Address>) {
    let servers = servers(size, |config| {
        patient(config);
        config.check_outputs = true;
    });
    let running: Vec<_> = servers.into_iter().map(Running::start).collect();
    let addresses = running.iter().map(|it| it.address.clone()).collect();
    (running, addresses)
}

#[test]
fn a_client_finds_the_leader_from_any_replica() {
    let (_running, addresses) = group(3);
    for (number, address) in addresses.iter().enumerate() {
        let mut client = Remote::new(vec![address.clone()], PATIENCE);
        let mut answer = Vec::new();
        client.call(&[1], &mut answer).unwrap();
        client.call(&[1], &mut answer).unwrap();
        let sum = 2 * number as u64 + 1;
        assert_eq!(
            answer,
            [sum.to_le_bytes(), (sum + 1).to_le_bytes()].concat()
        );
    }
}

#[test]
fn many_proposers_make_one_order_without_gaps() {
    let (_running, addresses) = group(3);
    let proposers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Remote::new(addresses.clone(), PATIENCE);
            let append = move || client.append(&[1]).unwrap().index;
            std::thread::spawn(move || std::iter::repeat_with(append).take(200).collect())
        })
        .collect();
    let places = proposers.into_iter().map(|it| it.join().unwrap());
    let mut places: Vec<_> = places.flat_map(|it: Vec<Index>| it).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 1600, "each entry has its own place");
    let mut sum = Vec::new();
    let mut client = Remote::new(addresses.clone(), PATIENCE);
    client.call(&[0], &mut sum).unwrap();
    assert_eq!(sum, 1600u64.to_le_bytes(), "each is applied once");
}

/// The entries after `since`, at most so many; waits for them with `follow`.
fn read(address: &Address, since: Index, follow: bool, max: usize) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    let each = |event: TailEvent<'_>| {
        if let TailEvent::Entry { bytes, .. } = event {
            seen.push(bytes.to_vec());
        }
        if seen.len() == max {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    remote::tail(address, None, since, follow, each).unwrap();
    seen
}

#[test]
fn the_log_is_read_from_every_replica_also_while_it_grows() {
    let (_running, addresses) = group(3);
    let mut client = Remote::new(addresses.clone(), PATIENCE);
    let texts: Vec<_> = (0..2000u32).map(|it| it.to_le_bytes().to_vec()).collect();
    let readers = addresses
        .clone()
        .into_iter()
        .map(|address| std::thread::spawn(move || read(&address, Index(0), true, 2000)));
    let readers: Vec<_> = readers.collect();
    for text in &texts {
        client.append(text).unwrap();
    }
    for reader in readers {
        assert_eq!(reader.join().unwrap(), texts);
    }
    let leads = |it: &&Address| remote::status(it, None).is_ok_and(|it| it.leader == Some(it.id));
    let leader = addresses.iter().find(leads).expect("it has just answered");
    let rest = read(leader, Index(1500), false, 2000);
    // Reports of outputs take places in the log too, 10 from each replica.
    assert!((500..600).contains(&rest.len()), "{}", rest.len());
    assert!(texts.ends_with(&rest));
}

#[test]
fn a_slow_reader_gets_every_entry_and_holds_nobody_up() {
    let (_running, addresses) = group(1);
    let mut client = Remote::new(addresses.clone(), PATIENCE);
    for _ in 0..40 {
        client.append(&vec![1; 500_000]).unwrap();
    }
    let Address::Tcp(address) = addresses[0] else {
        panic!("a TCP address");
    };
    // It asks for 20 MB and reads slowly; the others are served meanwhile.
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        let each = |_: TailEvent<'_>| {
            seen += 1;
            std::thread::sleep(Duration::from_millis(3));
            ControlFlow::Continue(())
        };
        remote::tail(&Address::Tcp(address), None, Index(0), false, each).unwrap();
        seen
    });
    client.append(&[1]).unwrap();
    assert!(reader.join().unwrap() > 40);
}

#[test]
fn noise_ends_the_connection_and_nothing_else() {
    let (_running, addresses) = group(1);
    let Address::Tcp(address) = addresses[0] else {
        panic!("a TCP address");
    };
    for noise in [
        &[0xff; 64][..],
        &[9, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    ] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(noise).unwrap();
        let mut answer = Vec::new();
        // The server says what is wrong, or resets because it has not read all of the noise.
        let _ = socket.read_to_end(&mut answer);
    }
    Remote::new(addresses.clone(), PATIENCE)
        .append(&[1])
        .unwrap();
    let status = remote::status(&addresses[0], None).unwrap();
    assert_eq!(status.rejected, 2);
}

#[test]
fn too_large_and_nobody_there() {
    let (running, addresses) = group(1);
    let mut client = Remote::new(addresses.clone(), PATIENCE);
    let error = client.append(&vec![0; 3 << 20]).unwrap_err();
    assert!(matches!(error, RemoteError::TooLarge { .. }), "{error}");
    client.append(&[1]).unwrap();
    drop(running);
    let error = remote::status(&addresses[0], None).unwrap_err().to_string();
    assert!(error.contains("cannot reach"), "{error}");
    let mut client = Remote::new(addresses, Duration::from_millis(200));
    let error = client.append(&[1]).unwrap_err().to_string();
    assert!(error.contains("majority"), "{error}");
}

/// No process runs where the newcomer is said to be. The reports of the leader come more often than the client's patience
/// ends.
#[test]
fn a_newcomer_that_never_comes_is_given_up() {
    let (_running, addresses) = group(1);
    Remote::new(addresses.clone(), PATIENCE)
        .append(&[1])
        .unwrap();
    let mut client = Remote::new(addresses, Duration::from_secs(5));
    let (id, address) = (ReplicaId(3), "127.0.0.1:1".into());
    let change = MemberChange::Add { id, address };
    let mut told = Vec::new();
    let error = client
        .change_members(&change, |text| told.push(text.to_string()))
        .unwrap_err();
    assert!(matches!(error, RemoteError::NoProgress { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("plover log member remove 3"), "{error}");
    let waiting = told.iter().filter(|it| it.contains("waiting"));
    assert_eq!(waiting.count(), 1, "{told:?}");
}

#[test]
fn a_reader_of_what_is_there_does_not_wait_for_a_server_that_says_nothing() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let each = |_: TailEvent<'_>| ControlFlow::Continue(());
    let error = remote::tail(&address, None, Index(0), false, each).unwrap_err();
    assert!(matches!(error, RemoteError::Unreachable { .. }), "{error}");
}

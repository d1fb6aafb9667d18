//! Clients in other processes, as far as the servers can tell.

mod common;

use common::{PATIENCE, Running, Sum, config, free_addresses, tcp};
use plover_log::remote::{self, TailEvent};
use plover_log::{Address, Remote, RemoteError, Server};
use plover_types::Index;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;

struct Group {
    running: Vec<Running<Sum>>,
    doors: Vec<Address>,
}

fn group(size: usize) -> Group {
    let addresses = free_addresses(size);
    let mut doors = Vec::new();
    let open = |me| {
        let fabric = tcp(me, &addresses);
        let mut config = config(me, size);
        config.check_outputs = true;
        let mut server = Server::in_memory(config, fabric, Sum::default()).expect("it opens");
        let any = SocketAddr::from((addresses[me].ip(), 0));
        doors.push(server.listen(&Address::Tcp(any)).expect("it listens"));
        Running::start(server)
    };
    let running = (0..size).map(open).collect();
    Group { running, doors }
}

impl Group {
    fn stop(self) {
        for running in self.running {
            running.stop();
        }
    }

    fn leader(&self) -> usize {
        for _ in 0..3000 {
            let leads =
                |door: &&Address| remote::status(door).is_ok_and(|it| it.leader == Some(it.id));
            if let Some(door) = self.doors.iter().find(leads) {
                return self.doors.iter().position(|it| it == door).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("nobody leads");
    }
}

#[test]
fn a_client_finds_the_leader_from_any_replica() {
    let group = group(3);
    for (number, door) in group.doors.iter().enumerate() {
        let mut client = Remote::new(vec![door.clone()], PATIENCE);
        let mut answer = Vec::new();
        client.call(&[1], &mut answer).unwrap();
        client.call(&[1], &mut answer).unwrap();
        let sum = 2 * number as u64 + 1;
        assert_eq!(
            answer,
            [sum.to_le_bytes(), (sum + 1).to_le_bytes()].concat()
        );
    }
    group.stop();
}

#[test]
fn a_repeated_request_is_not_applied_again() {
    let group = group(3);
    let mut client = Remote::new(group.doors.clone(), PATIENCE);
    let first = client.append(&[5]).unwrap();
    let mut twin = Remote::new(group.doors.clone(), PATIENCE).resume(client.session(), 0);
    assert_eq!(twin.append(&[5]).unwrap(), first);
    let mut answer = Vec::new();
    client.call(&[1], &mut answer).unwrap();
    assert_eq!(answer, 6u64.to_le_bytes());
    let late = Remote::new(group.doors.clone(), PATIENCE).resume(client.session(), 0);
    assert!(matches!({ late }.append(&[5]), Err(RemoteError::Stale)));
    group.stop();
}

#[test]
fn the_log_is_read_from_every_replica_also_while_it_grows() {
    let group = group(3);
    let mut client = Remote::new(group.doors.clone(), PATIENCE);
    let texts: Vec<_> = (0..2000u32).map(|it| it.to_le_bytes()).collect();
    let readers: Vec<_> = group
        .doors
        .iter()
        .cloned()
        .map(|door| {
            std::thread::spawn(move || {
                let mut seen: Vec<Vec<u8>> = Vec::new();
                let each = |event: TailEvent<'_>| {
                    if let TailEvent::Entry { bytes, .. } = event {
                        seen.push(bytes.to_vec());
                    }
                    match seen.len() {
                        2000 => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                };
                remote::tail(&door, Index(0), true, each).unwrap();
                seen
            })
        })
        .collect();
    for text in &texts {
        client.append(text).unwrap();
    }
    for reader in readers {
        assert_eq!(reader.join().unwrap(), texts);
    }
    let leader = group.leader();
    let mut rest = Vec::new();
    let collect = |event: TailEvent<'_>| {
        if let TailEvent::Entry { bytes, .. } = event {
            rest.push(bytes.to_vec());
        }
        ControlFlow::Continue(())
    };
    remote::tail(&group.doors[leader], Index(1500), false, collect).unwrap();
    // Reports of outputs take places in the log too, 10 from each replica.
    assert!((500..600).contains(&rest.len()), "{}", rest.len());
    assert!(
        texts.ends_with(
            &rest
                .iter()
                .map(|it| it[..].try_into().unwrap())
                .collect::<Vec<[u8; 4]>>()
        )
    );
    group.stop();
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    let group = group(1);
    let mut client = Remote::new(group.doors.clone(), PATIENCE);
    for _ in 0..40 {
        client.append(&vec![1; 500_000]).unwrap();
    }
    let Address::Tcp(door) = group.doors[0] else {
        panic!("a TCP door");
    };
    // It asks for 20 MB and reads nothing; the others are served meanwhile.
    let reader = std::thread::spawn(move || {
        remote::tail(&Address::Tcp(door), Index(0), false, |_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            ControlFlow::Continue(())
        })
    });
    client.append(&[1]).unwrap();
    assert!(reader.join().unwrap().unwrap() > Index(40));
    group.stop();
}

#[test]
fn noise_ends_the_connection_and_nothing_else() {
    let group = group(1);
    let Address::Tcp(door) = group.doors[0] else {
        panic!("a TCP door");
    };
    for noise in [
        &[0xff; 64][..],
        &[9, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    ] {
        let mut socket = TcpStream::connect(door).unwrap();
        socket.write_all(noise).unwrap();
        let mut answer = Vec::new();
        // The server says what is wrong, or resets because it has not read all of the noise.
        let _ = socket.read_to_end(&mut answer);
    }
    Remote::new(group.doors.clone(), PATIENCE)
        .append(&[1])
        .unwrap();
    let status = remote::status(&group.doors[0]).unwrap();
    assert_eq!(status.rejected, 2);
    group.stop();
}

#[test]
fn too_large_and_nobody_there() {
    let group = group(1);
    let mut client = Remote::new(group.doors.clone(), PATIENCE);
    let error = client.append(&vec![0; 3 << 20]).unwrap_err();
    assert!(matches!(error, RemoteError::TooLarge { .. }), "{error}");
    client.append(&[1]).unwrap();
    let doors = group.doors.clone();
    group.stop();
    let error = remote::status(&doors[0]).unwrap_err().to_string();
    assert!(error.contains("cannot reach"), "{error}");
    let mut client = Remote::new(doors, std::time::Duration::from_millis(200));
    let error = client.append(&[1]).unwrap_err().to_string();
    assert!(error.contains("majority"), "{error}");
}

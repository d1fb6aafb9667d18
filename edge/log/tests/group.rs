//! Three replicas over TCP, with proposers in their own process.

mod common;

use common::{PATIENCE, Running, Sum, append, collect, config, free_addresses, tcp, turn_until};
use plover_log::Phase;
use plover_log::{Error, Server};
use plover_types::Index;
use std::time::Duration;

fn servers(size: usize) -> Vec<Server<Sum>> {
    let addresses = free_addresses(size);
    let open = |me| {
        let fabric = tcp(me, &addresses);
        Server::in_memory(config(me, size), fabric, Sum::default()).expect("it opens")
    };
    (0..size).map(open).collect()
}

/// All of them recovered: in memory mode a replica counts only from then on.
fn settled(size: usize) -> Vec<Server<Sum>> {
    let mut servers = servers(size);
    let done = |it: &Server<Sum>| matches!(it.status().phase, Phase::Leading | Phase::Following);
    turn_until(&mut servers, |all| all.iter().all(done));
    servers
}

#[test]
fn what_is_appended_is_applied_everywhere() {
    let mut group: Vec<_> = servers(3).into_iter().map(Running::start).collect();
    let (leader, first) = append(&mut group, &[1]);
    let mut answer = Vec::new();
    let second = group[leader].client.call(&[2], &mut answer).unwrap();
    assert!(second > first);
    assert_eq!(answer, 3u64.to_le_bytes());
    let other = (leader + 1) % 3;
    let refused = group[other].client.append(&[9]);
    assert!(
        matches!(refused, Err(Error::NotLeader { .. })),
        "{refused:?}"
    );
    let mut group: Vec<_> = group.into_iter().map(Running::stop).collect();
    turn_until(&mut group, |group| {
        group.iter().all(|it| it.machine().sum == 3)
    });
    for server in &group {
        assert_eq!(server.machine().entries, 2);
    }
}

#[test]
fn a_proposer_drives_the_turns_itself() {
    let mut servers = servers(3);
    let mut leader = servers.remove(0);
    let others: Vec<_> = servers.into_iter().map(Running::start).collect();
    assert!(leader.wait_until_leading(PATIENCE).unwrap());
    let mut answer = Vec::new();
    for sum in 1..=100u64 {
        answer.clear();
        leader.call(&[1], PATIENCE, &mut answer).unwrap().unwrap();
        assert_eq!(answer, sum.to_le_bytes());
    }
    let tickets: Vec<_> = (0..50).map(|_| leader.submit(&[2]).unwrap()).collect();
    let mut done = Vec::new();
    while done.len() < tickets.len() {
        leader.turn(Some(Duration::from_millis(100))).unwrap();
        done.extend(std::iter::from_fn(|| leader.completed()));
    }
    let order: Vec<_> = done.iter().map(|it| it.ticket).collect();
    assert_eq!(order, tickets);
    assert!(
        done.windows(2)
            .all(|two| two[0].result.unwrap() < two[1].result.unwrap())
    );
    assert_eq!(leader.machine().sum, 200);
    drop(others.into_iter().map(Running::stop).collect::<Vec<_>>());
}

#[test]
fn many_proposers_make_one_order_without_gaps() {
    let mut group: Vec<_> = servers(3).into_iter().map(Running::start).collect();
    let (leader, first) = append(&mut group, &[0]);
    let mut places = collect(|sender| {
        for _ in 0..8 {
            let (mut client, sender) = (group[leader].client.clone(), sender.clone());
            std::thread::spawn(move || {
                for _ in 0..200 {
                    sender.send(client.append(&[1]).unwrap().index).unwrap();
                }
            });
        }
    });
    places.sort_unstable();
    let last = first.index.0 + 1600;
    let expected: Vec<_> = (first.index.0 + 1..=last).map(Index).collect();
    assert_eq!(places, expected);
    for running in group {
        running.stop();
    }
}

#[test]
fn many_outstanding_entries_are_bounded_and_all_complete() {
    let mut group: Vec<_> = servers(3).into_iter().map(Running::start).collect();
    let (leader, _) = append(&mut group, &[0]);
    let client = &mut group[leader].client;
    let (mut submitted, mut completed, mut refused) = (0, 0, 0);
    let entry = vec![1; 60_000];
    while completed < 400 {
        let submit = (submitted < 400).then(|| client.submit(&entry));
        match submit {
            Some(Ok(_)) => submitted += 1,
            Some(Err(Error::Full)) => refused += 1,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
        if !matches!(submit, Some(Ok(_))) {
            let done = client.wait(Some(PATIENCE)).expect("the server works");
            done.result.unwrap();
            completed += 1;
        }
    }
    assert!(refused > 0, "24 MB went into an inbox of 4");
    for running in group {
        running.stop();
    }
}

#[test]
fn the_log_stays_bounded_and_a_late_replica_takes_over_a_state() {
    let addresses = free_addresses(3);
    let open = |me| {
        let mut config = config(me, 3);
        config.log_bytes_max = 64 << 10;
        config.retain_bytes = 16 << 10;
        Server::in_memory(config, tcp(me, &addresses), Sum::default()).expect("it opens")
    };
    let mut group: Vec<_> = (0..3).map(open).map(Running::start).collect();
    append(&mut group, &[1]);
    let lost = group.pop().unwrap().stop();
    assert!(lost.applied() > Index(0));
    drop(lost);
    for _ in 0..500 {
        append(&mut group, &[1; 1000]);
    }
    let mut servers: Vec<_> = group.into_iter().map(Running::stop).collect();
    for server in &servers {
        assert!(server.status().log_bytes <= 64 << 10, "{server:?}");
        assert!(server.status().base > Index(400), "{server:?}");
    }
    servers.push(open(2));
    let sum = servers[0].machine().sum.max(servers[1].machine().sum);
    turn_until(&mut servers, |all| {
        all.iter().all(|it| it.machine().sum == sum)
    });
    assert_eq!(servers[2].machine(), servers[0].machine());
}

#[test]
fn the_leaders_loss_is_told_and_the_others_go_on() {
    let mut group: Vec<_> = settled(3).into_iter().map(Running::start).collect();
    let (leader, _) = append(&mut group, &[1]);
    let mut orphan = group[leader].client.clone();
    let dead = group.remove(leader);
    drop(dead.stop());
    assert_eq!(orphan.append(&[1]), Err(Error::Stopped));
    assert_eq!(orphan.submit(&[1]), Err(Error::Stopped));
    append(&mut group, &[2]);
    let mut group: Vec<_> = group.into_iter().map(Running::stop).collect();
    turn_until(&mut group, |group| {
        group.iter().all(|it| it.machine().sum == 3)
    });
}

#[test]
fn entries_that_are_too_large_are_refused_with_the_bound() {
    let mut group: Vec<_> = servers(1).into_iter().map(Running::start).collect();
    append(&mut group, &[1]);
    let client = &mut group[0].client;
    let Err(Error::TooLarge { max, .. }) = client.append(&vec![0; 2 << 20]) else {
        panic!("2 MiB were taken");
    };
    client.append(&vec![0; max]).expect("the bound itself fits");
    let server = group.remove(0).stop();
    assert_eq!(server.machine().entries, 2);
}

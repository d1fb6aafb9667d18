//! Three replicas over TCP, driven by this thread.

use crate::{
    PATIENCE, Running, Sum, append, free_addresses, patient, server, servers, turn_until,
    turn_until_sum,
};
use plover_log::Error;
use plover_types::{Index, ReplicaId, ReplicaSet};
use std::time::Duration;

#[test]
fn a_proposer_drives_the_turns_itself() {
    let mut servers = servers(3, patient);
    let mut leader = servers.remove(0);
    let _others: Vec<_> = servers.into_iter().map(Running::start).collect();
    assert!(leader.wait_until_leading(PATIENCE).unwrap());
    for sum in 1..=100u64 {
        let (_, answer) = leader.append(&[1], PATIENCE).unwrap().unwrap();
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
}

#[test]
fn many_outstanding_entries_are_bounded_and_all_complete() {
    let mut group = servers(3, |config| {
        config.log_bytes_max = 1 << 20;
        config.retain_bytes = 1 << 18;
    });
    let (leader, _) = append(&mut group, &[0]);
    let (mut submitted, mut completed, mut refused) = (0, 0, 0);
    let entry = vec![1; 60_000];
    turn_until(&mut group, |all| {
        while submitted < 100 {
            match all[leader].submit(&entry) {
                Ok(_) => submitted += 1,
                Err(Error::Full) => {
                    refused += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        while let Some(done) = all[leader].completed() {
            done.result.unwrap();
            completed += 1;
        }
        completed == 100
    });
    assert!(refused > 0, "6 MB went into a log of 1");
}

#[test]
fn the_log_stays_bounded_and_a_late_replica_takes_over_a_state() {
    let addresses = free_addresses(3);
    let open = |me| {
        server(me, &addresses, Sum::default(), |config| {
            config.log_bytes_max = 64 << 10;
            config.retain_bytes = 16 << 10;
        })
    };
    let mut group: Vec<_> = (0..3).map(open).collect();
    append(&mut group, &[1]);
    turn_until(&mut group, |all| all[2].report().applied > Index(0));
    drop(group.pop());
    for _ in 0..500 {
        append(&mut group, &[1; 1000]);
    }
    for server in &group {
        assert!(server.status().log_bytes <= 64 << 10, "{server:?}");
        assert!(server.status().base > Index(400), "{server:?}");
    }
    group.push(open(2));
    turn_until_sum(&mut group, 500_001);
    assert_eq!(group[2].machine(), group[0].machine());
}

#[test]
fn the_leaders_loss_is_told_and_the_others_go_on() {
    let mut group = servers(3, |_| ());
    let (leader, _) = append(&mut group, &[1]);
    let refused = group[(leader + 1) % 3].submit(&[9]);
    assert!(
        matches!(refused, Err(Error::NotLeader { .. })),
        "{refused:?}"
    );
    let mut lost = group.remove(leader);
    lost.submit(&[9]).unwrap();
    append(&mut group, &[2]);
    turn_until_sum(&mut group, 3);
    group.push(lost);
    turn_until(&mut group, |all| {
        let done = all[2].completed();
        done.inspect(|it| assert_eq!(it.result, Err(Error::Unknown)))
            .is_some()
    });
    turn_until_sum(&mut group, 3);
}

#[test]
fn entries_that_are_too_large_are_refused_with_the_bound() {
    let mut group = servers(1, |_| ());
    append(&mut group, &[1]);
    let refused = group[0].append(&vec![0; 2 << 20], PATIENCE).unwrap();
    let Err(Error::TooLarge { max, .. }) = refused else {
        panic!("2 MiB were taken");
    };
    append(&mut group, &vec![0; max]);
    assert_eq!(group[0].machine().entries, 2);
}

/// The output check (APUS §3).
#[test]
fn a_replica_that_answers_something_else_is_named_on_all_of_them() {
    let addresses = free_addresses(3);
    let odd = ReplicaSet::of([ReplicaId(2)]);
    let open = |me| {
        let (sum, entries) = (u64::from(me == 2), 0);
        let machine = Sum { sum, entries };
        server(me, &addresses, machine, |it| it.check_outputs = true)
    };
    let mut group: Vec<_> = (0..3).map(open).collect();
    for _ in 0..200 {
        append(&mut group, &[1]);
    }
    turn_until(&mut group, |all| {
        all.iter().all(|server| {
            let verdicts = server.report().outputs;
            let diverged = verdicts.first().and_then(|it| it.diverged);
            diverged.is_some_and(|it| it.replicas == odd)
        })
    });
}

//! A group whose log is on disk: one replica's log is damaged, or its command line is old.

use crate::{
    PATIENCE, Running, Sum, append, config, damage, free_addresses, tcp, tcp_to, turn_until,
    turn_until_sum,
};
use apus::Durability;
use plover_log::wire::MemberChange;
use plover_log::{Config, Phase, Remote, Server};
use plover_types::{ReplicaId, ReplicaSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Group {
    dir: TempDir,
    addresses: Vec<SocketAddr>,
}

impl Group {
    /// Three replicas that have appended `count` entries.
    fn new(count: usize) -> (Self, Vec<Server<Sum>>) {
        let group = Self {
            dir: tempfile::tempdir().expect("a directory"),
            addresses: free_addresses(3),
        };
        let mut servers: Vec<_> = (0..3).map(|id| group.open(id)).collect();
        for _ in 0..count {
            append(&mut servers, &[1]);
        }
        turn_until_sum(&mut servers, count as u64);
        (group, servers)
    }

    fn open(&self, id: usize) -> Server<Sum> {
        let mut config = config(id, 3);
        config.durability = Durability::Disk;
        let dir = self.dir.path().join(id.to_string());
        let fabric = tcp(id, &self.addresses);
        Server::in_directory(config, fabric, Sum::default(), &dir, "g").expect("it opens")
    }

    /// Flips a bit in the log of replica `id`.
    fn damage(&self, id: usize) {
        damage(&self.dir.path().join(id.to_string()), 200);
    }
}

fn is_recovering(server: &Server<Sum>) -> bool {
    server.status().phase == Phase::Recovering
}

#[test]
fn a_replica_with_a_damaged_log_recovers_from_the_others_before_it_votes() {
    let (group, mut servers) = Group::new(60);
    servers.clear();
    group.damage(2);
    // It has forgotten its log, and stays so without the others, also after a restart.
    for _ in 0..2 {
        servers.clear();
        servers.push(group.open(2));
        let until = Instant::now() + Duration::from_millis(250);
        turn_until(&mut servers, |all| {
            assert!(is_recovering(&all[0]));
            Instant::now() > until
        });
    }
    // The others go on with what is on their disks.
    servers.extend([0, 1].map(|id| group.open(id)));
    turn_until(&mut servers, |all| {
        !is_recovering(&all[0]) && all[0].machine().sum == 60
    });
    // It counts for a majority again, also after another restart: it and one other replica commit.
    drop(servers.remove(0));
    servers.push(group.open(2));
    assert!(!is_recovering(&servers[2]), "its log is on its disk");
    drop(servers.remove(0));
    append(&mut servers, &[1]);
    turn_until_sum(&mut servers, 61);
}

/// The others may all be newer than the command line of a service.
#[test]
fn a_replica_that_is_told_the_members_of_old_links_to_those_that_its_log_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = free_addresses(3);
    // Replicas 0 and 1 began the group, and every command line names these two.
    let open = |me: usize| {
        let told = ReplicaSet::of([ReplicaId(0), ReplicaId(1)]);
        let mut config = Config::new(ReplicaId(me as u8), told);
        config.durability = Durability::Disk;
        let all = (0u8..).map(ReplicaId).zip(&addresses);
        config.addresses = all
            .filter(|(id, _)| told.contains(*id) || id.0 as usize == me)
            .map(|(id, address)| (id, address.to_string()))
            .collect();
        let fabric = tcp_to(&[0, 1], me, &addresses);
        let dir = dir.path().join(me.to_string());
        Server::in_directory(config, fabric, Sum::default(), &dir, "g").expect("it opens")
    };
    let running: Vec<_> = (0..3).map(|me| Running::start(open(me))).collect();
    let clients = running.iter().map(|it| it.address.clone()).collect();
    let mut remote = Remote::new(clients, PATIENCE);
    remote.append(&[1]).expect("it is appended");
    let (id, address) = (ReplicaId(2), addresses[2].to_string());
    for change in [
        MemberChange::Add { id, address },
        MemberChange::Remove { id: ReplicaId(1) },
    ] {
        remote
            .change_members(&change, |_| ())
            .expect("it is changed");
    }
    remote.append(&[1]).expect("it is appended");
    drop(running);

    let mut servers = [open(0), open(2)];
    append(&mut servers, &[1]);
    turn_until_sum(&mut servers, 3);
}

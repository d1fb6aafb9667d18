//! A group whose log is on disk, and one replica's log is damaged.

use crate::{Sum, append, config, damage, free_addresses, tcp, turn_until, turn_until_sum};
use apus::Durability;
use plover_log::{Phase, Server};
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

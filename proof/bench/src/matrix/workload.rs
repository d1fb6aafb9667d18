//! The workloads of guests, as data.

use crate::client::{Kind, Traffic};

/// A guest without a kernel, which runs natively even under a KVM that emulates a guest's kernel.
pub(super) const METAL: &str = "metal";

/// A server in a guest, and what its client does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// The name on the command line and in the reports.
    pub name: &'static str,
    /// A description.
    pub what: &'static str,
    /// The guest of `plover lab up --guest`.
    pub guest: &'static str,
    /// Whether most of its requests change what the server holds.
    pub writes: bool,
    /// The client.
    pub client: Client,
}

/// The client of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    /// Our own (`crate::client`).
    Own {
        /// The server's port.
        port: u16,
        /// Its requests.
        traffic: Traffic,
        /// Connections.
        connections: u32,
        /// Requests outstanding on each.
        batch: u32,
    },
    /// `wrk`.
    Wrk {
        /// The server's port.
        port: u16,
        /// The path that it requests.
        path: &'static str,
        /// Connections.
        connections: u32,
    },
    /// `pgbench`, TPC-B.
    Pgbench {
        /// Connections.
        connections: u32,
    },
    /// No client: the guest is left alone.
    Nobody,
}

impl Client {
    /// The program that this host must have for it.
    pub(crate) fn program(&self) -> Option<&'static str> {
        matches!(self, Self::Wrk { .. }).then_some("wrk")
    }
}

const fn own(port: u16, kind: Kind, updates: u64, value_bytes: usize, batch: u32) -> Client {
    Client::Own {
        port,
        traffic: Traffic {
            kind,
            updates,
            value_bytes,
        },
        connections: 16,
        batch,
    }
}

/// 64 KiB in each request, or in each answer, on 4 connections.
const fn bulk(kind: Kind) -> Client {
    Client::Own {
        port: 6379,
        traffic: Traffic {
            kind,
            updates: 0,
            value_bytes: 64 << 10,
        },
        connections: 4,
        batch: 1,
    }
}

const fn redis(kind: Kind, updates: u64, value_bytes: usize, batch: u32) -> Client {
    own(6379, kind, updates, value_bytes, batch)
}

const fn memcached(kind: Kind, updates: u64, value_bytes: usize) -> Client {
    own(11211, kind, updates, value_bytes, 1)
}

/// One point of COLO++'s figures 5 and 6.
const fn colo_plus_plus(
    name: &'static str,
    what: &'static str,
    updates: u64,
    value_bytes: usize,
) -> Workload {
    Workload {
        name,
        what,
        guest: "memcached",
        writes: false,
        client: memcached(Kind::Memcached, updates, value_bytes),
    }
}

/// A workload of [`METAL`], which is measured under KVM.
const fn kvm(name: &'static str, what: &'static str, writes: bool, client: Client) -> Workload {
    Workload {
        name,
        what,
        guest: METAL,
        writes,
        client,
    }
}

/// All of them, those of one guest in a row.
pub(crate) const ALL: [Workload; 26] = [
    Workload {
        name: "redis",
        what: "Redis, half SET, half GET, one at a time on each of 16 connections",
        guest: "redis",
        writes: true,
        client: redis(Kind::Redis, 50, 8, 1),
    },
    Workload {
        name: "redis-batched",
        what: "Redis, half SET, half GET, in batches of 1000 on each of 16 connections",
        guest: "redis",
        writes: true,
        client: redis(Kind::Redis, 50, 8, 1000),
    },
    Workload {
        name: "redis-incr",
        what: "Redis, INCR of one key that 16 connections share",
        guest: "redis",
        writes: true,
        client: redis(Kind::RedisIncr, 100, 8, 1),
    },
    Workload {
        name: "redis-time",
        what: "Redis, TIME on 16 connections: the two guests' answers always differ",
        guest: "redis",
        writes: false,
        client: redis(Kind::RedisTime, 0, 8, 1),
    },
    Workload {
        name: "redis-reads",
        what: "Redis, 19 of 20 requests GET, values of 100 bytes, 16 connections: with clean replies most leave at once",
        guest: "redis-clean",
        writes: false,
        client: redis(Kind::Redis, 5, 100, 1),
    },
    Workload {
        name: "memcached",
        what: "memcached, 19 of 20 requests get, 16 connections",
        guest: "memcached",
        writes: false,
        client: memcached(Kind::Memcached, 5, 100),
    },
    Workload {
        name: "memcached-udp",
        what: "memcached, 19 of 20 requests get, 16 clients over UDP, values of 1 KiB: with clean replies most leave at once",
        guest: "memcached",
        writes: false,
        client: memcached(Kind::MemcachedUdp, 5, 1024),
    },
    colo_plus_plus(
        "memcached-1k-0",
        "memcached, values of 1 KiB, all requests get, 16 connections",
        0,
        1024,
    ),
    colo_plus_plus(
        "memcached-1k-5",
        "memcached, values of 1 KiB, 5% of the requests set, 16 connections",
        5,
        1024,
    ),
    colo_plus_plus(
        "memcached-1k-25",
        "memcached, values of 1 KiB, 25% of the requests set, 16 connections",
        25,
        1024,
    ),
    colo_plus_plus(
        "memcached-2k-0",
        "memcached, values of 2 KiB, all requests get, 16 connections",
        0,
        2048,
    ),
    colo_plus_plus(
        "memcached-2k-5",
        "memcached, values of 2 KiB, 5% of the requests set, 16 connections",
        5,
        2048,
    ),
    colo_plus_plus(
        "memcached-2k-25",
        "memcached, values of 2 KiB, 25% of the requests set, 16 connections",
        25,
        2048,
    ),
    colo_plus_plus(
        "memcached-4k-0",
        "memcached, values of 4 KiB, all requests get, 16 connections",
        0,
        4096,
    ),
    colo_plus_plus(
        "memcached-4k-5",
        "memcached, values of 4 KiB, 5% of the requests set, 16 connections",
        5,
        4096,
    ),
    colo_plus_plus(
        "memcached-4k-25",
        "memcached, values of 4 KiB, 25% of the requests set, 16 connections",
        25,
        4096,
    ),
    Workload {
        name: "nginx",
        what: "nginx, a static page, 16 connections",
        guest: "nginx",
        writes: false,
        client: Client::Wrk {
            port: 80,
            path: "/index.html",
            connections: 16,
        },
    },
    Workload {
        name: "nginx-bulk",
        what: "nginx, a static page of 64 KiB, 4 connections",
        guest: "nginx",
        writes: false,
        client: Client::Wrk {
            port: 80,
            path: "/64k",
            connections: 4,
        },
    },
    Workload {
        name: "lighttpd-php",
        what: "lighttpd and PHP, a page that is computed, 16 connections",
        guest: "php",
        writes: false,
        client: Client::Wrk {
            port: 80,
            path: "/index.php?n=50",
            connections: 16,
        },
    },
    Workload {
        name: "nodejs",
        what: "Node.js, a page that is computed, 16 connections",
        guest: "node",
        writes: false,
        client: Client::Wrk {
            port: 80,
            path: "/",
            connections: 16,
        },
    },
    Workload {
        name: "pgbench",
        what: "PostgreSQL, pgbench's TPC-B on 8 connections",
        guest: "postgres",
        writes: true,
        client: Client::Pgbench { connections: 8 },
    },
    Workload {
        name: "idle",
        what: "a guest that nobody asks anything: the kernel's own noise",
        guest: "idle",
        writes: false,
        client: Client::Nobody,
    },
    kvm(
        "kvm",
        "under KVM, a guest without a kernel: half SET, half GET, one at a time on each of 16 connections",
        true,
        redis(Kind::Redis, 50, 8, 1),
    ),
    kvm(
        "kvm-batched",
        "under KVM, the same in batches of 200",
        true,
        redis(Kind::Redis, 50, 8, 200),
    ),
    kvm(
        "kvm-download",
        "under KVM, answers of 64 KiB, 4 connections",
        false,
        bulk(Kind::MetalDownload),
    ),
    kvm(
        "kvm-upload",
        "under KVM, requests of 64 KiB, 4 connections",
        false,
        bulk(Kind::MetalUpload),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_their_own_and_guests_stand_together() {
        for (place, workload) in ALL.iter().enumerate() {
            let named = |other: &&Workload| other.name == workload.name;
            assert_eq!(ALL.iter().filter(named).count(), 1, "{}", workload.name);
            let last = ALL.iter().rposition(|other| other.guest == workload.guest);
            let between = &ALL[place..=last.unwrap()];
            assert!(between.iter().all(|other| other.guest == workload.guest));
        }
    }
}

//! The report of a death: the supervisor of a process that has ended tells the other replicas.
//!
//! A report is one UDP datagram to the address at which a replica listens for the others. It needs no
//! connection, so the supervisor has everything ready before its process starts, and it works beside
//! every fabric. Datagrams may be lost, so it is sent several times; a replica that gets none waits for
//! the timeout, as it does when a host dies.
//!
//! The report names the process by a random number, which that process has told the others in its
//! messages. What a report of another process means, and why a late one is harmless, says the consensus
//! core (`apus`, `death`).

use crate::config::GroupConfig;
use plover_types::{Incarnation, ReplicaId, wire};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// Longer than any report.
const REPORT_BYTES_MAX: usize = 256;

/// Reports that one turn of the loop reads.
const REPORTS_PER_TURN: usize = 32;

/// What a datagram says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    /// The group's name.
    group: String,
    /// This process has ended.
    dead: Incarnation,
}

/// Sends reports. Nothing that it does needs memory or waits.
#[derive(Debug)]
pub(crate) struct Reporter {
    socket: UdpSocket,
    peers: Vec<SocketAddr>,
    report: Vec<u8>,
}

impl Reporter {
    /// Prepares the report of the death of process `number` of this replica. `None` for a replica that is
    /// alone.
    pub fn open(group: &GroupConfig, number: u64) -> io::Result<Option<Self>> {
        let others = group.replica.iter().filter(|peer| peer.id != group.me);
        let peers: Vec<_> = others.map(|peer| peer.address).collect();
        let Some(own) = group.replica.iter().find(|peer| peer.id == group.me) else {
            return Ok(None);
        };
        if peers.is_empty() {
            return Ok(None);
        }
        let socket = UdpSocket::bind((own.address.ip(), 0))?;
        socket.set_nonblocking(true)?;
        let replica = ReplicaId(group.me);
        let report = wire::encode(&Report {
            group: group.name.clone(),
            dead: Incarnation { replica, number },
        });
        Ok(Some(Self {
            socket,
            peers,
            report,
        }))
    }

    /// Sends the report to every peer once.
    pub fn send(&self) {
        for peer in &self.peers {
            // A lost datagram is not noticed here either.
            let _ = self.socket.send_to(&self.report, peer);
        }
    }
}

/// Receives reports.
#[derive(Debug)]
pub(crate) struct Reports {
    socket: UdpSocket,
    group: String,
}

impl Reports {
    /// Listens at this replica's own address. `None` if it has none.
    pub fn listen(group: &GroupConfig) -> io::Result<Option<Self>> {
        let own = group.replica.iter().find(|peer| peer.id == group.me);
        let Some(own) = own.filter(|_| group.replica.len() > 1) else {
            return Ok(None);
        };
        let socket = UdpSocket::bind(own.address)?;
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            socket,
            group: group.name.clone(),
        }))
    }

    /// The processes that are reported dead by datagrams that wait.
    pub fn take(&self) -> Vec<Incarnation> {
        let mut buffer = [0; REPORT_BYTES_MAX];
        let mut dead = Vec::new();
        for _ in 0..REPORTS_PER_TURN {
            let Ok((length, from)) = self.socket.recv_from(&mut buffer) else {
                break;
            };
            match wire::decode::<Report>(&buffer[..length]) {
                Ok(report) if report.group == self.group => dead.push(report.dead),
                Ok(report) => {
                    tracing::debug!(%from, group = report.group, "a report of another group");
                }
                Err(error) => tracing::debug!(%from, %error, "a datagram is no report"),
            }
        }
        dead
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PeerConfig;
    use plover_types::forms::assert_form;
    use std::time::{Duration, Instant};

    /// Two replicas at free ports of this host, as replica `me` sees them.
    fn groups() -> [GroupConfig; 2] {
        let free = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let addresses = [free(), free()].map(|socket| socket.local_addr().unwrap());
        [0, 1].map(|me| {
            let text = format!("name = \"shop\"\nme = {me}\nreplica = []");
            let mut group: GroupConfig = toml::from_str(&text).unwrap();
            group.replica = (0..2)
                .map(|id| PeerConfig {
                    id,
                    address: addresses[usize::from(id)],
                    fabric: None,
                })
                .collect();
            group
        })
    }

    fn wait_for_one(reports: &Reports) -> Vec<Incarnation> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let dead = reports.take();
            if !dead.is_empty() {
                return dead;
            }
            assert!(Instant::now() < deadline, "no report has come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_report_arrives_and_noise_is_ignored() {
        let [mut theirs, mine] = groups();
        let reports = Reports::listen(&mine).unwrap().unwrap();
        let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
        for bytes in [&b""[..], b"hello", &[0; 2000]] {
            noise.send_to(bytes, mine.replica[1].address).unwrap();
        }
        let reporter = Reporter::open(&theirs, 77).unwrap().unwrap();
        theirs.name = "another".into();
        Reporter::open(&theirs, 78).unwrap().unwrap().send();
        reporter.send();
        let dead = Incarnation {
            replica: ReplicaId(0),
            number: 77,
        };
        assert_eq!(wait_for_one(&reports), [dead]);
    }

    #[test]
    fn a_replica_that_is_alone_reports_nothing() {
        let [mut group, _] = groups();
        group.replica.truncate(1);
        assert!(Reporter::open(&group, 1).unwrap().is_none());
        assert!(Reports::listen(&group).unwrap().is_none());
    }

    #[test]
    fn its_form_is_that_of_its_version() {
        let report = Report {
            group: "shop".into(),
            dead: Incarnation {
                replica: ReplicaId(3),
                number: 1001,
            },
        };
        assert_form("death reports", &[wire::encode_part(&report, Vec::new())]);
    }
}

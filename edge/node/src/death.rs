//! The report of a death: the supervisor of a process that has ended tells the other replicas.
//!
//! A report is one UDP datagram to the address at which a replica listens for the others. It needs no
//! connection, so the supervisor has everything ready before its process starts, and it works beside
//! every fabric. Datagrams may be lost, so it is sent several times; a replica that gets none waits for
//! the timeout, as it does when a host dies.
//!
//! Clients do not know yet that the guest is elsewhere, and go on sending to this host. A client's TCP
//! sends a lost request again only after 200 ms or more, so the supervisor reads the TAP of the dead process
//! for a moment, and sends on each frame in a report. The new leader takes it as if it had come to its own
//! TAP: to the guest it is a frame that was on its way a little longer.
//!
//! The report names the process by a random number, which that process has told the others in its
//! messages. If the group has keys, the report is signed, since a number that frames have been sent on with is no
//! secret while its process lives. What a report of another process means, and why a late one is harmless, says the consensus
//! core (`apus`, `death`).

use crate::config::GroupConfig;
use plover_fabric::Keys;
use plover_fabric::keys::SIGNATURE_BYTES;
use plover_types::{Frame, Incarnation, Micros, ReplicaId, wire};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Longer than any datagram.
const REPORT_BYTES_MAX: usize = 1 << 16;

/// Reports that one turn of the loop reads. To check a signature takes some 50 µs: that is done only of processes that
/// were heard, since a stranger does not know their numbers.
const REPORTS_PER_TURN: usize = 64;

/// Frames that are kept for a leader to be, and for how long. A client sends again after 200 ms.
const KEPT_MAX: usize = 1024;
const KEPT_FOR: Micros = Micros::from_ms(200);

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The group's name.
    group: String,
    /// This process has ended.
    pub dead: Incarnation,
    /// Since then, this frame has come to its TAP.
    pub frame: Option<Frame>,
}

/// The purpose of a signature.
const SIGNED_FOR: &str = "death report";

/// Sends reports. It never waits.
#[derive(Debug)]
pub(crate) struct Reporter {
    socket: UdpSocket,
    keys: Option<Arc<Keys>>,
    peers: Vec<SocketAddr>,
    report: Report,
}

/// A socket at an address of this host.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let socket = UdpSocket::bind(address).map_err(named)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Reporter {
    /// Prepares the report of the death of process `number` of this replica, signed if there are `keys`. `None`
    /// for a replica that is alone.
    pub fn open(
        group: &GroupConfig,
        keys: Option<Arc<Keys>>,
        number: u64,
    ) -> io::Result<Option<Self>> {
        let others = group.replica.iter().filter(|peer| peer.id != group.me);
        let peers: Vec<_> = others.map(|peer| peer.address).collect();
        let Some(own) = group.replica.iter().find(|peer| peer.id == group.me) else {
            return Ok(None);
        };
        if peers.is_empty() {
            return Ok(None);
        }
        let socket = bind(SocketAddr::new(own.address.ip(), 0))?;
        let replica = ReplicaId(group.me);
        let report = Report {
            group: group.name.clone(),
            dead: Incarnation { replica, number },
            frame: None,
        };
        Ok(Some(Self {
            socket,
            keys,
            peers,
            report,
        }))
    }

    /// Sends the report to every peer once.
    pub fn send(&self) {
        self.send_to_all(&self.report);
    }

    /// Sends on a frame from the dead process's TAP.
    pub fn send_on(&self, frame: Frame) {
        let report = Report {
            frame: Some(frame),
            ..self.report.clone()
        };
        self.send_to_all(&report);
    }

    fn send_to_all(&self, report: &Report) {
        let mut bytes = wire::encode(report);
        if let Some(keys) = &self.keys {
            let signature = keys.sign(SIGNED_FOR, &bytes);
            bytes.extend(signature);
        }
        for peer in &self.peers {
            // A datagram that is lost here is lost as on the way.
            let _ = self.socket.send_to(&bytes, peer);
        }
    }
}

/// Whether a frame is for one receiver. A frame to everyone has come to the other replicas, too.
pub(crate) fn is_for_one(frame: &Frame) -> bool {
    frame.ethernet().first().is_some_and(|byte| byte & 1 == 0)
}

/// Receives reports.
#[derive(Debug)]
pub(crate) struct Reports {
    socket: UdpSocket,
    keys: Option<Arc<Keys>>,
    group: String,
    buffer: Vec<u8>,
}

impl Reports {
    /// Listens at this replica's own address. `None` if it has none.
    pub fn listen(group: &GroupConfig, keys: Option<Arc<Keys>>) -> io::Result<Option<Self>> {
        let own = group.replica.iter().find(|peer| peer.id == group.me);
        let Some(own) = own.filter(|_| group.replica.len() > 1) else {
            return Ok(None);
        };
        let socket = bind(own.address)?;
        Ok(Some(Self {
            socket,
            keys,
            group: group.name.clone(),
            buffer: vec![0; REPORT_BYTES_MAX],
        }))
    }

    /// The reports that wait of processes that were `heard`.
    pub fn take(&mut self, heard: impl Fn(Incarnation) -> bool) -> Vec<Report> {
        let mut reports = Vec::new();
        for _ in 0..REPORTS_PER_TURN {
            let Ok((length, from)) = self.socket.recv_from(&mut self.buffer) else {
                break;
            };
            match self.report_in(&self.buffer[..length], &heard) {
                Ok(report) => reports.push(report),
                Err(why) => tracing::debug!(%from, why, "a datagram is no report"),
            }
        }
        reports
    }

    fn report_in(
        &self,
        bytes: &[u8],
        heard: impl Fn(Incarnation) -> bool,
    ) -> Result<Report, String> {
        let (bytes, signature) = match &self.keys {
            Some(_) => bytes
                .split_last_chunk::<SIGNATURE_BYTES>()
                .ok_or("it is too short for a signature")?,
            None => (bytes, &[0; SIGNATURE_BYTES]),
        };
        let report: Report = wire::decode(bytes).map_err(|error| error.to_string())?;
        if report.group != self.group {
            return Err(format!("it is of the group {}", report.group));
        }
        if !heard(report.dead) {
            return Err("it is of a process that was not heard".into());
        }
        let signer = report.dead.replica;
        let is_signed = |keys: &Arc<Keys>| keys.is_signed(signer, SIGNED_FOR, bytes, signature);
        if !self.keys.as_ref().is_none_or(is_signed) {
            return Err(format!("it is not signed by {signer}"));
        }
        Ok(report)
    }
}

/// Frames that a dead leader's host has sent on, until this replica faces the clients.
#[derive(Debug, Default)]
pub(crate) struct SentOn(VecDeque<(Micros, Frame)>);

impl SentOn {
    /// Keeps a frame for a moment. The oldest of too many is lost.
    pub fn keep(&mut self, now: Micros, frame: Frame) {
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, frame));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The frames that came a moment ago. Older ones are dropped: their clients have sent them again.
    pub fn take(&mut self, now: Micros) -> Vec<Frame> {
        let kept = self.0.drain(..);
        let fresh = kept.filter(|(came, _)| now.since(*came) < KEPT_FOR);
        fresh.map(|(_, frame)| frame).collect()
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
    use plover_fabric::keys::PrivateKey;
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

    const UNHEARD: u64 = 79;

    fn wait_for_some(reports: &mut Reports) -> Vec<Report> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let some = reports.take(|dead| dead.number != UNHEARD);
            if !some.is_empty() {
                return some;
            }
            assert!(Instant::now() < deadline, "no report has come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_report_arrives_and_noise_is_ignored() {
        let [mut theirs, mine] = groups();
        let mut reports = Reports::listen(&mine, None).unwrap().unwrap();
        let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
        for bytes in [&b""[..], b"hello", &[0; 2000]] {
            noise.send_to(bytes, mine.replica[1].address).unwrap();
        }
        let reporter = Reporter::open(&theirs, None, 77).unwrap().unwrap();
        theirs.name = "another".into();
        Reporter::open(&theirs, None, 78).unwrap().unwrap().send();
        theirs.name = "shop".into();
        Reporter::open(&theirs, None, UNHEARD)
            .unwrap()
            .unwrap()
            .send();
        reporter.send();
        let mut report = Report {
            group: "shop".into(),
            dead: Incarnation {
                replica: ReplicaId(0),
                number: 77,
            },
            frame: None,
        };
        assert_eq!(wait_for_some(&mut reports), [report.clone()]);
        let frame = Frame(vec![7; 1514]);
        report.frame = Some(frame.clone());
        reporter.send_on(frame);
        assert_eq!(wait_for_some(&mut reports), [report]);
    }

    /// Neither a stranger nor another replica reports a death.
    #[test]
    fn with_keys_only_the_replica_itself_reports_its_death() {
        let [theirs, mine] = groups();
        let private = [0; 3].map(|_| PrivateKey::generate().unwrap());
        let public = private.each_ref().map(PrivateKey::public);
        let ids = [0, 1].map(ReplicaId);
        let keys = private.map(|own| {
            let trusted = ids.into_iter().zip(public).collect();
            Some(Arc::new(Keys::new(own, trusted)))
        });
        let [own, other, stranger] = keys;
        let mut reports = Reports::listen(&mine, other.clone()).unwrap().unwrap();
        for (keys, number) in [(None, 1), (stranger, 2), (other, 3), (own, 4)] {
            let reporter = Reporter::open(&theirs, keys, number).unwrap().unwrap();
            reporter.send();
        }
        let numbers = wait_for_some(&mut reports)
            .into_iter()
            .map(|report| report.dead.number);
        assert_eq!(numbers.collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn frames_are_kept_for_a_moment() {
        let mut kept = SentOn::default();
        let frame = |n: usize| Frame(vec![n as u8]);
        kept.keep(Micros(1), frame(1));
        for n in 0..KEPT_MAX {
            kept.keep(KEPT_FOR, frame(n));
        }
        assert_eq!(kept.0.len(), KEPT_MAX);
        kept.keep(KEPT_FOR + Micros(5), frame(7));
        let late = KEPT_FOR + KEPT_FOR;
        assert_eq!(kept.take(late), [frame(7)]);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_replica_that_is_alone_reports_nothing() {
        let [mut group, _] = groups();
        group.replica.truncate(1);
        assert!(Reporter::open(&group, None, 1).unwrap().is_none());
        assert!(Reports::listen(&group, None).unwrap().is_none());
    }

    #[test]
    fn its_form_is_that_of_its_version() {
        let report = Report {
            group: "shop".into(),
            dead: Incarnation {
                replica: ReplicaId(3),
                number: 1001,
            },
            frame: Some(Frame(vec![1, 2])),
        };
        assert_form("death reports", &[wire::encode_part(&report, Vec::new())]);
    }
}

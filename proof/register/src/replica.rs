//! The process of one replica. Its standard input cuts and heals its links: `cut 1`, `heal 1`.

use crate::registers::Registers;
use anyhow::Context;
use plover_fabric::{
    Attached, Fabric, FabricEvent, FabricStats, PeerError, TcpConfig, TcpFabric, WriteError,
};
use plover_log::{Address, Config, Durability, Server};
use plover_types::{Lane, Micros, ReplicaId, ReplicaSet};
use std::io::BufRead;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A TCP fabric whose links another thread may cut. A cut is silent, as on a real network: records
/// are taken and lost in both directions, and the link stays up.
struct Cuttable {
    inner: TcpFabric,
    orders: Receiver<(ReplicaId, bool)>,
    cut: ReplicaSet,
}

impl Fabric for Cuttable {
    fn write(&mut self, to: ReplicaId, lane: Lane, record: &[u8]) -> Result<(), WriteError> {
        if self.cut.contains(to) && self.inner.is_up(to) {
            return Ok(());
        }
        self.inner.write(to, lane, record)
    }
    fn flush(&mut self) {
        self.inner.flush();
    }
    fn progress(&mut self, events: &mut Vec<FabricEvent>) {
        // A heartbeat's time after the order at the latest: an idle replica ticks that often.
        for (peer, cut) in self.orders.try_iter() {
            if cut {
                self.cut.insert(peer);
            } else {
                self.cut.remove(peer);
            }
        }
        let before = events.len();
        self.inner.progress(events);
        let cut = self.cut;
        let is_lost = |event: &FabricEvent| matches!(event, FabricEvent::Record { from, .. } if cut.contains(*from));
        let kept = events.split_off(before);
        events.extend(kept.into_iter().filter(|event| !is_lost(event)));
    }
    fn set_peer(&mut self, peer: ReplicaId, address: Option<&str>) -> Result<(), PeerError> {
        self.inner.set_peer(peer, address)
    }
    fn cut(&mut self, peer: ReplicaId, why: &str) {
        self.inner.cut(peer, why);
    }
    fn wait_fd(&self) -> RawFd {
        self.inner.wait_fd()
    }
    fn wait(&mut self, timeout: Option<Duration>) {
        self.inner.wait(timeout);
    }
    fn attach(&mut self, fd: BorrowedFd<'_>) -> std::io::Result<Attached> {
        self.inner.attach(fd)
    }
    fn is_readable(&self, attached: Attached) -> bool {
        self.inner.is_readable(attached)
    }
    fn timeout(&self) -> Option<Duration> {
        let often = Duration::from_millis(20);
        Some(self.inner.timeout().map_or(often, |it| it.min(often)))
    }
    fn record_bytes_max(&self, lane: Lane) -> usize {
        self.inner.record_bytes_max(lane)
    }
    fn stats(&self) -> FabricStats {
        self.inner.stats()
    }
}

/// Runs replica `me` of a group at `peers`, with clients on `door`, until it is killed.
pub fn run(
    me: u8,
    peers: &[SocketAddr],
    door: SocketAddr,
    dir: &Path,
    durability: Durability,
) -> anyhow::Result<()> {
    let id = |id: usize| ReplicaId(id as u8);
    let mut config = Config::new(id(me.into()), ReplicaSet::of((0..peers.len()).map(id)));
    // Longer than the defaults: a test machine does other things as well.
    config.timeout = Micros::from_ms(200);
    config.heartbeat = Micros::from_ms(40);
    config.durability = durability;
    // So little that logs are trimmed, and a replica that was away installs a snapshot.
    config.retain_bytes = 16 << 10;
    let others = peers
        .iter()
        .enumerate()
        .filter(|(it, _)| *it != usize::from(me));
    let others = others.map(|(it, address)| (id(it), *address)).collect();
    let fabric = TcpConfig::new("register", id(me.into()), peers[usize::from(me)], others);
    let (sender, orders) = channel();
    let fabric = Box::new(Cuttable {
        inner: TcpFabric::new(fabric)?,
        orders,
        cut: ReplicaSet::default(),
    });
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = line.split_once(' ');
            let peer = order.and_then(|(_, peer)| Some(ReplicaId(peer.parse().ok()?)));
            if let (Some((what, _)), Some(peer)) = (order, peer) {
                let _ = sender.send((peer, what == "cut"));
            }
        }
        // The process that started this one is gone.
        std::process::exit(0);
    });
    let mut server = Server::in_directory(config, fabric, Registers::default(), dir, "register")?;
    server.listen(&Address::Tcp(door))?;
    server.run().context("the replica ended")
}

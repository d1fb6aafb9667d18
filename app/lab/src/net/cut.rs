//! Cutting replicas off each other, silently.
//!
//! A real cable that breaks somewhere in the network tells no host: senders go on sending, their sockets
//! report no error, and only the silence shows it. So a cut must not take a link down or reject
//! anything. It changes the sender's fixed neighbour entry for the peer to an unused Ethernet address,
//! for which the switch has an entry that leads nowhere: frames leave in good order and end there. The
//! guest's own network is not touched: a replica that is cut off still reaches clients, and the protocol
//! must keep it from serving them.

use super::{REPLICATION_DEVICE, TAP, Topology, replica_ip, replica_mac, tool};
use anyhow::Result;
use plover_types::Mac;

/// An unused address: the switch drops what is sent to it. Locally administered.
pub(super) const VOID: Mac = Mac([0x02, 0x00, 0x00, 0x77, 0x00, 0x00]);

/// The `ip` command that makes a replica send to `mac` the frames for `peer`.
pub(super) fn neighbour(peer: usize, mac: Mac) -> String {
    let ip = replica_ip(peer);
    format!("neigh replace {ip} lladdr {mac} dev {REPLICATION_DEVICE} nud permanent")
}

impl Topology {
    /// Drops all replication traffic between `replica` and each of `peers`, both ways.
    pub fn cut(&self, replica: usize, peers: &[usize]) -> Result<()> {
        self.direct(replica, peers, |_| VOID)
    }

    /// Drops what `replica` sends to each of `peers`. It still gets what they send.
    pub fn cut_one_way(&self, replica: usize, peers: &[usize]) -> Result<()> {
        for peer in peers {
            tool::ip(Some(&self.replica(replica)), &[neighbour(*peer, VOID)])?;
        }
        Ok(())
    }

    /// Undoes every cut of `replica`, in both directions.
    pub fn heal(&self, replica: usize) -> Result<()> {
        let all: Vec<_> = (0..self.replicas()).collect();
        self.direct(replica, &all, replica_mac)
    }

    /// Makes `replica` and each of `peers` send to each other at the addresses that `mac_of` gives.
    fn direct(&self, replica: usize, peers: &[usize], mac_of: impl Fn(usize) -> Mac) -> Result<()> {
        for peer in peers.iter().copied().filter(|peer| *peer != replica) {
            for (from, to) in [(replica, peer), (peer, replica)] {
                tool::ip(Some(&self.replica(from)), &[neighbour(to, mac_of(to))])?;
            }
        }
        Ok(())
    }

    /// Takes a replica's TAP down, or up again.
    pub fn set_tap(&self, replica: usize, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        let host = self.replica(replica);
        tool::ip(Some(&host), &[format!("link set {TAP} {state}")])
    }
}

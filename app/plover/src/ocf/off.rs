//! Two replicas of which neither goes on before the other one is known to be off (`group.fencing`, docs/decisions/0079).
//!
//! ```text
//!   the two hear nothing of each other: both wait
//!     │
//!     ├─ the cluster has lost a node, too: it fences that one
//!     │     notify (post, stop), or else the next monitor: the node is off  ─▶ the other one goes on
//!     └─ both nodes are there: only the replicas' network is cut
//!           the leader's monitor: attribute plover-NAME-awaits = ID
//!           the other's monitor: ends its replica, as if it had failed ─▶ Pacemaker: stop, notify, start
//! ```
//!
//! A node counts as off if a cluster that fences and has a quorum has fenced it, or if it has left in order.

use super::cluster::{self, Node};
use super::repair::Told;
use super::{Instance, Outcome, action, judge};
use anyhow::{Context, Result, ensure};
use plover_lab::control::DaemonStatus;
use plover_lab::operate;
use std::time::{Duration, Instant};

/// The attribute of the leader's node that names the replica for whose end it waits.
pub(super) const AWAITS: &str = "-awaits";

/// A cut that is shorter ends no replica.
const CUT_FOR_S: u64 = 5;

/// How long the word is tried to be passed on. The replica must not have heard the other one for a timeout, and the cluster may
/// write a moment later that it has fenced a node.
const ASKS_FOR: Duration = Duration::from_secs(5);

/// How often it is asked.
const ASKS_EVERY: Duration = Duration::from_millis(200);

impl Instance {
    /// Whether neither of this group's two replicas goes on before the other one is known to be off.
    pub(super) fn is_fenced(&self) -> bool {
        self.config.group.fencing
    }

    /// A monitor looks after the other one of two. Returns its outcome if this replica had to end.
    pub(super) fn look_after_the_other(&self, own: &DaemonStatus) -> Option<Outcome> {
        if !self.is_fenced() {
            return None;
        }
        self.decide(own).unwrap_or_else(|error| {
            eprintln!("the other one of the two replicas is not looked after: {error:#}");
            None
        })
    }

    fn decide(&self, own: &DaemonStatus) -> Result<Option<Outcome>> {
        let leads = own.role == "leader";
        let awaited = judge::awaits_off(own);
        let silent_for_s = awaited.and_then(|id| judge::silent_for_s(own, id));
        let is_cut = leads && silent_for_s.is_some_and(|it| it >= CUT_FOR_S);
        let written = awaited.filter(|_| is_cut).map(|id| id.to_string());
        self.set_attributes(&[(AWAITS, written)]);
        if leads && awaited.is_none() {
            return Ok(None);
        }
        let seen_at = operate::boot_time();
        let cib = self.cib()?;
        let nodes = cluster::nodes(&cib, &self.config.group.name)?;
        if let Some(id) = awaited {
            let other = nodes.iter().find(|it| it.is_of(id));
            if other.is_some_and(|it| it.is_off) && cluster::fences(&cib)? {
                operate::peer_is_off(&self.control(), id, seen_at)?;
                return Ok(None);
            }
        }
        let leader_waits = |it: &Node| it.awaits == Some(own.id) && it.leads_and_is_there();
        if !leads && nodes.iter().any(leader_waits) {
            return self.end_for_the_leader(own.id).map(Some);
        }
        Ok(None)
    }

    /// Ends the replica, so that the leader, which is cut off from it, knows that it is off.
    fn end_for_the_leader(&self, id: u8) -> Result<Outcome> {
        eprintln!(
            "replica {id} is ended: the leader hears nothing from it, serves nothing before it is off, and both hosts are there"
        );
        self.end(false).map_err(anyhow::Error::msg)?;
        self.set_attributes(&judge::attributes_of_none(None));
        Ok(Outcome::NOT_RUNNING)
    }

    /// Pacemaker has stopped the replicas on these nodes, or fenced the nodes.
    pub(super) fn have_stopped(&self, nodes: &str) -> Outcome {
        if self.is_fenced() {
            if let Err(error) = self.confirm(nodes) {
                // The next monitor looks again.
                eprintln!(
                    "whether the other one of the two replicas is off is not known: {error:#}"
                );
            }
        }
        Outcome::SUCCESS
    }

    fn confirm(&self, stopped: &str) -> Result<()> {
        let own = match self.control().status() {
            Err(error) if action::is_absent(&error) => return Ok(()),
            told => told?,
        };
        let voters = Told::of(&own).voters;
        let mut others = voters.into_iter().filter(|it| *it != own.id);
        let (Some(id), None) = (others.next(), others.next()) else {
            return Ok(());
        };
        let deadline = Instant::now() + ASKS_FOR.min(self.timeout / 2);
        loop {
            let told = self.confirm_now(stopped, id);
            if told.is_ok() || Instant::now() > deadline {
                return told;
            }
            std::thread::sleep(ASKS_EVERY);
        }
    }

    fn confirm_now(&self, stopped: &str, id: u8) -> Result<()> {
        let seen_at = operate::boot_time();
        let cib = self.cib()?;
        let nodes = cluster::nodes(&cib, &self.config.group.name)?;
        let other = nodes.iter().find(|it| it.is_of(id));
        let other = other.context("the cluster does not say where it is")?;
        if !stopped.split_whitespace().any(|it| it == other.name) {
            return Ok(());
        }
        // A cluster that does not fence takes the replicas of a node that it has lost for stopped.
        let is_known = other.is_online || other.is_off && cluster::fences(&cib)?;
        ensure!(is_known, "{} is lost, and was not fenced", other.name);
        Ok(operate::peer_is_off(&self.control(), id, seen_at)?)
    }
}

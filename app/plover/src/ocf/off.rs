//! Two replicas of which neither goes on before the other one is known to be off (`group.fencing`, docs/decisions/0079).
//!
//! ```text
//!   the two hear nothing of each other: both wait
//!     │
//!     ├─ the other replica was stopped, or its node fenced
//!     │     notify (post, stop), or else the next monitor: the cluster says that it is off ─▶ this one goes on
//!     └─ both run, and only the replicas' network is cut
//!           the leader's monitor, or else that of the one that has the guest: attribute plover-NAME-awaits = ID
//!           the other's monitor: ends its replica, as if it had failed ─▶ Pacemaker: stop, notify, start
//! ```

use super::cluster::{self, Node};
use super::repair::Told;
use super::{Code, Instance, Outcome, action, judge};
use anyhow::{Context, Result, ensure};
use plover_lab::control::DaemonStatus;
use plover_lab::operate;
use plover_lab::status::GroupStatus;
use std::time::{Duration, Instant};

/// The attribute of a node that names the replica for whose end it waits.
const AWAITS: &str = "-awaits";

/// The same attribute, in whole.
pub(super) fn awaits(guest: &str) -> String {
    format!("plover-{guest}{AWAITS}")
}

/// A cut that is shorter ends no replica.
const CUT_FOR_S: u64 = 5;

/// For how long the word is tried to be passed on, beside the timeout for which the replica must not have heard the other one. The
/// cluster may write a moment later that it has fenced a node.
const ASKS_FOR: Duration = Duration::from_secs(5);

/// How often it is tried.
const ASKS_EVERY: Duration = Duration::from_millis(200);

impl Instance {
    /// Whether neither of this group's two replicas goes on before the other one is known to be off.
    fn is_fenced(&self) -> bool {
        self.config.group.fencing
    }

    /// Tells the cluster that no replica answers here: its role is this, if it has any.
    pub(super) fn tell_of_none(&self, role: Option<&str>) {
        self.awaits_none();
        self.set_attributes(&judge::attributes_of_none(role));
    }

    fn awaits_none(&self) {
        if self.is_fenced() {
            self.set_attributes(&[(AWAITS, None)]);
        }
    }

    /// A monitor looks after the other one of two. Returns its outcome if this replica had to end.
    pub(super) fn look_after_the_other(
        &self,
        own: &DaemonStatus,
        begun: Instant,
    ) -> Option<Outcome> {
        // The next monitor has more time.
        let is_late = begun.elapsed() > self.timeout / 4;
        // After a probe that ends a replica Pacemaker would start it without a stop.
        if !self.is_fenced() || self.is_probe || is_late {
            return None;
        }
        self.decide(own).unwrap_or_else(|error| {
            tell!("the other one of the two replicas is not looked after: {error:#}");
            None
        })
    }

    fn decide(&self, own: &DaemonStatus) -> Result<Option<Outcome>> {
        let awaited = judge::awaits_off(own);
        // A leader says for how long. One that follows looks for a leader only after a timeout.
        let silent_for_s = awaited.and_then(|id| Told::of(own).silent_for_s(id));
        let is_cut = own.role != "leader" || silent_for_s.is_some_and(|it| it >= CUT_FOR_S);
        // The other's copy of the guest is not given up for one that is no good.
        let is_well = own.holds_state() && judge::health(own).code == Code::Success;
        let written = awaited.filter(|_| is_cut && is_well);
        self.set_attributes(&[(AWAITS, written.map(|id| id.to_string()))]);
        if own.role == "leader" && awaited.is_none() {
            return Ok(None);
        }
        let cluster = self.look()?;
        if let Some(id) = awaited {
            match self.say_that_it_is_off(id, &cluster) {
                Ok(()) => return Ok(None),
                Err(error) => tell!("replica {id} is not known to be off: {error:#}"),
            }
        }
        if own.role != "leader" && self.is_awaited(own, &cluster.nodes)? {
            return self.end_for_the_other(own.id).map(Some);
        }
        Ok(None)
    }

    fn look(&self) -> Result<Cluster> {
        let seen_at = operate::boot_time();
        let cib = self.cib()?;
        Ok(Cluster {
            seen_at,
            fences: cluster::fences(&cib)?,
            nodes: cluster::nodes(&cib, &self.config.group.name)?,
        })
    }

    /// Whether the other one waits for the end of this replica.
    pub(super) fn is_waited_for(&self, own: &DaemonStatus) -> Result<bool> {
        if !self.is_fenced() || own.role == "leader" {
            return Ok(false);
        }
        self.is_awaited(own, &self.nodes()?)
    }

    /// Whether the other one waits for the end of this replica, which it does not hear, and the guest survives that: the other one
    /// leads, or this one has no guest.
    fn is_awaited(&self, own: &DaemonStatus, nodes: &[Node]) -> Result<bool> {
        let waits = |it: &&Node| {
            let leads = it.role.as_deref() == Some("leader");
            // The agent of one that is away may not run, and then keeps no attribute up to date.
            let is_there = it.is_online && !it.is_away;
            is_there && it.awaits == Some(own.id) && (leads || !own.holds_state())
        };
        let Some(place) = nodes.iter().find(waits).and_then(|it| it.member) else {
            return Ok(false);
        };
        // The attribute may be older than the end of the cut.
        let group = GroupStatus::ask(&self.control())?;
        let other = group.replica(place.id).filter(|it| it.answers());
        Ok(other.is_none_or(|it| it.awaits_off() == Some(own.id)))
    }

    /// Ends the replica, so that the other one, which is cut off from it, knows that it is off.
    fn end_for_the_other(&self, id: u8) -> Result<Outcome> {
        self.end(false).map_err(anyhow::Error::msg)?;
        self.tell_of_none(None);
        let why = format!(
            "replica {id} was ended: the other one hears nothing from it, and serves nothing before it is off; it starts again"
        );
        Ok(Outcome::of(Code::NotRunning, why))
    }

    /// Pacemaker has stopped replicas, or fenced nodes.
    pub(super) fn others_have_stopped(&self) -> Outcome {
        if self.is_fenced() {
            if let Err(error) = self.confirm() {
                // The next monitor looks again.
                tell!("the other one of the two replicas is not known to be off: {error:#}");
            }
        }
        Outcome::SUCCESS
    }

    fn confirm(&self) -> Result<()> {
        let own = match self.control().status() {
            Err(error) if action::is_absent(&error) => return Ok(()),
            told => told?,
        };
        let voters = Told::of(&own).voters;
        let mut others = voters.into_iter().filter(|it| *it != own.id);
        let (Some(id), None) = (others.next(), others.next()) else {
            return Ok(());
        };
        let silence = Duration::from_millis(self.config.group.timeout_ms());
        let deadline = Instant::now() + (ASKS_FOR + silence).min(self.timeout / 2);
        loop {
            let told = self
                .look()
                .and_then(|cluster| self.say_that_it_is_off(id, &cluster));
            if told.is_ok() || Instant::now() > deadline {
                return told;
            }
            std::thread::sleep(ASKS_EVERY);
        }
    }

    /// Tells the replica that the other one is off, if the cluster says so.
    fn say_that_it_is_off(&self, id: u8, cluster: &Cluster) -> Result<()> {
        cluster.knows_that_it_is_off(id)?;
        operate::peer_is_off(&self.control(), id, cluster.seen_at)?;
        self.awaits_none();
        Ok(())
    }
}

/// The cluster, as it was seen.
struct Cluster {
    /// The boot time before it was asked.
    seen_at: Duration,
    fences: bool,
    nodes: Vec<Node>,
}

impl Cluster {
    /// # Errors
    /// The cluster does not say that replica `id` is off: the error says what it says.
    fn knows_that_it_is_off(&self, id: u8) -> Result<()> {
        let mut on = self.nodes.iter().filter(|it| it.is_of(id));
        let node = on.next().with_context(|| {
            format!("the cluster does not say where replica {id} is: run `plover fleet apply`")
        })?;
        ensure!(
            on.next().is_none(),
            "the cluster has replica {id} on several nodes: delete the attribute of those that it has left"
        );
        let name = &node.name;
        if node.is_online {
            ensure!(
                node.has_stopped,
                "{name} is there, and its replica was not stopped"
            );
            return Ok(());
        }
        ensure!(
            self.fences,
            "{name} is lost, and this cluster has no quorum, or does not fence (stonith-enabled)"
        );
        ensure!(node.is_off, "{name} is lost, and was not fenced yet");
        Ok(())
    }
}

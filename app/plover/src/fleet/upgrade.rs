//! `plover fleet upgrade`: new packages on all hosts, one host after the other.
//!
//! ```text
//!   look: all guests are protected, all nodes are there        no: refused
//!   for each node, those first that lead the fewest guests
//!     standby ─▶ its replicas hand over and end ─▶ COMMAND ─▶ online ─▶ all guests are as before, for a while
//!         │ one stays            │ fails                               │ something is worse
//!         └──────────────────────┴─▶ online, and the end               └─▶ the end: no other host is touched
//! ```

use super::status::{FleetStatus, Nodes};
use super::{ask, cibadmin, crm_mon};
use anyhow::{Context, Result, bail, ensure};
use plover_lab::progress::Progress;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Stands for the node's name in the command.
const NODE: &str = "{host}";

/// How often the cluster is asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a cluster that does not answer is asked to give a host its replicas again.
const ONLINE_WITHIN: Duration = Duration::from_secs(60);

/// How long it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For a cluster that has just started to know its nodes, and for all guests to be well.
    pub well: Duration,
    /// For the replicas of a host to end, and for all guests to be as before.
    pub within: Duration,
    /// Guests are as before when they look so for so long.
    pub settled: Duration,
}

/// Pacemaker takes some 20 s to join the others, and a monitor comes every 10 s.
pub(super) const WELL: Duration = Duration::from_secs(45);

/// Long enough for the cluster, which shows guests as they were up to 10 s ago.
pub(super) const SETTLED: Duration = Duration::from_secs(15);

/// The cluster, as far as an upgrade uses it.
pub(super) trait Hosts {
    /// The nodes and the guests.
    fn look(&self) -> Result<(Nodes, FleetStatus)>;
    /// Empties a node, or lets it have replicas again.
    fn standby(&self, node: &str, is: bool) -> Result<()>;
    /// Upgrades a node that is empty.
    fn upgrade(&self, node: &str) -> Result<()>;
    /// A moment passes. Fails if somebody has asked to stop.
    fn pause(&self, progress: &Progress) -> Result<()>;
}

/// The cluster of this host.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    pub run_dir: &'a Path,
    pub command: &'a [String],
}

impl Hosts for Cluster<'_> {
    fn look(&self) -> Result<(Nodes, FleetStatus)> {
        let shown = crm_mon()?;
        Ok((
            Nodes::of(&shown)?,
            FleetStatus::with_local(&shown, &cibadmin()?, self.run_dir)?,
        ))
    }

    fn standby(&self, node: &str, is: bool) -> Result<()> {
        let value = if is { "on" } else { "off" };
        let words = ["--node", node, "--name", "standby", "--update", value];
        ask("crm_attribute", &words).map(drop)
    }

    fn upgrade(&self, node: &str) -> Result<()> {
        let mut words = self.command.iter().map(|word| word.replace(NODE, node));
        let program = words.next().context("no command was given")?;
        let mut command = Command::new(&program);
        let ended = command.args(words).stdin(Stdio::null()).status();
        let ended = ended.with_context(|| format!("cannot run {program}"))?;
        ensure!(ended.success(), "{program} ended with {ended}");
        Ok(())
    }

    fn pause(&self, progress: &Progress) -> Result<()> {
        Ok(progress.sleep(LOOK_EVERY)?)
    }
}

/// Upgrades `wanted` in this order, or all nodes that have replicas. With `anyway` it begins although not all guests are well.
///
/// # Errors
/// The guests are not all well, or are worse than before after a node's upgrade. Then no other node is touched.
pub(super) fn run(
    hosts: &impl Hosts,
    wanted: &[String],
    anyway: bool,
    patience: Patience,
    progress: &Progress,
) -> Result<()> {
    let (order, before) = begin_when_well(hosts, wanted, anyway, patience.well, progress)?;
    for (done, node) in order.iter().enumerate() {
        progress.say(format_args!(
            "{node} ({} of {}): its replicas hand over and end",
            done + 1,
            order.len()
        ));
        let emptied = empty_and_upgrade(hosts, node, patience.within, progress);
        let back = online(hosts, node).with_context(|| {
            format!("{node} is left without replicas: `crm node online {node}` gives it its replicas again")
        });
        // Said as well, since an interruption is reported in one word.
        let stopped = |error: anyhow::Error| {
            let place = stopped_at(node, &order[done + 1..]);
            progress.say(&place);
            error.context(place)
        };
        if let Err(error) = &back {
            progress.say(format_args!("{error:#}"));
        }
        emptied.and(back).map_err(stopped)?;
        progress.say(format_args!("{node}: its replicas start again"));
        wait_until_as_before(hosts, &before, patience, progress).map_err(stopped)?;
        progress.say(format_args!("{node}: done, all guests are as before"));
    }
    Ok(())
}

fn stopped_at(node: &str, left: &[String]) -> String {
    match left {
        [] => format!("the upgrade has stopped at {node}, the last host"),
        left => format!(
            "the upgrade has stopped at {node}; not touched: {}",
            left.join(", ")
        ),
    }
}

/// The nodes to upgrade, and the guests, once the cluster knows all nodes that have replicas, and all is well, unless it begins
/// `anyway`. A cluster that has just started here does not know them yet, and a replica that has just started is shown as the last
/// monitor has found it.
fn begin_when_well(
    hosts: &impl Hosts,
    wanted: &[String],
    anyway: bool,
    within: Duration,
    progress: &Progress,
) -> Result<(Vec<String>, FleetStatus)> {
    let deadline = Instant::now() + within;
    let mut waits = Waits::new(Duration::ZERO, deadline);
    loop {
        let why = match hosts.look() {
            Ok((nodes, guests)) => match unknown(&nodes, &guests) {
                Some(why) => why,
                None => {
                    let order = order(&nodes, &guests, wanted)?;
                    let ills = guests.ills();
                    if ills.is_empty() || anyway {
                        return Ok((order, guests));
                    }
                    let ills = Vec::from_iter(ills).join("; ");
                    format!("not all is well: {ills}; with --anyway it begins all the same")
                }
            },
            // Its daemons do not all answer yet.
            Err(error) => format!("{error:#}"),
        };
        ensure!(Instant::now() < deadline, "no host was touched: {why}");
        waits.tell(progress, why);
        hosts.pause(progress)?;
    }
}

/// Why the cluster may not know all nodes yet, if so.
fn unknown(nodes: &Nodes, guests: &FleetStatus) -> Option<String> {
    if nodes.are_none() {
        return Some(
            "Pacemaker on this host knows no node that is online, so it has just started or is cut off".into(),
        );
    }
    let with_replicas = guests.nodes().into_iter();
    let offline: Vec<&str> = with_replicas.filter(|it| !nodes.is_online(it)).collect();
    (!offline.is_empty()).then(|| format!("offline: {}", offline.join(", ")))
}

/// The nodes to upgrade. Each hand-over is a gap for clients, so nodes come last that lead many guests: these may have moved by then.
fn order(nodes: &Nodes, guests: &FleetStatus, wanted: &[String]) -> Result<Vec<String>> {
    let with_replicas = guests.nodes();
    for name in wanted {
        // A spare host has none at present.
        ensure!(
            with_replicas.contains(name.as_str()) || nodes.is_ready(name),
            "{name} is no node that is online: those with replicas are {}",
            Vec::from_iter(with_replicas).join(", ")
        );
    }
    let away: Vec<_> = with_replicas
        .iter()
        .filter(|node| !nodes.is_ready(node))
        .copied()
        .collect();
    ensure!(
        away.is_empty(),
        "no host was touched: on standby: {} (`crm node online`)",
        away.join(", ")
    );
    ensure!(
        !with_replicas.is_empty(),
        "the cluster runs no guests: there is nothing to wait for, so upgrade its hosts by hand"
    );
    if !wanted.is_empty() {
        let mut seen = BTreeSet::new();
        let once = wanted.iter().filter(|name| seen.insert(name.as_str()));
        return Ok(once.cloned().collect());
    }
    let mut order: Vec<&str> = with_replicas.into_iter().collect();
    order.sort_by_key(|node| guests.leads(node));
    Ok(order.into_iter().map(str::to_owned).collect())
}

/// A step that takes no longer needs no words.
const QUIET: Duration = Duration::from_secs(20);

/// Says what is waited for, when that changes.
struct Waits {
    quiet_until: Instant,
    until: Instant,
    told: String,
}

impl Waits {
    fn new(quiet: Duration, until: Instant) -> Self {
        Self {
            quiet_until: Instant::now() + quiet,
            until,
            told: String::new(),
        }
    }

    fn tell(&mut self, progress: &Progress, why: String) {
        let now = Instant::now();
        if now >= self.quiet_until && why != self.told {
            let left = self.until.saturating_duration_since(now);
            let left = left.as_secs_f64().ceil();
            progress.say(format_args!("waits up to {left} s: {why}"));
            self.told = why;
        }
    }
}

fn empty_and_upgrade(
    hosts: &impl Hosts,
    node: &str,
    within: Duration,
    progress: &Progress,
) -> Result<()> {
    hosts.standby(node, true)?;
    let deadline = Instant::now() + within;
    let mut waits = Waits::new(QUIET, deadline);
    loop {
        let (_, now) = hosts.look()?;
        let there = now.on(node);
        if there.is_empty() {
            break;
        }
        if let Some(guest) = now.blocked_on(node) {
            bail!(
                "its replica of {guest} does not end: `crm_mon -1` says why, `crm resource cleanup {guest}` tries again"
            );
        }
        ensure!(
            Instant::now() < deadline,
            "after {} s it still has replicas of {}",
            within.as_secs(),
            there.join(", ")
        );
        let there = format!("{node} still has replicas of {}", there.join(", "));
        waits.tell(progress, there);
        hosts.pause(progress)?;
    }
    progress.say(format_args!("{node}: is empty, and upgraded now"));
    progress.check()?;
    hosts.upgrade(node)?;
    // It may have rebooted, and the cluster is the last to start. Until then nobody could tell it from a host that is lost.
    let deadline = Instant::now() + within;
    let mut waits = Waits::new(QUIET, deadline);
    loop {
        let why = match hosts.look() {
            Ok((nodes, _)) if nodes.is_online(node) => return Ok(progress.check()?),
            told => told
                .err()
                .map_or_else(String::new, |error| format!(": {error:#}")),
        };
        ensure!(
            Instant::now() < deadline,
            "after {} s the cluster does not have it again{why}",
            within.as_secs()
        );
        waits.tell(
            progress,
            format!("the cluster does not have {node} yet{why}"),
        );
        hosts.pause(progress)?;
    }
}

/// Lets a node have replicas again. The cluster may be starting on this host just now, and a second Ctrl-C ends the program that asks it.
fn online(hosts: &impl Hosts, node: &str) -> Result<()> {
    let deadline = Instant::now() + ONLINE_WITHIN;
    loop {
        match hosts.standby(node, false) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            ended => return ended,
        }
    }
}

fn wait_until_as_before(
    hosts: &impl Hosts,
    before: &FleetStatus,
    patience: Patience,
    progress: &Progress,
) -> Result<()> {
    let deadline = Instant::now() + patience.within;
    let mut waits = Waits::new(QUIET, deadline);
    let mut well_since = None;
    loop {
        // The cluster's own programs may start again with the packages.
        let worse = match hosts.look() {
            Ok((_, now)) => now.worse_than(before),
            Err(error) => vec![format!("{error:#}")],
        };
        if worse.is_empty() {
            if well_since.get_or_insert_with(Instant::now).elapsed() >= patience.settled {
                return Ok(());
            }
        } else {
            well_since = None;
            ensure!(
                Instant::now() < deadline,
                "after {} s not all is as before: {}",
                patience.within.as_secs(),
                worse.join("; ")
            );
            waits.tell(progress, worse.join("; "));
        }
        hosts.pause(progress)?;
    }
}

#[cfg(test)]
mod tests;

//! Removing a lab, whatever state it is in.
//!
//! Nothing here believes `lab.json`, which may be damaged or older than the truth. The lab's *name*
//! alone leads to all of it: the namespaces that are called after it, the processes inside them, the
//! processes whose command line names its directory, and the directory. So this also cleans up after a
//! lab command or a daemon that was killed at any moment, and doing it twice is the same as doing it
//! once.

use crate::fault::wait_until_gone;
use crate::net::{self, Topology};
use crate::process::{self, Process};
use crate::state::{LabDir, LabLock, LabName};
use anyhow::Result;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a `lab up` that is told to stop may take to clean up after itself.
const BUILDER_ENDS_WITHIN: Duration = Duration::from_secs(20);

/// How long another command may hold the lab before it is taken down all the same.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// The programs of a lab's daemons, as the kernel shows their names.
const PROGRAMS: [&str; 2] = ["plover", "qemu"];

/// Takes a lab down. Returns whether there was anything of it.
pub fn down(name: &LabName) -> Result<bool> {
    let dir = LabDir::of(name);
    let there_was = dir.exists() || dir.disks().exists() || Topology::exists(name.as_str());
    stop_builder(&dir);
    // A command that restarts a daemon meanwhile would leave it behind. No command holds the lock for
    // long; if we cannot get it all the same, taking the lab down matters more.
    let lock = if dir.exists() {
        dir.lock(LOCK_WITHIN).ok()
    } else {
        None
    };
    teardown(&dir)?;
    drop(lock);
    Ok(there_was)
}

/// Takes a lab down whose lock the caller holds.
pub(crate) fn down_locked(dir: &LabDir, _lock: LabLock) -> Result<()> {
    teardown(dir)
}

/// The names of all labs of which anything exists.
pub fn all() -> Vec<LabName> {
    let names = LabDir::all().into_iter().chain(LabDir::all_disks());
    let names: BTreeSet<LabName> = names.chain(net::labs()).collect();
    names.into_iter().collect()
}

/// Ends a `lab up` that is at work: it must not go on building while the lab is taken down.
fn stop_builder(dir: &LabDir) {
    let builder = dir.load().ok().and_then(|state| state.builder);
    let Some(builder) = builder.filter(|builder| Some(*builder) != Process::me()) else {
        return;
    };
    builder.signal(Signal::INT);
    let deadline = Instant::now() + BUILDER_ENDS_WITHIN;
    while builder.is_alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    builder.signal(Signal::KILL);
}

fn teardown(dir: &LabDir) -> Result<()> {
    // Goes on even if a process does not end: the less is left of the lab, the less that process can do.
    let hosts = remove_hosts(dir);
    let files = dir.remove();
    hosts.and(files)
}

/// Ends everything that runs in the lab's namespaces, and removes them.
pub(crate) fn remove_hosts(dir: &LabDir) -> Result<()> {
    let namespaces = net::namespaces_of(dir.name().as_str());
    let find = || {
        let mut found: Vec<Process> = namespaces
            .iter()
            .flat_map(|path| process::in_namespace(path))
            .collect();
        // These are daemons whose namespace has lost its name, and their QEMUs.
        found.extend(process::with_argument_below(dir.path(), &PROGRAMS));
        for process in &found {
            process.signal(Signal::KILL);
        }
        found
    };
    let gone = wait_until_gone(find);
    let network = Topology::remove(dir.name().as_str());
    gone.and(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_down_a_lab_that_does_not_exist_is_no_error() {
        let name = "no-such-lab".parse().unwrap();
        assert!(!down(&name).unwrap());
        assert!(!down(&name).unwrap());
    }
}

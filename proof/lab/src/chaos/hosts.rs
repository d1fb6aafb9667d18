//! What happens to the hosts: a step's faults, and healing.
//!
//! Each host's state lies on a file system of its own, which can be full, and its copy of the guest's disk on another one,
//! which can hang.

use super::schedule::{Kind, Step, Strike};
use crate::freezer::Freezer;
use crate::small::SmallDisk;
use crate::wait_for;
use anyhow::{Context, Result};
use plover_lab::progress::Progress;
use plover_lab::state::{LabDir, LabName};
use plover_lab::status::LabStatus;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Lab, NothingThere};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The guest's disk. Each copy lies on a file system of `DISK_HOST_MIB`.
pub const DISK_MIB: u64 = 8;
const DISK_HOST_MIB: u64 = 48;

/// Room for a host's state: the log's milestones, and the journal of its disk.
const STATE_MIB: u32 = 64;

/// File systems of one host.
#[derive(Debug)]
struct Host {
    state: SmallDisk,
    disk: Freezer,
}

/// All hosts of a lab, and what is broken.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    scratch: PathBuf,
}

/// A fault that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Struck {
    /// What.
    pub strike: Strike,
    /// The replica.
    pub id: u8,
    /// When, in µs on the clock of the traces.
    pub at_us: u64,
}

impl Hosts {
    /// Makes the file systems, and puts the disks of the lab `name` on them, which is made afterwards. What a run that
    /// was killed has left is removed, with its lab.
    ///
    /// # Errors
    /// They cannot be made: mounting takes root and loop devices.
    pub fn prepare(name: &LabName, count: u8) -> Result<Self> {
        let scratch = Path::new("/var/tmp").join(format!("plover-{name}"));
        // First: a process that waits for a frozen disk cannot be killed.
        remove(&scratch)?;
        plover_lab::down::down(name)?;
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot create {}", scratch.display()))?;
        let mut this = Self {
            hosts: Vec::new(),
            scratch,
        };
        File::create(this.image())?.set_len(DISK_MIB << 20)?;
        let dir = LabDir::of(name);
        std::fs::create_dir_all(dir.disks())
            .with_context(|| format!("cannot create {}", dir.disks().display()))?;
        for id in 0..count {
            let at = |what: &str| this.scratch.join(format!("{what}-{id}"));
            let host = Host {
                state: SmallDisk::new(at("state"), STATE_MIB)?,
                disk: Freezer::new(at("disk"), DISK_HOST_MIB)?,
            };
            // The lab makes the file where this leads.
            symlink(host.disk.path().join("disk.raw"), dir.disk(id, 0))?;
            this.hosts.push(host);
        }
        Ok(this)
    }

    /// The disk that the guest begins with.
    pub fn image(&self) -> PathBuf {
        self.scratch.join("image.raw")
    }

    /// Moves each replica's state to its own file system, one after the other: this takes a restart.
    ///
    /// # Errors
    /// A replica does not come back.
    pub fn move_states(&self, lab: &mut Lab, progress: &Progress) -> Result<()> {
        for (id, host) in (0..).zip(&self.hosts) {
            lab.fault(Fault::Kill, id)?;
            let (from, to) = (lab.files(id).state_dir(), host.state.path().join("state"));
            let copied = Command::new("cp").arg("-a").arg(&from).arg(&to).status()?;
            anyhow::ensure!(copied.success(), "cp -a {} failed", from.display());
            std::fs::remove_dir_all(&from)?;
            symlink(&to, &from)?;
            lab.restart(id, progress)?;
            wait_for(progress, "all replicas take part", || {
                Ok(is_whole(&lab.status()))
            })?;
        }
        Ok(())
    }

    /// Begins the step's faults, and lets them last for its time.
    ///
    /// # Errors
    /// A fault cannot be caused, or Ctrl-C.
    pub fn strike(&self, lab: &Lab, step: &Step, progress: &Progress) -> Result<Vec<Struck>> {
        // All roles are those at the beginning: the second fault must not hit the replica that the first one has made leader.
        let ids = roles(lab, progress)?;
        let id_of = |role: super::schedule::Role| ids[role.name()];
        let mut struck: Vec<Struck> = Vec::new();
        for strike in &step.strikes {
            self.wait(lab, &struck, strike.after_ms, progress)?;
            let id = id_of(strike.role);
            if strike.kind.may_end_guest() {
                wait_for(progress, "another replica is in sync, too", || {
                    Ok(another_is_in_sync(&lab.status(), id))
                })?;
            }
            let at_us = now_us();
            let peers: Vec<usize> = ids
                .values()
                .filter(|it| **it != id)
                .map(|it| (*it).into())
                .collect();
            let network = lab.topology();
            let done = match strike.kind {
                Kind::Kill => lab.fault(Fault::Kill, id).map(drop),
                Kind::Crash => lab.fault(Fault::Crash, id).map(drop),
                Kind::Stop => lab.fault(Fault::Stop, id).map(drop),
                Kind::HangQemu => lab.fault(Fault::Hang, id).map(drop),
                Kind::HangDisk => self.hosts[usize::from(id)].disk.freeze(),
                Kind::FillState => self.fill(id),
                Kind::Cut | Kind::Flap { .. } => lab.fault(Fault::Cut { from: None }, id).map(drop),
                Kind::CutFrom(peer) => {
                    let from = Some(id_of(peer));
                    lab.fault(Fault::Cut { from }, id).map(drop)
                }
                Kind::OneWay(peer) => network.cut_one_way(id.into(), &[id_of(peer).into()]),
                Kind::Mute => network.cut_one_way(id.into(), &peers),
                Kind::Unplug => lab.fault(Fault::Unplug, id).map(drop),
            };
            match done {
                // An earlier fault has ended it: a secondary that was cut off has given up its guest.
                Err(error)
                    if error.is::<NothingThere>() && (step.reboot || step.strikes.len() > 1) => {}
                done => done?,
            }
            struck.push(Struck {
                strike: *strike,
                id,
                at_us,
            });
        }
        self.wait(lab, &struck, step.hold_ms, progress)?;
        Ok(struck)
    }

    /// Waits. Links that flap do so meanwhile.
    fn wait(&self, lab: &Lab, struck: &[Struck], ms: u64, progress: &Progress) -> Result<()> {
        let flapping = struck.iter().find_map(|it| match it.strike.kind {
            Kind::Flap { each_ms } => Some((it.id, Duration::from_millis(each_ms))),
            _ => None,
        });
        let end = Instant::now() + Duration::from_millis(ms);
        let mut cut = true;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let each = flapping.map_or(left, |(_, each)| each.min(left));
            progress.sleep(each)?;
            if Instant::now() >= end {
                return Ok(());
            }
            if let Some((id, _)) = flapping {
                cut = !cut;
                let now = if cut {
                    Fault::Cut { from: None }
                } else {
                    Fault::Heal
                };
                lab.fault(now, id)?;
            }
        }
    }

    /// Undoes every fault. Replicas that are down start again.
    ///
    /// # Errors
    /// One does not start.
    pub fn heal(&self, lab: &mut Lab, struck: &[Struck], progress: &Progress) -> Result<()> {
        self.release();
        for it in struck {
            lab.fault(Fault::Heal, it.id)?;
            // There is nothing to continue on a host that died.
            let _ = lab.fault(Fault::Continue, it.id);
        }
        for it in struck {
            if is_down(lab, it.id) {
                lab.restart(it.id, progress)?;
            }
        }
        Ok(())
    }

    /// Lets the disks go on, and makes room on the others.
    pub fn release(&self) {
        for host in &self.hosts {
            // One that is not frozen refuses, one that has no filler has room.
            let mut thaw = Command::new("fsfreeze");
            let _ = thaw.arg("-u").arg(host.disk.path()).output();
            let _ = std::fs::remove_file(filler(&host.state));
        }
    }

    fn fill(&self, id: u8) -> Result<()> {
        let mut file = File::create(filler(&self.hosts[usize::from(id)].state))?;
        loop {
            match file.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context("cannot fill a file system"),
            }
        }
    }
}

/// The lab is to be taken down before this: its processes have files here.
impl Drop for Hosts {
    fn drop(&mut self) {
        self.release();
        self.hosts.clear();
        if let Err(error) = remove(&self.scratch) {
            eprintln!("{error:#}");
        }
    }
}

fn filler(state: &SmallDisk) -> PathBuf {
    state.path().join("filler")
}

/// Whether the daemon of a replica has ended.
fn is_down(lab: &Lab, id: u8) -> bool {
    let status = lab.status();
    status.replica(id).is_some_and(|it| it.role == "down")
}

/// The replica that has each role, once the group is whole. On a busy machine one may have been suspected just now.
fn roles(lab: &Lab, progress: &Progress) -> Result<BTreeMap<String, u8>> {
    let mut ids = BTreeMap::new();
    wait_for(progress, "each replica has its part", || {
        let status = lab.status();
        ids = status
            .replicas
            .iter()
            .map(|it| (it.role.clone(), it.id))
            .collect();
        Ok(is_whole(&status))
    })?;
    Ok(ids)
}

/// Whether a replica other than `id` holds the guest in step. A busy machine can end a guest's protection, too, and
/// the fault that takes the only guest that is left is no single fault.
fn another_is_in_sync(status: &LabStatus, id: u8) -> bool {
    let newest = status.replicas.iter().max_by_key(|it| it.view);
    newest.is_some_and(|it| it.isr.iter().any(|holder| *holder != id))
}

/// Whether the guest is protected, and each replica has its part.
pub fn is_whole(status: &LabStatus) -> bool {
    let mut roles: Vec<&str> = status.replicas.iter().map(|it| it.role.as_str()).collect();
    roles.sort_unstable();
    let serving = status.leader().is_some_and(|leader| leader.serving);
    status.protected && serving && roles == ["leader", "secondary", "witness"]
}

/// Removes what a run that was killed has left: frozen and mounted file systems, and their files.
fn remove(scratch: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(scratch) else {
        return Ok(());
    };
    for at in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if at.is_dir() {
            // Both refuse if there is nothing to do.
            let _ = Command::new("fsfreeze").arg("-u").arg(&at).output();
            let _ = Command::new("umount").arg("-l").arg(&at).output();
        }
    }
    std::fs::remove_dir_all(scratch).with_context(|| format!("cannot remove {}", scratch.display()))
}

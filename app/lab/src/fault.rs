//! Bad things that can be done to a replica.
//!
//! A replica's namespace stands for its host, so a fault hits everything that runs there: a kill ends
//! `plover` and QEMU in the same instant, as a power cut would. The daemon is the supervisor of the
//! replica's process. It is killed first, since a host without power reports no death.

use crate::lab::Lab;
use crate::process::{self, Process};
use crate::trace::now_us;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// A killed process is gone within milliseconds, but a gigabyte of guest memory takes longer to give
/// back, and a thread that writes to a slow disk ends only when that is done.
const DEATH_WITHIN: Duration = Duration::from_secs(60);

/// The replica that an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The replica with this id.
    Replica(u8),
    /// The replica that has this role now: `leader`, `secondary`, `witness`.
    Role(String),
}

/// A fault of a replica's whole host, that is, of everything that runs in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host dies.
    Kill,
    /// Only the replica's process dies; its host lives.
    Crash,
    /// The host stands still.
    Stop,
    /// Only the hypervisor stands still, as on a disk that hangs.
    Hang,
    /// It goes on.
    Continue,
    /// The replication network no longer carries anything between it and the others (or one of
    /// them). Clients still reach it.
    Cut {
        /// Only this peer.
        from: Option<u8>,
    },
    /// The guest's TAP goes down: clients are not reached from there any more.
    Unplug,
    /// It is connected again, to the others and to the clients.
    Heal,
}

/// The words after "replica N: ".
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kill => f.write_str("killed"),
            Self::Crash => f.write_str("its process was killed"),
            Self::Stop => f.write_str("stopped"),
            Self::Hang => f.write_str("QEMU stopped"),
            Self::Continue => f.write_str("goes on"),
            Self::Cut { from: None } => f.write_str("cut off from the other replicas"),
            Self::Cut { from: Some(peer) } => write!(f, "cut off from replica {peer}"),
            Self::Unplug => f.write_str("its TAP goes down"),
            Self::Heal => f.write_str("connected again"),
        }
    }
}

impl Lab {
    /// The id of the replica that `target` means.
    pub fn find(&self, target: &Target) -> Result<u8> {
        match target {
            Target::Replica(id) => Ok(self.state.replica(*id)?.id),
            Target::Role(role) => {
                let status = self.status();
                let found = status.with_role(role).map(|replica| replica.id);
                found.with_context(|| {
                    let roles: Vec<_> = status
                        .replicas
                        .iter()
                        .map(|r| format!("{} {}", r.id, r.role))
                        .collect();
                    format!("no replica is {role} now ({})", roles.join(", "))
                })
            }
        }
    }

    /// Causes the fault, and returns when it is done. Returns the moment at which it began, on the clock
    /// of the traces.
    pub fn fault(&self, fault: Fault, id: u8) -> Result<u64> {
        self.state.replica(id)?;
        let began_us;
        match fault {
            Fault::Kill => {
                began_us = self.signal(id, Signal::KILL)?;
                self.wait_until_empty(id)?;
            }
            Fault::Crash => {
                let process = Process::now(self.control(id).status()?.plover_pid);
                let process = process.with_context(|| format!("replica {id} is down"))?;
                began_us = now_us();
                process.signal(Signal::KILL);
                self.wait_until_empty(id)?;
            }
            Fault::Stop => began_us = self.signal(id, Signal::STOP)?,
            Fault::Hang => {
                began_us = self.signal_those(id, Signal::STOP, |p| p.is_called("qemu-system"))?;
            }
            Fault::Continue => began_us = self.signal(id, Signal::CONT)?,
            Fault::Cut { from: Some(peer) } => {
                self.state.replica(peer)?;
                if peer == id {
                    bail!("replica {id} cannot be cut from itself");
                }
                began_us = now_us();
                self.topology.cut(id.into(), &[peer.into()])?;
            }
            Fault::Cut { from: None } => {
                began_us = now_us();
                let peers: Vec<usize> = self
                    .ids()
                    .filter(|peer| *peer != id)
                    .map(usize::from)
                    .collect();
                self.topology.cut(id.into(), &peers)?;
            }
            Fault::Unplug => {
                began_us = now_us();
                self.topology.set_tap(id.into(), false)?;
            }
            Fault::Heal => {
                began_us = now_us();
                self.topology.heal(id.into())?;
                self.topology.set_tap(id.into(), true)?;
            }
        }
        Ok(began_us)
    }

    /// Signals everything on a replica's host.
    fn signal(&self, id: u8, signal: Signal) -> Result<u64> {
        self.signal_those(id, signal, |_| true)
    }

    fn signal_those(
        &self,
        id: u8,
        signal: Signal,
        wanted: impl Fn(&Process) -> bool,
    ) -> Result<u64> {
        let host = self.host(id);
        let daemon = self.state.replica(id)?.daemon;
        let mut processes = process::in_namespace(&host.path());
        processes.sort_by_key(|process| Some(*process) != daemon);
        let began_us = now_us();
        let reached = processes
            .iter()
            .filter(|process| wanted(process) && process.signal(signal))
            .count();
        if reached == 0 {
            return Err(NothingThere(id).into());
        }
        Ok(began_us)
    }

    /// Waits until a host has no process and its daemon has ended. A process that ends leaves its
    /// namespace a moment before it is gone.
    pub(crate) fn wait_until_empty(&self, id: u8) -> Result<()> {
        let daemon = self.state.replica(id)?.daemon;
        wait_until_gone(|| {
            let mut left = process::in_namespace(&self.host(id).path());
            left.extend(daemon.filter(|daemon| daemon.is_alive()));
            left
        })
    }
}

/// No process runs on a replica's host that the fault could hit.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("replica {0} is down: nothing runs there that this fault could hit")]
pub struct NothingThere(pub u8);

/// Waits until a search for processes finds none.
pub(crate) fn wait_until_gone(mut find: impl FnMut() -> Vec<Process>) -> Result<()> {
    let deadline = Instant::now() + DEATH_WITHIN;
    loop {
        let left = find();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let pids: Vec<_> = left.iter().map(|process| process.pid.to_string()).collect();
            bail!(
                "processes {} do not end though they were killed",
                pids.join(", ")
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

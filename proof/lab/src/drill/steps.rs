//! The steps of the drill, each as an operator does it. A step stands for itself: `--only` runs it on a new lab.

use super::{GROWN_MIB, Scene};
use crate::experiment::Experiment;
use crate::script::the_witness_is_warm;
use crate::{ask_guest, converse, recover, role};
use anyhow::{Context, Result, ensure};
use plover_lab::backup::{self, Backup, Limits};
use plover_lab::control::Control;
use plover_lab::grow::grow_disk;
use plover_lab::operate::{self, Drained, MemberChange, Switched};
use plover_lab::process::Process;
use plover_lab::status::GroupStatus;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Target};
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, in words.
    pub what: &'static str,
    /// Whether it takes a second QEMU.
    pub needs_newer_qemu: bool,
    pub(super) run: fn(&mut Scene) -> Result<()>,
}

const fn step(name: &'static str, what: &'static str, run: fn(&mut Scene) -> Result<()>) -> Step {
    Step {
        name,
        what,
        needs_newer_qemu: false,
        run,
    }
}

/// All steps, in the order in which they are done.
pub const STEPS: [Step; 8] = [
    step("switchover", "the lead moves, there and back", switch_over),
    step(
        "drain",
        "the leader's host is drained, its service is restarted, and it is undrained",
        drain,
    ),
    step(
        "backup",
        "disk and memory are backed up and restored",
        back_up_and_restore,
    ),
    step("grow", "the disk gets more room", grow),
    step(
        "restart",
        "the services of all three hosts are restarted, as for an upgrade",
        restart_all,
    ),
    Step {
        needs_newer_qemu: true,
        ..step(
            "upgrade-qemu",
            "the services of all three hosts are restarted with a newer QEMU",
            upgrade_qemu,
        )
    },
    step(
        "replace",
        "a dead host and a live one are replaced, and come back with their old disks",
        replace,
    ),
    step("crash", "two leaders die, one after the other", crash_twice),
];

/// Longer than a copy of a small guest takes on a busy machine.
const DRAINED_WITHIN: Duration = Duration::from_secs(80);
const REPLACED_WITHIN: Duration = Duration::from_secs(80);
const GROWN_WITHIN: Duration = Duration::from_secs(80);

fn control(lab: &Experiment, name: &str) -> Result<(u8, Control)> {
    let id = lab.lab().find(&role(name))?;
    Ok((id, lab.lab().control(id)))
}

/// An order that must be refused with these words.
fn refused(result: Result<Switched>, words: &str) -> Result<()> {
    let error = result.err().context("a switchover that must be refused")?;
    let said = format!("{error:#}");
    ensure!(said.contains(words), "'{said}' does not say '{words}'");
    Ok(())
}

fn switch_over(scene: &mut Scene) -> Result<()> {
    // Asked of a host that has nothing to do with it.
    let (first, _) = control(&scene.lab, "leader")?;
    let (second, _) = control(&scene.lab, "secondary")?;
    let (third, elsewhere) = control(&scene.lab, "witness")?;
    let ask = |to| operate::switch_over(&elsewhere, Some(to));
    refused(ask(third), "is not in sync")?;
    refused(ask(first), "leads already")?;
    refused(ask(7), "no member")?;
    for (from, to) in [(first, second), (second, first)] {
        let elsewhere = elsewhere.clone();
        scene.row("switchover", Some(from), move |scene| {
            let work = move || operate::switch_over(&elsewhere, None);
            let switched = scene.aside("the lead has moved", work)?;
            ensure!((switched.from, switched.to) == (from, to), "{switched:?}");
            Ok(())
        })?;
    }
    // The whole group and the guest's console, from one host.
    let status = GroupStatus::ask(&elsewhere)?;
    ensure!(status.replicas.iter().all(|it| it.answers()), "{status}");
    ensure!(
        status.to_string().contains("the lead was handed over"),
        "{status}"
    );
    converse(&mut elsewhere.console()?, "echo fo''und", "found").map(drop)
}

fn drain(scene: &mut Scene) -> Result<()> {
    let (leader, there) = control(&scene.lab, "leader")?;
    let (_, elsewhere) = control(&scene.lab, "witness")?;
    scene.row("drain", Some(leader), |scene| {
        let there = there.clone();
        let work = move || operate::drain(&there, Drained::UntilUndrained, DRAINED_WITHIN, |_| ());
        scene.aside("the host is drained", work)?;
        ensure!(scene.lab.lab().find(&role("leader"))? != leader);
        Ok(())
    })?;
    scene.row("restart of a drained host", Some(leader), |scene| {
        end(&mut scene.lab, leader)?;
        recover(&mut scene.lab, leader)
    })?;
    let status = scene.lab.lab().status();
    let is_drained = status.replica(leader).is_some_and(|it| it.is_drained());
    ensure!(is_drained, "it does not stay drained");
    refused(
        operate::switch_over(&elsewhere, Some(leader)),
        "is not in sync",
    )?;
    scene.row("undrain", Some(leader), |_| {
        operate::undrain(&there).map(drop)
    })
}

/// SIGTERM, as a supervisor of services sends it.
///
/// # Errors
/// It does not end.
pub fn end(lab: &mut Experiment, id: u8) -> Result<()> {
    let status = lab.lab().status();
    let replica = status.replica(id).and_then(|replica| replica.plover_pid);
    let daemon = replica.and_then(Process::now).context("it runs")?;
    ensure!(daemon.signal(Signal::TERM), "it has ended");
    // Its supervisor is the last to go.
    lab.wait("the service has ended", |lab| {
        let status = lab.lab().status();
        Ok(status.replica(id).is_some_and(|it| it.role == "down"))
    })
}

const MARK_AT: u64 = 4 << 20;
const MARK_BYTES: usize = 64 << 10;

fn back_up_and_restore(scene: &mut Scene) -> Result<()> {
    // Acknowledged before the backup begins: the guest says so on its console.
    let mark = format!("mark{:016x}", now_us());
    let line = format!(
        "while :; do echo {mark}; done | head -c {MARK_BYTES} | dd of=/dev/vda bs={MARK_BYTES} iflag=fullblock seek={} \
         conv=fsync 2>/dev/null; echo wr''itten",
        MARK_AT / MARK_BYTES as u64
    );
    ask_guest(scene.lab.lab(), &line, "written")?;
    let to = scene.scratch().join("backups");
    std::fs::create_dir(&to)?;
    let mut folder = None;
    let (secondary, there) = control(&scene.lab, "secondary")?;
    scene.row("backup", Some(secondary), |scene| {
        let progress = scene.lab.progress().clone();
        let limits = Limits {
            keep_mib: 64,
            mib_per_s: 64,
            incremental: false,
            quiesce: false,
            memory: true,
        };
        let work = move || backup::take(&there, &to, limits, &progress);
        folder = Some(scene.aside("the backup is whole", work)?.0);
        Ok(())
    })?;
    let folder = folder.context("a backup has a folder")?;
    scene.row("restore", None, |scene| {
        let progress = scene.lab.progress().clone();
        let restored = scene.scratch().join("restored.raw");
        let (disk, memory) = (restored.clone(), scene.scratch().join("memory"));
        let work = move || {
            let backup = Backup::open(&folder, &progress)?;
            backup.restore(&[disk], Some(&memory), &progress)
        };
        scene.aside("disk and memory are restored", work)?;
        let mut found = vec![0; MARK_BYTES];
        std::fs::File::open(&restored)?.read_exact_at(&mut found, MARK_AT)?;
        let due = format!("{mark}\n").repeat(MARK_BYTES / mark.len());
        ensure!(
            found == due.as_bytes()[..MARK_BYTES],
            "the restored disk lacks a write that was durable before the backup"
        );
        Ok(())
    })
}

fn grow(scene: &mut Scene) -> Result<()> {
    let (_, elsewhere) = control(&scene.lab, "witness")?;
    let bytes = GROWN_MIB << 20;
    scene.row("growth of a disk", None, |scene| {
        let work = move || grow_disk(&elsewhere, 0, bytes, GROWN_WITHIN, |_| ());
        scene.aside("the disk has grown", work)?;
        let sees = format!(
            "test $(cat /sys/block/vda/size) = {} && echo gr''own",
            bytes / 512
        );
        ask_guest(scene.lab.lab(), &sees, "grown").map(drop)
    })
}

/// The witness first and the leader last: the lead moves once.
fn restart_all(scene: &mut Scene) -> Result<()> {
    for (name, row) in [
        ("witness", "restart of the witness"),
        ("secondary", "restart of the secondary"),
        ("leader", "restart of the leader"),
    ] {
        restart(scene, name, row, |_, _| Ok(()))?;
    }
    Ok(())
}

/// Ends a service, has its host changed, and starts it.
fn restart(
    scene: &mut Scene,
    name: &str,
    row: &'static str,
    change: impl FnOnce(&Experiment, u8) -> Result<()>,
) -> Result<()> {
    let id = scene.lab.lab().find(&role(name))?;
    scene.row(row, Some(id), |scene| {
        end(&mut scene.lab, id)?;
        change(&scene.lab, id)?;
        let started_us = now_us();
        recover(&mut scene.lab, id)?;
        // The next host may go: the witness can take its place.
        the_witness_is_warm(&mut scene.lab, started_us)
    })
}

/// The machine that both releases of QEMU make alike (docs/decisions/0054).
pub const SAME_MACHINE: &str = "[guest]\nmachine_type = \"pc-q35-7.2\"\ncpu = \"Nehalem\"\n";

fn upgrade_qemu(scene: &mut Scene) -> Result<()> {
    let newer = scene.newer_qemu.clone().context("a newer QEMU")?;
    for (name, row) in [
        ("witness", "QEMU of the witness"),
        ("secondary", "QEMU of the secondary"),
        ("leader", "QEMU of the leader"),
    ] {
        restart(scene, name, row, |lab, id| {
            let file = lab.lab().files(id).config();
            let mut config: toml::Table = std::fs::read_to_string(&file)?.parse()?;
            let guest = config.get_mut("guest").and_then(toml::Value::as_table_mut);
            let guest = guest.context("it has [guest]")?;
            guest.insert("qemu".into(), newer.display().to_string().into());
            Ok(std::fs::write(&file, config.to_string())?)
        })?;
    }
    Ok(())
}

fn replace(scene: &mut Scene) -> Result<()> {
    let dead = scene.lab.lab().find(&role("witness"))?;
    scene.row("replacement of a dead host", None, |scene| {
        scene.lab.strike(Fault::Kill, &Target::Replica(dead))?;
        let (leader, there) = control(&scene.lab, "leader")?;
        let nobody = member_change(dead, dead);
        let refused = operate::change_members(&there, &nobody, REPLACED_WITHIN, |_| ());
        let said = refused
            .err()
            .context("a change that must be refused")?
            .to_string();
        ensure!(said.contains("such as"), "{said}");
        replace_by_spare(scene, leader, dead)
    })?;
    let old = scene.lab.lab().find(&role("secondary"))?;
    scene.row("replacement of a live host", Some(old), |scene| {
        let leader = scene.lab.lab().find(&role("leader"))?;
        replace_by_spare(scene, leader, old)?;
        has_left(&mut scene.lab, old)
    })?;
    // Both come back with their old disks: one that knows that it has left, and one that has to be told.
    for gone in [old, dead] {
        let _ = scene.lab.start(gone);
        has_left(&mut scene.lab, gone)?;
        let log = std::fs::read_to_string(scene.lab.lab().files(gone).log())
            .context("the log of a replica that has left")?;
        ensure!(log.contains("has left the group"), "{log}");
    }
    Ok(())
}

fn has_left(lab: &mut Experiment, id: u8) -> Result<()> {
    lab.wait("the replica that has left has ended", |lab| {
        let status = lab.lab().status();
        Ok(status.replica(id).is_some_and(|it| it.role == "down"))
    })
}

fn member_change(old: u8, new: u8) -> MemberChange {
    MemberChange {
        add: Some((new, format!("10.77.1.{}:7700", 10 + new))),
        remove: Some(old),
    }
}

/// Has the next spare host take the place of `old`, asked of the replica `at`.
fn replace_by_spare(scene: &mut Scene, at: u8, old: u8) -> Result<()> {
    ensure!(!scene.spares.is_empty(), "all spare hosts are in use");
    let new = scene.spares.remove(0);
    scene.lab.start(new)?;
    let there = scene.lab.lab().control(at);
    let progress = scene.lab.progress().clone();
    let members = scene.aside("the host is replaced", move || {
        let change = member_change(old, new);
        operate::change_members(&there, &change, REPLACED_WITHIN, |words| {
            progress.say(words)
        })
    })?;
    ensure!(
        members.contains(&new) && !members.contains(&old) && members.len() == 3,
        "the members are {members:?}"
    );
    Ok(())
}

fn crash_twice(scene: &mut Scene) -> Result<()> {
    for row in ["a crash", "another crash"] {
        scene.row(row, None, |scene| {
            let lab = &mut scene.lab;
            let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
            lab.wait_for_failover(leader, at)?;
            lab.wait_until_protected_again(at)?;
            // It has its vote before the next host dies.
            lab.restart(leader)
        })?;
    }
    Ok(())
}

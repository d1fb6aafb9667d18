//! Every fault of one replica, under load. The assertions of `prove` hold at the end of each. In
//! between, the scripts assert that the guest is protected again by itself.

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab::process::Process;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{prove, recover, role, script};
use rustix::process::Signal;

/// A replica holds little besides the guest's memory, which it maps, and the buffers whose sizes are
/// configured.
fn memory_is_bounded(lab: &Experiment) -> Result<()> {
    // The defaults of `group.log_mib` and `policy.guard_mib`.
    const CONFIGURED_MIB: u64 = 32 + 8;
    const BESIDE_MIB_MAX: u64 = 64;
    for replica in lab.lab().status().group.replicas {
        let held = replica
            .more
            .get("memory")
            .and_then(|memory| memory["private_kib"].as_u64());
        let held_mib = held.context("a replica says how much memory it holds")? / 1024;
        let max = CONFIGURED_MIB + BESIDE_MIB_MAX;
        ensure!(
            held_mib <= max,
            "replica {} holds {held_mib} MiB of {max}",
            replica.id
        );
    }
    Ok(())
}

#[test]
fn hosts_die() {
    prove("t-die", Options::default(), |lab| {
        // The secondary's guest has also sent what clients have seen before any sync.
        script::outputs_match(lab)?;
        // The witness takes the place of either: the dead host is not needed for protection.
        script::the_leader_dies(lab)?;
        script::outputs_match(lab)?;
        script::the_secondary_dies(lab)?;
        script::outputs_match(lab)?;

        let (witness, at) = lab.strike(Fault::Kill, &role("witness"))?;
        lab.wait_for_answers(at)?;
        ensure!(
            lab.lab().status().protected,
            "the witness is not needed for protection"
        );
        recover(lab, witness)?;
        memory_is_bounded(lab)?;
        script::two_hosts_die(lab)
    });
}

/// The supervisor of a process that dies tells the others.
#[test]
fn processes_die() {
    prove("t-crash", Options::default(), |lab| {
        script::outputs_match(lab)?;
        script::a_process_dies(lab, "leader")?;
        script::outputs_match(lab)?;
        script::a_process_dies(lab, "secondary")?;
        script::outputs_match(lab)
    });
}

/// systemd sends SIGABRT to the main process of a service whose watchdog messages stop.
#[test]
fn a_loop_that_hangs_is_killed_by_its_supervisor() {
    prove("t-watchdog", Options::default(), |lab| {
        script::outputs_match(lab)?;
        let status = lab.lab().status();
        let leader = status.leader().context("a replica leads")?;
        let (id, pid) = (leader.id, leader.plover_pid.context("it runs")?);
        let replica = Process::now(pid).context("it runs")?;
        let supervisor = Process::now(parent(pid)?).context("it runs")?;
        let at = now_us();
        ensure!(replica.signal(Signal::STOP), "it has ended");
        lab.wait_for_answers(at)?;
        ensure!(supervisor.signal(Signal::ABORT), "it has ended");
        lab.wait("the supervisor has killed the replica, and ended", |lab| {
            let status = lab.lab().status();
            Ok(status.replica(id).is_some_and(|it| it.role == "down") && !supervisor.is_alive())
        })?;
        recover(lab, id)
    });
}

fn parent(pid: u32) -> Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(parent.context("a process has a parent")?.trim().parse()?)
}

/// Before the end mark, the secondary goes on from its own state. After it, the secondary applies what
/// it has staged. Either state explains everything that the clients saw.
#[test]
fn the_leader_dies_in_each_phase_of_a_syncvm() {
    prove("t-phase", Options::default(), |lab| {
        for phase in script::phases(Options::default().policy) {
            script::the_leader_dies_in(lab, *phase)?;
        }
        Ok(())
    });
}

/// Machines with PCI, whose devices must be reset before a state is loaded.
#[test]
fn other_machines_fail_over_too() {
    for machine in ["q35", "pc"] {
        let options = Options {
            machine: Some(machine.into()),
            vcpus: Some(2),
            ..Options::default()
        };
        prove("t-machine", options, script::the_leader_dies);
    }
}

/// A host that stood still and goes on believes that it still leads.
#[test]
fn the_leader_stands_still_for_three_seconds() {
    prove("t-stop", Options::default(), |lab| {
        let new = script::the_leader_stands_still(lab)?;
        let status = lab.lab().status();
        ensure!(
            status.leader().is_some_and(|now| now.id == new),
            "who led leads again:\n{status}"
        );
        Ok(())
    });
}

/// One part of a host stands still: that side is at fault, and the other goes on.
#[test]
fn one_part_of_a_host_fails() {
    prove("t-part", Options::default(), |lab| {
        script::the_leaders_hypervisor_hangs(lab)?;
        script::the_secondarys_hypervisor_hangs(lab)?;
        script::the_leader_is_unplugged(lab)
    });
}

/// The streams of compressed records begin anew when the links come back.
#[test]
fn the_leader_is_cut_off_and_healed() {
    prove("t-cut", Options::default(), script::the_leader_is_cut_off);
}

/// Both still reach the witness, which decides which of the two goes on.
#[test]
fn the_leader_is_cut_from_the_secondary_only() {
    prove(
        "t-split",
        Options::default(),
        script::the_leader_is_cut_from_the_secondary,
    );
}

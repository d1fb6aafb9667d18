//! Planned work under load, as an operator does it: the lead moves, hosts are drained, services are stopped. Every
//! acknowledged write is there in the end, no connection was reset (`prove`), and two replicas hold the guest all the
//! time.

use anyhow::{Context, Result, ensure};
use plover_lab::control::Control;
use plover_lab::operate;
use plover_lab::options::Options;
use plover_lab::process::Process;
use plover_lab::status::GroupStatus;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{converse, prove, recover, role};
use rustix::process::Signal;
use std::time::Duration;

/// How long a drain may take: a copy of a small guest, on a busy machine.
const DRAINED_WITHIN: Duration = Duration::from_secs(90);

fn control(lab: &Experiment, name: &str) -> Result<(u8, Control)> {
    let id = lab.lab().find(&role(name))?;
    Ok((id, lab.lab().control(id)))
}

/// No in-sync set with one member was committed since then.
fn was_protected(lab: &mut Experiment, since_us: u64) -> Result<()> {
    let alone = lab.events().iter().find(|event| {
        let set = event.number("in_sync").unwrap_or(0b11);
        event.mono_us > since_us && event.what == "in_sync" && set.count_ones() < 2
    });
    ensure!(
        alone.is_none(),
        "one replica alone held the guest: {alone:?}"
    );
    Ok(())
}

fn refused(result: Result<operate::Switched>, words: &str) -> Result<()> {
    let error = result.err().context("a switchover that must be refused")?;
    let said = format!("{error:#}");
    ensure!(said.contains(words), "'{said}' does not say '{words}'");
    Ok(())
}

#[test]
fn the_lead_moves_and_hosts_are_drained() {
    prove("t-planned", Options::default(), |lab| {
        lab.wait_until_protected()?;
        let since = now_us();

        // Asked of a host that has nothing to do with it.
        let (first, _) = control(lab, "leader")?;
        let (second, _) = control(lab, "secondary")?;
        let (third, elsewhere) = control(lab, "witness")?;
        refused(
            operate::switch_over(&elsewhere, Some(third)),
            "is not in sync",
        )?;
        refused(
            operate::switch_over(&elsewhere, Some(first)),
            "leads already",
        )?;
        refused(operate::switch_over(&elsewhere, Some(7)), "no member")?;
        for (from, to) in [(first, second), (second, first)] {
            let at = now_us();
            let switched = operate::switch_over(&elsewhere, None)?;
            ensure!((switched.from, switched.to) == (from, to), "{switched:?}");
            lab.wait_for_answers(at)?;
            lab.wait_until_protected()?;
        }
        was_protected(lab, since)?;

        // The whole group from one host, and the guest's console.
        let status = GroupStatus::ask(&elsewhere)?;
        ensure!(status.replicas.iter().all(|it| it.answers()), "{status}");
        ensure!(
            status.to_string().contains("the lead was handed over"),
            "{status}"
        );
        let mut console = elsewhere.console()?;
        converse(&mut console, "echo fo''und", "found")?;
        drop(console);

        // The leader's host is drained, and the service on it is stopped and started.
        let (leader, there) = control(lab, "leader")?;
        let at = now_us();
        operate::drain(&there, DRAINED_WITHIN)?;
        lab.wait_for_answers(at)?;
        lab.wait_until_protected()?;
        was_protected(lab, since)?;
        ensure!(lab.lab().find(&role("leader"))? != leader);
        end(lab, leader)?;
        recover(lab, leader)?;
        ensure!(
            lab.lab()
                .status()
                .replica(leader)
                .is_some_and(|it| it.is_drained()),
            "it stays drained"
        );
        refused(
            operate::switch_over(&elsewhere, Some(leader)),
            "is not in sync",
        )?;
        operate::undrain(&there)?;
        was_protected(lab, since)?;

        // The service of the leader is stopped, without a drain before.
        lab.wait_until_protected()?;
        let (leader, _) = control(lab, "leader")?;
        let at = now_us();
        end(lab, leader)?;
        lab.wait_for_answers(at)?;
        was_protected(lab, since)?;
        recover(lab, leader)
    });
}

/// SIGTERM, as a supervisor of services sends it.
fn end(lab: &mut Experiment, id: u8) -> Result<()> {
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

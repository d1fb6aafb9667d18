//! Planned work under load, as an operator does it: the lead moves, hosts are drained, services are stopped. Every
//! acknowledged write is there in the end, no connection was reset (`prove`), and two replicas hold the guest all the
//! time.

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::control::Control;
use plover_lab::operate;
use plover_lab::options::Options;
use plover_lab::process::Process;
use plover_lab::status::GroupStatus;
use plover_lab::trace::now_us;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{converse, prove, recover, role};
use plover_types::wire::{OLDEST_VERSION, WIRE_VERSION};
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

/// Has the replica `id` speak no wire version newer than `newest`, as its former release, from its next start on.
fn give_release(lab: &Experiment, id: u8, newest: Option<u8>) -> Result<()> {
    let file = lab.lab().files(id).config();
    let mut config: toml::Table = std::fs::read_to_string(&file)?.parse()?;
    let group = config.get_mut("group").and_then(toml::Value::as_table_mut);
    let group = group.context("it has [group]")?;
    match newest {
        Some(newest) => group.insert("version_max".into(), i64::from(newest).into()),
        None => group.remove("version_max"),
    };
    Ok(std::fs::write(&file, config.to_string())?)
}

/// The service of a replica is stopped, another release installed, and started.
fn change_release(lab: &mut Experiment, id: u8, newest: Option<u8>) -> Result<()> {
    lab.wait_until_protected()?;
    end(lab, id)?;
    give_release(lab, id, newest)?;
    recover(lab, id)
}

/// The group's version, as the replica `id` says, and what it waits for.
fn version(lab: &Experiment, id: u8) -> Result<(u64, String)> {
    let status = lab.lab().status();
    let replica = status.replica(id).context("it is of the lab")?;
    let version = replica.more.get("version").context("it answers")?;
    let group = version["group"].as_u64().context("a number")?;
    Ok((group, version["waits_for"].to_string()))
}

fn wait_for_version(lab: &mut Experiment, due: u8) -> Result<()> {
    lab.wait(&format!("all replicas know wire version {due}"), |lab| {
        Ok((0..3).all(|id| version(lab, id).is_ok_and(|it| it.0 == u64::from(due))))
    })
}

/// Three replicas go to a release with a newer wire version one by one, and back, and at last forward, and their leader
/// dies in the middle. The former release is this one with `version_max`.
#[test]
fn a_group_is_upgraded_taken_back_and_upgraded() {
    let (old, new) = (OLDEST_VERSION, WIRE_VERSION);
    let overlay = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(overlay.path(), format!("[group]\nversion_max = {old}\n")).unwrap();
    let options = Options {
        // Its secondary rests as soon as the group has the entry for that.
        policy: "hybrid-semi".parse().expect("there is such a policy"),
        overlay: Some(overlay.path().into()),
        ..Options::default()
    };
    prove("t-upgrade", options, |lab| {
        wait_for_version(lab, old)?;
        for (first, second) in [(None, None), (Some(old), Some(old)), (None, None)] {
            change_release(lab, 0, first)?;
            change_release(lab, 1, second)?;
            let (group, waits_for) = version(lab, 0)?;
            ensure!(group == u64::from(old), "raised to {group}");
            if first.is_none() {
                let why = format!("replica 2 speaks {old} only");
                ensure!(waits_for.contains(&why), "{waits_for}");
            }
        }

        // The leader dies when only one replica has the former release.
        lab.wait_until_protected()?;
        let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
        lab.wait_for_failover(leader, at)?;
        give_release(lab, leader, None)?;
        recover(lab, leader)?;
        if leader != 2 {
            change_release(lab, 2, None)?;
        }
        wait_for_version(lab, new)?;
        lab.wait_until_protected()?;

        // There is no way back now.
        end(lab, 2)?;
        give_release(lab, 2, Some(old))?;
        let refused = format!("{:#}", lab.start(2).err().context("it does not start")?);
        ensure!(refused.contains("the newer release"), "{refused}");
        give_release(lab, 2, None)?;
        recover(lab, 2)
    });
}

//! A rolling upgrade of plover under load, as an operator does it. Every acknowledged write is there in the end, and no
//! connection was reset (`prove`). Other planned work is in `drill.rs`.

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab_proof::drill::steps::end;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{prove, recover, role};
use plover_types::wire::{OLDEST_VERSION, WIRE_VERSION};

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

/// Three replicas go to a release with a newer wire version one by one, one of them back and forward again, and their
/// leader dies in the middle. The former release is this one with `version_max`.
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
        for (id, release) in [(0, None), (1, None), (1, Some(old)), (1, None)] {
            change_release(lab, id, release)?;
            let (group, waits_for) = version(lab, 0)?;
            ensure!(group == u64::from(old), "raised to {group}");
            let why = format!("replica 2 speaks {old} only");
            ensure!(waits_for.contains(&why), "{waits_for}");
            let table = lab.lab().status().to_string();
            let told = table
                .lines()
                .find(|line| line.contains("waits for wire version"));
            eprintln!(
                "{}",
                told.context("the table says what the group waits for")?
            );
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
        ensure!(refused.contains("group.version_max"), "{refused}");
        give_release(lab, 2, None)?;
        recover(lab, 2)
    });
}

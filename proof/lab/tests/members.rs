//! Hosts are replaced under load: one that is dead and one that lives, and then the leader dies. Every acknowledged write
//! is there in the end, and no connection was reset (`prove`).

use anyhow::{Context, Result, ensure};
use plover_lab::operate::{self, MemberChange};
use plover_lab::options::Options;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Target};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{prove, role};
use std::time::Duration;

/// How long a host may take to be replaced: copies of a small guest, on a busy machine.
const REPLACED_WITHIN: Duration = Duration::from_secs(150);

/// Has a spare host take the place of `old`, asked of the replica `at`.
fn replace(lab: &mut Experiment, at: u8, old: u8, new: u8) -> Result<()> {
    let change = MemberChange {
        add: Some((new, format!("10.77.1.{}:7700", 10 + new))),
        remove: Some(old),
    };
    let (control, progress) = (lab.lab().control(at), lab.progress().clone());
    let say = |words: &str| progress.say(words);
    let members = operate::change_members(&control, &change, REPLACED_WITHIN, say)?;
    ensure!(
        members.contains(&new) && !members.contains(&old) && members.len() == 3,
        "the members are {members:?}"
    );
    Ok(())
}

#[test]
fn a_dead_host_and_a_live_one_are_replaced_and_then_the_leader_dies() {
    let options = Options {
        spare: 2,
        ..Options::default()
    };
    prove("t-member", options, |lab| {
        lab.wait_until_protected()?;
        let find = |lab: &Experiment, name: &str| lab.lab().find(&role(name));

        // The witness is dead for ever. It is not replaced by itself, nor by a host that is no host.
        let dead = find(lab, "witness")?;
        lab.strike(Fault::Kill, &Target::Replica(dead))?;
        let leader = find(lab, "leader")?;
        let refused = replace(lab, leader, dead, dead).unwrap_err().to_string();
        ensure!(refused.contains("such as 3"), "{refused}");
        lab.start(3)?;
        replace(lab, leader, dead, 3)?;
        lab.wait_until_protected()?;

        // The secondary lives. The guest is held by two replicas all the time.
        let old = find(lab, "secondary")?;
        lab.start(4)?;
        let since = now_us();
        replace(lab, 3, old, 4)?;
        let alone = lab.events().iter().find(|event| {
            let set = event.number("in_sync").unwrap_or(0b11);
            event.mono_us > since && event.what == "in_sync" && set.count_ones() < 2
        });
        ensure!(
            alone.is_none(),
            "one replica alone held the guest: {alone:?}"
        );
        lab.wait("the replica that has left has ended", |lab| {
            let status = lab.lab().status();
            Ok(status.replica(old).is_some_and(|it| it.role == "down"))
        })?;

        // Both come back with their old disks: one that knows that it has left, and one that has to be told.
        for gone in [old, dead] {
            let _ = lab.start(gone);
            lab.wait("a replica that has left ends", |lab| {
                let status = lab.lab().status();
                Ok(status.replica(gone).is_some_and(|it| it.role == "down"))
            })?;
            let log = std::fs::read_to_string(lab.lab().files(gone).log())
                .context("the log of a replica that has left")?;
            ensure!(log.contains("has left the group"), "{log}");
        }

        lab.wait_until_protected()?;
        let (killed, at) = lab.strike(Fault::Kill, &role("leader"))?;
        lab.wait_for_failover(killed, at)?;
        lab.wait_until_protected()
    });
}

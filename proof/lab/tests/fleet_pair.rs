//! A group of two under Pacemaker with fencing and a third node: when the network between the two fails, both answer clients, and
//! one of them is powered off.
//!
//! It takes two minutes, and needs the packages of `fleet.rs`:
//! `cargo test --release -p plover-lab-proof fleet_pair:: -- --ignored --nocapture`

use anyhow::{Context, Result, ensure};
use plover_lab::net::replica_ip;
use plover_lab::options::Options;
use plover_lab::progress::Progress;
use plover_lab::{Fault, Lab};
use plover_lab_proof::cluster::{Cluster, NODES};
use plover_lab_proof::{overlay, program, prove_on, wait_for};
use std::time::{Duration, Instant};

/// The node without a replica.
const ARBITER: u8 = 2;

/// The cluster's daemons start on all hosts at once, and keep the machine busy for seconds.
const PATIENT: &str =
    "[group]\ntimeout_ms = 1000\nhypervisor_timeout_ms = 2000\n[guest]\naccel = \"tcg\"\n";

#[test]
#[ignore = "takes two minutes, and needs packages: the command is at the head of this file"]
fn fencing_ends_the_split_of_a_pair() {
    let patient = overlay(PATIENT);
    let options = Options {
        policy: "remus-25".parse().expect("a policy"),
        replicas: Some(2),
        overlay: Some(patient.to_path_buf()),
        ..Options::default()
    };
    prove_on("t-fence", options, |lab, progress| {
        let mut cluster = Cluster::start_with_arbiter(lab)?;
        let shown = |cluster: &Cluster, words: &[&str]| {
            let shown = cluster.run(ARBITER, &["crm_mon", "-1", "-A"]);
            let shown = shown.unwrap_or_default();
            words.iter().all(|word| shown.contains(word))
        };
        wait_for(progress, "all nodes are online", || {
            Ok(shown(&cluster, &["Online: [ alpha beta gamma ]"]))
        })?;
        begin(&cluster, progress)?;
        wait_for(progress, "the pair is known", || {
            Ok(shown(
                &cluster,
                &["Started: [ alpha beta ]", ": leader", ": yes"],
            ))
        })?;
        a_host_is_emptied(lab, &cluster, progress)?;
        for cut in ["leader", "secondary"] {
            a_host_is_fenced(lab, &mut cluster, cut, progress)?;
            wait_for(progress, "the pair is known again", || {
                Ok(shown(
                    &cluster,
                    &["Started: [ alpha beta ]", ": secondary", ": yes"],
                ))
            })?;
        }
        Ok(())
    });
}

fn begin(cluster: &Cluster, progress: &Progress) -> Result<()> {
    let fencing = "configure primitive power stonith:fence_lab params pcmk_host_list='alpha beta' \
                   pcmk_host_check=static-list";
    let properties = "configure property stonith-enabled=true stonith-action=off";
    for words in [fencing, properties] {
        cluster.run(ARBITER, &["sh", "-c", &format!("crm {words}")])?;
    }
    let plover = program().to_string_lossy();
    let said = cluster.run(0, &[&plover, "fleet", "apply", "/etc/plover"])?;
    progress.say(said);
    Ok(())
}

/// The replica with this role. The lab itself knows only those that it has started.
fn with_role(lab: &Lab, role: &str) -> Result<u8> {
    let has_role = |id: &u8| lab.control(*id).status().is_ok_and(|it| it.role == role);
    lab.ids().find(has_role).context("no such replica")
}

fn wait_until_protected(lab: &Lab, by: u8, progress: &Progress) -> Result<()> {
    wait_for(progress, "the pair is whole", || {
        let status = lab.control(by).status();
        Ok(status.is_ok_and(|it| it.protected && it.serving))
    })
}

/// The leader's host is put on standby: the other one serves alone.
fn a_host_is_emptied(lab: &Lab, cluster: &Cluster, progress: &Progress) -> Result<()> {
    let leader = with_role(lab, "leader")?;
    let (other, node) = (1 - leader, NODES[usize::from(leader)]);
    cluster.run(ARBITER, &["crm", "node", "standby", node])?;
    wait_for(progress, "the host is empty", || {
        let serves = lab.control(other).status().is_ok_and(|it| it.serving);
        Ok(serves && lab.control(leader).status().is_err())
    })?;
    cluster.run(ARBITER, &["crm", "node", "online", node])?;
    wait_until_protected(lab, other, progress)
}

/// The host of the replica with this role loses the replicas' network, which is the cluster's, and is back after it was fenced.
fn a_host_is_fenced(
    lab: &mut Lab,
    cluster: &mut Cluster,
    of: &str,
    progress: &Progress,
) -> Result<()> {
    let cut = with_role(lab, of)?;
    let other = 1 - cut;
    let pid = lab.control(other).status()?.plover_pid;
    let to = |id: u8| format!("to {}", replica_ip(id.into()));
    let drops = [(cut, to(ARBITER)), (ARBITER, to(cut))];
    let rules = |word: &str| -> Result<()> {
        drops.iter().try_for_each(|(host, to)| {
            let words = format!("ip rule {word} {to} blackhole");
            cluster
                .run(*host, &words.split(' ').collect::<Vec<_>>())
                .map(drop)
        })
    };
    let begun = Instant::now();
    lab.fault(Fault::Cut { from: None }, cut)?;
    rules("add")?;
    let mut both = None;
    wait_for(progress, "one of the two is to be fenced", || {
        let serves = |id: u8| lab.control(id).status().is_ok_and(|it| it.serving);
        if both.is_none() && serves(cut) && serves(other) {
            both = Some(begun.elapsed());
        }
        Ok([cut, other].iter().any(|id| cluster.is_to_be_fenced(*id)))
    })?;
    let fenced = begun.elapsed();
    ensure!(cluster.is_to_be_fenced(cut), "{other} was fenced");
    ensure!(!cluster.is_to_be_fenced(other), "both are fenced");
    let both = both.context("the two did not both serve")?;
    // A host that is powered off loses its rules, too.
    rules("del")?;
    lab.fault(Fault::Heal, cut)?;
    lab.fault(Fault::Kill, cut)?;
    cluster.is_off(cut)?;
    progress.say(format!(
        "{}, the host of the {of}, is fenced {} ms after it was cut off; both served from {} ms on",
        NODES[usize::from(cut)],
        fenced.as_millis(),
        both.as_millis()
    ));
    // Longer than the cluster's own daemons need to stop something.
    progress.sleep(Duration::from_secs(15))?;
    let status = lab.control(other).status()?;
    ensure!(status.serving && status.plover_pid == pid, "{status:?}");
    cluster.start_host(cut)?;
    wait_until_protected(lab, other, progress)?;
    let status = lab.control(other).status()?;
    ensure!(
        status.plover_pid == pid,
        "the other replica was started again"
    );
    Ok(())
}

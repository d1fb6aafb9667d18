//! A group of two under Pacemaker with fencing (`group.fencing`) and a third node: hosts are cut off and fenced, the network
//! between the replicas alone is cut, under load. Nothing that was acknowledged is lost, and one replica sends at a time (`prove`).
//!
//! It takes three minutes, and needs the packages of `fleet.rs`:
//! `cargo test --release -p plover-lab-proof fleet_pair:: -- --ignored --nocapture`

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::net::replica_ip;
use plover_lab::options::Options;
use plover_lab::trace::now_us;
use plover_lab_proof::cluster::{Cluster, NODES};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{overlay, program, prove};
use std::time::{Duration, Instant};

/// The node without a replica.
const ARBITER: u8 = 2;

/// Where corosync listens.
const CLUSTER_PORT: u16 = 5405;

/// The cluster's daemons start on all hosts at once, and keep the machine busy for seconds.
const FENCED: &str = "[group]\ntimeout_ms = 1000\nfencing = true\n[guest]\naccel = \"tcg\"\n";

#[test]
#[ignore = "takes three minutes, and needs packages: the command is at the head of this file"]
fn fencing_keeps_a_pair_from_splitting() {
    let fenced = overlay(FENCED);
    let options = Options {
        replicas: Some(2),
        overlay: Some(fenced.to_path_buf()),
        ..Options::default()
    };
    prove("t-fence", options, |lab| {
        let mut cluster = Cluster::start_with_arbiter(lab.lab())?;
        wait_for_words(lab, &cluster, &["Online: [ alpha beta gamma ]"])?;
        begin(lab, &cluster)?;
        wait_until_known(lab, &cluster)?;
        a_host_is_emptied(lab, &cluster)?;
        a_process_is_killed(lab)?;
        for cut in ["leader", "secondary"] {
            a_host_is_fenced(lab, &mut cluster, cut)?;
            wait_until_known(lab, &cluster)?;
        }
        the_replicas_alone_are_cut(lab, &cluster)?;
        wait_until_known(lab, &cluster)?;
        the_cluster_loses_its_quorum(lab, &cluster)
    });
}

fn begin(lab: &Experiment, cluster: &Cluster) -> Result<()> {
    let fencing = "configure primitive power stonith:fence_lab params pcmk_host_list='alpha beta' \
                   pcmk_host_check=static-list";
    let properties = "configure property stonith-enabled=true stonith-action=off";
    for words in [fencing, properties] {
        cluster.run(ARBITER, &["sh", "-c", &format!("crm {words}")])?;
    }
    let plover = program().to_string_lossy();
    let said = cluster.run(0, &[&plover, "fleet", "apply", "/etc/plover"])?;
    lab.progress().say(said);
    Ok(())
}

/// Waits until `crm_mon` shows all of these words.
fn wait_for_words(lab: &mut Experiment, cluster: &Cluster, words: &[&str]) -> Result<()> {
    let what = format!("the cluster shows {}", words.join(", "));
    lab.wait(&what, |_| {
        let shown = cluster.run(ARBITER, &["crm_mon", "-1", "-A"]);
        let shown = shown.unwrap_or_default();
        Ok(words.iter().all(|word| shown.contains(word)))
    })
}

fn wait_until_known(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let words = [
        "Started: [ alpha beta ]",
        ": leader",
        ": secondary",
        ": yes",
    ];
    wait_for_words(lab, cluster, &words)
}

/// The replica with this role. The lab itself knows only those that it has started.
fn with_role(lab: &Experiment, role: &str) -> Result<u8> {
    let lab = lab.lab();
    let has_role = |id: &u8| lab.control(*id).status().is_ok_and(|it| it.role == role);
    lab.ids().find(has_role).context("no such replica")
}

fn wait_until_protected(lab: &mut Experiment, by: u8) -> Result<()> {
    lab.wait("the pair is whole", |lab| {
        let status = lab.lab().control(by).status();
        Ok(status.is_ok_and(|it| it.protected && it.serving))
    })
}

fn serves_alone(lab: &Experiment, id: u8) -> bool {
    let status = lab.lab().control(id).status();
    status.is_ok_and(|it| it.serving && it.role == "leader" && it.isr == [id])
}

/// Says how long clients had no answer since then.
fn report_gap(lab: &Experiment, what: &str, since: u64) -> Result<()> {
    let gap = lab.gap(since)?.silence_us / 1000;
    lab.progress()
        .say(format!("{what}: {gap} ms without an answer"));
    Ok(())
}

/// The leader's host is put on standby: the other one serves alone.
fn a_host_is_emptied(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let (leader, since) = (with_role(lab, "leader")?, now_us());
    let (other, node) = (1 - leader, NODES[usize::from(leader)]);
    cluster.run(ARBITER, &["crm", "node", "standby", node])?;
    lab.wait("the host is empty, and the other one serves", |lab| {
        let is_gone = lab.lab().control(leader).status().is_err();
        Ok(is_gone && serves_alone(lab, other))
    })?;
    lab.wait_for_answers(now_us())?;
    report_gap(lab, "the leader's host is emptied", since)?;
    cluster.run(ARBITER, &["crm", "node", "online", node])?;
    wait_until_protected(lab, other)
}

/// A process that dies on a host that lives is known to be off.
fn a_process_is_killed(lab: &mut Experiment) -> Result<()> {
    let (leader, since) = (with_role(lab, "leader")?, now_us());
    let process = lab.lab().control(leader).process()?;
    process.signal(rustix::process::Signal::KILL);
    lab.wait("the other one leads", |lab| {
        let status = lab.lab().control(1 - leader).status();
        Ok(status.is_ok_and(|it| it.role == "leader" && it.serving))
    })?;
    lab.wait_for_answers(now_us())?;
    report_gap(lab, "the leader's process is killed", since)?;
    wait_until_protected(lab, 1 - leader)
}

/// The host of the replica with this role loses the replicas' network, which is the cluster's, and is back after it was fenced.
fn a_host_is_fenced(lab: &mut Experiment, cluster: &mut Cluster, of: &str) -> Result<()> {
    let cut = with_role(lab, of)?;
    let other = 1 - cut;
    let pid = lab.lab().control(other).status()?.plover_pid;
    let to = |id: u8| format!("to {}", replica_ip(id.into()));
    let drops = [(cut, to(ARBITER)), (ARBITER, to(cut))];
    let (begun, since) = (Instant::now(), now_us());
    lab.lab().fault(Fault::Cut { from: None }, cut)?;
    rules(cluster, "add", &drops)?;
    lab.wait("one of the two is to be fenced", |lab| {
        let alone = [cut, other].iter().any(|id| serves_alone(lab, *id));
        ensure!(!alone, "one serves alone, and none is fenced");
        Ok([cut, other].iter().any(|id| cluster.is_to_be_fenced(*id)))
    })?;
    let fenced = begun.elapsed().as_millis();
    ensure!(cluster.is_to_be_fenced(cut), "{other} was fenced");
    ensure!(!cluster.is_to_be_fenced(other), "both are fenced");
    // The device takes its time, longer than from one monitor to the next. Nobody goes on before it is done.
    lab.progress().sleep(Duration::from_secs(12))?;
    let alone = [cut, other].iter().any(|id| serves_alone(lab, *id));
    ensure!(!alone, "one serves alone, and the other is not off yet");
    // Its own rules cannot be deleted when it is off. Those of the others keep it cut off until then.
    let (own, others) = drops.split_at(1);
    rules(cluster, "del", own)?;
    lab.lab().fault(Fault::Kill, cut)?;
    rules(cluster, "del", others)?;
    lab.lab().fault(Fault::Heal, cut)?;
    cluster.is_off(cut)?;
    let off = Instant::now();
    lab.wait("the other one serves alone", |lab| {
        Ok(serves_alone(lab, other))
    })?;
    let node = NODES[usize::from(cut)];
    lab.progress().say(format!(
        "{node}, the host of the {of}, is to be fenced {fenced} ms after it was cut off; the other one goes on {} ms after \
         it is off",
        off.elapsed().as_millis()
    ));
    lab.wait_for_answers(now_us())?;
    report_gap(lab, &format!("the {of}'s host is fenced"), since)?;
    // Longer than the cluster's own daemons need to stop something.
    lab.progress().sleep(Duration::from_secs(15))?;
    cluster.start_host(cut)?;
    wait_until_protected(lab, other)?;
    let status = lab.lab().control(other).status()?;
    ensure!(
        status.plover_pid == pid,
        "the other replica was started again"
    );
    Ok(())
}

/// Nothing passes between the replicas, and the cluster is whole: the secondary ends for the leader, and comes back.
fn the_replicas_alone_are_cut(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let (leader, since) = (with_role(lab, "leader")?, now_us());
    let pid = lab.lab().control(leader).status()?.plover_pid;
    // The word of a host that a process has died there goes by UDP.
    let ways = ["tcp dport", "tcp sport", "udp dport", "udp sport"];
    let ways = ways.map(|it| format!("ipproto {it} 7700"));
    let drops = [leader, 1 - leader].map(|host| ways.each_ref().map(|way| (host, way.clone())));
    let drops = drops.concat();
    rules(cluster, "add", &drops)?;
    lab.wait("the leader serves alone", |lab| {
        Ok(serves_alone(lab, leader))
    })?;
    lab.wait_for_answers(now_us())?;
    report_gap(lab, "the replicas alone are cut", since)?;
    for id in [0, 1] {
        ensure!(!cluster.is_to_be_fenced(id), "a host is to be fenced");
    }
    rules(cluster, "del", &drops)?;
    wait_until_protected(lab, leader)?;
    let status = lab.lab().control(leader).status()?;
    ensure!(status.plover_pid == pid, "the leader was started again");
    let other = lab.lab().control(1 - leader).status()?.plover_pid;
    // Longer than from one monitor to the next.
    lab.progress().sleep(Duration::from_secs(12))?;
    let now = lab.lab().control(1 - leader).status()?.plover_pid;
    ensure!(now == other, "the secondary was ended once more");
    Ok(())
}

/// Nothing passes between the nodes of the cluster, and the replicas hear each other: both go on.
fn the_cluster_loses_its_quorum(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let processes = |lab: &Experiment| -> Result<Vec<u32>> {
        let lab = lab.lab();
        lab.ids()
            .map(|id| Ok(lab.control(id).status()?.plover_pid))
            .collect()
    };
    let (before, since) = (processes(lab)?, now_us());
    let way = format!("ipproto udp dport {CLUSTER_PORT}");
    let drops = [0, 1, ARBITER].map(|host| (host, way.clone()));
    rules(cluster, "add", &drops)?;
    for host in [0, 1] {
        let what = format!("{} is without a quorum", NODES[usize::from(host)]);
        lab.wait(&what, |_| {
            let shown = cluster.run(host, &["crm_mon", "-1"]);
            Ok(shown.unwrap_or_default().contains("WITHOUT quorum"))
        })?;
    }
    // Longer than the cluster's own daemons need to stop something.
    lab.progress().sleep(Duration::from_secs(15))?;
    report_gap(lab, "the cluster has no quorum", since)?;
    ensure!(processes(lab)? == before, "a replica was stopped");
    rules(cluster, "del", &drops)
}

/// Drops what these hosts send so, or passes it again.
fn rules(cluster: &Cluster, word: &str, drops: &[(u8, String)]) -> Result<()> {
    drops.iter().try_for_each(|(host, what)| {
        let words = format!("ip rule {word} {what} blackhole");
        let words: Vec<_> = words.split(' ').collect();
        cluster.run(*host, &words).map(drop)
    })
}

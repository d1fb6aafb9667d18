//! A guest that Pacemaker places on three of five hosts, under load: its hosts are drained, lost and replaced, and the engine
//! itself is killed. Every acknowledged write is there in the end, no connection was reset, and one replica sends at a time
//! (`prove`).
//!
//! It takes some minutes, and needs the packages pacemaker, corosync, crmsh and pacemaker-cli-utils:
//! `cargo test --release -p plover-lab-proof fleet:: -- --ignored --nocapture`

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::net::replica_ip;
use plover_lab::options::Options;
use plover_lab::status::GroupStatus;
use plover_lab::trace::now_us;
use plover_lab_proof::cluster::{Cluster, NODES};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{overlay, program, prove};
use std::collections::BTreeMap;
use std::time::Duration;

const ONLINE: &str = "Online: [ alpha beta delta epsilon gamma ]";

/// What the first replica that answers says of its group. The lab itself knows only the processes that it has started.
fn group(lab: &Experiment) -> Result<GroupStatus> {
    let answers = lab
        .lab()
        .ids()
        .map(|id| GroupStatus::ask(&lab.lab().control(id)));
    // A spare replica knows of itself alone.
    let mut answers = answers.flatten().filter(|it| it.leader().is_some());
    answers.next().context("no replica knows a leader")
}

fn with_role(lab: &Experiment, role: &str) -> Result<u8> {
    let group = group(lab)?;
    let found = group
        .with_role(role)
        .with_context(|| format!("no replica is {role}: {group}"))?;
    Ok(found.id)
}

fn pid(lab: &Experiment, id: u8) -> Result<u32> {
    Ok(lab.lab().control(id).status()?.plover_pid)
}

/// Waits until the guest is protected and all three replicas are there, a third one as witness.
fn wait_until_whole(lab: &mut Experiment) -> Result<()> {
    lab.wait("a whole group", |lab| {
        let Ok(group) = group(lab) else {
            return Ok(false);
        };
        let roles = ["leader", "secondary", "witness"];
        Ok(group.protected && roles.iter().all(|role| group.with_role(role).is_some()))
    })
}

/// Waits until a host's engine says something.
fn wait_for_words(lab: &mut Experiment, cluster: &Cluster, at: u8, words: &[&str]) -> Result<()> {
    let mut last = String::new();
    lab.wait(&format!("{words:?} in crm_mon"), |_| {
        last = cluster
            .run(at, &["crm_mon", "-1", "-A"])
            .unwrap_or_default();
        Ok(words.iter().all(|word| last.contains(word)))
    })
    .with_context(|| last)
}

fn say(lab: &Experiment, at: u8, cluster: &Cluster, words: &[&str]) -> Result<String> {
    let said = cluster.run(at, words)?;
    lab.progress().say(format!(
        "{}# {}\n{said}",
        NODES[usize::from(at)],
        words.join(" ")
    ));
    Ok(said)
}

fn report_gap(lab: &Experiment, what: &str, since: u64) -> Result<()> {
    let gap = lab.gap(since)?.silence_us / 1000;
    lab.progress().say(format!(
        "{what}: the longest time without an answer was {gap} ms"
    ));
    Ok(())
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

#[test]
#[ignore = "takes minutes, and needs packages: the command is at the head of this file"]
fn pacemaker_places_and_plover_elects() {
    // The cluster's daemons start on all hosts at once, and keep the machine busy for seconds.
    let patient = overlay(
        "[group]\ntimeout_ms = 1000\ntimeout_min_ms = 1000\nhypervisor_timeout_ms = 2000\nreplace_after_s = 0\n[guest]\naccel = \"tcg\"\n",
    );
    let options = Options {
        spare: 2,
        overlay: Some(patient.to_path_buf()),
        ..Options::default()
    };
    prove("t-fleet", options, |lab| {
        let mut cluster = Cluster::start(lab.lab())?;
        wait_for_words(lab, &cluster, 0, &[ONLINE])?;
        adopted(lab, &cluster)?;
        a_host_is_drained(lab, &cluster)?;
        all_hosts_are_upgraded(lab, &cluster)?;
        a_host_is_lost(lab, &mut cluster)?;
        lost_hosts_are_replaced(lab, &mut cluster)?;
        the_engine_is_killed(lab, &cluster)?;
        the_cluster_is_split(lab, &cluster)?;
        the_replicas_are_cut(lab, &cluster)?;
        a_replica_hangs(lab, &cluster)
    });
}

/// Pacemaker finds the replicas that run, and leaves them.
fn adopted(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let plover = program().to_string_lossy();
    let before = [pid(lab, 0)?, pid(lab, 1)?, pid(lab, 2)?];
    cluster.run(
        0,
        &["crm", "configure", "property", "stonith-enabled=false"],
    )?;
    let dry = say(
        lab,
        0,
        cluster,
        &[&plover, "fleet", "apply", "/etc/plover", "--dry-run"],
    )?;
    ensure!(
        dry.contains("-clone is new") && dry.contains("dry run"),
        "{dry}"
    );
    let unchanged = cluster.run(0, &["crm_mon", "-1"])?;
    ensure!(unchanged.contains("0 resource instances"), "{unchanged}");
    say(lab, 0, cluster, &[&plover, "fleet", "apply", "/etc/plover"])?;
    wait_for_words(
        lab,
        cluster,
        2,
        &["Started: [ alpha beta gamma ]", ": leader", ": witness"],
    )?;
    let again = say(lab, 1, cluster, &[&plover, "fleet", "apply", "/etc/plover"])?;
    ensure!(again.ends_with(": as it is\n"), "{again}");
    ensure!(
        before == [pid(lab, 0)?, pid(lab, 1)?, pid(lab, 2)?],
        "a replica was started again"
    );
    say(lab, 2, cluster, &["crm_mon", "-1", "-A"])?;
    Ok(())
}

fn a_host_is_drained(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let (leader, elsewhere) = (with_role(lab, "leader")?, with_role(lab, "witness")?);
    let (node, since) = (NODES[usize::from(leader)], now_us());
    cluster.run(elsewhere, &["crm", "node", "standby", node])?;
    lab.wait("the host is empty", |lab| {
        Ok(lab.lab().control(leader).status().is_err())
    })?;
    lab.wait_for_answers(now_us())?;
    report_gap(lab, "standby of the leader's host", since)?;
    was_protected(lab, since)?;
    say(lab, elsewhere, cluster, &["crm_mon", "-1", "-A"])?;
    let plover = program().to_string_lossy();
    let run_dir = lab.lab().files(elsewhere).run_dir();
    let run_dir = run_dir.to_string_lossy();
    let fleet = say(
        lab,
        elsewhere,
        cluster,
        &[&plover, "fleet", "status", "--run-dir", &run_dir],
    )?;
    ensure!(
        fleet.contains(cluster.guest()) && fleet.contains("protected"),
        "{fleet}"
    );
    cluster.run(elsewhere, &["crm", "node", "online", node])?;
    wait_until_whole(lab)?;
    lab.wait("the host takes roles again", |lab| {
        let group = group(lab)?;
        Ok(group.replica(leader).is_some_and(|it| !it.is_drained()))
    })?;
    was_protected(lab, since)
}

/// By a command that says where it was, and then by one that fails at the second host.
fn all_hosts_are_upgraded(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    // The attributes are as old as the last monitor.
    wait_for_words(
        lab,
        cluster,
        0,
        &[": leader", ": secondary", ": witness", ": yes"],
    )?;
    let (plover, since) = (program().to_string_lossy(), now_us());
    let upgrade = |done: &str| {
        let words = [
            "fleet",
            "upgrade",
            "--within-s",
            "120",
            "--",
            "sh",
            "-c",
            done,
        ];
        cluster.run(1, &[&[&plover[..]][..], &words].concat())
    };
    let done = tempfile::NamedTempFile::new()?;
    let file = done.path().display();
    let said = upgrade(&format!("echo {{host}} >> {file}"))?;
    let leader = NODES[usize::from(with_role(lab, "leader")?)];
    lab.progress().say(format!("plover fleet upgrade\n{said}"));
    let upgraded = std::fs::read_to_string(done.path())?;
    let mut upgraded: Vec<&str> = upgraded.lines().collect();
    ensure!(
        upgraded.pop() != Some(leader),
        "the last one led, and has handed over: {upgraded:?}"
    );
    ensure!(upgraded.len() == 2, "{upgraded:?}");
    was_protected(lab, since)?;
    report_gap(lab, "all hosts are upgraded", since)?;

    let error = upgrade(&format!(
        "grep -q alpha {file} && ! echo {{host}} | grep -q gamma"
    ));
    let error = format!("{:#}", error.err().context("it fails on gamma")?);
    ensure!(
        error.contains("the upgrade has stopped at gamma"),
        "{error}"
    );
    lab.progress().say(&error);
    wait_for_words(lab, cluster, 0, &[ONLINE])?;
    wait_until_whole(lab)
}

fn a_host_is_lost(lab: &mut Experiment, cluster: &mut Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let leader = with_role(lab, "leader")?;
    let since = lab.lab().fault(Fault::Kill, leader)?;
    lab.wait_for_failover(leader, since)?;
    report_gap(lab, "the leader's host is lost", since)?;
    lab.wait("protected without the lost host", |lab| {
        Ok(group(lab).is_ok_and(|it| it.protected))
    })?;
    cluster.start_host(leader)?;
    wait_until_whole(lab)?;
    wait_for_words(lab, cluster, leader, &["Started: [ alpha beta gamma ]"])
}

/// The leader's host is lost, and another one while its replacement is under way. Both are replaced by spare hosts, and the one
/// that comes back gets no replica.
fn lost_hosts_are_replaced(lab: &mut Experiment, cluster: &mut Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    cluster.configure("replace_after_s = 0", "replace_after_s = 5")?;
    let lost = with_role(lab, "leader")?;
    let since = lab.lab().fault(Fault::Kill, lost)?;
    lab.wait_for_failover(lost, since)?;
    wait_until_replaced(lab, lost)?;
    report_gap(lab, "the leader's host is replaced", since)?;
    let at = with_role(lab, "leader")?;
    say(lab, at, cluster, &["crm_mon", "-1", "-A"])?;
    let next = with_role(lab, "secondary")?;
    let since = lab.lab().fault(Fault::Kill, next)?;
    wait_until_replaced(lab, next)?;
    report_gap(lab, "the secondary's host is replaced", since)?;

    let left = with_role(lab, "leader")?;
    cluster.start_host(lost)?;
    let node = NODES[usize::from(lost)];
    lab.wait(&format!("{node} is back"), |_| {
        let said = cluster.run(left, &["crm_mon", "-1"]).unwrap_or_default();
        let online = said.lines().find(|line| line.contains(" Online: ["));
        Ok(online.is_some_and(|it| it.contains(node)))
    })?;
    let said = say(lab, left, cluster, &["crm_simulate", "-L", "-S"])?;
    let moves = ["Start ", "Stop ", "Move ", "Restart "];
    ensure!(
        !moves.iter().any(|it| said.contains(it)),
        "the host that was replaced is to have a replica"
    );
    ensure!(lab.lab().control(lost).status().is_err());
    cluster.configure("replace_after_s = 5", "replace_after_s = 0")?;
    wait_until_whole(lab)
}

/// Waits until a replica has left the group and the guest has as many members as before.
fn wait_until_replaced(lab: &mut Experiment, id: u8) -> Result<()> {
    lab.wait(&format!("replica {id} is replaced"), |lab| {
        let Ok(group) = group(lab) else {
            return Ok(false);
        };
        let leader = group.leader().map(|it| it.more.clone());
        let leader = leader.unwrap_or_default();
        let has_left = leader["left"]
            .as_array()
            .is_some_and(|it| it.contains(&id.into()));
        Ok(has_left && leader["voters"].as_array().map(Vec::len) == Some(3))
    })?;
    wait_until_whole(lab)
}

/// Of two of the four hosts that are left, so that these have no quorum: they must stop nothing.
fn the_engine_is_killed(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let left = with_role(lab, "leader")?;
    let killed = [with_role(lab, "secondary")?, with_role(lab, "witness")?];
    let pids = |lab: &Experiment| -> Result<Vec<u32>> {
        let all = killed.into_iter().chain([left]);
        all.map(|id| pid(lab, id)).collect()
    };
    let before = pids(lab)?;
    for id in killed {
        cluster.kill_engine(id)?;
    }
    wait_for_words(
        lab,
        cluster,
        left,
        &["partition WITHOUT quorum", "OFFLINE: ["],
    )?;
    lab.wait_for_answers(now_us())?;
    say(lab, left, cluster, &["crm_mon", "-1"])?;
    for id in killed {
        cluster.restart_engine(id)?;
    }
    let mut started = killed.map(|id| NODES[usize::from(id)]).to_vec();
    started.push(NODES[usize::from(left)]);
    started.sort_unstable();
    let started = format!("Started: [ {} ]", started.join(" "));
    wait_for_words(lab, cluster, left, &["partition with quorum", &started])?;
    ensure!(before == pids(lab)?, "a replica was started again");
    ensure!(with_role(lab, "leader")? == left, "the lead has moved");
    wait_until_whole(lab)
}

/// Which replicas run where, by their processes.
fn processes(lab: &Experiment) -> BTreeMap<u8, u32> {
    let pids = lab.lab().ids().map(|id| (id, pid(lab, id)));
    pids.filter_map(|(id, pid)| Some((id, pid.ok()?))).collect()
}

/// Adds or deletes rules by which hosts drop what they would send.
fn drop_sent(cluster: &Cluster, word: &str, rules: &[(u8, String)]) -> Result<()> {
    for (host, rule) in rules {
        let words = format!("ip rule {word} {rule} blackhole");
        cluster.run(*host, &words.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The leader's node and the others lose sight of each other, and the replicas do not.
fn the_cluster_is_split(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let (leader, elsewhere) = (with_role(lab, "leader")?, with_role(lab, "witness")?);
    let (before, since) = (processes(lab), now_us());
    let corosync = "ipproto udp dport 5405";
    let to_it = format!("to {} {corosync}", replica_ip(leader.into()));
    let others = lab.lab().ids().filter(|id| *id != leader);
    // The test ends with one host lost for good.
    let others = others.filter(|id| cluster.run(*id, &["true"]).is_ok());
    let mut rules: Vec<_> = others.map(|id| (id, to_it.clone())).collect();
    rules.push((leader, corosync.into()));
    drop_sent(cluster, "add", &rules)?;
    let node = NODES[usize::from(leader)];
    wait_for_words(lab, cluster, leader, &["partition WITHOUT quorum"])?;
    wait_for_words(lab, cluster, elsewhere, &["partition with quorum", node])?;
    // All that Pacemaker does about it begins with the next monitor, at the latest.
    lab.progress().sleep(Duration::from_secs(15))?;
    say(lab, elsewhere, cluster, &["crm_mon", "-1", "-A"])?;
    let at_work = before
        .iter()
        .all(|(id, pid)| processes(lab).get(id) == Some(pid));
    ensure!(at_work, "a replica was stopped or started again");
    ensure!(with_role(lab, "leader")? == leader, "the lead has moved");
    drop_sent(cluster, "del", &rules)?;
    let started = started(lab, &before)?;
    wait_for_words(lab, cluster, leader, &["partition with quorum", &started])?;
    ensure!(
        before == processes(lab),
        "a replica was started again, or a spare one stays"
    );
    report_gap(lab, "the cluster is split", since)?;
    was_protected(lab, since)?;
    wait_until_whole(lab)
}

/// How `crm_mon` shows that these replicas run.
fn started(lab: &Experiment, processes: &BTreeMap<u8, u32>) -> Result<String> {
    let members = processes.keys().filter(|id| {
        let status = lab.lab().control(**id).status();
        status.is_ok_and(|it| it.more.get("waits_to_be_added") != Some(&true.into()))
    });
    let mut nodes: Vec<&str> = members.map(|id| NODES[usize::from(*id)]).collect();
    nodes.sort_unstable();
    Ok(format!("Started: [ {} ]", nodes.join(" ")))
}

/// All that the leader sends to the others is lost, one way, and the cluster sees all hosts.
fn the_replicas_are_cut(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let leader = with_role(lab, "leader")?;
    let (before, since) = (processes(lab), now_us());
    let rules = ["tcp dport", "tcp sport", "udp dport", "udp sport"];
    let rules = rules.map(|it| (leader, format!("ipproto {it} 7700")));
    drop_sent(cluster, "add", &rules)?;
    lab.wait("another replica leads, protected", |lab| {
        let others = lab.lab().ids().filter(|id| *id != leader);
        let answers = others.map(|id| GroupStatus::ask(&lab.lab().control(id)));
        Ok(answers.flatten().any(|group| {
            let leads = group
                .leader()
                .is_some_and(|it| it.id != leader && it.serving);
            leads && group.protected
        }))
    })?;
    lab.wait_for_answers(now_us())?;
    report_gap(lab, "nothing that the leader sends arrives", since)?;
    let online = cluster.run(leader, &["crm_mon", "-1"])?;
    ensure!(online.contains("partition with quorum"), "{online}");
    drop_sent(cluster, "del", &rules)?;
    wait_until_whole(lab)?;
    ensure!(before == processes(lab), "a replica was started again");
    Ok(())
}

fn a_replica_hangs(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    let witness = with_role(lab, "witness")?;
    let hung = lab.lab().control(witness).process()?;
    hung.signal(rustix::process::Signal::STOP);
    lab.wait("the hung replica is started anew", |lab| {
        Ok(pid(lab, witness).is_ok_and(|pid| pid != hung.pid))
    })?;
    let elsewhere = with_role(lab, "leader")?;
    say(lab, elsewhere, cluster, &["crm_mon", "-1", "-A"])?;
    wait_until_whole(lab)
}

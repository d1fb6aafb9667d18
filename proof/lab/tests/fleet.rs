//! A guest that Pacemaker places, under load: its hosts are drained and lost, and the engine itself is killed. Every acknowledged
//! write is there in the end, no connection was reset, and one replica sends at a time (`prove`).
//!
//! It takes some minutes, and needs the packages pacemaker, corosync, crmsh and pacemaker-cli-utils:
//! `cargo test --release -p plover-lab-proof fleet:: -- --ignored --nocapture`

use anyhow::{Context, Result, ensure};
use plover_lab::Fault;
use plover_lab::options::Options;
use plover_lab::status::GroupStatus;
use plover_lab::trace::now_us;
use plover_lab_proof::cluster::{Cluster, NODES};
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::{overlay, program, prove};

/// What the first replica that answers says of its group. The lab itself knows only the processes that it has started.
fn group(lab: &Experiment) -> Result<GroupStatus> {
    let mut answers = lab
        .lab()
        .ids()
        .map(|id| GroupStatus::ask(&lab.lab().control(id)));
    answers.find_map(Result::ok).context("no replica answers")
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
    let patient = overlay("[group]\ntimeout_ms = 1000\ntimeout_min_ms = 1000\n");
    let options = Options {
        overlay: Some(patient.to_path_buf()),
        ..Options::default()
    };
    prove("t-fleet", options, |lab| {
        let mut cluster = Cluster::start(lab.lab())?;
        wait_for_words(lab, &cluster, 0, &["Online: [ alpha beta gamma ]"])?;
        adopted(lab, &cluster)?;
        a_host_is_drained(lab, &cluster)?;
        all_hosts_are_upgraded(lab, &cluster)?;
        a_host_is_lost(lab, &mut cluster)?;
        the_engine_is_killed(lab, &cluster)?;
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
    let is_drained = group(lab)?
        .replica(leader)
        .is_some_and(|it| it.is_drained());
    ensure!(!is_drained, "the host takes roles again");
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
    wait_for_words(lab, cluster, 0, &["Online: [ alpha beta gamma ]"])?;
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

/// Of two hosts, so that the third one has no quorum: it must stop nothing.
fn the_engine_is_killed(lab: &mut Experiment, cluster: &Cluster) -> Result<()> {
    wait_until_whole(lab)?;
    let before = [pid(lab, 0)?, pid(lab, 1)?, pid(lab, 2)?];
    let left = with_role(lab, "leader")?;
    let killed = [with_role(lab, "secondary")?, with_role(lab, "witness")?];
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
    wait_for_words(
        lab,
        cluster,
        left,
        &["partition with quorum", "Started: [ alpha beta gamma ]"],
    )?;
    ensure!(
        before == [pid(lab, 0)?, pid(lab, 1)?, pid(lab, 2)?],
        "a replica was started again"
    );
    ensure!(with_role(lab, "leader")? == left, "the lead has moved");
    wait_until_whole(lab)
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

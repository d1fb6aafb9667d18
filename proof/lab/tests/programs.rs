//! Unmodified programs under `plover run` on three hosts.

use anyhow::{Context, Result, ensure};
use plover_lab_proof::programs::group::{Group, LISTEN};
use plover_lab_proof::programs::{self, Client, Plan, Subject};
use plover_lab_proof::redis::Connection;
use plover_lab_proof::{Turn, program, progress};
use rustix::process::Signal;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Two leaders of a Redis die, and come back.
fn two_leaders_die(name: &str, program_keys: &str) {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = program_keys.into();
    let subject = programs::named("redis").unwrap();
    let report = programs::run(name, program(), subject, &plan, &progress);
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.is_good(), "{report:#?}");
}

#[test]
fn no_acknowledged_write_of_redis_is_lost() {
    two_leaders_die("t-programs", "via = \"proxy\"");
}

/// The program reads its clients itself, and its replies wait for the commit.
#[test]
fn none_is_lost_through_a_preloaded_library() {
    two_leaders_die("t-preload", "via = \"preload\"");
}

/// The same, and its reads wait (APUS).
#[test]
fn none_is_lost_when_reads_wait() {
    two_leaders_die("t-reads", "via = \"preload\"\nwait = \"read\"");
}

/// Redis, whose checkpoints fail as long as a file is missing.
#[derive(Debug)]
struct WithoutCheckpoints;

/// The file, seen from the program's directory: it lies beside the replicas' directories.
const ALLOWS: &str = "test -e ../../allowed";

impl Subject for WithoutCheckpoints {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn command(&self, files: &Path) -> Vec<String> {
        programs::named("redis").unwrap().command(files)
    }

    fn keys(&self) -> String {
        let keys = programs::named("redis").unwrap().keys();
        keys.replace(
            "snapshot_cmd = \"",
            &format!("snapshot_cmd = \"{ALLOWS} && "),
        )
    }

    fn open(&self, files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        programs::named("redis").unwrap().open(files, at, patience)
    }
}

/// The log is full because no checkpoint can be taken. No replica gives up its program, and clients are served again
/// when one can.
#[test]
fn a_full_log_serves_again_after_a_checkpoint() {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = "via = \"preload\"".into();
    let group = Group::up("t-full", 3, program(), &WithoutCheckpoints, &plan).unwrap();
    let is_full = |group: &Group| {
        let leader = group.leader().and_then(|id| group.status(id));
        leader.is_some_and(|it| it["full"] == true)
    };
    let write = |number: usize| -> Result<()> {
        let patience = Duration::from_secs(1);
        let mut client = WithoutCheckpoints.open(group.files(), LISTEN, patience)?;
        let value = "v".repeat(500);
        (0..1000).try_for_each(|key| client.write(&format!("{number}-{key}"), &value))
    };
    let outcome = || -> Result<()> {
        group.wait_for("all programs run", &progress, Group::is_whole)?;
        while !is_full(&group) {
            std::thread::scope(|threads| {
                for writer in 0..8 {
                    let host = group.topology().client();
                    threads.spawn(move || host.run(|| Ok(write(writer))));
                }
            });
        }
        let before: Vec<_> = (0..3).map(|id| group.status(id)).collect();
        // The leader asks for several.
        progress.sleep(Duration::from_secs(6))?;
        for (id, before) in before.iter().enumerate() {
            let now = group.status(id).context("it has ended")?;
            let pid = |it: &Value| it["program_pid"].clone();
            ensure!(before.as_ref().map(pid) == Some(pid(&now)), "{now}");
        }
        std::fs::write(group.files().join("allowed"), "")?;
        group.wait_for("the log has room", &progress, |group| !is_full(group))?;
        group.as_client(|| write_again(&group))
    };
    let outcome = outcome().with_context(|| group.last_words());
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
    group.down().unwrap();
}

fn write_again(group: &Group) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let client = WithoutCheckpoints.open(group.files(), LISTEN, Duration::from_secs(1));
        match client.and_then(|mut it| it.write("again", "1")) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Reads on each program when the keys expire.
const EXPIRE: &str = "local all = {} \
                      for key = 1, 200 do all[key] = redis.call('pexpiretime', 'k' .. key) end \
                      return all";

/// Sets keys that expire, one command after the other, and asks for the time after each. Returns the times.
fn set_and_ask(keys: std::ops::RangeInclusive<u64>) -> Result<Vec<Duration>> {
    let mut client = Connection::open(LISTEN, Duration::from_secs(10))?;
    let times = keys.map(|key| -> Result<Duration> {
        client.set_for(
            &format!("k{key}"),
            "v",
            Duration::from_millis(10_000_000 + key),
        )?;
        Ok(client.time()?)
    });
    let times = times.collect();
    // It ends only if the time goes on without another request.
    client.wait_in_vain("nothing", Duration::from_secs(1))?;
    // A follower's Redis looks at the time ten times a second. One whose client has left before does not answer.
    std::thread::sleep(Duration::from_secs(1));
    times
}

/// With `clock = "log"` each command has one time on all replicas, and under the next leader it goes on.
#[test]
fn all_replicas_have_the_time_of_the_log() {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = "via = \"preload\"\nclock = \"log\"\ncheck = 16".into();
    let redis = programs::named("redis").unwrap();
    let mut group = Group::up("t-clock", 3, program(), redis, &plan).unwrap();
    let outcome = |group: &mut Group| -> Result<()> {
        group.wait_for("all programs run", &progress, Group::is_whole)?;
        let mut times = group.as_client(|| set_and_ask(1..=100))?;
        let leader = group.leader().context("nobody leads")?;
        group.kill(leader)?;
        group.wait_for("another serves", &progress, |it| it.leader().is_some())?;
        times.extend(group.as_client(|| set_and_ask(101..=200))?);
        ensure!(times.len() == 200 && times.is_sorted(), "{times:?}");
        group.start(leader)?;
        group.wait_for("all have caught up", &progress, Group::is_whole)?;
        let expire = |id| -> Result<Vec<u8>> {
            Ok(group
                .on(id, "redis-cli", &["-p", "6380", "eval", EXPIRE, "0"])?
                .stdout)
        };
        let first = expire(0)?;
        let times = String::from_utf8_lossy(&first);
        ensure!(
            times.lines().filter(|it| it.len() == 13).count() == 200,
            "{times}"
        );
        for id in 1..3 {
            ensure!(
                expire(id)? == first,
                "replica {id} has other times than replica 0"
            );
        }
        for id in 0..3 {
            let status = group.status(id).context("it has ended")?;
            ensure!(!status["notes"].to_string().contains("sent"), "{status}");
        }
        Ok(())
    };
    let outcome = outcome(&mut group).with_context(|| group.last_words());
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
    group.down().unwrap();
}

/// One client waits for an answer, and another one has connected and was not let in yet. Nobody else could tell them that their
/// leader is dead: it is alone.
#[test]
fn a_leader_that_is_killed_resets_its_clients() {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = "via = \"proxy\"".into();
    let redis = programs::named("redis").unwrap();
    let group = Group::up("t-resets", 1, program(), redis, &plan).unwrap();
    let outcome = || -> Result<()> {
        group.wait_for("the program runs", &progress, Group::is_whole)?;
        let host = group.topology().client().clone();
        let client = |set: Option<&str>| {
            host.run(|| {
                let mut client = Connection::open(LISTEN, Duration::from_secs(20))?;
                Ok(match set {
                    Some(key) => client.set(key, "v"),
                    None => client.wait_in_vain("nothing", Duration::from_secs(100)),
                })
            })
        };
        client(Some("k"))??;
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| client(None));
            progress.sleep(Duration::from_millis(500))?;
            group.signal_replica(0, Signal::STOP)?;
            let comes = threads.spawn(|| client(Some("l")));
            progress.sleep(Duration::from_millis(500))?;
            group.signal_replica(0, Signal::KILL)?;
            for client in [waits, comes] {
                let told = client.join().expect("a client")?;
                let is_reset = |it: &std::io::Error| it.kind() == ErrorKind::ConnectionReset;
                ensure!(told.as_ref().is_err_and(is_reset), "{told:?}");
            }
            Ok(())
        })
    };
    let outcome = outcome().with_context(|| group.last_words());
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
}

/// A client waits for a key that nobody sets, when its leader is lost: Redis would tell it after a moment that nobody has, and another
/// leader may have let somebody do so. The client is on the leader's host, where no other leader can reset it.
fn nothing_is_said_of_an_old_state(name: &str, via: &str, lose: fn(&Group, usize) -> Result<()>) {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = format!("via = \"{via}\"");
    let redis = programs::named("redis").unwrap();
    let group = Group::up(name, 3, program(), redis, &plan).unwrap();
    let outcome = || -> Result<()> {
        group.wait_for("all programs run", &progress, Group::is_whole)?;
        let leader = group.leader().context("nobody leads")?;
        let host = group.topology().replica(leader);
        let wait = |span| {
            host.run(|| {
                let mut client = Connection::open(LISTEN, Duration::from_secs(6))?;
                Ok(client.wait_in_vain("nothing", Duration::from_secs(span))?)
            })
        };
        wait(1).context("the leader is sound, and says that nobody has set it")?;
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| wait(3));
            progress.sleep(Duration::from_millis(500))?;
            lose(&group, leader)?;
            let told = waits.join().expect("a client");
            ensure!(
                told.is_err(),
                "the old leader's program has told its client"
            );
            Ok(())
        })
    };
    let outcome = outcome().with_context(|| group.last_words());
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
    for id in 0..3 {
        group.cables(id, "up").unwrap();
        group.signal_replica(id, Signal::CONT).unwrap();
    }
    group.down().unwrap();
}

#[test]
fn a_leader_that_is_cut_off_says_nothing_of_an_old_state() {
    nothing_is_said_of_an_old_state("t-cutoff", "proxy", |group, leader| {
        group.cables(leader, "down")
    });
}

#[test]
fn the_program_of_a_hung_replica_says_nothing_of_an_old_state() {
    nothing_is_said_of_an_old_state("t-hung", "preload", |group, leader| {
        group.signal_replica(leader, Signal::STOP)
    });
}

/// The database that each client chooses first, and what it has written into it.
const DATABASE: u8 = 3;
const WRITERS: usize = 4;
const KEYS: u64 = 50;
const WRITTEN: &str = "local all = {} \
                       for writer = 0, 3 do \
                           all[#all + 1] = redis.call('get', 'n' .. writer) \
                           for key = 0, 49 do \
                               all[#all + 1] = redis.sha1hex(redis.call('get', 'k' .. writer .. '-' .. key)) \
                           end \
                       end \
                       return all";

/// Writes on one connection until it is told to stop. Returns how often.
fn count_up(writer: usize, stop: &AtomicBool) -> Result<i64> {
    let mut client = Connection::open(LISTEN, Duration::from_secs(10))?;
    client.select(DATABASE)?;
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        count += 1;
        let is = client.incr(&format!("n{writer}"))?;
        ensure!(is == count, "it counts {is} instead of {count}");
        let key = format!("k{writer}-{}", count as u64 % KEYS);
        client.set(&key, &count.to_string().repeat(300))?;
    }
    Ok(count)
}

/// Checkpoints are taken, and a program is restored from one, while clients go on with their connections, of which the
/// program remembers what they have said first.
fn connections_go_on(name: &str, program_keys: &str) {
    let _turn = Turn::wait();
    let progress = progress();
    let mut plan = Plan::demo();
    plan.program_keys = format!("sessions = \"login\"\n{program_keys}");
    let redis = programs::named("redis").unwrap();
    let group = Group::up(name, 3, program(), redis, &plan).unwrap();
    let stop = AtomicBool::new(false);
    let outcome = || -> Result<()> {
        group.wait_for("all programs run", &progress, Group::is_whole)?;
        let leader = group.leader().context("nobody leads")?;
        let follower = (leader + 1) % 3;
        let newest = |group: &Group| group.status(leader)?["newest_checkpoint"].as_u64();
        let counts = std::thread::scope(|threads| -> Result<Vec<i64>> {
            let stop = &stop;
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let client = group.topology().client();
                    threads.spawn(move || client.run(|| count_up(writer, stop)))
                })
                .collect();
            let undisturbed = || -> Result<()> {
                for round in 0..4 {
                    let before = newest(&group);
                    group.wait_for("a checkpoint is taken", &progress, |group| {
                        newest(group) > before || writers.iter().any(|it| it.is_finished())
                    })?;
                    if round == 1 {
                        let status = group.status(follower).context("it has ended")?;
                        let pid = status["program_pid"].as_u64();
                        let all = group.processes(follower);
                        let program = all.iter().find(|it| Some(it.pid.into()) == pid);
                        let program = program.context("no program runs")?;
                        ensure!(program.signal(Signal::KILL), "it has ended");
                        group.wait_for("its program runs again", &progress, |group| {
                            group.status(follower).is_some_and(|it| {
                                it["phase"] == "following" && it["program_pid"].as_u64() != pid
                            })
                        })?;
                    }
                }
                let status = group.status(follower).context("it has ended")?;
                ensure!(status["connections"] == WRITERS, "{status}");
                Ok(())
            };
            let undisturbed = undisturbed();
            stop.store(true, Ordering::SeqCst);
            let counts: Result<Vec<i64>> = writers
                .into_iter()
                .map(|it| it.join().expect("a writer"))
                .collect();
            let counts = counts.context("a client lost its connection")?;
            undisturbed.map(|()| counts)
        })?;
        group.wait_for("all have caught up", &progress, Group::is_whole)?;
        let database = DATABASE.to_string();
        let written = |id| -> Result<String> {
            let words = ["-p", "6380", "-n", &database, "eval", WRITTEN, "0"];
            let said = group.on(id, "redis-cli", &words)?.stdout;
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        let first = written(0)?;
        let is: Vec<i64> = first.lines().filter_map(|it| it.parse().ok()).collect();
        ensure!(is == counts, "{is:?} is not {counts:?}");
        for id in 0..3 {
            ensure!(written(id)? == first, "replica {id} has something else");
            let status = group.status(id).context("it has ended")?;
            ensure!(!status["notes"].to_string().contains("sent"), "{status}");
        }
        Ok(())
    };
    let outcome = outcome().with_context(|| group.last_words());
    outcome.unwrap_or_else(|error| panic!("{error:#}"));
    group.down().unwrap();
}

#[test]
fn connections_outlive_checkpoints() {
    connections_go_on("t-sessions", "via = \"proxy\"");
}

#[test]
fn connections_to_a_preloaded_program_do_too() {
    connections_go_on("t-kept", "via = \"preload\"\nclock = \"log\"");
}

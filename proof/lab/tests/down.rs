//! `plover lab down` leaves nothing, whatever happened to the lab before.

use plover_lab::state::{LabDir, LabName};
use plover_lab::{Lab, process};
use plover_lab_proof::{Turn, plover, program};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn namespaces(name: &str) -> Vec<PathBuf> {
    let prefix = format!("plover-{name}-");
    std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&prefix))
        })
        .collect()
}

/// Asserts that there is no trace of the lab on the machine.
fn assert_nothing_left(name: &str, hosts: &[PathBuf]) {
    assert!(!Path::new("/run/plover-lab").join(name).exists());
    assert_eq!(namespaces(name), Vec::<PathBuf>::new());
    for host in hosts {
        assert_eq!(process::in_namespace(host), Vec::new());
    }
    let dir = Path::new("/run/plover-lab").join(name);
    assert_eq!(
        process::with_argument_below(&dir, &["plover", "qemu"]),
        Vec::new()
    );
}

fn start_up(name: &str) -> Child {
    Command::new(program())
        .args(["lab", "--name", name, "up", "--quiet"])
        .stdout(Stdio::null())
        .spawn()
        .expect("plover starts")
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn succeeds(arguments: &[&str]) {
    let output = plover(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

#[test]
fn after_a_crash_of_the_lab_command_at_any_stage() {
    let _turn = Turn::wait();
    let name = "t-crash";
    succeeds(&["lab", "--name", name, "down"]);
    let lab: LabName = name.parse().expect("a good name");
    let daemons = |at_least: usize| {
        let state = LabDir::of(&lab).load();
        state.is_ok_and(|s| s.replicas.iter().filter(|r| r.daemon.is_some()).count() >= at_least)
    };
    type Stage<'a> = (&'a str, Box<dyn Fn() -> bool + 'a>);
    let stages: [Stage<'_>; 4] = [
        ("the directory", Box::new(|| LabDir::of(&lab).exists())),
        (
            "some of the network",
            Box::new(|| !namespaces(name).is_empty()),
        ),
        ("the first daemon", Box::new(|| daemons(1))),
        ("all daemons", Box::new(|| daemons(3))),
    ];
    for (what, reached) in &stages {
        let mut up = start_up(name);
        wait_until(what, reached);
        up.kill().expect("a child can be killed");
        up.wait().expect("a child can be waited for");
        succeeds(&["lab", "--name", name, "down"]);
        assert_nothing_left(name, &[]);
    }
}

#[test]
fn while_the_lab_comes_up_and_after_an_interruption() {
    let _turn = Turn::wait();
    let name = "t-early";
    succeeds(&["lab", "--name", name, "down"]);
    // Another command takes it down.
    let mut up = start_up(name);
    wait_until("some of the network", || !namespaces(name).is_empty());
    succeeds(&["lab", "--name", name, "down"]);
    let status = up.wait().expect("a child can be waited for");
    assert_eq!(status.code(), Some(130), "it was interrupted and says so");
    assert_nothing_left(name, &[]);
    // Ctrl-C.
    let mut up = start_up(name);
    wait_until("some of the network", || !namespaces(name).is_empty());
    let process = process::Process::now(up.id()).expect("it runs");
    assert!(process.signal(Signal::INT));
    assert_eq!(
        up.wait().expect("a child can be waited for").code(),
        Some(130)
    );
    assert_nothing_left(name, &[]);
}

#[test]
fn after_dead_daemons_a_stopped_one_and_a_damaged_record() {
    let _turn = Turn::wait();
    let name = "t-damage";
    succeeds(&["lab", "--name", name, "down"]);
    succeeds(&["lab", "--name", name, "up", "--quiet"]);
    let lab = Lab::open(&name.parse().expect("a good name")).expect("the lab is up");
    let status = lab.status();
    assert!(status.protected, "{status}");
    let again = plover(&["lab", "--name", name, "up", "--quiet"]);
    assert_eq!(again.status.code(), Some(1));
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("there is a lab 't-damage' already"), "{said}");
    assert!(lab.status().protected, "it was left alone");

    // One daemon dies, but not its host; another host stands still.
    let daemon = status.replicas[0]
        .plover_pid
        .and_then(process::Process::now)
        .expect("it runs");
    assert!(daemon.signal(Signal::KILL));
    succeeds(&["lab", "--name", name, "fault", "stop", "--replica", "2"]);
    let dir = Path::new("/run/plover-lab").join(name);
    std::fs::write(dir.join("lab.json"), "{").expect("the record can be damaged");
    let said = plover(&["lab", "--name", name, "status"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stderr).contains("plover lab down --name t-damage"));

    // A host loses the name by which it would be found.
    let hosts = namespaces(name);
    assert_eq!(hosts.len(), 5);
    let unnamed = Command::new("ip")
        .args(["netns", "del", "plover-t-damage-r1"])
        .status();
    assert!(unnamed.expect("ip runs").success());
    assert!(namespaces(name).len() < hosts.len());
    succeeds(&["lab", "--name", name, "down"]);
    assert_nothing_left(name, &hosts);
    succeeds(&["lab", "--name", name, "down"]);
}

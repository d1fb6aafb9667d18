//! The command's mistakes and refusals: what is said, and the exit code.

use std::process::{Command, Output, Stdio};

fn plover(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plover"))
        .args(arguments)
        .output()
        .expect("plover starts")
}

/// Checks that the command exits with `code` and says all of `words`, in a sentence and not in a
/// backtrace.
fn fails(arguments: &[&str], code: i32, words: &[&str]) {
    let output = plover(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{arguments:?} does not say '{word}': {said}"
        );
    }
    assert!(
        !said.contains("panicked") && !said.contains("backtrace"),
        "{said}"
    );
}

/// A file with some text, removed at the end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("plover-cli-{name}-{}", std::process::id()));
        std::fs::write(&path, text).expect("a file is written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    fails(
        &["lab", "up", "--policy", "paxos"],
        1,
        &["paxos", "vsmr", "none"],
    );
    fails(
        &["lab", "--name", "a/b", "status"],
        1,
        &["no name for a lab"],
    );
    fails(&["lab", "fault", "kill"], 1, &["--role", "--replica"]);
    fails(
        &["lab", "fault", "heal", "--replica", "0", "--from", "1"],
        1,
        &["cut"],
    );
    fails(
        &["lab", "up", "--disk", "d.raw,bus=usb"],
        1,
        &["usb", "virtio, scsi, ide"],
    );
    fails(
        &["lab", "up", "--uefi", "--kernel", "k"],
        1,
        &["--uefi", "--kernel"],
    );
    fails(&["replica"], 1, &["--config"]);
    fails(&["policy", "show", "paxos"], 1, &["paxos", "remus-25"]);
    for good in [&["--version"][..], &["--help"], &["lab", "up", "--help"]] {
        assert!(plover(good).status.success(), "{good:?}");
    }
}

#[test]
fn policies_are_listed() {
    let table = String::from_utf8_lossy(&plover(&["policy", "list"]).stdout).into_owned();
    for word in ["vsmr", "remus-25", "every 25 ms", "per-connection", "none"] {
        assert!(table.contains(word), "{table}");
    }
    let json = plover(&["policy", "list", "--json"]).stdout;
    let all: serde_json::Value = serde_json::from_slice(&json).expect("a JSON array");
    let names: Vec<_> = all
        .as_array()
        .expect("an array")
        .iter()
        .map(|policy| policy["name"].as_str().expect("a name"))
        .collect();
    assert!(names.contains(&"none") && names.contains(&"hybrid"));
    for name in names {
        let shown = plover(&["policy", "show", name, "--json"]);
        assert!(shown.status.success());
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).expect("JSON");
        assert_eq!(shown["name"], name);
    }
}

#[test]
fn bad_configurations_are_refused_by_name() {
    fails(
        &["replica", "--config", "/nowhere.toml"],
        1,
        &["/nowhere.toml", "No such file"],
    );
    let unknown = Scratch::new("unknown", "[group]\nname = 'x'\ncolour = 'red'\n");
    fails(
        &["replica", "--config", unknown.path()],
        1,
        &["colour", unknown.path()],
    );
}

#[test]
fn a_program_needs_a_configuration_and_a_command() {
    fails(&["run"], 1, &["--config", "redis-server"]);
    fails(&["run", "--config", "/nowhere.toml"], 1, &["after `--`"]);
    let nowhere = ["run", "--config", "/nowhere.toml", "--", "redis-server"];
    fails(&nowhere, 1, &["/nowhere.toml", "No such file"]);
    let unknown = Scratch::new("program", "[program]\ncolour = 'red'\n");
    let arguments = ["run", "--config", unknown.path(), "--", "redis-server"];
    fails(&arguments, 1, &["colour", unknown.path()]);
    fails(
        &["run", "status", "--run-dir", "/nowhere"],
        1,
        &["no replica of a program answers on /nowhere/run.sock"],
    );
}

#[test]
fn status_of_a_replica_that_does_not_run_says_so() {
    fails(
        &["status", "--run-dir", "/nowhere"],
        1,
        &["no replica answers on /nowhere/control.sock"],
    );
    fails(
        &["status", "--all", "--run-dir", "/nowhere"],
        1,
        &["no directory in /nowhere has a control socket"],
    );
}

#[test]
fn commands_on_a_lab_that_does_not_exist_say_so() {
    if !is_root() {
        return fails(&["lab", "status"], 2, &["root", "sudo"]);
    }
    for command in [
        &["status"][..],
        &["exec", "--", "true"],
        &["console"],
        &["logs"],
    ] {
        let arguments = [&["lab", "--name", "no-such"][..], command].concat();
        fails(&arguments, 1, &["there is no lab 'no-such'"]);
    }
    let output = plover(&["lab", "--name", "no-such", "down"]);
    assert!(output.status.success(), "taking down nothing is no failure");
}

/// These need root to get as far as the mistake. Without root the error is about root.
#[test]
fn lab_up_names_the_mistake_that_keeps_it_from_a_lab() {
    let up = ["lab", "--name", "t-cli", "up"];
    let with = |more: &[&'static str]| [&up[..], more].concat();
    fails(
        &with(&["--kernel", "/nowhere/kernel"]),
        2,
        &["/nowhere/kernel"],
    );
    fails(&with(&["--initrd", "/nowhere/initrd"]), 2, &["--kernel"]);
    if !is_root() {
        return fails(&up, 2, &["root", "sudo"]);
    }
    let kernel = Scratch::new("kernel", "not a kernel");
    let key = Scratch::new("key", "[policy]\nslot_max = 3\n");
    let own = Scratch::new("own", "[paths]\nrun_dir = '/'\n");
    for (overlay, word) in [(&key, "slot_max"), (&own, "paths")] {
        let arguments = [
            &up[..],
            &["--kernel", kernel.path(), "--config", overlay.path()],
        ];
        fails(&arguments.concat(), 1, &[word, overlay.path()]);
    }
    let arguments = [&up[..], &["--kernel", kernel.path(), "--mem-mib", "1"]];
    fails(&arguments.concat(), 1, &["mem_mib"]);
    // Nothing of it is left.
    let output = plover(&["lab", "--name", "t-cli", "down"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("was not there"));
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id runs");
    id.stdout == b"0\n"
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    if !is_root() {
        return;
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_plover"))
        .args(["lab", "--name", "no-such", "down"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("plover starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("plover ends");
    // The command may have left work undone, so this is no success.
    assert_eq!(output.status.code(), Some(141), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

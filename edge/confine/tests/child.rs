//! The bounds of a confined program, tried from inside.

use plover_confine::{Confinement, Files, confines_files};
use std::path::Path;
use std::process::{Command, Output};

fn run(files: &Files, script: &str) -> Output {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    Confinement::new(files).unwrap().apply(&mut command);
    command.output().unwrap()
}

fn succeeds(files: &Files, script: &str) -> bool {
    run(files, script).status.success()
}

#[test]
fn only_the_named_files_are_reached() {
    if !confines_files() {
        eprintln!("skipped: this kernel has no Landlock");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for name in ["readable", "writable", "other"] {
        std::fs::write(path(name), "text").unwrap();
    }
    std::os::unix::fs::symlink(path("other"), path("link")).unwrap();
    let files = Files {
        read: vec![path("readable"), path("missing")],
        write: vec![path("writable")],
    };
    let does =
        |what: &str, name: &str| succeeds(&files, &format!("{what} {}", path(name).display()));
    assert!(does("cat", "readable"), "a program that is told to read it");
    assert!(!does("echo more >>", "readable"));
    assert!(does("cat", "writable") && does("echo more >", "writable"));
    assert!(!does("cat", "other") && !does("cat", "link") && !does("echo more >", "other"));
    assert!(!does("echo new >", "missing") && !does("rm", "writable") && !does("ls", ""));
    assert!(!succeeds(&files, "cat /etc/passwd"));

    let folder = Files {
        read: vec![dir.path().into()],
        ..Files::default()
    };
    assert!(succeeds(
        &folder,
        &format!("cat {}", path("other").display())
    ));
}

#[test]
fn a_confined_program_has_no_capabilities_and_reaches_no_process() {
    // The shell waits for its input, which comes when its state has been read.
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "read line"])
        .stdin(std::process::Stdio::piped());
    Confinement::new(&Files::default())
        .unwrap()
        .apply(&mut command);
    let mut child = command.spawn().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }

    let kill = format!("kill -0 {}", std::process::id());
    assert!(succeeds(&Files::default(), "true"));
    assert!(
        !succeeds(&Files::default(), &kill),
        "a signal to another process"
    );
    // A socket is refused, before any address is looked at.
    if Path::new("/usr/bin/python3").exists() {
        let socket = "import socket; socket.socket(socket.AF_UNIX)";
        let done = run(
            &Files::default(),
            &format!("/usr/bin/python3 -I -S -c '{socket}'"),
        );
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(said.contains("Operation not permitted"), "{said}");
    }
}

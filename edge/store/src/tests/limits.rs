//! Full disks, other processes, other groups.

use super::*;
use crate::StoreError;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Runs one of the ignored tests below in a process of its own; `$DIR` is its directory.
fn child(test: &str, dir: &Path, before: &str) -> Child {
    let script =
        format!("{before} exec \"$EXE\" --ignored --exact --nocapture tests::limits::{test}");
    // Root needs no user namespace, which containers and chroots often refuse.
    let user = ["--user", "--map-root-user"];
    let user = user
        .iter()
        .filter(|_| !rustix::process::geteuid().is_root());
    Command::new("unshare")
        .args(user)
        .args(["--mount", "sh", "-c", &script])
        .env("DIR", dir)
        .env("EXE", std::env::current_exe().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn child_dir() -> std::path::PathBuf {
    std::env::var_os("DIR").expect("run by another test").into()
}

/// Writes until the store fails; the error, and the last entry that was acknowledged.
fn write_until_failure(dir: &Path) -> (StoreError, Viewstamp) {
    let (mut store, _) = open(dir);
    store.persist_state(promise(1));
    let (mut last, mut stored) = (Viewstamp::default(), Viewstamp::default());
    for index in 1..10_000 {
        store.persist_entries(last, None, &[entry(1, index, 500)]);
        last = stamp(1, index);
        for done in synced(&mut store) {
            match done {
                Completion::EntriesPersisted(last) => stored = last,
                Completion::StatePersisted(_) => {}
                Completion::Failed(error) => {
                    store.persist_entries(last, None, &[entry(1, index + 1, 1)]);
                    assert!(synced(&mut store).is_empty(), "nothing after a failure");
                    return (error, stored);
                }
            }
        }
    }
    panic!("the disk did not fill up");
}

#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    let dir = directory();
    let mount = "mount -t tmpfs -o size=128k tmpfs \"$DIR\" &&";
    let output = child("on_a_full_disk", dir.path(), mount)
        .wait_with_output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "run by a_full_disk_stops_the_store_and_loses_nothing"]
fn on_a_full_disk() {
    let dir = child_dir();
    let (error, stored) = write_until_failure(&dir);
    let text = error.to_string();
    assert!(
        text.contains("disk full") && text.contains("free space"),
        "{text}"
    );
    assert!(text.contains(dir.to_str().unwrap()), "{text}");
    let (_, found) = open(&dir);
    assert!(!found.forgotten);
    assert!(found.log.last().unwrap().viewstamp >= stored);
}

#[test]
fn space_that_is_freed_in_time_is_used() {
    let dir = directory();
    let mount = "mount -t tmpfs -o size=48k tmpfs \"$DIR\" &&";
    let output = child("with_space_freed", dir.path(), mount)
        .wait_with_output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "run by space_that_is_freed_in_time_is_used"]
fn with_space_freed() {
    let dir = child_dir();
    let (mut store, _) = open(&dir);
    while !dir.join("log.0000000000000002").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let ballast = dir.join("ballast");
    // Fills the disk; the last write fails.
    let _ = std::fs::write(&ballast, vec![0; 64 << 10]);
    let mut last = Viewstamp::default();
    for index in 1..=20 {
        if index == 12 {
            // The second segment is in use, and the third could not be prepared.
            std::fs::remove_file(&ballast).unwrap();
        }
        store.persist_entries(last, None, &[entry(1, index, 500)]);
        last = stamp(1, index);
        let done = synced(&mut store);
        assert!(
            matches!(done[..], [Completion::EntriesPersisted(v)] if v == last),
            "{done:?}"
        );
    }
    assert!(dir.join("log.0000000000000003").exists());
}

#[test]
fn two_processes_cannot_use_one_directory() {
    let dir = directory();
    let mut other = child("holds_the_directory", dir.path(), "");
    let mut line = [0; 1];
    let mut seen = String::new();
    while !seen.contains("holding") {
        other
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        seen.push(line[0] as char);
    }
    let error = Store::open(dir.path(), &options()).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }));
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", other.id())), "{text}");
    other.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert!(other.wait().unwrap().success());
    Store::open(dir.path(), &options()).unwrap();
}

#[test]
#[ignore = "run by two_processes_cannot_use_one_directory"]
fn holds_the_directory() {
    let (_store, _) = open(&child_dir());
    println!("holding");
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

#[test]
fn a_directory_of_another_group_is_left_alone() {
    let dir = directory();
    drop(open(dir.path()));
    let other = Options::new("another", Durability::Disk);
    let error = Store::open(dir.path(), &other).unwrap_err().to_string();
    assert!(
        error.contains("'group'") && error.contains("'another'"),
        "{error}"
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let dir = directory();
    let long = Options::new("g".repeat(256), Durability::Disk);
    assert!(matches!(
        Store::open(dir.path(), &long),
        Err(StoreError::Option {
            option: "group",
            ..
        })
    ));
    let small = Options {
        segment_bytes: 100,
        ..options()
    };
    assert!(matches!(
        Store::open(dir.path(), &small),
        Err(StoreError::Option {
            option: "segment_bytes",
            ..
        })
    ));
    let longest = Options {
        group: "g".repeat(255),
        ..options()
    };
    Store::open(dir.path(), &longest).unwrap();
}

//! A group that has lost its log begins a new one, and nothing of the old one comes back.

mod common;

use apus::Durability;
use common::{PATIENCE, Sum, config, free_addresses, tcp, turn_until};
use plover_log::Server;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A replica that is a group by itself, with its log in `dir`.
fn alone(dir: &Path) -> Server<Sum> {
    let mut config = config(0, 1);
    config.durability = Durability::Disk;
    // So little that a snapshot is made and the log trimmed after a few entries.
    config.retain_bytes = 512;
    let addresses = free_addresses(1);
    Server::in_directory(config, tcp(0, &addresses), Sum::default(), dir, "g").expect("it opens")
}

/// Appends `count` entries, each counting 1, and waits until they are applied.
fn append(server: &mut [Server<Sum>], count: u64) {
    turn_until(server, |server| server[0].leads());
    let before = server[0].machine().entries;
    let mut client = server[0].client();
    let appending = std::thread::spawn(move || {
        for _ in 0..count {
            client.append(&[1]).expect("it leads");
        }
    });
    turn_until(server, |server| {
        server[0].machine().entries == before + count
    });
    turn_until(server, |_| appending.is_finished());
    appending.join().expect("all were appended");
}

/// The files of the log on disk.
fn segments(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let names = std::fs::read_dir(dir).expect("a directory");
    let paths = names.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| {
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        name.starts_with("log.")
    })
}

/// Flips a bit in the middle of the log on disk.
fn damage(dir: &Path) {
    let segment = segments(dir).min().expect("a log");
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    bytes[200] ^= 1;
    std::fs::write(&segment, bytes).expect("it can be written");
}

/// Makes the snapshot what a release with other wire forms would have written.
fn with_other_wire(snapshot: &Path) {
    let mut bytes = std::fs::read(snapshot).expect("it can be read");
    bytes[4] += 1;
    let sum = crc32c::crc32c(&bytes[4..]).to_le_bytes();
    bytes[..4].copy_from_slice(&sum);
    std::fs::write(snapshot, bytes).expect("it can be written");
}

/// Appends so much that a snapshot is made, and ends.
fn leave_a_snapshot(dir: &Path) -> PathBuf {
    let mut first = [alone(dir)];
    append(&mut first, 200);
    let snapshot = dir.join("snapshot");
    turn_until(&mut first, |_| snapshot.exists());
    snapshot
}

/// A replica that has lost its log begins a new one, with five entries, and is started once more.
fn begin_and_restart(dir: &Path) {
    let mut second = [alone(dir)];
    let until = Instant::now() + PATIENCE;
    while !second[0].begin() {
        assert!(
            Instant::now() < until,
            "it has forgotten, and does not say so"
        );
        second[0]
            .turn(Some(Duration::from_millis(1)))
            .expect("it runs");
    }
    append(&mut second, 5);
    assert_eq!(second[0].machine().entries, 5);
    drop(second);

    let mut third = [alone(dir)];
    append(&mut third, 1);
    assert_eq!(third[0].machine(), &Sum { sum: 6, entries: 6 });
}

#[test]
fn a_snapshot_of_the_log_before_is_not_taken_for_one_of_the_new_log() {
    let dir = tempfile::tempdir().expect("a directory");
    leave_a_snapshot(dir.path());
    damage(dir.path());
    begin_and_restart(dir.path());
}

/// When another release's log was moved away as the replica had asked for, its snapshot is still there,
/// until there is another.
#[test]
fn a_snapshot_of_another_wire_version_is_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let snapshot = leave_a_snapshot(dir.path());
    with_other_wire(&snapshot);
    for segment in segments(dir.path()) {
        std::fs::remove_file(segment).expect("it can be moved away");
    }
    begin_and_restart(dir.path());
}

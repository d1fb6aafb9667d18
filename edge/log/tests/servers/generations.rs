//! A group that has lost its log begins a new one, and nothing of the old one comes back.

use crate::{PATIENCE, Sum, config, damage, free_addresses, segments, tcp, turn_until};
use apus::Durability;
use plover_log::Server;
use std::path::{Path, PathBuf};

/// A replica that is a group by itself, with its log in `dir`.
fn alone(dir: &Path) -> Server<Sum> {
    let mut config = config(0, 1);
    config.durability = Durability::Disk;
    // So little that a snapshot is made and the log trimmed after a few entries.
    config.retain_bytes = 512;
    let addresses = free_addresses(1);
    Server::in_directory(config, tcp(0, &addresses), Sum::default(), dir, "g").expect("it opens")
}

/// Appends `count` entries, each counting 1.
fn append(server: &mut Server<Sum>, count: u64) {
    assert!(server.wait_until_leading(PATIENCE).expect("it runs"));
    for _ in 0..count {
        let appended = server.append(&[1], PATIENCE).expect("it runs");
        appended.expect("it leads");
    }
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
    append(&mut first[0], 200);
    let snapshot = dir.join("snapshot");
    turn_until(&mut first, |_| snapshot.exists());
    snapshot
}

/// A replica that has lost its log begins a new one, with five entries, and is started once more.
fn begin_and_restart(dir: &Path) {
    let mut second = [alone(dir)];
    turn_until(&mut second, |all| all[0].begin());
    append(&mut second[0], 5);
    assert_eq!(second[0].machine().entries, 5);
    drop(second);

    let mut third = alone(dir);
    append(&mut third, 1);
    assert_eq!(third.machine(), &Sum { sum: 6, entries: 6 });
}

#[test]
fn a_snapshot_of_the_log_before_is_not_taken_for_one_of_the_new_log() {
    let dir = tempfile::tempdir().expect("a directory");
    leave_a_snapshot(dir.path());
    damage(dir.path(), 200);
    begin_and_restart(dir.path());
}

/// The operator moved another release's log away, as the replica had asked for. That release's snapshot
/// stays until there is another.
#[test]
fn a_snapshot_of_another_wire_version_is_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let snapshot = leave_a_snapshot(dir.path());
    with_other_wire(&snapshot);
    for segment in segments(dir.path()) {
        std::fs::remove_file(segment).expect("it can be removed");
    }
    begin_and_restart(dir.path());
}

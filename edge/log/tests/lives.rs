//! A group that has lost its log begins a new one, and nothing of the old one comes back.

mod common;

use apus::Durability;
use common::{PATIENCE, Sum, config, free_addresses, tcp, turn_until};
use plover_log::Server;
use std::path::Path;
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

/// Flips a bit in the middle of the log on disk.
fn damage(dir: &Path) {
    let names = std::fs::read_dir(dir).expect("a directory");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let is_segment = |path: &std::path::PathBuf| {
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        name.starts_with("log.")
    };
    let segment = paths.filter(is_segment).min().expect("a log");
    let mut bytes = std::fs::read(&segment).expect("it can be read");
    bytes[200] ^= 1;
    std::fs::write(&segment, bytes).expect("it can be written");
}

#[test]
fn a_snapshot_of_the_log_before_is_not_taken_for_one_of_the_new_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = [alone(dir.path())];
    append(&mut first, 200);
    let snapshot = dir.path().join("snapshot");
    turn_until(&mut first, |_| snapshot.exists());
    drop(first);
    damage(dir.path());

    let mut second = [alone(dir.path())];
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

    let mut third = [alone(dir.path())];
    append(&mut third, 1);
    assert_eq!(third[0].machine(), &Sum { sum: 6, entries: 6 });
}

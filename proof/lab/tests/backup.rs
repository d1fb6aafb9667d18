//! Backups of a guest that clients write to, and a new group from one.

use anyhow::{Context, Result, ensure};
use plover_lab::backup::{self, Backup, Limits};
use plover_lab::guests::Guest;
use plover_lab::options::{DiskImage, Options};
use plover_lab::progress::Progress;
use plover_lab::state::LabDir;
use plover_lab::trace::now_us;
use plover_lab::{Fault, Lab};
use plover_lab_proof::load::{Client, Pressure};
use plover_lab_proof::redis::Connection;
use plover_lab_proof::storm::BLOCK_BYTES;
use plover_lab_proof::storm::audit::{Disk, ImageFile};
use plover_lab_proof::storm::record::State;
use plover_lab_proof::storm::sector::{Found, SECTOR_BYTES, identify};
use plover_lab_proof::storm::writers::{Storm, read_back};
use plover_lab_proof::{kill_leader, prove_on, role, wait_for};
use plover_node::ReplicaConfig;
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Acknowledged writes to wait for, and connections that write.
const ENOUGH: u64 = 300;
const WRITERS: u64 = 4;

const DISK_BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

const QUICK: Limits = Limits {
    keep_mib: 64,
    mib_per_s: 1024,
    incremental: true,
    quiesce: false,
    memory: false,
};

/// A backup of the disk lasts long enough to be disturbed, and for the storm to write all of it anew.
const SLOW: Limits = Limits {
    keep_mib: 64,
    mib_per_s: 4,
    incremental: false,
    quiesce: false,
    memory: false,
};

fn options(disk: PathBuf) -> Options {
    Options {
        guest: Guest::Storm,
        disks: vec![DiskImage::from(disk)],
        ..Options::default()
    }
}

/// A backup that must fail, and leaves nothing in `to`.
fn refused(
    lab: &Lab,
    name: &str,
    to: &Path,
    limits: Limits,
    progress: &Progress,
) -> Result<String> {
    let control = lab.control(lab.find(&role(name))?);
    let error = backup::take(&control, to, limits, progress).err();
    let left = std::fs::read_dir(to)?.count();
    ensure!(left == 0, "{left} files are left in {}", to.display());
    Ok(format!("{:#}", error.context("a backup that must fail")?))
}

fn ensure_says(said: &str, words: &str) -> Result<()> {
    ensure!(said.contains(words), "'{said}' does not say '{words}'");
    Ok(())
}

/// The storm's record before the backup began, and the restored disk.
fn back_up(lab: &mut Lab, progress: &Progress, dir: &Path) -> Result<()> {
    let record = dir.join("record");
    let storm = Storm::in_lab(lab, WRITERS, &record)?;
    storm.wait_for(ENOUGH);
    let to = dir.join("backups");
    std::fs::create_dir(&to)?;

    // Refused, or ended in the middle. The guest and its clients do not notice.
    let said = refused(lab, "leader", &to, QUICK, progress)?;
    ensure_says(&said, "run this command on its host")?;
    let little = Limits {
        keep_mib: 1,
        ..SLOW
    };
    let said = refused(lab, "secondary", &to, little, progress)?;
    ensure_says(&said, "--keep-mib")?;
    let said = on_a_full_disk(lab, progress, &dir.join("full"))?;
    ensure_says(&said, "No space left")?;
    let since = now_us();

    // A whole one, and another one of what was written until then. The storm writes everywhere meanwhile.
    let control = lab.control(lab.find(&role("secondary"))?);
    let (base, manifest) = backup::take(&control, &to, SLOW, progress)?;
    ensure!(manifest.base.is_none(), "it is based on {manifest:?}");
    std::fs::copy(&record, dir.join("before"))?;
    let (folder, manifest) = backup::take(&control, &to, QUICK, progress)?;
    let named = manifest.base.map(|base| to.join(base));
    ensure!(named.as_ref() == Some(&base), "it is based on {named:?}");
    ensure!(!storm.has_failed(), "a writer failed");
    let mut traces = lab.traces();
    let alone = traces.take().into_iter().find(|event| {
        event.mono_us > since
            && event.what == "in_sync"
            && event
                .number("in_sync")
                .is_some_and(|set| set.count_ones() < 2)
    });
    ensure!(alone.is_none(), "the guest was unprotected: {alone:?}");
    let backup = Backup::open(&folder, progress)?;
    backup.restore(&[dir.join("restored.raw")], None, progress)?;
    for folder in [folder, base] {
        std::fs::remove_dir_all(folder)?;
    }

    // The host that it is read from dies.
    let secondary = lab.find(&role("secondary"))?;
    let said = std::thread::scope(|scope| -> Result<String> {
        let lab = &*lab;
        let dies = scope.spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            lab.fault(Fault::Kill, secondary)
        });
        let said = refused(lab, "secondary", &to, SLOW, progress)?;
        dies.join().expect("no panic")?;
        Ok(said)
    })?;
    ensure_says(&said, "has ended")?;
    storm.settle(lab)
}

/// A backup to a file system that has no room for it.
fn on_a_full_disk(lab: &Lab, progress: &Progress, at: &Path) -> Result<String> {
    std::fs::create_dir(at)?;
    let tool = |command: &str, arguments: &[&str]| -> Result<()> {
        let mut tool = std::process::Command::new(command);
        let status = tool.args(arguments).arg(at).status()?;
        ensure!(status.success(), "{command} {arguments:?}: {status}");
        Ok(())
    };
    tool("mount", &["-t", "tmpfs", "-o", "size=2m", "tmpfs"])?;
    let said = refused(lab, "secondary", at, QUICK, progress);
    tool("umount", &[])?;
    said
}

#[test]
fn a_new_group_has_what_was_acknowledged_before_the_backup() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let disk = dir.path().join("disk.raw");
    std::fs::write(&disk, vec![7; DISK_BYTES as usize]).expect("a file is written");
    prove_on("t-backup", options(disk), |lab, progress| {
        back_up(lab, progress, dir.path())
    });
    let restored = dir.path().join("restored.raw");
    prove_on("t-restore", options(restored), |lab, progress| {
        wait_for(progress, "the guest answers", || {
            Ok(lab.guest_answers(Duration::from_secs(1)))
        })?;
        read_back(lab, &prefix(dir.path())?)
    });
}

/// The storm's record up to the last write that the restored disk has, or up to the begin of the backup if that is later.
/// All that was acknowledged until then must be on the disk: a write that is there was issued after that.
fn prefix(dir: &Path) -> Result<State> {
    let (before, all) = (dir.join("before"), dir.join("record"));
    let (before, whole) = (std::fs::read_to_string(before)?, State::load(&all)?);
    let mut disk = ImageFile::open(&dir.join("restored.raw"))?;
    let (part, sectors) = (whole.blocks / whole.connections, BLOCK_BYTES / SECTOR_BYTES);
    let mut newest = BTreeMap::<u64, u64>::new();
    for block in 0..whole.blocks {
        for (sector, place) in disk
            .read(block, 1)?
            .chunks(SECTOR_BYTES)
            .zip(block * sectors as u64..)
        {
            if let Found::Write(number) = identify(sector, place) {
                let newest = newest.entry(block / part).or_default();
                *newest = number.max(*newest);
            }
        }
    }
    let text = std::fs::read_to_string(&all)?;
    let issued = |line: &str| {
        newest
            .iter()
            .any(|(connection, number)| line.starts_with(&format!("issue {connection} {number} ")))
    };
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let last = lines
        .iter()
        .rposition(|line| issued(line))
        .context("the disk has no write of the storm")?;
    let count = before.lines().count().max(last + 1);
    eprintln!(
        "the restored disk has {last} of {} lines of the record, {} of them from before",
        lines.len(),
        before.lines().count()
    );
    let prefix = dir.join("prefix");
    std::fs::write(&prefix, lines[..count].concat())?;
    State::load(&prefix)
}

/// The clients' writes are in the guest's memory alone.
fn back_up_memory(lab: &mut Lab, progress: &Progress, dir: &Path) -> Result<()> {
    let client = lab.topology().client();
    let set = |key| -> Result<()> {
        let service = lab.service();
        client.run(|| Ok(Connection::open(service, PATIENCE)?.set(key, "1")?))
    };
    set("before")?;
    let pressure = Pressure {
        connections: WRITERS as u32,
        writes_per_second: 2_000,
    };
    let load = Client::start(Some(client.clone()), lab.service(), pressure)?;
    let secondary = lab.control(lab.find(&role("secondary"))?);
    let limits = Limits {
        memory: true,
        ..QUICK
    };
    let (folder, manifest) = backup::take(&secondary, dir, limits, progress)?;
    ensure!(manifest.memory.is_some(), "no memory in {manifest:?}");
    let audit = load.audit()?;
    ensure!(audit.lost == 0 && audit.resets.is_empty(), "{audit:?}");
    set("after")?;

    // All hosts are lost, and the new group has none of their files.
    for id in lab.ids().collect::<Vec<_>>() {
        lab.fault(Fault::Kill, id)?;
        std::fs::remove_dir_all(lab.files(id).state_dir())?;
        let disk = LabDir::of(lab.name()).disk(id, 0);
        std::fs::remove_file(&disk)?;
        if id > 0 {
            std::fs::File::create(&disk)?.set_len(DISK_BYTES)?;
        }
    }
    let config = ReplicaConfig::load(&lab.files(0).config())?;
    DirBuilder::new()
        .mode(0o700)
        .create(&config.paths.state_dir)?;
    let backup = Backup::open(&folder, progress)?;
    let memory = config.paths.restored_memory();
    backup.restore(&config.raw_disks(), Some(&memory), progress)?;
    for id in lab.ids().collect::<Vec<_>>() {
        lab.restart(id, progress)?;
    }
    let get = |lab: &Lab, key| -> Result<Option<Vec<u8>>> {
        let service = lab.service();
        let client = lab.topology().client();
        client.run(|| Ok(Connection::open(service, PATIENCE)?.get(key)?))
    };
    let expect = |lab: &Lab| -> Result<()> {
        let found = (get(lab, "before")?, get(lab, "after")?);
        ensure!(found == (Some(b"1".to_vec()), None), "{found:?}");
        Ok(())
    };
    wait_for(progress, "the guest answers", || {
        Ok(lab.guest_answers(Duration::from_secs(1)))
    })?;
    expect(lab)?;
    ensure!(!memory.exists(), "a later start would go back to it");
    kill_leader(lab, progress)?;
    expect(lab)
}

/// On the machine whose devices a load resets first.
#[test]
fn a_new_group_goes_on_from_the_memory_of_a_backup() {
    let dir = tempfile::tempdir().expect("a directory is made");
    let disk = dir.path().join("disk.raw");
    std::fs::write(&disk, vec![7; DISK_BYTES as usize]).expect("a file is written");
    let options = Options {
        guest: Guest::Redis,
        machine: Some("q35".into()),
        ..options(disk)
    };
    prove_on("t-memory", options, |lab, progress| {
        back_up_memory(lab, progress, dir.path())
    });
}

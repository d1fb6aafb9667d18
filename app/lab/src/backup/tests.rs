use super::*;
use std::process::Command;
use std::sync::Arc;

fn quiet() -> Progress {
    Progress::silent(Arc::default())
}

/// A backup as [`take`] leaves one. `None` without `qemu-img`.
fn backup(dir: &Path) -> Option<PathBuf> {
    let part = Part::make(dir, "shop").unwrap();
    let (raw, image) = (dir.join("raw"), part.folder.join("disk-0.qcow2"));
    std::fs::write(&raw, vec![7; 1 << 20]).unwrap();
    let mut tool = Command::new("qemu-img");
    tool.args(["convert", "-f", "raw", "-O", "qcow2"]);
    if tool.args([&raw, &image]).status().is_err() {
        eprintln!("skipped: qemu-img does not run");
        return None;
    }
    let (file_bytes, blake3) = checksum(&image, &quiet()).unwrap();
    let manifest = Manifest {
        format: FORMAT,
        group: "shop".into(),
        replica: 1,
        view: "3@r0".into(),
        sync: 17,
        taken_at: "2026-11-24T17:00:00Z".into(),
        plover: "0.1.0".into(),
        qemu: "7.2".into(),
        guest: json!({}),
        read_only_disks: 0,
        disks: vec![DiskFile {
            disk: 0,
            bytes: 1 << 20,
            file: "disk-0.qcow2".into(),
            file_bytes,
            blake3,
        }],
    };
    Some(part.finish(&manifest).unwrap())
}

#[test]
fn a_backup_becomes_disks_and_overwrites_none() {
    let dir = tempfile::tempdir().unwrap();
    let Some(folder) = backup(dir.path()) else {
        return;
    };
    let disk = dir.path().join("new.raw");
    let opened = Backup::open(&folder, &quiet()).unwrap();
    opened
        .restore(std::slice::from_ref(&disk), &quiet())
        .unwrap();
    assert!(std::fs::read(&disk).unwrap() == vec![7; 1 << 20]);
    let again = opened.restore(&[disk], &quiet()).unwrap_err().to_string();
    assert!(again.contains("overwrites nothing"), "{again}");
    let two = [dir.path().join("x"), dir.path().join("y")];
    let two = opened.restore(&two, &quiet()).unwrap_err().to_string();
    assert!(two.contains("1 disks"), "{two}");
}

#[test]
fn a_damaged_or_half_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(folder) = backup(dir.path()) else {
        return;
    };
    let refused = |words: &str| {
        let error = format!("{:#}", Backup::open(&folder, &quiet()).unwrap_err());
        assert!(error.contains(words), "{error}");
    };
    let (image, manifest) = (folder.join("disk-0.qcow2"), folder.join(MANIFEST));
    let mut bytes = std::fs::read(&image).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&image, &bytes).unwrap();
    refused("is damaged");
    bytes.pop();
    std::fs::write(&image, &bytes).unwrap();
    refused("bytes and the checksum");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 9")).unwrap();
    refused("another release");
    std::fs::write(&manifest, text.replace("disk-0.qcow2", "../raw")).unwrap();
    refused("outside of the backup");
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    refused("is damaged");
    std::fs::remove_file(&manifest).unwrap();
    refused("no whole backup");
}

#[test]
fn a_backup_that_was_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let part = Part::make(dir.path(), "shop").unwrap();
    std::fs::write(part.folder.join("disk-0.qcow2"), "half").unwrap();
    drop(part);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

use super::*;
use std::process::Command;
use std::sync::Arc;

fn quiet() -> Progress {
    Progress::silent(Arc::default())
}

/// A backup as [`take`] leaves one. `None` without `qemu-img`.
fn backup(dir: &Path) -> Option<PathBuf> {
    let raw = dir.join("raw");
    std::fs::write(&raw, vec![7; 1 << 20]).unwrap();
    let raw = raw.to_str().unwrap();
    make(
        dir,
        "shop",
        None,
        &["convert", "-f", "raw", "-O", "qcow2", raw],
    )
}

/// One of what was written since that in the folder `base`: nothing.
fn empty_backup(dir: &Path, name: &str, base: &str) -> PathBuf {
    let image = format!("../{base}/disk-0.qcow2");
    let create = ["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &image];
    make(dir, name, Some(base.into()), &create).unwrap()
}

fn make(dir: &Path, name: &str, base: Option<String>, tool: &[&str]) -> Option<PathBuf> {
    let part = Part::make(dir, name).unwrap();
    let image = part.folder.join("disk-0.qcow2");
    let made = Command::new("qemu-img").args(tool).arg(&image).status();
    if made.is_err() {
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
        quiesced: false,
        mark: format!("mark of {name}"),
        base,
        disks: vec![DiskFile {
            disk: 0,
            image: ImageFile {
                bytes: 1 << 20,
                file: "disk-0.qcow2".into(),
                file_bytes,
                blake3,
            },
        }],
        memory: None,
        uefi_variables: None,
    };
    Some(part.finish(&manifest).unwrap())
}

#[test]
fn a_backup_becomes_disks_and_overwrites_none() {
    let dir = tempfile::tempdir().unwrap();
    let Some(folder) = backup(dir.path()) else {
        return;
    };
    let above = Backup::open(dir.path(), &quiet()).unwrap_err();
    assert!(format!("{above:#}").contains("the newest"), "{above:#}");
    let disk = dir.path().join("new.raw");
    let opened = Backup::open(&folder, &quiet()).unwrap();
    opened
        .restore(std::slice::from_ref(&disk), None, &quiet())
        .unwrap();
    assert!(std::fs::read(&disk).unwrap() == vec![7; 1 << 20]);
    let again = opened
        .restore(&[disk], None, &quiet())
        .unwrap_err()
        .to_string();
    assert!(again.contains("overwrites nothing"), "{again}");
    let two = [dir.path().join("x"), dir.path().join("y")];
    let two = opened
        .restore(&two, None, &quiet())
        .unwrap_err()
        .to_string();
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
    std::fs::write(&manifest, text.replace("\"format\": 2", "\"format\": 9")).unwrap();
    refused("another release");
    std::fs::write(&manifest, text.replace("disk-0.qcow2", "../raw")).unwrap();
    refused("outside of the backup");
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    refused("is damaged");
    std::fs::remove_file(&manifest).unwrap();
    refused("no whole backup");
}

#[test]
fn a_chain_of_backups_is_whole_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    if backup(dir).is_none() {
        return;
    }
    empty_backup(dir, "b", "shop");
    let newest = empty_backup(dir, "c", "b");
    // The disks are those of all three.
    let disk = dir.join("new.raw");
    let opened = Backup::open(&newest, &quiet()).unwrap();
    opened
        .restore(std::slice::from_ref(&disk), None, &quiet())
        .unwrap();
    assert!(std::fs::read(&disk).unwrap() == vec![7; 1 << 20]);
    // The next one is based on the backup with the mark that the replica names, if that is there.
    let chain = |mark: &str| chain_of(mark, dir).map_err(|error| format!("{error:#}"));
    assert_eq!(chain("mark of c").unwrap(), ["c", "b", "shop"]);
    let none = chain("another mark").unwrap_err();
    assert!(none.contains("is not in"), "{none}");
    // One of its bases is damaged, based on itself, or away.
    let refused = |words: &str| {
        let error = format!("{:#}", Backup::open(&newest, &quiet()).unwrap_err());
        assert!(error.contains(words), "{error}");
    };
    let manifest = dir.join("b").join(MANIFEST);
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(
        &manifest,
        text.replace("\"base\": \"shop\"", "\"base\": \"c\""),
    )
    .unwrap();
    refused("based on itself");
    std::fs::write(
        &manifest,
        text.replace("\"base\": \"shop\"", "\"base\": \"..\""),
    )
    .unwrap();
    refused("outside of the backup");
    std::fs::write(&manifest, text).unwrap();
    std::fs::rename(dir.join("shop"), dir.join("away")).unwrap();
    refused("holds the changes to another backup");
    assert!(chain("mark of c").unwrap_err().contains("shop"));
}

#[test]
fn a_backup_that_was_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let part = Part::make(dir.path(), "shop").unwrap();
    std::fs::write(part.folder.join("disk-0.qcow2"), "half").unwrap();
    drop(part);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

//! `plover backup` and `plover restore`.

use crate::output;
use anyhow::{Context, Result, bail, ensure};
use plover_lab::backup::{self, Backup, Limits, Manifest};
use plover_lab::control::{Control, ControlError};
use plover_lab::progress::Progress;
use plover_lab::status::GroupStatus;
use plover_node::ReplicaConfig;
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thiserror::Error;

/// The nice value of `qemu-img` and of checksums: guests come first.
const NICE: i32 = 19;

/// Another host's replica is secondary, so the backup is the business of that one.
#[derive(Debug, Error)]
#[error("no backup is made on this host")]
pub struct NotHere;

/// Whether the backup can be made on another host. If there is no secondary, it can be made nowhere, and each host says so.
fn another_is_secondary(control: &Control) -> bool {
    let asked = control
        .status()
        .and_then(|own| Ok((own, GroupStatus::ask(control)?)));
    asked.is_ok_and(|(own, group)| {
        let secondary = group.with_role("secondary");
        secondary.is_some_and(|it| it.answers() && it.id != own.id)
    })
}

/// Backs up the disks of the guest whose secondary runs on this host.
///
/// # Errors
/// [`NotHere`], or the backup has failed.
pub fn take(control: &Control, to: &Path, limits: Limits, json: bool) -> Result<ExitCode> {
    let progress = Progress::interruptible(false)?;
    rustix::process::setpriority_process(None, NICE)?;
    let taken = backup::take(control, to, limits, &progress);
    let is_elsewhere = |error: &anyhow::Error| {
        let refused = matches!(error.downcast_ref(), Some(ControlError::Refused(_)));
        refused && another_is_secondary(control)
    };
    let (folder, manifest) = match taken {
        Err(error) if is_elsewhere(&error) => return Err(error.context(NotHere)),
        taken => taken?,
    };
    let stored: u64 = manifest.images().map(|image| image.file_bytes).sum();
    if json {
        let told = serde_json::json!({
            "folder": folder, "view": manifest.view, "sync": manifest.sync, "bytes": stored,
            "base": manifest.base, "memory": manifest.memory.is_some(), "quiesced": manifest.quiesced,
        });
        output::line(told)?;
        return Ok(ExitCode::SUCCESS);
    }
    let memory = manifest
        .memory
        .as_ref()
        .map_or("", |_| ", and the guest's memory,");
    output::line(format_args!(
        "{} has {}{memory} as of sync {} of view {}, in {} MiB",
        folder.display(),
        disks_in_words(&manifest),
        manifest.sync,
        manifest.view,
        stored.div_ceil(1 << 20)
    ))?;
    if manifest.quiesced {
        output::line("the guest's file systems were frozen then")?;
    }
    if manifest.read_only_disks > 0 {
        output::line(format_args!(
            "not in it: {} that the guest only reads",
            count(manifest.read_only_disks)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn disks_in_words(manifest: &Manifest) -> String {
    let bytes: u64 = manifest.disks.iter().map(|disk| disk.image.bytes).sum();
    format!("{} of {} MiB", count(manifest.disks.len()), bytes >> 20)
}

fn count(disks: usize) -> String {
    match disks {
        1 => "1 disk".into(),
        more => format!("{more} disks"),
    }
}

/// Makes the disks of a new group, and the memory from which its guest goes on, unless it `boots`.
pub fn restore(from: &Path, config: &Path, boots: bool) -> Result<ExitCode> {
    let progress = Progress::interruptible(false)?;
    let config = ReplicaConfig::load(config)?;
    let (group, guest) = (&config.group, &config.guest);
    ensure!(
        group.me == group.first_leader(),
        "replica {} does not boot the guest of a new group: run this command on the host of replica {}, whose disks the \
         others get by copy",
        group.me,
        group.first_leader()
    );
    let state = &config.paths.state_dir;
    ensure!(
        is_empty(state)?,
        "{} is not empty, and a replica that has run there boots no restored disks: name another paths.state_dir, or \
         move that one away",
        state.display()
    );
    let backup = Backup::open(from, &progress)?;
    let paths = places(&backup.manifest, &config)?;
    let differences = differences(&backup.manifest, &config);
    let memory =
        (backup.manifest.memory.is_some() && !boots).then(|| config.paths.restored_memory());
    if let (Some(_), Some(difference)) = (&memory, differences.first()) {
        bail!(
            "{difference}, and a guest that goes on from its memory finds the machine that it had: write the old value, or \
             boot it from the disks with --boot"
        );
    }
    let variables = backup.manifest.uefi_variables.as_deref();
    let variables = variables.filter(|_| guest.firmware.is_uefi());
    let variables = variables
        .map(plover_node::uefi_variables_of)
        .transpose()
        .context("the backup's description is damaged")?;
    if memory.is_some() || variables.is_some() {
        make_state_dir(state)?;
    }
    backup.restore(&paths, memory.as_deref(), &progress)?;
    if let Some(variables) = variables {
        write_variables(&state.join(plover_node::UEFI_VARIABLES), &variables)?;
    }
    for difference in differences {
        output::line(format_args!("note: {difference}"))?;
    }
    let first_start = match memory {
        Some(_) => "the guest goes on from that moment with its first start, and its clock, too: ",
        None => "",
    };
    output::line(format_args!(
        "replica {} of {} has {} of {}, as of {}: {first_start}start the replicas of all hosts",
        group.me,
        group.name,
        disks_in_words(&backup.manifest),
        backup.manifest.group,
        backup.manifest.taken_at
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder as the replica would. It belongs to the owner of the folder that it is in.
fn make_state_dir(folder: &Path) -> Result<()> {
    let make = || -> io::Result<()> {
        if folder.exists() {
            return Ok(());
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let flags = flags.bits() as i32;
        let made = File::options()
            .read(true)
            .custom_flags(flags)
            .open(folder)?;
        give_to_owner_above(&made, folder)
    };
    make().with_context(|| {
        format!(
            "cannot make paths.state_dir {}: let this user write there",
            folder.display()
        )
    })
}

/// Writes the UEFI variables with which the guest boots. They belong to the owner of their folder.
fn write_variables(path: &Path, variables: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut options = File::options();
        let mut file = options
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(variables)?;
        file.sync_all()?;
        give_to_owner_above(&file, path)
    };
    write().with_context(|| format!("cannot write the UEFI variables {}", path.display()))
}

/// Gives a file or folder to the owner of the folder that it is in, which `path` names. (That owner may have put something else
/// there by now.)
fn give_to_owner_above(made: &File, path: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(path.parent().unwrap_or(Path::new(".")))?;
    std::os::unix::fs::fchown(made, Some(owner.uid()), Some(owner.gid()))
}

fn is_empty(folder: &Path) -> io::Result<bool> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Where the configuration wants each disk of the backup.
fn places(manifest: &Manifest, config: &ReplicaConfig) -> Result<Vec<PathBuf>> {
    let writable = config
        .disk
        .iter()
        .filter(|disk| !disk.is_read_only())
        .count();
    ensure!(
        writable == manifest.disks.len(),
        "the backup has {}, and the configuration names {writable} that the guest writes: let [[disk]] name those of the \
         backup",
        count(manifest.disks.len())
    );
    let place = |(number, bytes): (usize, u64)| -> Result<PathBuf> {
        let disk = config.disk.get(number).filter(|disk| !disk.is_read_only());
        let Some(disk) = disk else {
            anyhow::bail!(
                "[[disk]] number {number} (from 0) is not one that the guest writes, and in the backup it is"
            );
        };
        let path = &disk.path;
        ensure!(
            !is_imported(path),
            "{} is to be imported by its name, and a restore makes a raw image: give it a name that ends in .raw",
            path.display()
        );
        let mib = disk.size_mib.unwrap_or(bytes >> 20);
        ensure!(
            mib << 20 == bytes,
            "the configuration says size_mib = {mib} of {}, and the backup's disk has {} MiB: write that",
            path.display(),
            bytes >> 20
        );
        Ok(path.clone())
    };
    let disks = manifest.disks.iter();
    disks
        .map(|disk| (disk.disk, disk.image.bytes))
        .map(place)
        .collect()
}

fn is_imported(path: &Path) -> bool {
    plover_disk::import::Format::of_name(path).is_some()
}

/// The differences between the guest that was backed up and the configuration.
fn differences(manifest: &Manifest, config: &ReplicaConfig) -> Vec<String> {
    let guest = &config.guest;
    let now = [
        ("machine", guest.machine.to_string()),
        ("vcpus", guest.vcpus.to_string()),
        ("mem_mib", guest.mem_mib.to_string()),
        ("mac", guest.mac.to_string()),
    ];
    let differs = |(key, now): (&str, String)| {
        let was = match &manifest.guest[key] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (was != now).then(|| format!("guest.{key} was {was}, and is {now} now"))
    };
    now.into_iter().filter_map(differs).collect()
}

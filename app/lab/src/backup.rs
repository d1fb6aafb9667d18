//! Backups of a guest's disks, and new disks from them.
//!
//! ```text
//!   control socket ── backup ──▶ a snapshot, as of the next sync; it lasts as long as the connection
//!                  ── backup_disk ──▶ NBD ══▶ qemu-img ══▶ DIR/.NAME.part/disk-0.qcow2
//!   all disks are there, and the snapshot was good until then ──▶ backup.json ──▶ DIR/NAME
//! ```
//!
//! **Memory.** It is copied by the replica while the guest runs, before the snapshot is taken, and is of the same sync:
//!
//! ```text
//!   control socket ── copy_memory ──▶ a copy, asked for until little of it is left; it lasts as long as the connection
//!                  ── backup ──▶ a snapshot of disks and memory
//!                  ── backup_memory ──▶ NBD ══▶ qemu-img ══▶ DIR/.NAME.part/memory.qcow2
//! ```
//!
//! A backup appears under its name when it is whole, and otherwise not at all. A command that is killed leaves a folder
//! whose name begins with a dot and ends in `.part`.
//!
//! **Incremental.** A replica names each snapshot by a mark, and knows what was written since the last one whose backup is
//! finished. A backup with that mark in `DIR` can be the base of the next one, whose images name those of the base as their
//! backing files. The replica says what to leave out, and `qemu-img` does.

mod manifest;
mod memory;

pub use manifest::{DiskFile, ImageFile, Manifest};

use crate::control::{Control, ControlError};
use crate::guest_agent::Frozen;
use crate::progress::Progress;
use anyhow::{Context, Result, anyhow, bail, ensure};
use manifest::{FORMAT, MANIFEST, chain, chain_of, checksum, verify};
use plover_disk::export::{Base, export};
use plover_disk::import::{NewImage, Source};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A little longer than a replica waits for the next sync.
const BEGUN_WITHIN: Duration = Duration::from_secs(12);

/// The guest's file systems stay frozen for so long at most: longer than a replica waits for the next sync.
const FROZEN_S: u64 = 15;

/// How often the replica is asked whether the snapshot is still good.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const STANDS_STILL: &str = "the replica that the backup is read from has ended or stands still: look at its log, and begin \
                            another backup";

/// A line of progress each so many percent.
const TOLD_EVERY: u8 = 5;

/// How a backup is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// MiB of old content that the replica keeps at most, of blocks that are written meanwhile.
    pub keep_mib: u64,
    /// MiB that are read a second at most.
    pub mib_per_s: u64,
    /// Hold only the changes to an earlier backup, where there is one and it is known what they are.
    pub incremental: bool,
    /// Whether the guest's file systems are frozen in the moment that it is of.
    pub quiesce: bool,
    /// Whether it has the guest's memory, too.
    pub memory: bool,
}

/// The answer of a replica when a backup begins.
#[derive(Deserialize)]
struct Begun {
    backup: u64,
    group: String,
    replica: u8,
    view: String,
    sync: u64,
    qemu: String,
    guest: Value,
    read_only_disks: usize,
    mark: String,
    /// The mark since which it knows what was written.
    since: Option<String>,
    disks: Vec<BegunDisk>,
    /// The bytes of the memory's image.
    memory_bytes: Option<u64>,
    uefi_variables: Option<String>,
}

#[derive(Deserialize)]
struct BegunDisk {
    disk: usize,
    bytes: u64,
}

/// Backs the guest's disks up into a new folder below `to`, and returns that folder and what is in it.
///
/// # Errors
/// The replica refuses, or the backup ended before it was whole. Nothing of it is left.
pub fn take(
    control: &Control,
    to: &Path,
    limits: Limits,
    progress: &Progress,
) -> Result<(PathBuf, Manifest)> {
    ensure!(
        to.is_dir(),
        "{} is no folder: name one that exists, and the backup gets a folder of its own in it",
        to.display()
    );
    if limits.quiesce && control.status()?.role != "secondary" {
        // It refuses, and says where to run this: no reason to freeze anything.
        let memory = false;
        drop(Lease::begin(control, Limits { memory, ..limits })?);
        bail!("the replicas' roles change just now: try again");
    }
    let memory = match limits.memory {
        true => Some(memory::copy(control, limits, progress)?),
        false => None,
    };
    let frozen = match limits.quiesce {
        true => Some(Frozen::begin(control, FROZEN_S)?),
        false => None,
    };
    progress.check()?;
    let mut lease = Lease::begin(control, limits)?;
    frozen.map_or(Ok(()), Frozen::thaw)?;
    let begun = &lease.begun;
    let chain = match limits.incremental {
        true => find_base(begun, to, progress),
        false => Vec::new(),
    };
    let taken_at = OffsetDateTime::now_utc().replace_nanosecond(0)?;
    let taken_at = taken_at.format(&Rfc3339)?;
    // Without the colons, which other tools take for the end of a host's name.
    let name = format!("{}-{}", begun.group, taken_at.replace(['-', ':'], ""));
    let mut manifest = Manifest {
        format: FORMAT,
        group: begun.group.clone(),
        replica: begun.replica,
        view: begun.view.clone(),
        sync: begun.sync,
        taken_at,
        quiesced: limits.quiesce,
        plover: env!("CARGO_PKG_VERSION").into(),
        qemu: begun.qemu.clone(),
        guest: begun.guest.clone(),
        read_only_disks: begun.read_only_disks,
        mark: begun.mark.clone(),
        base: chain.first().cloned(),
        disks: Vec::new(),
        memory: None,
        uefi_variables: begun.uefi_variables.clone(),
    };
    let what = match &manifest.base {
        Some(base) => format!("a backup of what {} has written since {base}", begun.group),
        None => format!("a backup of {}", begun.group),
    };
    progress.say(format_args!(
        "{what} begins, as of sync {} of view {}",
        begun.sync, begun.view
    ));
    let part = Part::make(to, &name)?;
    for i in 0..lease.begun.disks.len() {
        let BegunDisk { disk, bytes } = lease.begun.disks[i];
        let which = Which::Disk(disk, bytes);
        let image = copy_image(control, &mut lease, which, &part, &chain, progress);
        let image = image.context("nothing of this backup is kept")?;
        manifest.disks.push(DiskFile { disk, image });
    }
    if let Some(bytes) = lease.begun.memory_bytes {
        let image = copy_image(
            control,
            &mut lease,
            Which::Memory(bytes),
            &part,
            &[],
            progress,
        );
        manifest.memory = Some(image.context("nothing of this backup is kept")?);
    }
    drop(memory);
    let folder = part.finish(&manifest)?;
    // If the replica does not hear it, the next one holds the changes to the same base as this one.
    if let Err(error) = control.ask_again(&mut lease.stream, &json!({"finished": true})) {
        progress.say(format_args!(
            "the replica does not know that this backup is whole, so the next one begins from an earlier one ({error})"
        ));
    }
    Ok((folder, manifest))
}

/// The backups in `to` of which a new one holds the changes, the newest first; none if it has to be whole, and says why.
fn find_base(begun: &Begun, to: &Path, progress: &Progress) -> Vec<String> {
    let chain = match &begun.since {
        None => Err(anyhow!(
            "replica {} does not know what was written since an earlier one: it has taken none since it started, or has \
             opened its disks anew",
            begun.replica
        )),
        Some(mark) => chain_of(mark, to),
    };
    chain.unwrap_or_else(|error| {
        progress.say(format_args!("this backup is a whole one: {error:#}"));
        Vec::new()
    })
}

/// A running backup: it lasts as long as this connection.
struct Lease<'a> {
    control: &'a Control,
    stream: UnixStream,
    begun: Begun,
    looked_at: Instant,
}

impl<'a> Lease<'a> {
    fn begin(control: &'a Control, limits: Limits) -> Result<Self> {
        let request = json!({
            "op": "backup",
            "keep_mib": limits.keep_mib,
            "mib_per_s": limits.mib_per_s,
            "with_memory": limits.memory,
        });
        let (stream, answer) = control.clone().within(BEGUN_WITHIN).open(&request)?;
        Ok(Self {
            control,
            stream,
            begun: serde_json::from_value(answer)
                .context("the replica's answer is not understood: it is of another release")?,
            looked_at: Instant::now(),
        })
    }

    /// Fails if the snapshot has ended, with the reason.
    fn check(&mut self) -> Result<()> {
        self.looked_at = Instant::now();
        match self.control.ask_again(&mut self.stream, &json!({})) {
            Ok(_) => Ok(()),
            Err(ControlError::Refused(why)) => bail!("the backup has ended: {why}"),
            Err(error) => bail!("{STANDS_STILL} ({error})"),
        }
    }
}

/// An image of a backup, with its size.
#[derive(Clone, Copy)]
enum Which {
    /// With its number.
    Disk(usize, u64),
    Memory(u64),
}

/// Copies an image of a running backup into `part`.
fn copy_image(
    control: &Control,
    lease: &mut Lease,
    which: Which,
    part: &Part,
    chain: &[String],
    progress: &Progress,
) -> Result<ImageFile> {
    let backup = lease.begun.backup;
    let (file, bytes, request, what) = match which {
        Which::Disk(disk, bytes) => (
            format!("disk-{disk}.qcow2"),
            bytes,
            json!({
                "op": "backup_disk",
                "backup": backup,
                "disk": disk,
                "only_changes": !chain.is_empty(),
            }),
            format!("disk {disk}: written"),
        ),
        Which::Memory(bytes) => (
            "memory.qcow2".into(),
            bytes,
            json!({"op": "backup_memory", "backup": backup}),
            "memory: written".into(),
        ),
    };
    let path = part.folder.join(&file);
    let image = chain.first().map(|base| format!("../{base}/{file}"));
    let folders: Vec<_> = chain
        .iter()
        .map(|name| part.named.with_file_name(name))
        .collect();
    let base = image.as_ref().map(|name| Base {
        name,
        folders: &folders,
    });
    let (source, _) = match control.open(&request) {
        // Not as the refusal with which another host's replica answers.
        Err(ControlError::Refused(why)) => bail!("the backup has ended: {why}"),
        opened => opened?,
    };
    let mut ended = Ok(());
    let of = match base {
        Some(_) => "what has changed".into(),
        None => format!("{} MiB", bytes >> 20),
    };
    let tell = |percent| say_percent(progress, &what, percent, &of);
    let copied = export(source, bytes, &path, base, tell, || {
        ended = progress.check().map_err(Into::into);
        if ended.is_ok() && lease.looked_at.elapsed() >= LOOK_EVERY {
            ended = lease.check();
        }
        ended.is_ok()
    });
    // Ctrl-C reaches `qemu-img` as well; and a snapshot that has ended is the reason for its error.
    progress.check()?;
    ended?;
    lease.check()?;
    copied?;
    let (file_bytes, blake3) = checksum(&path, progress)?;
    Ok(ImageFile {
        bytes,
        file,
        file_bytes,
        blake3,
    })
}

fn say_percent(progress: &Progress, what: &str, percent: u8, of: &str) {
    if percent % TOLD_EVERY == 0 {
        progress.say(format_args!("{what} {percent}% of {of}"));
    }
}

/// The folder of a backup that is not whole yet. Dropping it removes it.
struct Part {
    folder: PathBuf,
    named: PathBuf,
}

impl Part {
    fn make(to: &Path, name: &str) -> Result<Self> {
        let part = Self {
            folder: to.join(format!(".{name}.part")),
            named: to.join(name),
        };
        ensure!(
            !part.named.exists(),
            "{} is there already: begin again a second later",
            part.named.display()
        );
        // A guest's disks are for nobody else to read.
        let made = DirBuilder::new().mode(0o700).create(&part.folder);
        made.with_context(|| {
            format!(
                "cannot make a folder in {}: let this user write there",
                to.display()
            )
        })?;
        Ok(part)
    }

    /// The backup is whole.
    fn finish(self, manifest: &Manifest) -> Result<PathBuf> {
        let path = self.folder.join(MANIFEST);
        let write = || -> io::Result<()> {
            std::fs::write(&path, format!("{:#}\n", serde_json::to_value(manifest)?))?;
            File::open(&path)?.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
            std::fs::rename(&self.folder, &self.named)?;
            File::open(self.named.parent().unwrap_or(&self.named))?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", self.named.display()))?;
        Ok(self.named.clone())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It is not there if the backup has its name.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A backup whose files, and those of the ones that it is based on, are as they were written.
#[derive(Debug)]
pub struct Backup {
    folder: PathBuf,
    /// The folders of those that it is based on.
    bases: Vec<PathBuf>,
    /// Its description.
    pub manifest: Manifest,
}

impl Backup {
    /// Opens the backup in `folder`, and verifies the sizes and checksums of its files.
    ///
    /// # Errors
    /// There is no whole backup, or it is damaged.
    pub fn open(folder: &Path, progress: &Progress) -> Result<Self> {
        let folder = &folder
            .canonicalize()
            .with_context(|| format!("cannot find {}", folder.display()))?;
        let chain = chain(folder)?;
        for (name, manifest) in &chain {
            verify(&folder.with_file_name(name), manifest, progress)?;
        }
        let mut chain = chain.into_iter();
        let (_, manifest) = chain.next().context("a chain begins with its backup")?;
        Ok(Self {
            bases: chain.map(|(name, _)| folder.with_file_name(name)).collect(),
            folder: folder.clone(),
            manifest,
        })
    }

    /// Makes the disks as new raw images at `paths`, and the memory, if the backup has it, as `memory`: all or none. Each
    /// belongs to the owner of its folder.
    ///
    /// # Errors
    /// A file is there already, or cannot be written; none of the new images is left.
    pub fn restore(
        &self,
        paths: &[PathBuf],
        memory: Option<&Path>,
        progress: &Progress,
    ) -> Result<()> {
        let disks = &self.manifest.disks;
        ensure!(
            paths.len() == disks.len(),
            "the backup has {} disks, and there are places for {}",
            disks.len(),
            paths.len()
        );
        let disks = disks.iter().map(|disk| &disk.image);
        let disks = disks.zip(paths.iter().map(PathBuf::as_path));
        let images: Vec<_> = disks
            .chain(self.manifest.memory.iter().zip(memory))
            .collect();
        for (_, path) in &images {
            ensure!(
                !path.exists(),
                "{} is there already, and a restore overwrites nothing: move it away, or name another place",
                path.display()
            );
        }
        // None is named before all are made: a restore that fails leaves no guest with half of its disks.
        let new: Vec<NewImage> = images
            .iter()
            .map(|(image, path)| {
                progress.check()?;
                self.convert(image, path, progress)
            })
            .collect::<Result<_>>()?;
        let mut named = Vec::new();
        let restored = new
            .into_iter()
            .zip(&images)
            .try_for_each(|(new, (_, path))| {
                new.finish()?;
                named.push(path);
                Ok(())
            });
        restored.inspect_err(|_| {
            for path in named {
                let _ = std::fs::remove_file(path);
            }
        })
    }

    fn convert(&self, image: &ImageFile, path: &Path, progress: &Progress) -> Result<NewImage> {
        let tell = |percent| {
            let what = format!("{}: restored", path.display());
            let of = format!("{} MiB", image.bytes >> 20);
            say_percent(progress, &what, percent, &of);
        };
        let source = Source::look_with(&self.folder.join(&image.file), &self.bases)?
            .with_context(|| format!("{} is no qcow2 image", image.file))?;
        ensure!(
            source.bytes() == image.bytes,
            "{} has {} bytes, and {MANIFEST} says {}",
            image.file,
            source.bytes(),
            image.bytes
        );
        let converted = source.convert(path, tell, || progress.check().is_ok());
        if converted.is_err() {
            // Ctrl-C reaches `qemu-img` as well.
            progress.check()?;
        }
        Ok(converted?)
    }
}

#[cfg(test)]
mod tests;

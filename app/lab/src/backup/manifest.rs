//! The description of a backup, and the chain of those that it is based on.

use crate::progress::Progress;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

/// The file that says what a backup is.
pub(super) const MANIFEST: &str = "backup.json";

/// The form of [`Manifest`] that this release writes. It reads also 1, which has no `mark` and no `base`.
pub(super) const FORMAT: u32 = 2;

/// The description of a backup, in `backup.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of this file.
    pub format: u32,
    /// The group that it is of, and the replica from whose disks it was read.
    pub group: String,
    /// See `group`.
    pub replica: u8,
    /// The view and the sync as of which it is.
    pub view: String,
    /// See `view`.
    pub sync: u64,
    /// When it was begun, by the host's clock.
    pub taken_at: String,
    /// Whether the guest's file systems were frozen then.
    #[serde(default)]
    pub quiesced: bool,
    /// The release of Plover.
    pub plover: String,
    /// QEMU's release and the guest's machine.
    pub qemu: String,
    /// The guest's configuration, as far as a new group may want to know it.
    pub guest: Value,
    /// How many disks the guest only reads: they are not in it.
    pub read_only_disks: usize,
    /// The replica's name for the moment as of which it is.
    #[serde(default)]
    pub mark: String,
    /// The folder beside this one to whose backup this one holds the changes; `None` for a whole one.
    #[serde(default)]
    pub base: Option<String>,
    /// The disks.
    pub disks: Vec<DiskFile>,
    /// The guest's memory and the state of its devices, if they are in it.
    #[serde(default)]
    pub memory: Option<ImageFile>,
    /// The UEFI variables of a guest that has them, in the form of [`plover_node::uefi_variables_of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi_variables: Option<String>,
}

impl Manifest {
    fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(MANIFEST);
        let text = std::fs::read_to_string(&path).with_context(|| match newest_in(folder) {
            Some(newest) => format!(
                "{} holds backups and is none: name one of them, such as the newest, {}",
                folder.display(),
                folder.join(newest).display()
            ),
            None => format!(
                "{} is no whole backup: cannot read {}",
                folder.display(),
                path.display()
            ),
        })?;
        let written = serde_json::from_str::<Value>(&text);
        let format = written.ok().and_then(|it| it["format"].as_u64());
        ensure!(
            format.is_none_or(|format| (1..=u64::from(FORMAT)).contains(&format)),
            "{} was written by another release (format {}, and this one reads 1 to {FORMAT}): restore it with that release",
            path.display(),
            format.unwrap_or_default()
        );
        let manifest: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: take another backup", path.display()))?;
        let files = manifest.images().map(|image| &image.file);
        for name in files.chain(&manifest.base) {
            let mut parts = Path::new(name).components();
            ensure!(
                matches!(
                    (parts.next(), parts.next()),
                    (Some(Component::Normal(_)), None)
                ),
                "{} names a file outside of the backup: {name}",
                path.display()
            );
        }
        Ok(manifest)
    }

    /// All images.
    pub fn images(&self) -> impl Iterator<Item = &ImageFile> {
        self.disks
            .iter()
            .map(|disk| &disk.image)
            .chain(&self.memory)
    }
}

/// A disk of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFile {
    /// Its number in the configuration, from 0.
    pub disk: usize,
    /// Its content.
    #[serde(flatten)]
    pub image: ImageFile,
}

/// An image of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    /// The size of what is in it.
    pub bytes: u64,
    /// The qcow2 image beside the manifest, its size and checksum.
    pub file: String,
    /// See `file`.
    pub file_bytes: u64,
    /// See `file`.
    pub blake3: String,
}

/// The folder in `folder` whose backup was taken last, if there are any.
fn newest_in(folder: &Path) -> Option<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let named = entry.file_name().into_string().ok();
        let named = named.filter(|name| !name.starts_with('.') && entry.path().is_dir());
        let text = std::fs::read(entry.path().join(MANIFEST)).ok();
        let about: Option<Value> = text.and_then(|text| serde_json::from_slice(&text).ok());
        if let (Some(name), Some(about)) = (named, about) {
            found.push((
                about["taken_at"].as_str().unwrap_or_default().to_string(),
                name,
            ));
        }
    }
    found.into_iter().max().map(|(_, name)| name)
}

/// The backup in `to` with this mark, and those that it is based on.
pub(super) fn chain_of(mark: &str, to: &Path) -> Result<Vec<String>> {
    let mut found = None;
    for entry in std::fs::read_dir(to).with_context(|| format!("cannot read {}", to.display()))? {
        let name = entry?.file_name();
        let named = name.to_str().filter(|name| !name.starts_with('.'));
        let Some(name) = named else { continue };
        let manifest = Manifest::load(&to.join(name));
        if manifest.is_ok_and(|manifest| manifest.mark == mark) {
            found = Some(name.to_string());
        }
    }
    let newest = found.with_context(|| {
        format!(
            "the last one of this replica's disks is not in {}",
            to.display()
        )
    })?;
    let chain = chain(&to.join(&newest))?;
    Ok(chain.into_iter().map(|(name, _)| name).collect())
}

/// A backup and those that it is based on, the newest first, with their folders' names.
pub(super) fn chain(folder: &Path) -> Result<Vec<(String, Manifest)>> {
    let folder = folder
        .canonicalize()
        .with_context(|| format!("cannot find {}", folder.display()))?;
    let beside = folder.parent().unwrap_or(&folder);
    let name = folder.file_name().unwrap_or_default();
    let mut next = Some(name.to_string_lossy().into_owned());
    let mut chain: Vec<(String, Manifest)> = Vec::new();
    while let Some(name) = next {
        ensure!(
            chain.iter().all(|(known, _)| *known != name),
            "{} is based on itself",
            folder.display()
        );
        let manifest =
            Manifest::load(&beside.join(&name)).with_context(|| match chain.is_empty() {
                true => format!("{} cannot be read", folder.display()),
                false => format!("{} holds the changes to another backup", folder.display()),
            })?;
        next = manifest.base.clone();
        chain.push((name, manifest));
    }
    Ok(chain)
}

/// A file's size and checksum.
pub(super) fn checksum(path: &Path, progress: &Progress) -> Result<(u64, String)> {
    let read = || -> Result<(u64, String)> {
        let (mut file, mut hasher) = (File::open(path)?, blake3::Hasher::new());
        let (mut bytes, mut part) = (0, vec![0; 1 << 20]);
        loop {
            progress.check()?;
            match file.read(&mut part)? {
                0 => return Ok((bytes, hasher.finalize().to_string())),
                read => {
                    bytes += read as u64;
                    hasher.update(&part[..read]);
                }
            }
        }
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Fails unless the files of a backup have the sizes and checksums that its manifest says.
pub(super) fn verify(folder: &Path, manifest: &Manifest, progress: &Progress) -> Result<()> {
    for image in manifest.images() {
        let path = folder.join(&image.file);
        let found = checksum(&path, progress)?;
        ensure!(
            found == (image.file_bytes, image.blake3.clone()),
            "{} is damaged: it has {} bytes and the checksum {}, and had {} and {} when it was written; take another \
             backup",
            path.display(),
            found.0,
            found.1,
            image.file_bytes,
            image.blake3
        );
        progress.say(format_args!("{} is verified", path.display()));
    }
    Ok(())
}

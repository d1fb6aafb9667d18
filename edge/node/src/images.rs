//! Prepares the disks' images before the replica starts: those of other formats are imported.

use crate::config::{DiskConfig, ReplicaConfig};
use plover_disk::import::{Format, Source};
use plover_disk::{DiskError, DiskSpec};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the disks' journal in the state directory.
const JOURNAL: &str = "disks";

/// The disks as raw images. An image whose name says another format is imported first, unless that was
/// done before; as long as `goes_on`.
pub(crate) fn prepare(
    config: &ReplicaConfig,
    goes_on: impl Fn() -> bool,
) -> Result<Vec<DiskSpec>, DiskError> {
    let path = config.disk_journal();
    let used_before = path.try_exists().map_err(|source| DiskError::Io {
        what: "cannot look for the disk journal",
        path,
        source,
    })?;
    let raws = config.raw_disks().into_iter();
    let disks = config.disk.iter().zip(raws);
    disks
        .map(|(disk, raw)| {
            let mut spec = raw_of(disk, &raw, used_before, &goes_on)?;
            spec.delay = Duration::from_micros(config.debug.disk_delay_us);
            Ok(spec)
        })
        .collect()
}

impl ReplicaConfig {
    /// The disks' journal: it is there once this replica has taken part in a group.
    pub fn disk_journal(&self) -> PathBuf {
        self.paths.state_dir.join(JOURNAL)
    }

    /// This replica's images of the guest's disks: where they are, or will be.
    pub fn raw_disks(&self) -> Vec<PathBuf> {
        let disks = self.disk.iter().enumerate();
        disks
            .map(|(i, disk)| match (Format::of_name(&disk.path), &disk.raw) {
                (None, _) => disk.path.clone(),
                (Some(_), Some(raw)) => raw.clone(),
                (Some(_), None) => self.paths.state_dir.join(format!("disk-{i}.raw")),
            })
            .collect()
    }
}

fn raw_of(
    disk: &DiskConfig,
    raw: &Path,
    used_before: bool,
    goes_on: impl Fn() -> bool,
) -> Result<DiskSpec, DiskError> {
    let spec = disk.spec();
    if Format::of_name(&disk.path).is_none() {
        return Ok(spec);
    }
    let mut spec = DiskSpec {
        path: raw.into(),
        ..spec
    };
    // A host whose copy the leader fills does not need the image, and one that has taken part before votes without any.
    if raw.exists() || (!disk.path.exists() && (spec.bytes.is_some() || used_before)) {
        return Ok(spec);
    }
    let Some(source) = Source::look(&disk.path)? else {
        return Ok(spec);
    };
    if used_before && !disk.is_read_only() {
        // The copy was lost. The image is older than the state that clients have seen, so the leader
        // fills a new copy instead.
        spec.bytes = spec.bytes.or(Some(source.bytes()));
        return Ok(spec);
    }
    let path = disk.path.display();
    tracing::info!(event = "import_begun", to = %raw.display(), bytes = source.bytes(), "the disk image {path} is imported");
    let tell = |percent| {
        if percent % 10 == 0 {
            tracing::info!(
                event = "import_goes_on",
                "{percent}% of the disk image {path} are imported"
            );
        }
    };
    source.import(raw, tell, goes_on)?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &Path, size_mib: Option<u64>) -> DiskConfig {
        DiskConfig {
            path: path.into(),
            raw: None,
            bus: Default::default(),
            serial: None,
            readonly: false,
            cdrom: false,
            size_mib,
            max_size_mib: None,
        }
    }

    #[test]
    fn an_image_is_imported_once_and_never_over_a_guests_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (source, raw) = (dir.path().join("d.qcow2"), dir.path().join("raw"));
        let mut tool = std::process::Command::new("qemu-img");
        let made = tool
            .args(["create", "-q", "-f", "qcow2"])
            .arg(&source)
            .arg("1M");
        if !made.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: qemu-img does not run");
            return;
        }
        let spec = raw_of(&disk(&source, None), &raw, false, || true).unwrap();
        assert_eq!((&spec.path, spec.bytes), (&raw, None));
        assert_eq!(std::fs::metadata(&raw).unwrap().len(), 1 << 20);
        std::fs::write(&raw, b"the guest's").unwrap();
        raw_of(&disk(&source, None), &raw, true, || true).unwrap();
        assert_eq!(std::fs::read(&raw).unwrap(), b"the guest's");
        std::fs::remove_file(&raw).unwrap();
        let lost = raw_of(&disk(&source, None), &raw, true, || true).unwrap();
        assert_eq!(
            lost.bytes,
            Some(1 << 20),
            "made empty, for the leader to fill"
        );
        assert!(!raw.exists());
    }

    #[test]
    fn a_host_without_the_image_needs_its_size() {
        let nowhere = Path::new("/nowhere/d.qcow2");
        let raw = Path::new("/nowhere/raw");
        // It has taken part before: it votes, and says what is missing.
        assert_eq!(
            raw_of(&disk(nowhere, None), raw, true, || true)
                .unwrap()
                .path,
            raw
        );
        let spec = raw_of(&disk(nowhere, Some(4)), raw, false, || true).unwrap();
        assert_eq!((spec.path.as_path(), spec.bytes), (raw, Some(4 << 20)));
        let error = raw_of(&disk(nowhere, None), raw, false, || true)
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/d.qcow2"), "{error}");
        let plain = Path::new("/nowhere/d.img");
        assert_eq!(
            raw_of(&disk(plain, None), raw, false, || true)
                .unwrap()
                .path,
            plain
        );
    }
}

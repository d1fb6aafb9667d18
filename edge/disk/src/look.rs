//! A guest's disks looked at before a replica opens them: nothing is locked, made or changed.

use crate::error::DiskError;
use crate::image::{Image, blocks_within};
use crate::journal::Journal;
use crate::{DiskSpec, Disks};
use std::path::Path;

/// The present state of a disk's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is there, with so many bytes.
    Bytes(u64),
    /// It is not there, and will be made with so many bytes.
    ToBeMade(u64),
}

impl Found {
    /// Its size, now or when it is made.
    pub fn bytes(self) -> u64 {
        let (Self::Bytes(bytes) | Self::ToBeMade(bytes)) = self;
        bytes
    }
}

impl Disks {
    /// Looks at the image that `spec` names. `journal` is where the disks' journal is, or will be.
    ///
    /// # Errors
    /// A replica could not use the image: the reason, and what to do.
    pub fn look(spec: &DiskSpec, journal: &Path) -> Result<Found, DiskError> {
        Ok(match (Image::look(spec, journal.exists())?, spec.bytes) {
            (Some(bytes), _) => Found::Bytes(bytes),
            (None, wanted) => Found::ToBeMade(wanted.unwrap_or_default()),
        })
    }

    /// Whether disks that were found like this are those of the journal.
    ///
    /// # Errors
    /// The journal is damaged or of another release, or the disks have another size than when this replica last ran.
    pub fn look_at_journal(all: &[(DiskSpec, Found)], journal: &Path) -> Result<(), DiskError> {
        let writable = all.iter().filter(|(spec, _)| !spec.read_only);
        let bytes = writable.map(|(spec, found)| spec.bytes_max.unwrap_or(found.bytes()));
        let blocks = blocks_within(bytes.sum())?;
        match Journal::look(journal, blocks)? {
            Some(before) if before != blocks => Err(DiskError::Resized {
                found: blocks,
                wanted: before,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn disks_are_looked_at_as_a_replica_would_open_them_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("disks");
        let mut spec = DiskSpec {
            path: dir.path().join("d.raw"),
            read_only: false,
            bytes: Some(1 << 20),
            bytes_max: None,
            delay: Duration::ZERO,
        };
        assert_eq!(
            Disks::look(&spec, &journal).unwrap(),
            Found::ToBeMade(1 << 20)
        );
        assert!(!spec.path.exists());
        drop(Disks::open(&[spec.clone()], &journal).unwrap());
        let found = Disks::look(&spec, &journal).unwrap();
        assert_eq!(found, Found::Bytes(1 << 20));
        let look =
            |spec: &DiskSpec, found| Disks::look_at_journal(&[(spec.clone(), found)], &journal);
        look(&spec, found).unwrap();
        let image = std::fs::File::options()
            .write(true)
            .open(&spec.path)
            .unwrap();
        image.set_len(2 << 20).unwrap();
        let error = Disks::look(&spec, &journal).unwrap_err();
        assert!(matches!(error, DiskError::WrongSize { .. }), "{error}");
        spec.bytes = None;
        let found = Disks::look(&spec, &journal).unwrap();
        let error = look(&spec, found).unwrap_err();
        assert!(
            matches!(
                error,
                DiskError::Resized {
                    found: 512,
                    wanted: 256
                }
            ),
            "{error}"
        );
        spec.path = dir.path().join("none");
        let error = Disks::look(&spec, &journal).unwrap_err();
        assert!(matches!(error, DiskError::Gone(_)), "{error}");
    }
}

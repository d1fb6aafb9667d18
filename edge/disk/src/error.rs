//! What can be wrong with a disk.

use std::io;
use std::path::{Path, PathBuf};

/// Why a disk cannot be used, or cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file operation failed: remove the cause and start the replica again.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no image, and no size to make one of.
    #[error(
        "there is no disk image {0}: copy it here, or say `size_mib` and let this replica be filled by the leader"
    )]
    Missing(PathBuf),
    /// The image is of a format with a structure of its own.
    #[error("{0} is a qcow2 image: convert it with 'qemu-img convert -O raw {0} NEW'")]
    Qcow2(PathBuf),
    /// The image's size is not what it should be.
    #[error("{path} has {found} bytes, not {wanted}: all replicas need a disk of the same size")]
    WrongSize {
        /// Which image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// What the configuration says.
        wanted: u64,
    },
    /// The image cannot be cut into blocks.
    #[error(
        "{path} has {bytes} bytes, which is no multiple of 4096: 'truncate -s %4096 {path}' makes it one"
    )]
    Uneven {
        /// Which image.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// All disks together have more blocks than can be numbered.
    #[error("the disks have {0} bytes in all; 8 TiB are the most")]
    TooLarge(u64),
    /// Another process has the image open as a guest's disk.
    #[error("{0} is in use by another process: each replica needs a copy of its own")]
    InUse(PathBuf),
    /// The journal is unreadable, so nobody knows whether the images are whole.
    #[error(
        "{0} is damaged: to get the disks from the other replicas, remove it and the images; to \
         use the images as they are, remove it alone"
    )]
    DamagedJournal(PathBuf),
    /// The journal holds a syncvm for other disks than these.
    #[error(
        "{path} holds a syncvm for disks of {found} blocks, the configuration names {wanted}: start \
         once with the disks as they were"
    )]
    OtherDisks {
        /// Which journal.
        path: PathBuf,
        /// Blocks of the disks it is for.
        found: u32,
        /// Blocks of the disks configured.
        wanted: u32,
    },
    /// A full copy ended half-way: this replica's disks are of two guests' and of no use.
    #[error(
        "the copy of the guest's disks on this replica is incomplete: start the guest on a replica \
         that has a whole one"
    )]
    Incomplete,
    /// A write did not reach the disk, and what it was is not known any more.
    #[error("the disk failed: {0}; mend it and start the replica again")]
    Failed(String),
}

pub(crate) fn io_error(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_path_buf();
    move |source| DiskError::Io { what, path, source }
}

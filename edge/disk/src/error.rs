//! Errors of disks.

use std::io;
use std::path::{Path, PathBuf};

/// Why a disk cannot be used, or cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file operation failed: remove the cause.
    #[error("{what} {path}: {source}; {}", advice(.source))]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no image, and no size for a new one.
    #[error(
        "there is no disk image {0}: copy it here, or say `size_mib` and let this replica be filled by the leader"
    )]
    Missing(PathBuf),
    /// There is no image, and a guest has used the one that was there.
    #[error(
        "the disk image {0}, which the guest had here, is gone: see that its file system is mounted, or put it back. If it is \
         lost, this replica makes another one, with disk.size_mib, when the guest is next copied here"
    )]
    Gone(PathBuf),
    /// An image that should be raw, and that no guest has used yet, begins like one of another format.
    #[error(
        "{path} is a {format} image: give it a name that ends in .{format}, and it is imported, or \
         convert it with 'qemu-img convert -O raw {path} NEW'"
    )]
    NotRaw {
        /// The image.
        path: PathBuf,
        /// The format that it looks like.
        format: &'static str,
    },
    /// A file that should be the memory of a backup is none, or of a guest with more or less memory.
    #[error(
        "{0} is not the whole memory of a guest of {1} MiB: restore the backup anew with the guest.mem_mib that it has, or \
         remove the file to boot from the disks"
    )]
    OtherMemory(PathBuf, u64),
    /// An image that is to be imported is not of the format that its name says.
    #[error(
        "{path} is named like a {format} image and is none: give it the name of its format (.raw, .qcow2, \
         .vmdk, .vdi)"
    )]
    OtherFormat {
        /// The image.
        path: PathBuf,
        /// The format that its name says.
        format: &'static str,
    },
    /// An image that is to be imported is encrypted.
    #[error("{0} is encrypted: import a decrypted copy")]
    Encrypted(PathBuf),
    /// `qemu-img` is missing.
    #[error("{0} is to be converted by qemu-img, which is missing: install the package qemu-utils")]
    NoTool(PathBuf),
    /// This kernel cannot confine `qemu-img`, so a hostile image could read any file.
    #[error(
        "{0} is not imported, since this kernel has no Landlock to confine qemu-img: add 'landlock' to the kernel's \
         boot option lsm=, or convert an image that you trust with 'qemu-img convert -O raw'"
    )]
    NotConfined(PathBuf),
    /// The confinement was refused.
    #[error(transparent)]
    Confine(plover_confine::ConfineError),
    /// `qemu-img` refused an image, failed, or was ended.
    #[error("cannot import the disk image {path}: {why}")]
    NotImported {
        /// The image.
        path: PathBuf,
        /// The error of `qemu-img`, or how it ended.
        why: String,
    },
    /// `qemu-img` could not write a backup of a disk, or could not read the disk.
    #[error("cannot write the backup {path}: {why}")]
    NotExported {
        /// The backup's file.
        path: PathBuf,
        /// The error of `qemu-img`, or how it ended.
        why: String,
    },
    /// The image's size is not what it should be.
    #[error("{path} has {found} bytes, not {wanted}: all replicas need a disk of the same size")]
    WrongSize {
        /// The image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The size in the configuration.
        wanted: u64,
    },
    /// The image is larger than it may ever be.
    #[error(
        "{path} has {found} bytes, and disk.max_size_mib says {max}: raise that key on all hosts"
    )]
    OverMax {
        /// The image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The most.
        max: u64,
    },
    /// The image holds nothing: it was emptied, or this replica ended while it made it.
    #[error(
        "{0} has 0 bytes, not those of a disk: attach the device; or remove the file, and with `size_mib` a new one is made \
         and filled by the leader"
    )]
    Empty(PathBuf),
    /// The image cannot be cut into blocks.
    #[error(
        "{path} has {bytes} bytes, which is no multiple of 4096: 'truncate -s %4096 {path}' makes it one"
    )]
    Uneven {
        /// The image.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// All disks together have more blocks than there are numbers.
    #[error("the disks have {0} bytes in all; 8 TiB are the most")]
    TooLarge(u64),
    /// Another process has the image open as a guest's disk.
    #[error(
        "the disk image {0} is in use by another process ('lslocks' names it): end that one; each \
         replica needs a copy of its own"
    )]
    InUse(PathBuf),
    /// The journal is unreadable, so it is not known whether the images are whole.
    #[error(
        "{0} is damaged: to get the disks from the other replicas, remove it and the images; to \
         use the images as they are, remove it alone"
    )]
    DamagedJournal(PathBuf),
    /// Another release has written the journal. Nothing has been changed.
    #[error(
        "{path} was written by another release (format {found}, and this one has {known}): start that \
         release; or, to get the disks from the other replicas, move it and the images away"
    )]
    OtherRelease {
        /// The journal.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this release writes.
        known: u32,
    },
    /// The journal holds a syncvm for other disks than these.
    #[error(
        "{path} holds a syncvm for disks of {found} blocks, the configuration names {wanted}: start \
         once with the disks as they were"
    )]
    OtherDisks {
        /// The journal.
        path: PathBuf,
        /// Blocks of the disks it is for.
        found: u32,
        /// Blocks of the disks configured.
        wanted: u32,
    },
    /// The disks have another size than before.
    #[error(
        "the disks have {found} blocks (4 KiB) now and had {wanted}: all replicas need disks of the \
         same size"
    )]
    Resized {
        /// Blocks of the present disks.
        found: u32,
        /// Blocks of the disks before.
        wanted: u32,
    },
    /// A full copy was interrupted: this replica's disks are a mixture and useless.
    #[error(
        "the copy of the guest's disks on this replica is incomplete: start the guest on a replica \
         that has a whole one"
    )]
    Incomplete,
    /// Something failed beyond the files.
    #[error("the disk failed: {0}")]
    Failed(String),
    /// The disk hangs and still works on requests of the last guest. Try again.
    #[error("the disk still works on requests of the last guest; tried again later")]
    Busy,
    /// They failed a short while ago. Try again then.
    #[error("{0}; tried again later")]
    Waiting(String),
}

impl DiskError {
    /// Whether it concerns an image alone: the replica can vote without it.
    pub(crate) fn is_of_an_image(&self) -> bool {
        matches!(
            self,
            Self::Io { .. }
                | Self::Missing(_)
                | Self::Gone(_)
                | Self::NotRaw { .. }
                | Self::WrongSize { .. }
                | Self::OverMax { .. }
                | Self::Empty(_)
                | Self::Uneven { .. }
                | Self::InUse(_)
                | Self::Failed(_)
        )
    }
}

/// Advice for a failed file operation.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    use io::ErrorKind as Kind;
    if let Some(libc::EMFILE | libc::ENFILE) = error.raw_os_error() {
        return "too many files are open: raise LimitNOFILE= of the service, or fs.file-max";
    }
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => {
            "make room on its file system"
        }
        Kind::ReadOnlyFilesystem => {
            "the file system is read-only: remount it, or let the service write there (ReadWritePaths=)"
        }
        Kind::PermissionDenied => {
            "let the user that runs plover read and write it (for the service 'chown plover', and for a block device \
             DeviceAllow= as well)"
        }
        Kind::AlreadyExists => "it was not there before: see who has made it",
        Kind::NotFound | Kind::NotADirectory | Kind::IsADirectory => "correct the path",
        Kind::OutOfMemory => "make memory free, or raise MemoryMax= of the service",
        Kind::WouldBlock => "too many processes and threads run: raise TasksMax= of the service",
        Kind::InvalidInput => "the kernel does not allow it there: its log ('dmesg') may say more",
        _ => "the kernel's log ('dmesg') may say more: mend or replace the disk",
    }
}

pub(crate) fn io_error(
    what: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> DiskError + use<> {
    let path = path.to_path_buf();
    move |source| DiskError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk is to be replaced only where the disk has failed.
    #[test]
    fn the_advice_is_about_what_failed() {
        for (number, words) in [
            (libc::EIO, "replace the disk"),
            (libc::ENOSPC, "make room"),
            (libc::EMFILE, "LimitNOFILE="),
            (libc::ENFILE, "fs.file-max"),
            (libc::ENOMEM, "memory"),
            (libc::EAGAIN, "TasksMax="),
            (libc::EINVAL, "does not allow"),
        ] {
            let said = advice(&io::Error::from_raw_os_error(number));
            assert!(said.contains(words), "{number}: {said}");
        }
    }
}

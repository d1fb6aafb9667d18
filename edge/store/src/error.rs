//! The errors of the store.

use plover_types::wire::{Versions, WIRE_VERSION};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why stored state cannot be used, or cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation failed. While opening, no acknowledged entry was changed: remove the cause
    /// and open again. While running, the store has stopped for good, because a sync that failed once
    /// may report success the next time without having written anything: remove the cause and restart
    /// the replica.
    #[error("{what} {path}: {source}{}", advice(.path, .source))]
    Io {
        /// The operation that failed, such as `cannot read`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process uses the directory. Stop it, or give this replica a directory of its own.
    #[error("{path} is in use by {holder}; stop it, or give this replica a directory of its own")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, if that is known.
        holder: String,
    },
    /// The directory belongs to another group. Check the configuration.
    #[error(
        "{path} belongs to the group '{found}', not to '{wanted}': correct the directory or the group's name"
    )]
    OtherGroup {
        /// The file.
        path: PathBuf,
        /// The group's name in it.
        found: String,
        /// The group's name in the configuration.
        wanted: String,
    },
    /// The promise of this replica is unreadable, so it must not vote. If the disk cannot be repaired,
    /// move the directory away: the replica then starts like one with a new disk and recovers from
    /// the others.
    #[error("{path} is damaged ({why}); move the directory away to recover from the others")]
    PromiseLost {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Another release has written the directory, and this one does not understand all of it. Nothing
    /// was changed. Either start that release again. Or make a copy, do as the text says, and let this
    /// replica recover from the others. They must have the log: if all replicas do so, it is lost.
    #[error(
        "{path} was written by another release ({why}): start that release; or, if a majority already \
         runs this release and has the log, {go_on}, and this replica recovers from the others"
    )]
    OtherRelease {
        /// The file or directory.
        path: PathBuf,
        /// The part that this release does not understand.
        why: String,
        /// How to continue without it.
        go_on: &'static str,
    },
    /// The group has a version that this release does not speak, or does not speak any more. Nothing was changed.
    #[error(
        "{path} is of a group that has wire version {version}, and this replica speaks {speaks}: {}",
        match version > &speaks.newest {
            true if speaks.newest < WIRE_VERSION && *version <= WIRE_VERSION => "group.version_max holds it back: raise it to the group's version, which is never lowered",
            true => "start the newer release (a group's version is never lowered, so there is no way back to this one)",
            false => "start the release between the two first, on all replicas",
        }
    )]
    GroupVersion {
        /// The directory.
        path: PathBuf,
        /// The group's version.
        version: u8,
        /// The versions that this replica speaks.
        speaks: Versions,
    },
    /// The group's name does not fit the file of the promise. Nothing has been written.
    #[error("the group's name '{0}' has more than 255 bytes: choose a shorter one")]
    LongName(String),
}

impl StoreError {
    pub(crate) fn is_disk_full(&self) -> bool {
        let full = |kind| {
            matches!(
                kind,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        };
        matches!(self, Self::Io { source, .. } if full(source.kind()))
    }
}

/// Advice for the operator about the system's answer to an operation on `path`, to be put behind that
/// answer. Empty if there is none.
pub fn advice(path: &Path, source: &io::Error) -> String {
    let known = match source.kind() {
        io::ErrorKind::StorageFull => return full(path),
        io::ErrorKind::QuotaExceeded => {
            " (disk full by this user's quota: free space, then restart the replica)"
        }
        io::ErrorKind::FileTooLarge => {
            " (the limit on file sizes, RLIMIT_FSIZE, is below the size of a segment: raise it, \
             then restart the replica)"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            " (the replica's user must be able to write there: as a service, it is 'plover' and writes to the paths of its \
             unit)"
        }
        _ => "",
    };
    known.into()
}

fn full(path: &Path) -> String {
    // The file may be missing; its folder exists.
    let asked = path.parent().unwrap_or(path);
    let free = rustix::fs::statvfs(asked).map(|it| (it.f_bavail * it.f_frsize) >> 10);
    let free = free.map_or_else(|_| String::new(), |kib| format!(", {kib} KiB are left"));
    format!(" (disk full{free}: free space, then restart the replica)")
}

/// For `map_err`: names the operation and the file.
pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::Io { what, path, source }
}

/// The number of a segment. A file that is used again gets a new one, so a record of its earlier use is never taken for
/// one of now. Numbers begin at 1 again only in a directory where all files were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentNumber(pub u64);

impl SegmentNumber {
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for SegmentNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log.{:016x}", self.0)
    }
}

/// Why acknowledged records of the log cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Part of the log is there, and some of it is bad.
    Bad {
        /// The segment.
        segment: SegmentNumber,
        /// The place in it, bytes from its start.
        offset: u64,
        /// The bytes or the mistake found there, in words.
        what: String,
    },
    /// No segment is there: they were lost, or moved away.
    Gone,
}

impl Damage {
    /// The segment that is kept for inspection.
    pub(crate) fn evidence(&self) -> Option<SegmentNumber> {
        match self {
            Self::Bad { segment, .. } => Some(*segment),
            Self::Gone => None,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad {
                segment,
                offset,
                what,
            } => write!(f, "the log is damaged: {segment} at byte {offset}: {what}"),
            Self::Gone => write!(f, "the log is gone: no segment of it is there"),
        }
    }
}

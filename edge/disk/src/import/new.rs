//! A raw image that is being made.

use super::owner::Owner;
use crate::error::{DiskError, io_error};
use crate::lock::making;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// An image that is made under another name, and locked. It is removed again unless it is [finished](NewImage::finish).
#[derive(Debug)]
pub struct NewImage {
    path: PathBuf,
    to: PathBuf,
    pub(super) file: File,
    owner: Owner,
    is_finished: bool,
}

impl NewImage {
    /// Makes it, or takes the one over that a process has left which was killed.
    pub(super) fn begin(to: &Path) -> Result<Self, DiskError> {
        let mut path = to.as_os_str().to_owned();
        path.push(".new");
        let path = PathBuf::from(path);
        let cannot = || io_error("cannot create the disk image", &path);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600);
        // The folder may belong to a user who is not the caller.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let owner = Owner::of(to)?;
        loop {
            let file = owner.act(|| options.open(&path)).map_err(cannot())?;
            if !making(&file, true) {
                return Err(DiskError::InUse(path));
            }
            // The process that had it a moment ago may have given it its name.
            if is_at(&file, &path) {
                let is_ours = file
                    .metadata()
                    .is_ok_and(|it| it.is_file() && it.nlink() == 1);
                if !is_ours {
                    return Err(cannot()(io::ErrorKind::AlreadyExists.into()));
                }
                let emptied = file.set_len(0);
                let emptied =
                    emptied.and_then(|()| file.set_permissions(Permissions::from_mode(0o600)));
                // `qemu-img` writes it, and has no right to files of others.
                let emptied = emptied.and_then(|()| owner.take(&file));
                emptied.map_err(cannot())?;
                return Ok(Self {
                    path,
                    to: to.into(),
                    file,
                    owner,
                    is_finished: false,
                });
            }
        }
    }

    /// Gives it its size, durably.
    pub(super) fn has(&self, bytes: u64) -> Result<(), DiskError> {
        let sized = self.file.set_len(bytes);
        let sized = sized.and_then(|()| self.file.sync_all());
        sized.map_err(io_error("cannot write the disk image", &self.path))
    }

    /// Whether what was written under its name is in it.
    fn is_whole(&self) -> Result<(), DiskError> {
        match is_at(&self.file, &self.path) {
            true => Ok(()),
            false => Err(DiskError::InUse(self.path.clone())),
        }
    }

    /// Gives it its name, durably.
    ///
    /// # Errors
    /// There is a file of that name, which is left alone; or the folder cannot be written, and none is left.
    pub fn finish(mut self) -> Result<(), DiskError> {
        self.is_whole()?;
        let given = self.owner.give(&self.file);
        let named = given.and_then(|()| self.owner.act(|| self.name()));
        named.map_err(io_error("cannot write the disk image", &self.to))
    }

    fn name(&mut self) -> io::Result<()> {
        let (from, to) = (&self.path, &self.to);
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // This file system cannot.
            Err(Errno::INVAL | Errno::NOSYS) if to.exists() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to)?,
            renamed => renamed?,
        }
        self.is_finished = true;
        let synced = match to.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => {
                File::open(dir).and_then(|dir| dir.sync_all())
            }
            _ => Ok(()),
        };
        synced.inspect_err(|_| {
            let _ = std::fs::remove_file(to);
        })
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.owner.act(|| std::fs::remove_file(&self.path));
        }
        // A child that another thread is just starting has a copy of the descriptor.
        making(&self.file, false);
    }
}

/// Makes the folder of a file that is to be at `path`, if it is not there, for its owner alone.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(path: &Path) -> Result<(), DiskError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let made = Owner::of(folder)?.act(|| DirBuilder::new().mode(0o700).create(folder));
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(io_error("cannot make the folder", folder)(error))
        }
        _ => Ok(()),
    }
}

/// Whether this file has that name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |it: std::fs::Metadata| (it.dev(), it.ino());
    let named = std::fs::symlink_metadata(path).map(number);
    let opened = file.metadata().map(number);
    matches!((named, opened), (Ok(named), Ok(opened)) if named == opened)
}

//! Root makes files in folders of other users.

use crate::error::{DiskError, io_error};
use rustix::process::geteuid;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

/// The user that can change the way to a path. Root acts on the path as that user.
///
/// A user who can change a folder can point each name in it to any file of the host: root that wrote to such a name would
/// write to the file. The same user cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// User and group; `None` if only root can change the way, or if the caller is not root and acts as itself.
    other: Option<(u32, u32)>,
}

impl Owner {
    /// The user for a file at `path`, which need not be there: the owner of the first folder or link on the way to it that is
    /// not root's.
    ///
    /// # Errors
    /// A folder is missing, or cannot be looked at.
    pub(super) fn of(path: &Path) -> Result<Self, DiskError> {
        let cannot = || io_error("cannot look at the folder of", path);
        let mut other = None;
        if geteuid().is_root() {
            let path = std::path::absolute(path).map_err(cannot())?;
            let folder = path.parent().unwrap_or(Path::new("/"));
            other = first_of_another(folder).map_err(cannot())?;
            // All links of the way are root's, so they lead where root wants.
            if other.is_none() {
                let folder = folder.canonicalize().map_err(cannot())?;
                other = first_of_another(&folder).map_err(cannot())?;
            }
        }
        Ok(Self { other })
    }

    /// Calls `act`, whose calls of the file system are this user's.
    ///
    /// # Errors
    /// The caller may not act as this user.
    pub(super) fn act<T>(self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _as_owner = self.other.map(As::user).transpose()?;
        act()
    }

    /// Makes the caller, which is root, own this user's file for a time.
    pub(super) fn take(self, file: &File) -> io::Result<()> {
        match self.other {
            Some(_) => fchown(file, Some(0), Some(0)),
            None => Ok(()),
        }
    }

    /// Gives the file back to this user.
    pub(super) fn give(self, file: &File) -> io::Result<()> {
        match self.other {
            Some((user, group)) => fchown(file, Some(user), Some(group)),
            None => Ok(()),
        }
    }
}

/// The owner of the first part of the way to `folder` that is not root's.
fn first_of_another(folder: &Path) -> io::Result<Option<(u32, u32)>> {
    let mut parts: Vec<&Path> = folder.ancestors().collect();
    parts.reverse();
    for part in parts {
        let found = std::fs::symlink_metadata(part)?;
        if found.uid() != 0 {
            return Ok(Some((found.uid(), found.gid())));
        }
    }
    Ok(None)
}

/// As long as it lives, this thread is another user to the file system. Its other rights stay, and a program that it starts has
/// all of root's.
struct As {
    before: (u32, u32),
}

impl As {
    fn user((user, group): (u32, u32)) -> io::Result<Self> {
        let before = set((user, group));
        let this = Self { before };
        // The calls do not fail; they return what was set before.
        match set((user, group)) == (user, group) {
            true => Ok(this),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

impl Drop for As {
    fn drop(&mut self) {
        set(self.before);
        assert!(
            set(self.before) == self.before,
            "a thread that acts for another user cannot be root again"
        );
    }
}

/// Sets user and group, and returns those before.
fn set((user, group): (u32, u32)) -> (u32, u32) {
    // SAFETY: both calls take numbers by value, and change this thread's credentials only.
    let (group, user) = unsafe { (libc::setfsgid(group), libc::setfsuid(user)) };
    (user as u32, group as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Format, Source};
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    /// A user of the service, taken over, waits for root with links to what is root's.
    #[test]
    fn root_follows_no_link_of_the_folders_owner() {
        if !geteuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let (dir, user) = (tempfile::tempdir().unwrap(), 12345);
        let [image, own, roots] = ["image", "own", "roots"].map(|it| dir.path().join(it));
        std::fs::write(&image, vec![7; 4096]).unwrap();
        std::fs::set_permissions(&image, Permissions::from_mode(0o600)).unwrap();
        chown(&image, Some(user + 1), None).unwrap();
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&roots).unwrap();
        std::fs::write(roots.join("file"), "root's").unwrap();
        chown(&own, Some(user), Some(user)).unwrap();
        let link = |to: &Path, name: &str| {
            let link = own.join(name);
            symlink(to, &link).unwrap();
            std::os::unix::fs::lchown(&link, Some(user), Some(user)).unwrap();
        };
        link(&roots.join("file"), "disk.raw.new");
        link(&roots, "folder");
        let source = match Source::look_as(Format::Raw, &image, &[]) {
            Err(DiskError::NoTool(_)) => return,
            looked => looked.unwrap(),
        };
        let import = |to: &str| source.import(&own.join(to), |_| (), || true);
        import("disk.raw").unwrap_err();
        import("folder/disk.raw").unwrap_err();
        assert_eq!(std::fs::read(roots.join("file")).unwrap(), b"root's");
        assert_eq!(std::fs::read_dir(&roots).unwrap().count(), 1);
        import("other.raw").unwrap();
        let made = own.join("other.raw").metadata().unwrap();
        assert_eq!(
            (made.uid(), made.gid(), made.mode() & 0o777),
            (user, user, 0o600)
        );
        // SAFETY: the call changes nothing with this number.
        assert_eq!(unsafe { libc::setfsuid(u32::MAX) }, 0, "root again");
    }
}

//! A replica's files are its own: other users of the host neither read nor plant any.
//!
//! All files are made with mode 0600 and all folders with 0700. Names in them are fixed, so a folder in which others may
//! write is refused: a link of theirs, in the place of a file, would lead a write elsewhere. `plover run` sets no such
//! umask, because its program would inherit it; there each folder of its own has the mode.

use crate::body::BoxError;
use rustix::fs::Mode;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// The bits of a folder's mode by which others may write.
const OTHERS_WRITE: u32 = 0o022;

/// From now on this process makes files that only its user reads.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Creates the folder of the key `key`, unless it is there, and refuses one in which others may write.
///
/// # Errors
/// It cannot be created, or others may write in it; the text says what to do.
pub fn folder(key: &str, path: &Path) -> Result<(), BoxError> {
    // The umask of some users lets their group write.
    let created = DirBuilder::new().recursive(true).mode(0o755).create(path);
    created.map_err(|error| {
        let advice =
            "make it and give it to the user that runs plover (the service: 'chown plover')";
        format!("cannot create {key} {}: {error}; {advice}", path.display())
    })?;
    match why_not_private(key, path, rustix::process::geteuid().as_raw()) {
        Some(why) => Err(why.into()),
        None => Ok(()),
    }
}

/// Why a replica that runs as `user` refuses the folder of the key `key`: others than that user and root may write in it.
pub fn why_not_private(key: &str, path: &Path, user: u32) -> Option<String> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) => return Some(format!("cannot look at {key} {}: {error}", path.display())),
    };
    let is_own = found.uid() == user || found.uid() == 0;
    (!is_own || found.mode() & OTHERS_WRITE != 0).then(|| {
        format!(
            "{key} {} can be written by others (its owner is {}, its mode {:o}; the replica runs as user {user}): use a \
             folder of its own, or 'chown' it to this user and 'chmod go-w' it",
            path.display(),
            found.uid(),
            found.mode() & 0o7777,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_in_which_others_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        folder("paths.run_dir", &path).unwrap();
        for mode in [0o770, 0o777, 0o1777] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = folder("paths.run_dir", &path).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{mode:o}")) && error.contains("chmod"),
                "{error}"
            );
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        folder("paths.run_dir", &path).unwrap();
        let owner = std::fs::metadata(&path).unwrap().uid();
        let of_another = why_not_private("paths.run_dir", &path, owner + 1);
        assert_eq!(of_another.is_none(), owner == 0, "{of_another:?}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(folder("paths.run_dir", &dir.path().join("file")).is_err());
    }
}

//! A replica's files are its own: other users of the host neither read nor plant any.
//!
//! All files are made with mode 0600 and all folders with 0700. Names in them are fixed, so a folder in which others may
//! write is refused: a link of theirs, in the place of a file, would lead a write elsewhere.

use crate::body::BoxError;
use rustix::fs::Mode;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The bits of a folder's mode by which others may write.
const OTHERS_WRITE: u32 = 0o022;

/// From now on this process makes files that only its user reads.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Creates the folder of the key `key`, unless it is there, and refuses one in which others may write.
pub(crate) fn folder(key: &str, path: &Path) -> Result<(), BoxError> {
    let cannot = |what: &str, error| format!("cannot {what} {key} {}: {error}", path.display());
    std::fs::create_dir_all(path).map_err(|error| {
        let advice =
            "make it and give it to the user that runs plover (the service: 'chown plover')";
        format!("{}; {advice}", cannot("create", error))
    })?;
    let found = std::fs::metadata(path).map_err(|error| cannot("look at", error))?;
    let me = rustix::process::geteuid();
    let is_own = found.uid() == me.as_raw() || found.uid() == 0;
    if !is_own || found.mode() & OTHERS_WRITE != 0 {
        return Err(format!(
            "{key} {} can be written by others (its owner is {}, its mode {:o}; this is user {}): use a folder of its own, \
             or 'chown' it to this user and 'chmod go-w' it",
            path.display(),
            found.uid(),
            found.mode() & 0o7777,
            me.as_raw(),
        )
        .into());
    }
    Ok(())
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
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(folder("paths.run_dir", &dir.path().join("file")).is_err());
    }
}

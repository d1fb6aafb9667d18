//! Files without a name, of which nothing is left when this process ends.

use std::fs::File;
use std::io;
use std::path::Path;

/// The free bytes of the file system that holds `dir`.
pub(crate) fn room(dir: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(dir)?;
    Ok(about.f_bavail * about.f_frsize)
}

/// A new file in `dir`. It has the name for a moment.
pub(crate) fn unnamed(dir: &Path, name: &str) -> io::Result<File> {
    let path = dir.join(name);
    let mut options = File::options();
    let open = options.read(true).write(true).create(true).truncate(true);
    let file = open.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

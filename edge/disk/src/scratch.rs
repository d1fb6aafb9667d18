//! Files without a name, of which nothing is left when this process ends.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// The free bytes of the file system that holds `dir`.
pub(crate) fn room(dir: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(dir)?;
    Ok(about.f_bavail * about.f_frsize)
}

/// A new file in `dir`. It has the name for a moment, with a number behind it: no other thread is given the same file.
pub(crate) fn unnamed(dir: &Path, name: &str) -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!("{name}.{number}"));
    let mut options = File::options();
    let open = options.read(true).write(true).create(true).truncate(true);
    let file = open.open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

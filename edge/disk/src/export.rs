//! Writes a disk that is served over NBD into an image of its own: a backup.
//!
//! `qemu-img` does it, confined as in [`crate::import`]: it has the connection and the new file, and nothing else.

use crate::error::{DiskError, io_error};
use crate::import::{confine, convert, inherit, said, tool_error};
use plover_confine::Files;
use rustix::fd::AsRawFd;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most that a qcow2 image takes of a disk that has no zeroes: its tables name each cluster of 64 KiB with 10 bytes.
fn image_bytes_max(disk_bytes: u64) -> u64 {
    disk_bytes + disk_bytes / 1024 + (16 << 20)
}

/// An image that a new one holds the changes to.
#[derive(Clone, Copy, Debug)]
pub struct Base<'a> {
    /// Its name, as seen from the folder of the new image.
    pub name: &'a str,
    /// Its folder, and those of the images that it holds the changes to in turn.
    pub folders: &'a [PathBuf],
}

/// Makes the qcow2 image `to` of the disk of `bytes` that `from` serves, as long as `goes_on`. With `base` only of what
/// `from` does not tell to be there. Calls `progress` with each finished percent.
///
/// # Errors
/// The disk cannot be read, there is no room, or the caller ended it. What was written of `to` is left to the caller.
pub fn export(
    from: UnixStream,
    bytes: u64,
    to: &Path,
    base: Option<Base<'_>>,
    progress: impl FnMut(u8),
    goes_on: impl FnMut() -> bool,
) -> Result<(), DiskError> {
    let cannot = || io_error("cannot write the backup", to);
    let to = &std::path::absolute(to).map_err(cannot())?;
    File::create(to).map_err(cannot())?;
    let fd = from.as_raw_fd();
    let source = format!(
        r#"json:{{"driver":"raw","file":{{"driver":"nbd","server":{{"type":"fd","str":"{fd}"}}}}}}"#
    );
    let mut command = Command::new("qemu-img");
    command
        .args(["convert", "-p", "-O", "qcow2"])
        .args(
            base.iter()
                .flat_map(|base| ["-B", base.name, "-F", "qcow2"]),
        )
        .args([source.as_ref(), to.as_os_str()]);
    inherit(&mut command, fd);
    let files = Files {
        read: base.map_or_else(Vec::new, |base| base.folders.to_vec()),
        write: vec![to.clone()],
    };
    confine(&mut command, to, &files, image_bytes_max(bytes))?;
    let done = convert(&mut command, progress, goes_on).map_err(tool_error(to))?;
    if !done.status.success() {
        return Err(DiskError::NotExported {
            path: to.clone(),
            why: said(&done),
        });
    }
    File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(cannot())
}

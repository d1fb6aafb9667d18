//! The files that hold keys.

use super::{Holder, KeyError, PrivateKey, PublicKey};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A key file or a trust file that is longer is not one.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Of a new trust file, whatever the caller's umask is.
const MODE: u32 = 0o644;
/// The first lines of a trust file.
const TRUST_FILE_BEGINS: &str = "\
# The public keys of the group's replicas, the same on all hosts: an id and a key a line; for clients of a log
# `client` or `admin` and a key. A key is added by `plover key trust`, and trusted until its line is removed.
";

/// Adds a line to a trust file, which is made if it is not there. `false` if the key was trusted already.
///
/// # Errors
/// The file cannot be read or written, or is no trust file.
pub fn trust(path: &Path, holder: Holder, key: PublicKey) -> Result<bool, KeyError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(failed("open the folder of", path, ""))?;
    // Of two at once, the second one reads what the first has written.
    match flock(&folder, FlockOperation::LockExclusive) {
        // A network's file system locks no folder.
        Ok(()) | Err(Errno::BADF | Errno::NOTSUP | Errno::NOLCK) => {}
        Err(error) => return Err(failed("lock the folder of", path, "")(error.into())),
    }
    let old = match read(path, "") {
        Err(KeyError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            TRUST_FILE_BEGINS.into()
        }
        old => old?,
    };
    if parse(path, &old)?.contains(&(holder, key)) {
        return Ok(false);
    }
    let newline = if old.is_empty() || old.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let text = format!("{old}{newline}{holder} {key}\n");
    // Replicas that run read this file: it is replaced whole.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = File::create(&new).and_then(|mut file| {
        // Public keys, which the user of the service has to read, whoever has added one.
        let mode = fs::metadata(path).map_or(MODE, |old| old.permissions().mode());
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        folder.sync_all()
    });
    written.map_err(failed("write", path, "")).map(|()| true)
}

/// Makes the keys of a new group: the private key of replica `n` in the file `private[n]`, and all public keys in
/// the file `trusted`.
///
/// # Errors
/// A file is there already, or cannot be written. The files that were made before are removed.
pub fn make_all(private: &[PathBuf], trusted: &Path) -> Result<(), KeyError> {
    let mut text = String::from(TRUST_FILE_BEGINS);
    let mut make = |id, path: &PathBuf| {
        let key = PrivateKey::generate().map_err(failed("draw a key for", path, ""))?;
        text += &format!("{id} {}\n", key.public());
        key.write_new(path)
    };
    let mut made = 0;
    let keys = private.iter().enumerate();
    let result = keys.into_iter().try_for_each(|(id, path)| {
        make(id, path)?;
        made += 1;
        Ok(())
    });
    let result = result.and_then(|()| {
        let advice = "; a trust file that is there is never overwritten";
        write_new(trusted, text.as_bytes(), MODE, advice)
    });
    if result.is_err() {
        for path in &private[..made] {
            let _ = fs::remove_file(path);
        }
    }
    result
}

/// Writes a file that must not be there, whole or not at all, and durably. If it is, the error has this advice.
pub(super) fn write_new(
    path: &Path,
    content: &[u8],
    mode: u32,
    advice: &'static str,
) -> Result<(), KeyError> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(mode).open(path);
    let mut file = made.map_err(|error| {
        let is_there = error.kind() == io::ErrorKind::AlreadyExists;
        failed("write", path, if is_there { advice } else { "" })(error)
    })?;
    // The umask of root is often one that leaves the service's user out, who reads the public keys.
    let written = match mode {
        MODE => file.set_permissions(Permissions::from_mode(mode)),
        _ => Ok(()),
    };
    let written = written.and_then(|()| file.write_all(content));
    let written = written.and_then(|()| file.sync_all());
    written.map_err(|error| {
        let _ = fs::remove_file(path);
        failed("write", path, "")(error)
    })
}

/// The ids and keys of a trust file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<(Holder, PublicKey)>, KeyError> {
    let lines = content(text).map(|(number, line)| {
        let mut words = line.split_whitespace();
        let words = (words.next(), words.next(), words.next());
        let entry = match words {
            (Some(holder), Some(key), None) => {
                holder.parse().and_then(|holder| Ok((holder, key.parse()?)))
            }
            _ => Err("a line has a replica's id, `client` or `admin`, and a public key".into()),
        };
        entry.map_err(|why| KeyError::Form {
            path: path.into(),
            why: format!("line {number}: {why}"),
        })
    });
    lines.collect()
}

/// The lines that are not empty and no comments, with their numbers.
pub(super) fn content(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .map(|(n, line)| (n + 1, line))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

pub(super) fn read(path: &Path, advice: &'static str) -> Result<String, KeyError> {
    let mut text = String::new();
    let file =
        File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    file.map_err(failed("read", path, advice))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(KeyError::Form {
            path: path.into(),
            why: format!(
                "it has more than {FILE_BYTES_MAX} bytes: remove the lines that nobody needs"
            ),
        });
    }
    Ok(text)
}

pub(super) fn failed(
    what: &'static str,
    path: &Path,
    advice: &'static str,
) -> impl FnOnce(io::Error) -> KeyError {
    move |source| KeyError::File {
        what,
        path: path.into(),
        source,
        advice,
    }
}

//! Programs that the preloaded library cannot see: found by their file, before they start.

use rustix::fs::getxattr;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most bytes of a program's note that are looked at.
const NOTE_BYTES_MAX: usize = 4096;
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;
const SET_ID: u32 = 0o6000;

/// Why the program of these words cannot be replicated through a preloaded library, as one sentence.
pub(crate) fn refuse(words: &[OsString]) -> Result<(), String> {
    let Some(path) = words.first().and_then(|name| find(Path::new(name))) else {
        return Ok(()); // The start says it.
    };
    let why = match why(&path) {
        Ok(None) => return Ok(()),
        Ok(Some(why)) => why,
        Err(error) => format!("cannot be read ({error})"),
    };
    Err(format!(
        "{} {why}, so the library of program.via = \"preload\" would not see its connections: use program.via = \
         \"proxy\"",
        path.display()
    ))
}

fn find(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

fn why(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    if file.metadata()?.mode() & SET_ID != 0 {
        return Ok(Some("is set-user-id or set-group-id".into()));
    }
    if getxattr(path, "security.capability", &mut [0_u8; 64][..]).is_ok() {
        return Ok(Some("has file capabilities".into()));
    }
    let mut head = [0; 64];
    let count = file.read(&mut head)?;
    if head.starts_with(b"#!") {
        let line = head[2..count].split(|it| *it == b'\n').next();
        let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
        let interpreter = line.split_whitespace().next().map(PathBuf::from);
        return match interpreter {
            Some(interpreter) if interpreter != path => why_binary(&interpreter),
            _ => Ok(None),
        };
    }
    why_binary(path)
}

fn why_binary(path: &Path) -> io::Result<Option<String>> {
    let mut file = File::open(path)?;
    let mut head = [0; 64];
    if file.read(&mut head)? < 64 || !head.starts_with(b"\x7fELF") || head[4] != 2 {
        return Ok(Some("is no 64-bit ELF program".into()));
    }
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let long = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let mut interpreter = None;
    for number in 0..u64::from(half(&head, 56)) {
        let mut entry = [0; 56];
        let at = long(&head, 32).saturating_add(number * u64::from(half(&head, 54)));
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut entry)?;
        let kind = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        if kind != INTERPRETER && kind != NOTE {
            continue;
        }
        let bytes = (long(&entry, 32) as usize).min(NOTE_BYTES_MAX);
        let mut content = vec![0; bytes];
        file.seek(SeekFrom::Start(long(&entry, 8)))?;
        file.read_exact(&mut content)?;
        if kind == INTERPRETER {
            interpreter = Some(String::from_utf8_lossy(&content).into_owned());
        } else if content.windows(4).any(|it| it == b"Go\0\0") {
            return Ok(Some(
                "is written in Go, which calls the kernel itself".into(),
            ));
        }
    }
    Ok(match interpreter {
        None => Some("is linked statically".into()),
        Some(name) if name.contains("musl") => Some("uses musl, another C library".into()),
        Some(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_the_library_cannot_see_is_refused() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(refuse(&[own.clone().into()]), Ok(()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::copy(&own, &path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
        let error = refuse(&[path.clone().into()]).unwrap_err();
        assert!(
            error.contains("set-user-id") && error.contains("\"proxy\""),
            "{error}"
        );
        // The same program without its interpreter, as a static one.
        let mut bytes = std::fs::read(&own).unwrap();
        let table = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        for entry in 0..usize::from(bytes[56]) {
            let at = table + 56 * entry;
            if bytes[at] == 3 {
                bytes[at] = 0;
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(
            refuse(&[path.clone().into()])
                .unwrap_err()
                .contains("statically")
        );
        std::fs::write(&path, "#!/nowhere/at/all\n").unwrap();
        assert!(
            refuse(&[path.into()])
                .unwrap_err()
                .contains("cannot be read")
        );
    }
}

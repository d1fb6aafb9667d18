//! Checkpoints as files, and the program's directory.
//!
//! ```text
//!   STATE_DIR/data/                                     the program's directory
//!   STATE_DIR/checkpoints/VIEW-INDEX-TAKER-SUM.tar      the newest checkpoint
//!   STATE_DIR/checkpoints/*.new                         one that is being made; removed at a start
//! ```
//!
//! A checkpoint is an archive of the program's directory, made by `tar`, and of one file more, with what else belongs
//! to it ([`State`]). Its name says all about it.

use plover_program::{Own, State};
use plover_types::{Index, ReplicaId, View, Viewstamp};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The file of a checkpoint's state, in the archive.
const STATE: &str = ".plover-state.new";

/// The directories of one replica.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub data: PathBuf,
    pub checkpoints: PathBuf,
}

impl Files {
    /// Makes the directories, and removes what an earlier process has left half done.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        // `tar` is told two directories, and takes the second one from the first.
        let state_dir = std::path::absolute(state_dir)?;
        let files = Self {
            data: state_dir.join("data"),
            checkpoints: state_dir.join("checkpoints"),
        };
        std::fs::create_dir_all(&files.data)?;
        std::fs::create_dir_all(&files.checkpoints)?;
        // Logins are in there.
        let own = Permissions::from_mode(0o700);
        std::fs::set_permissions(&files.checkpoints, own)?;
        for entry in std::fs::read_dir(&files.checkpoints)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "new") {
                std::fs::remove_file(path)?;
            }
        }
        Ok(files)
    }

    /// The newest checkpoint; older ones are removed.
    pub fn newest(&self) -> io::Result<Option<Own>> {
        let mut all = self.all()?;
        all.sort_by_key(|own| own.at);
        let newest = all.pop();
        for old in all {
            self.remove(&old);
        }
        Ok(newest)
    }

    fn all(&self) -> io::Result<Vec<Own>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.checkpoints)? {
            let entry = entry?;
            if let Some(mut own) = parse(&entry.file_name().to_string_lossy()) {
                own.bytes = entry.metadata()?.len();
                all.push(own);
            }
        }
        Ok(all)
    }

    pub fn path(&self, own: &Own) -> PathBuf {
        let (view, index) = (own.at.view.0, own.at.index.0);
        let sum: String = own.sum.iter().map(|byte| format!("{byte:02x}")).collect();
        self.checkpoints
            .join(format!("{view}-{index}-{}-{sum}.tar", own.taken_by.0))
    }

    /// The one at `at`, if it is here.
    pub fn find(&self, at: Viewstamp) -> Option<Own> {
        self.all().ok()?.into_iter().find(|own| own.at == at)
    }

    pub fn remove(&self, own: &Own) {
        let _ = std::fs::remove_file(self.path(own));
    }

    /// A file for a checkpoint that is being made.
    pub fn unfinished(&self, what: &str) -> PathBuf {
        self.checkpoints.join(format!("{what}.new"))
    }

    /// The file at `new` is the checkpoint at `at`: gives it its name, durably.
    pub fn finish(&self, new: &Path, at: Viewstamp, taken_by: ReplicaId) -> io::Result<Own> {
        let file = File::open(new)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        let own = Own {
            at,
            taken_by,
            bytes,
            sum: sum_of(new)?,
        };
        std::fs::rename(new, self.path(&own))?;
        File::open(&self.checkpoints)?.sync_all()?;
        Ok(own)
    }

    /// Archives the program's directory as the file `new`.
    pub fn archive(&self, new: &Path, state: &State, deadline: Instant) -> Result<(), String> {
        let file = self.checkpoints.join(STATE);
        std::fs::write(&file, state.encode())
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        let mut tar = Command::new("tar");
        let theirs = format!("--exclude=./{STATE}");
        tar.arg("-cf").arg(new).arg(theirs);
        tar.arg("-C").arg(&self.data).arg(".");
        tar.arg("-C").arg(&self.checkpoints).arg(STATE);
        complete(tar, deadline)?;
        let _ = std::fs::remove_file(file);
        Ok(())
    }

    /// Unpacks an archive into the program's directory.
    pub fn unpack(&self, path: &Path, deadline: Instant) -> Result<State, String> {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(path).arg("-C").arg(&self.data);
        complete(tar, deadline)?;
        let file = self.data.join(STATE);
        let state = std::fs::read(&file).ok();
        let _ = std::fs::remove_file(&file);
        let state = state.and_then(|bytes| State::decode(&bytes));
        state.ok_or_else(|| format!("{} is of another release of plover", path.display()))
    }

    /// Empties the program's directory.
    pub fn empty(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.data)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Reads a file's name.
fn parse(name: &str) -> Option<Own> {
    let mut parts = name.strip_suffix(".tar")?.split('-');
    let view = View(parts.next()?.parse().ok()?);
    let index = Index(parts.next()?.parse().ok()?);
    let taken_by = ReplicaId(parts.next()?.parse().ok()?);
    let hex = parts.next().filter(|it| it.len() == 64 && it.is_ascii())?;
    let mut sum = [0; 32];
    for (at, byte) in sum.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    let at = Viewstamp { view, index };
    Some(Own {
        at,
        taken_by,
        bytes: 0,
        sum,
    })
}

/// The checksum of a file.
pub(crate) fn sum_of(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            count => drop(hasher.update(&bytes[..count])),
        }
    }
}

/// Runs a command to its end, at most until `deadline`. An error says what it printed last.
pub(crate) fn complete(mut command: Command, deadline: Instant) -> Result<(), String> {
    let name = format!("{command:?}");
    let log = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC);
    let log = File::from(log.map_err(|e| format!("cannot keep the output of {name}: {e}"))?);
    let clone = || {
        log.try_clone()
            .map_err(|e| format!("cannot keep the output of {name}: {e}"))
    };
    command
        .stdin(Stdio::null())
        .stdout(clone()?)
        .stderr(clone()?);
    crate::program::die_with_us(&mut command);
    let mut child = command
        .spawn()
        .map_err(|e| format!("cannot run {name}: {e}"))?;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => {
                crate::program::kill_group(child.id());
                let _ = child.wait();
                return Err(format!("{name} did not end in time (program.snapshot_s)"));
            }
            Err(error) => return Err(format!("cannot wait for {name}: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    let mut log = log;
    let _ = io::Seek::rewind(&mut log);
    let _ = log.take(4096).read_to_string(&mut said);
    let last = said.lines().last().unwrap_or("it said nothing");
    Err(format!("{name} failed ({status}): {last}"))
}

/// Copies exactly `bytes` bytes.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write, bytes: u64) -> io::Result<()> {
    match io::copy(&mut from.take(bytes), to)? {
        count if count == bytes => Ok(()),
        count => Err(io::Error::other(format!(
            "only {count} of {bytes} bytes came"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_known_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        assert_eq!(files.newest().unwrap(), None);
        let make = |index, text: &str| {
            let new = files.unfinished("taken");
            std::fs::write(&new, text).unwrap();
            let at = Viewstamp {
                view: View(33),
                index: Index(index),
            };
            files.finish(&new, at, ReplicaId(2)).unwrap()
        };
        let first = make(7, "one");
        let second = make(8, "another");
        assert_eq!(files.newest().unwrap().as_ref(), Some(&second));
        assert!(!files.path(&first).exists(), "older ones are removed");
        std::fs::write(files.unfinished("half"), "x").unwrap();
        std::fs::write(files.checkpoints.join("notes.tar"), "x").unwrap();
        let again = Files::open(dir.path()).unwrap();
        assert_eq!(again.newest().unwrap(), Some(second));
        assert!(!files.unfinished("half").exists());
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let soon = || Instant::now() + Duration::from_secs(60);
        let shell = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        assert_eq!(complete(shell("true"), soon()), Ok(()));
        let failed = complete(shell("echo no space; exit 3"), soon()).unwrap_err();
        assert!(failed.contains("no space"), "{failed}");
        let late = complete(shell("sleep 100"), Instant::now()).unwrap_err();
        assert!(late.contains("snapshot_s"), "{late}");
    }
}

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
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
        // A program that runs as another user may be given it.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700).create(&files.data)?;
        // Logins are in there.
        own_folder(&files.checkpoints)?;
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
    pub fn unfinished(&self, what: &str) -> Unfinished {
        let path = self.checkpoints.join(format!("{what}.new"));
        Unfinished { path }
    }

    /// The file `new` is the checkpoint at `at`: gives it its name, durably.
    pub fn finish(&self, new: Unfinished, at: Viewstamp, taken_by: ReplicaId) -> io::Result<Own> {
        let file = File::open(&new.path)?;
        file.sync_all()?;
        let bytes = file.metadata()?.len();
        let own = Own {
            at,
            taken_by,
            bytes,
            sum: sum_of(&new.path)?,
        };
        std::fs::rename(&new.path, self.path(&own))?;
        File::open(&self.checkpoints)?.sync_all()?;
        Ok(own)
    }

    /// Archives the program's directory as the file `new`.
    pub fn archive(&self, new: &Path, state: &State, limit: &Limit) -> Result<(), String> {
        let file = self.checkpoints.join(STATE);
        let state = std::fs::write(&file, state.encode())
            .map_err(|e| format!("cannot write {}: {e}", file.display()));
        let archived = state.and_then(|()| {
            let mut tar = Command::new("tar");
            let theirs = format!("--exclude=./{STATE}");
            tar.arg("-cf").arg(new).arg(theirs);
            tar.arg("-C").arg(&self.data).arg(".");
            tar.arg("-C").arg(&self.checkpoints).arg(STATE);
            complete_within(tar, limit, "snapshot_s")
        });
        let _ = std::fs::remove_file(file);
        archived
    }

    /// Unpacks an archive into the program's directory. `None`: it is of another release.
    pub fn unpack(&self, path: &Path, deadline: Instant) -> Result<Option<State>, String> {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(path).arg("-C").arg(&self.data);
        complete(tar, deadline, "snapshot_s")?;
        let file = self.data.join(STATE);
        let state = std::fs::read(&file).ok();
        let _ = std::fs::remove_file(&file);
        Ok(state.and_then(|bytes| State::decode(&bytes)))
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

/// Creates a folder, unless it is there, that only the user of this process enters. The umask does not see to that, because the
/// program inherits it.
pub(crate) fn own_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// A file that is removed again unless it is [finished](Files::finish): half a checkpoint would keep a full disk full.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub path: PathBuf,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
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

/// How much of the end of a command's output is looked at.
const SAID_BYTES: u64 = 4096;

/// How long a command may run.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub deadline: Instant,
    /// Nobody wants what it makes any more.
    pub is_called_off: Arc<AtomicBool>,
}

/// Runs a command to its end, at most until `deadline`, which is that of the key `key`. An error says what it printed last.
pub(crate) fn complete(command: Command, deadline: Instant, key: &str) -> Result<(), String> {
    let is_called_off = Arc::default();
    let limit = Limit {
        deadline,
        is_called_off,
    };
    complete_within(command, &limit, key)
}

/// [`complete`], unless it is called off.
pub(crate) fn complete_within(
    mut command: Command,
    limit: &Limit,
    key: &str,
) -> Result<(), String> {
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
            Ok(None) => {
                let is_called_off = limit.is_called_off.load(Ordering::Relaxed);
                if !is_called_off && Instant::now() < limit.deadline {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                crate::program::kill_group(child.id());
                crate::program::reap(child);
                return Err(match is_called_off {
                    true => format!("{name} was called off"),
                    false => format!("{name} did not end in time (program.{key})"),
                });
            }
            Err(error) => return Err(format!("cannot wait for {name}: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    let last = last_line(log).unwrap_or_else(|| "it said nothing".into());
    Err(format!("{name} failed ({status}): {last}"))
}

/// The last line that is not empty.
fn last_line(mut log: File) -> Option<String> {
    let bytes = log.metadata().ok()?.len();
    let from = bytes.saturating_sub(SAID_BYTES);
    log.seek(SeekFrom::Start(from)).ok()?;
    let mut said = Vec::new();
    log.read_to_end(&mut said).ok()?;
    let said = String::from_utf8_lossy(&said);
    let mut lines = said.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty()).map(str::to_owned)
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
            std::fs::write(&new.path, text).unwrap();
            let at = Viewstamp {
                view: View(33),
                index: Index(index),
            };
            files.finish(new, at, ReplicaId(2)).unwrap()
        };
        let first = make(7, "one");
        let second = make(8, "another");
        assert_eq!(files.newest().unwrap().as_ref(), Some(&second));
        assert!(!files.path(&first).exists(), "older ones are removed");
        let half = files.unfinished("half");
        std::fs::write(&half.path, "x").unwrap();
        drop(half);
        assert!(
            !files.checkpoints.join("half.new").exists(),
            "it was given up"
        );
        // That of a process that was killed.
        std::fs::write(files.checkpoints.join("half.new"), "x").unwrap();
        std::fs::write(files.checkpoints.join("notes.tar"), "x").unwrap();
        let again = Files::open(dir.path()).unwrap();
        assert_eq!(again.newest().unwrap(), Some(second));
        assert!(!files.checkpoints.join("half.new").exists());
    }

    #[test]
    fn other_users_read_no_input_of_clients() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::create_dir(&log).unwrap();
        own_folder(&log).unwrap();
        let files = Files::open(dir.path()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in [&log, &files.data, &files.checkpoints] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        // As the program's user needs it.
        std::fs::set_permissions(&files.data, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(mode(&Files::open(dir.path()).unwrap().data), 0o755);
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let soon = || Instant::now() + Duration::from_secs(60);
        let shell = |text: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            command
        };
        let complete = |text, until| complete(shell(text), until, "snapshot_s");
        assert_eq!(complete("true", soon()), Ok(()));
        let failed = complete("echo no space; exit 3", soon()).unwrap_err();
        assert!(failed.ends_with(": no space"), "{failed}");
        let long = "seq 5000; printf 'caf\\351 is full\\n\\n'; exit 3";
        let failed = complete(long, soon()).unwrap_err();
        assert!(failed.ends_with(" is full"), "{failed}");
        let called_off = Limit {
            deadline: soon(),
            is_called_off: Arc::new(true.into()),
        };
        let ended = complete_within(shell("sleep 100"), &called_off, "snapshot_s").unwrap_err();
        assert!(ended.contains("called off"), "{ended}");
        let late = complete("sleep 100", Instant::now()).unwrap_err();
        assert!(late.contains("snapshot_s"), "{late}");
    }
}

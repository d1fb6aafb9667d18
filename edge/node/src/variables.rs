//! The guest's UEFI variables, in a file that outlives its machine.
//!
//! They are a part of the guest's memory, which syncvms make equal on both hosts (docs/firmware.md). Each host also keeps
//! them beside its disks: a guest that boots on a new machine, after all replicas have ended, starts with them.
//!
//! The loop looks once a second whether they have changed, so the file is at most a second or two behind. A thread writes
//! it, whose disk may hang.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use plover_types::Micros;
use plover_vm::{Firmware, QemuVm};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

/// The name in `paths.state_dir` of the file with the guest's UEFI variables.
pub const UEFI_VARIABLES: &str = "uefi-variables.fd";

/// How often the loop looks for changes. It does not wake for it, because heartbeats wake it.
const LOOK_EVERY: Micros = Micros::from_ms(1000);

/// How long the thread waits before it tries again to write what it could not.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The content of flash memory as text, for the description of a backup. It is compressed, since most of it is erased.
pub(crate) fn to_text(flash: &[u8]) -> io::Result<String> {
    Ok(BASE64_STANDARD.encode(zstd::encode_all(flash, 0)?))
}

/// Reads what [`to_text`] has written.
///
/// # Errors
/// These are no UEFI variables.
pub fn uefi_variables_of(text: &str) -> io::Result<Vec<u8>> {
    let bad = || io::Error::other("these are no UEFI variables");
    let packed = BASE64_STANDARD.decode(text).map_err(|_| bad())?;
    let most = Firmware::FLASH_BYTES as u64 + 1;
    let mut flash = Vec::new();
    zstd::Decoder::new(&packed[..])?
        .take(most)
        .read_to_end(&mut flash)?;
    match flash.len() {
        Firmware::FLASH_BYTES => Ok(flash),
        _ => Err(bad()),
    }
}

/// The variables of one replica's guest.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    /// The newest that the thread has got, or was found in the file; empty before there are any.
    newest: Vec<u8>,
    looked_at: Micros,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    to_write: SyncSender<Vec<u8>>,
    /// Ends with the thread.
    ended: Receiver<()>,
}

impl Variables {
    /// Reads what the last guest has left in `state_dir`. Without UEFI there are none.
    ///
    /// # Errors
    /// The file cannot be read, or holds no variables.
    pub(crate) fn open(state_dir: &Path, firmware: Firmware) -> io::Result<Self> {
        if !firmware.is_uefi() {
            return Ok(Self::default());
        }
        let path = state_dir.join(UEFI_VARIABLES);
        let said = |error: io::Error| {
            let text = format!("cannot use the UEFI variables {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        let newest = match std::fs::read(&path) {
            Ok(bytes) if bytes.len() == Firmware::FLASH_BYTES => bytes,
            Ok(bytes) => {
                return Err(said(io::Error::other(format!(
                    "the file has {} bytes, and OVMF's image of 4 MiB keeps its variables in {}: put such a file there, \
                     or move it away, and the guest starts with those of a new machine",
                    bytes.len(),
                    Firmware::FLASH_BYTES
                ))));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(said(error)),
        };
        Ok(Self {
            newest,
            looked_at: Micros::ZERO,
            thread: Some(Thread::start(path.clone()).map_err(said)?),
        })
    }

    /// The flash memory for a guest that boots; empty for a new machine's.
    pub(crate) fn newest(&self) -> Vec<u8> {
        self.newest.clone()
    }

    /// Has the variables of this guest written if they have changed, and a second has passed since the last look.
    pub(crate) fn look(&mut self, now: Micros, vm: &QemuVm) {
        if self.thread.is_some() && now >= self.looked_at + LOOK_EVERY {
            self.looked_at = now;
            self.keep(vm);
        }
    }

    /// Has them written if they have changed.
    pub(crate) fn keep(&mut self, vm: &QemuVm) {
        let Some(thread) = &self.thread else { return };
        let flash = vm.flash();
        // A guest that writes them at this moment is left until the next look. OVMF finds its way back from a store that
        // lost power at any moment, but not from one that was read at two.
        if flash == self.newest || flash != vm.flash() {
            return;
        }
        // While one still waits for its disk there is no room, and a later look finds the newest.
        if thread.to_write.try_send(flash.clone()).is_ok() {
            self.newest = flash;
        }
    }
}

impl Thread {
    fn start(path: PathBuf) -> io::Result<Self> {
        let (to_write, wanted) = sync_channel::<Vec<u8>>(1);
        let (ending, ended) = channel();
        let write = move || {
            let _ending = ending;
            while let Ok(bytes) = wanted.recv() {
                persist(&path, bytes, &wanted);
            }
        };
        let thread = std::thread::Builder::new().name("uefi-variables".into());
        thread.spawn(write)?;
        Ok(Self { to_write, ended })
    }
}

impl Drop for Variables {
    /// Lets the last ones be written, unless their disk hangs.
    fn drop(&mut self) {
        if let Some(Thread { to_write, ended }) = self.thread.take() {
            drop(to_write);
            let _ = ended.recv_timeout(Duration::from_secs(1));
        }
    }
}

/// Writes `bytes`, or those that are `wanted` since, until it succeeds.
fn persist(path: &Path, mut bytes: Vec<u8>, wanted: &Receiver<Vec<u8>>) {
    let mut failed = false;
    loop {
        match replace(path, &bytes) {
            Ok(()) => return,
            Err(error) if !failed => {
                failed = true;
                tracing::warn!(
                    event = "variables_not_kept",
                    %error,
                    "the guest's UEFI variables cannot be written to {}: {error}; they are kept in memory, and this is tried \
                     again every few seconds",
                    path.display()
                );
            }
            Err(_) => {}
        }
        match wanted.recv_timeout(AGAIN_AFTER) {
            Ok(newer) => bytes = newer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Gives the file another content, as a whole and durably.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = File::options();
    options.create(true).write(true).truncate(true).mode(0o600);
    let mut file = options.open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_size_is_refused_and_one_that_fits_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let open = |firmware| Variables::open(dir.path(), firmware);
        assert!(open(Firmware::Uefi).unwrap().newest().is_empty());
        let path = dir.path().join(UEFI_VARIABLES);
        std::fs::write(&path, [0xff; 100]).unwrap();
        let refused = open(Firmware::Uefi).unwrap_err().to_string();
        assert!(refused.contains("100 bytes"), "{refused}");
        assert!(open(Firmware::Bios).unwrap().newest().is_empty());
        std::fs::write(&path, vec![0xff; Firmware::FLASH_BYTES]).unwrap();
        assert_eq!(
            open(Firmware::UefiSecure).unwrap().newest().len(),
            Firmware::FLASH_BYTES
        );
    }

    #[test]
    fn variables_are_short_text() {
        let mut flash = vec![0xff; Firmware::FLASH_BYTES];
        flash[..3].copy_from_slice(b"one");
        let text = to_text(&flash).unwrap();
        assert!(text.len() < 1000, "{}", text.len());
        assert_eq!(uefi_variables_of(&text).unwrap(), flash);
        let other = to_text(&flash[1..]).unwrap();
        for bad in [&text[..20], "?", &other] {
            assert!(uefi_variables_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_newest_are_written_once_the_disk_takes_them() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let path = folder.join(UEFI_VARIABLES);
        let thread = Thread::start(path.clone()).unwrap();
        // There is no folder yet, so the first ones fail, and are given up for the second.
        thread.to_write.send(vec![1; 5]).unwrap();
        thread.to_write.send(vec![2; 5]).unwrap();
        std::fs::create_dir(&folder).unwrap();
        while std::fs::read(&path).unwrap_or_default() != [3; 5] {
            let _ = thread.to_write.try_send(vec![3; 5]);
            std::thread::yield_now();
        }
    }
}

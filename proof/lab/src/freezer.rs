//! A file system that hangs when a test wants it to.

use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in a file. Dropping it lets it go on, and removes it.
#[derive(Debug)]
pub struct Freezer {
    at: PathBuf,
}

impl Freezer {
    /// Mounts one of `mib` MiB at `at`, which is made.
    ///
    /// # Errors
    /// It cannot be made: mounting takes root and a loop device.
    pub fn new(at: PathBuf, mib: u64) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let image = at.with_extension("img");
        std::fs::File::create(&image)?.set_len(mib << 20)?;
        // Some users do not have it in their PATH.
        run(Command::new("/sbin/mkfs.ext4")
            .args(["-q", "-F"])
            .arg(&image))?;
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&at))?;
        Ok(Self { at })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// From now on, whoever writes waits.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn freeze(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-f").arg(&self.at))
    }

    /// Those who wait go on.
    ///
    /// # Errors
    /// It was not frozen.
    pub fn thaw(&self) -> Result<()> {
        run(Command::new("fsfreeze").arg("-u").arg(&self.at))
    }
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.status()?;
    ensure!(done.success(), "{command:?} failed: {done}");
    Ok(())
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let mut thaw = Command::new("fsfreeze");
        let _ = thaw.arg("-u").arg(&self.at).output();
        // Lazily: a replica may still have its files there.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = std::fs::remove_dir(&self.at);
    }
}

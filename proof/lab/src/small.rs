//! A file system that fills up when a test wants it to.

use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory of a given size. Dropping it removes it.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts one of `mib` MiB at `at`, which is made.
    ///
    /// # Errors
    /// It cannot be made: mounting takes root.
    pub fn new(at: PathBuf, mib: u32) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let this = Self { at };
        this.mount(&format!("size={mib}m,mode=700"))?;
        Ok(this)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Makes it larger, or smaller.
    ///
    /// # Errors
    /// The file system holds more than that.
    pub fn resize(&self, mib: u32) -> Result<()> {
        self.mount(&format!("remount,size={mib}m"))
    }

    fn mount(&self, options: &str) -> Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]);
        let done = command.arg(&self.at).status()?;
        ensure!(done.success(), "mount -o {options} failed");
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a replica may still have its files there.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = std::fs::remove_dir(&self.at);
    }
}

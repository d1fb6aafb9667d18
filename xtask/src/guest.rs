//! The guest images: when to run `guests/build`, which makes them.

use crate::packages;
use crate::run::{self, Result};
use anyhow::bail;
use std::process::Command;

/// The guest that is booted where no other is named.
pub(crate) const DEFAULT: &str = "redis";

/// The guest that is a disk image, made by another script.
pub(crate) const DISK: &str = "debian";

/// Builds the image of a guest, if missing or stale. The programs find it in the cache.
///
/// `guests/build` returns at once when there is nothing to do. When it fails, the usual reason is
/// that apt's lists are missing or name a kernel that the mirror has replaced; they are then
/// updated, once, where we may.
pub(crate) fn build(name: &str) -> Result<()> {
    let script = run::root().join("guests/build");
    let succeeds = || -> Result<bool> {
        // Its progress is not our output: with `--json`, the standard output belongs to the program that
        // replaces us.
        let status = Command::new(&script)
            .arg(name)
            .stdout(std::io::stderr())
            .status();
        Ok(status
            .map_err(|error| anyhow::anyhow!("cannot run {}: {error}", script.display()))?
            .success())
    };
    if !recipes()?.iter().any(|recipe| recipe == name) {
        bail!(
            "there is no guest '{name}'; there are {}",
            recipes()?.join(", ")
        );
    }
    if !succeeds()? {
        if !packages::can_install() {
            bail!("the guest image could not be built: see above");
        }
        packages::update()?;
        if !succeeds()? {
            bail!("the guest image could not be built, even with apt's newest lists: see above");
        }
    }
    Ok(())
}

/// Builds the disk image with a whole Debian, if missing or stale.
pub(crate) fn build_disk() -> Result<()> {
    let script = run::root().join("guests/build-disk");
    // As above: its progress is not our output.
    run::finish(Command::new(script).stdout(std::io::stderr()))
}

/// The path of Debian 13's QEMU, after it has been fetched if it is missing.
pub(crate) fn newer_qemu() -> Result<String> {
    let mut script = Command::new(run::root().join("guests/newer-qemu"));
    Ok(run::output_of(&mut script)?.trim().to_owned())
}

/// The names of all guests that run from memory, in alphabetical order.
pub(crate) fn recipes() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(run::root().join("guests"))? {
        let entry = entry?;
        let is_guest = |file: &str| entry.path().join(file).exists();
        if is_guest("recipe") || is_guest("build") {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

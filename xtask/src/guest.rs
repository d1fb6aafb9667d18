//! The guest image: `guests/build` knows how, this decides when.

use crate::packages;
use crate::run::{self, Result};
use anyhow::bail;
use std::path::PathBuf;
use std::process::Command;

/// The folder with `kernel` and `initrd`, built if missing or stale.
///
/// `guests/build` returns at once when there is nothing to do. When it fails, the usual reason is
/// that apt's lists are missing or name a kernel that the mirror has replaced; they are then
/// updated, once, where we may.
pub(crate) fn build() -> Result<PathBuf> {
    let script = run::root().join("guests/build");
    let succeeds = || -> Result<bool> {
        // Its progress is not our output: with `--json` that belongs to the program we become.
        let status = Command::new(&script).stdout(std::io::stderr()).status();
        Ok(status
            .map_err(|error| anyhow::anyhow!("cannot run {}: {error}", script.display()))?
            .success())
    };
    if !succeeds()? {
        if !packages::can_install() {
            bail!("the guest image could not be built: see above");
        }
        packages::update()?;
        if !succeeds()? {
            bail!("the guest image could not be built, even with apt's newest lists: see above");
        }
    }
    let printed = run::output_of(Command::new(&script).arg("--path"))?;
    Ok(PathBuf::from(printed.trim_end()))
}

//! Guest images, and the programs built beside them, in `.cache/guests` of the repository.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository that this program was built from.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds a guest's image, if it is missing or stale. `./x` has already built the default one.
pub(crate) fn build(guest: &str) -> Result<()> {
    if guest == "redis" {
        return Ok(());
    }
    let script = repository().join("guests/build");
    let output = Command::new(&script)
        .arg(guest)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", script.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        bail!("`guests/build {guest}` failed ({}): {last}", output.status);
    }
    Ok(())
}

/// The client that comes with a guest, of the server's own version, or else the system's.
pub(super) fn client(guest: &str, program: &str) -> String {
    let folder = repository().join(".cache/guests").join(guest);
    let path = folder.join("client").join(program);
    match path.exists() {
        true => path.display().to_string(),
        false => program.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_built_is_named() {
        let error = build("no-such-guest").unwrap_err().to_string();
        assert!(error.contains("guests/build no-such-guest"), "{error}");
        assert_eq!(client("no-such-guest", "psql"), "psql");
    }
}

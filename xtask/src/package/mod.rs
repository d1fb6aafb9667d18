//! `./x package`: the packages of Debian and of Fedora, by `[package.metadata.deb]` and `[package.metadata.generate-rpm]`
//! in app/plover/Cargo.toml.
//!
//! ```text
//!   plover, all features ──────────────▶ target/package/plover-lab   the lab's package: it starts replicas from itself
//!      └─ plover pages ────────────────▶ target/package/man, complete
//!   guests/metal ──────────────────────▶ .cache/guests/metal/kernel: for `plover check --guest`
//!   plover, without the lab ───────────▶ target/package/plover
//!              cargo-deb ──────────────▶ target/debian/plover_….deb, plover-lab_….deb
//!              cargo-generate-rpm ─────▶ target/generate-rpm/plover-….rpm, plover-lab-….rpm
//! ```

mod rpm;

use crate::guest;
use crate::packages::{self, PACKAGE};
use crate::run::{self, Cargo, Result};
use crate::tool::Tool;
use anyhow::bail;
use std::path::Path;
use std::process::{Command, ExitCode};

const CARGO_DEB: Tool = Tool {
    name: "cargo-deb",
    version: "3.8.0",
    before_version: "cargo-deb ",
    options: &[],
};

/// Builds both packages in both forms, and prints their paths.
pub(crate) fn build() -> Result<ExitCode> {
    packages::ensure(&[PACKAGE])?;
    // For `plover check --guest`.
    guest::build("metal")?;
    let cargo_deb = CARGO_DEB.path()?;
    let folder = run::root().join("target/package");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;

    // The whole program last: `./x lab` and tests expect it at the usual place.
    program(&["--no-default-features"], &folder.join("plover"))?;
    let whole = folder.join("plover-lab");
    program(&[], &whole)?;
    run::finish(Command::new(&whole).arg("pages").arg(&folder))?;
    move_lab_pages(&folder)?;

    for variant in [None, Some("--variant=lab")] {
        let mut deb = Command::new(&cargo_deb);
        deb.args(["--no-build", "--quiet", "--manifest-path"]);
        deb.arg(run::root().join("app/plover/Cargo.toml"));
        deb.args(variant);
        run::finish(&mut deb)?;
    }
    rpm::build(&folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the program with these features and leaves it, without what only a debugger reads, at `to`.
fn program(features: &[&str], to: &Path) -> Result<()> {
    let built = Cargo::new("build")
        .args(["--locked", "-p", "plover", "--bin", "plover"])
        .args(features)
        .succeeds()?;
    if !built {
        bail!("the program could not be built: see above");
    }
    let from = std::env::current_exe()?.with_file_name("plover");
    run::finish(Command::new("strip").arg("-o").arg(to).arg(from))
}

/// The pages of the lab's commands are the other package's.
fn move_lab_pages(folder: &Path) -> Result<()> {
    let lab = folder.join("man-lab");
    std::fs::create_dir(&lab)?;
    for entry in std::fs::read_dir(folder.join("man"))? {
        let entry = entry?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("plover-lab")
        {
            std::fs::rename(entry.path(), lab.join(entry.file_name()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd only warns of a key that it does not know, and starts the service without it.
    #[test]
    fn systemd_understands_the_units() {
        let package = run::root().join("app/plover/package");
        let folder = std::env::temp_dir().join(format!("plover-unit-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no"]);
        for (name, starts) in [
            ("plover@.service", "replica --config /etc/plover/%i.toml\n"),
            ("plover-metrics.service", "metrics --listen"),
        ] {
            let unit = std::fs::read_to_string(package.join(name)).unwrap();
            let starts = format!("\nExecStart=/usr/bin/plover {starts}");
            assert!(unit.contains(&starts), "{name}");
            // A program that is there, also where the package is not installed.
            let unit = unit.replace("/usr/bin/plover", "/bin/true");
            let file = folder.join(name);
            std::fs::write(&file, unit).unwrap();
            verify.arg(&file);
        }
        let verified = verify.output();
        std::fs::remove_dir_all(&folder).unwrap();
        match verified {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success() && said.is_empty(), "{said}");
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("systemd-analyze is missing, so the units were not looked at");
            }
            Err(error) => panic!("cannot run systemd-analyze: {error}"),
        }
    }
}

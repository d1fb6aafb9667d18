//! `plover lab` in the package `plover`: the program of the package `plover-lab` does it.
//!
//! A host that runs replicas needs no lab. The lab's program is the whole `plover` command, because it starts the lab's
//! replicas from itself.

use anyhow::{Context, Result};
use plover_lab::prerequisites::Missing;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Where the package puts it: see `[package.metadata.deb.variants.lab]` in Cargo.toml.
const PROGRAM: &str = "/usr/lib/plover/plover-lab";

/// Becomes the lab's program.
pub fn run(words: &[OsString]) -> Result<ExitCode> {
    let error = Command::new(PROGRAM).arg("lab").args(words).exec();
    if error.kind() == ErrorKind::NotFound {
        let sentence = format!("there is no {PROGRAM}: install the package plover-lab");
        return Err(Missing(vec![sentence]).into());
    }
    Err(error).context(format!("cannot run {PROGRAM}"))
}

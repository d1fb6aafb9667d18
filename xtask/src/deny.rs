//! `./x deny`: the licences and sources of all crates that are built in, and the advisories about them.
//!
//! cargo-deny compiles for minutes, so this is no part of `./x verify`. Run it when `Cargo.lock` changes.

use crate::run::{self, Result};
use crate::tool::Tool;
use std::process::{Command, ExitCode};

const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.18.3",
    before_version: "cargo-deny ",
    options: &[],
};

/// Checks what `deny.toml` says. The database of advisories is fetched from the internet; where that is out of reach, a
/// sentence says so.
pub(crate) fn check() -> Result<ExitCode> {
    let program = CARGO_DENY.path()?;
    let deny = |what: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["--workspace", "check"]).args(what);
        command.current_dir(run::root());
        command
    };
    run::finish(&mut deny(&["licenses", "sources", "bans"]))?;
    let mut fetch = Command::new(&program);
    fetch.args(["fetch", "db"]).current_dir(run::root());
    if run::finish(&mut fetch).is_err() {
        eprintln!(
            "x: the advisories were not looked at, because their database cannot be fetched: see above"
        );
        return Ok(ExitCode::SUCCESS);
    }
    run::finish(&mut deny(&["advisories"]))?;
    Ok(ExitCode::SUCCESS)
}

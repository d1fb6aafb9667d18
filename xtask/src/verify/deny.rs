//! What Plover is built from, by cargo-deny: licences, sources, known faults (`deny.toml`).

use crate::run::{self, Result};
use crate::tool::Tool;
use std::process::Command;

const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.18.3",
    before_version: "cargo-deny ",
    options: &["--no-default-features"],
};

/// Checks all crates. The database of known faults is fetched, and where that fails they are not looked for.
pub(super) fn check() -> Result<()> {
    let path = CARGO_DENY.path()?;
    let deny = |words: &[&str]| {
        let mut command = Command::new(&path);
        command.args(["--log-level", "error"]);
        command.args(words).current_dir(run::root());
        command
    };
    run::finish(&mut deny(&["check", "licenses", "sources", "bans"]))?;
    let fetched = deny(&["fetch", "db"]).output()?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr);
        let why = said.lines().last().unwrap_or_default();
        eprintln!("verify: no known faults were looked for: {why}");
        return Ok(());
    }
    run::finish(&mut deny(&["check", "--disable-fetch", "advisories"]))
}

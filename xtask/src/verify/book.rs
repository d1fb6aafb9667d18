//! The guide in `docs/`: it is complete and current, its links lead somewhere, and mdBook renders it.
//!
//! A program of its own reads Markdown and Rust (`book/main.rs`, feature `book`), because `./x` is built
//! before everything else and must not wait for two parsers.

use crate::run::{self, Cargo, Result};
use crate::tool::Tool;
use anyhow::bail;
use std::process::{Command, Stdio};

/// The last release that Rust 1.85 builds, without its server.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.4.52",
    before_version: "mdbook v",
    options: &["--no-default-features"],
};

pub(super) fn check() -> Result<()> {
    let checked = Cargo::new("run")
        .args([
            "--quiet",
            "-p",
            "xtask",
            "--features",
            "book",
            "--bin",
            "book",
        ])
        .succeeds()?;
    if !checked {
        bail!("the guide is not as it should be: see above");
    }
    render()
}

/// Renders the guide into `target/book`.
fn render() -> Result<()> {
    let mut mdbook = Command::new(MDBOOK.path()?);
    mdbook.arg("build").arg(run::root().join("docs"));
    // Its progress on the error output is left out; only its failures matter.
    mdbook.env("RUST_LOG", "error").stdout(Stdio::null());
    run::finish(&mut mdbook)
}

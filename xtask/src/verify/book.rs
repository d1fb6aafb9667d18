//! The guide in `docs/`: it is complete and current, its links lead somewhere, and mdBook renders it.
//!
//! A program of its own reads Markdown and Rust (`book/main.rs`, feature `book`), because `./x` is built
//! before everything else and must not wait for two parsers.

use crate::run::{self, Cargo, Result};
use anyhow::{Context, bail};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The last release that Rust 1.85 builds.
const MDBOOK: &str = "0.4.52";

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
    let mut mdbook = Command::new(mdbook()?);
    mdbook.arg("build").arg(run::root().join("docs"));
    // Its progress on the error output is left out; only its failures matter.
    mdbook.env("RUST_LOG", "error").stdout(Stdio::null());
    run::finish(&mut mdbook)
}

/// mdBook of the right release, below `target`: installed on first use, without its server.
fn mdbook() -> Result<PathBuf> {
    let tools = run::root().join("target/tools");
    let program = tools.join("bin/mdbook");
    let has = Command::new(&program).arg("--version").output();
    let has = has.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if has.is_ok_and(|version| version.trim() == format!("mdbook v{MDBOOK}")) {
        return Ok(program);
    }
    eprintln!("verify: installing mdbook {MDBOOK} into target/tools, once");
    let mut install = run::cargo();
    install.args([
        "install",
        "--quiet",
        "--locked",
        "--debug",
        "--no-default-features",
    ]);
    install.args(["mdbook", "--version", MDBOOK, "--root"]);
    // Not with the workspace's own settings, and not into its target folder.
    install.arg(&tools).current_dir(std::env::temp_dir());
    run::finish(&mut install).with_context(|| {
        format!(
            "mdbook {MDBOOK} cannot be installed from the registry: run 'cargo install --locked \
             --no-default-features mdbook --version {MDBOOK} --root {}'",
            tools.display()
        )
    })?;
    Ok(program)
}

//! `./x verify`: all checks of the tree that do not run it. Never writes.

mod book;
mod deny;
mod layers;
mod tidy;

use crate::packages;
use crate::run::{self, Result};
use std::process::{Command, ExitCode};

/// Runs every check, also after one has failed, so that one run shows all there is to mend.
pub(crate) fn all() -> Result<ExitCode> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, check: &dyn Fn() -> Result<()>| {
        eprintln!("verify: {name}");
        if let Err(error) = check() {
            eprintln!("{error:#}");
            failed.push(name);
        }
    };
    check("format", &format);
    check("lints", &lints);
    check("dependency rule", &layers::check);
    check("tidiness", &tidy::check);
    check("guide", &book::check);
    check("dependencies", &deny::check);

    if failed.is_empty() {
        eprintln!("verify: all is well");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "verify: failed: {}. './x fix' mends format and simple lints",
        failed.join(", ")
    );
    Ok(ExitCode::FAILURE)
}

fn format() -> Result<()> {
    tool("fmt", "rustfmt")?;
    // The names of the files are enough: `x fix` makes the changes.
    run::plain(&["fmt", "--all", "--check", "--", "-l"])?;
    metal(&["fmt", "--check", "--", "-l"])
}

/// Runs cargo on the guest without a kernel, a workspace of its own. Its settings are in its folder.
fn metal(arguments: &[&str]) -> Result<()> {
    let mut cargo = run::cargo();
    cargo
        .args(arguments)
        .env("CARGO_TARGET_DIR", run::root().join(".cache/metal"))
        .current_dir(run::root().join("guests/metal"));
    run::finish(&mut cargo)
}

fn lints() -> Result<()> {
    tool("clippy", "clippy")?;
    let mut cargo = run::cargo();
    // The profile of the tests: what libraries in C and macros need is then built once for both.
    cargo.args([
        "clippy",
        "--quiet",
        "--locked",
        "--release",
        "--workspace",
        "--all-targets",
    ]);
    // Installs nothing. The code over libfabric is checked only where its headers are.
    let ofi = packages::are_there(&[packages::OFI]);
    cargo.arg("--features=xtask/book");
    cargo.args(ofi.then_some(crate::OFI_FEATURES));
    cargo
        .args(["--", "-D", "warnings"])
        .current_dir(run::root());
    run::finish(&mut cargo)?;
    // The program of the package `plover`.
    run::plain(&[
        "clippy",
        "--quiet",
        "--locked",
        "--release",
        "--package=plover",
        "--no-default-features",
        "--",
        "-Dwarnings",
    ])?;
    metal(&[
        "clippy",
        "--quiet",
        "--locked",
        "--release",
        "--",
        "-Dwarnings",
    ])?;
    if !ofi {
        eprintln!("verify: libfabric-dev is missing, so the feature `ofi` was not looked at");
    }
    Ok(())
}

/// The formatter and the linter are not part of the compiler's package.
fn tool(subcommand: &str, component: &str) -> Result<()> {
    let works = || {
        let there = run::cargo().args([subcommand, "--version"]).output();
        there.is_ok_and(|output| output.status.success())
    };
    if works() || (packages::install_rust_component(component) && works()) {
        return Ok(());
    }
    anyhow::bail!(
        "'cargo {subcommand}' is missing: run 'rustup component add {component}', or install the \
         distribution's package of it"
    )
}

/// All files below `folder` of the repository that git knows or would take, as paths relative
/// to the repository.
fn files(folder: &str) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
        "--",
    ]);
    let listed = run::output_of(git.arg(folder).current_dir(run::root()))?;
    let root = run::root();
    Ok(listed
        .lines()
        .filter(|path| root.join(path).is_file())
        .map(str::to_owned)
        .collect())
}

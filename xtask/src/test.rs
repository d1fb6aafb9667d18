//! `./x test`.

use crate::failures::Failures;
use crate::packages::{self, BENCH, FLEET, FSCK, GUEST, IMAGES, LAB, OFI, PROGRAMS, UEFI};
use crate::run::{self, Cargo, Result};
use crate::{OFI_FEATURES, guest};
use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::process::ExitCode;

/// The guests that tests boot.
const GUESTS: [&str; 8] = [
    guest::DEFAULT,
    "agent",
    "cards",
    "memcached",
    "metal",
    "postgres",
    "redis-clean",
    "storm",
];

/// Targets whose tests compute for minutes and wait for nothing. They run beside the others, whose guests leave a third
/// of the CPUs' time.
const SIMULATIONS: [&str; 2] = ["model", "simulation"];

/// The tests of the program itself: with them cargo builds the program, which others start.
const PROGRAM: &str = "command";

/// Runs all tests, or those that the arguments of `cargo test` name.
pub(crate) fn run(arguments: Vec<OsString>) -> Result<ExitCode> {
    packages::ensure(&[LAB, GUEST, BENCH, FLEET, FSCK, IMAGES, PROGRAMS, UEFI])?;
    for name in GUESTS {
        guest::build(name)?;
    }
    let mut failures = Failures::default();
    let passed = if arguments.is_empty() {
        all(&mut failures)?
    } else if arguments.iter().any(names_package) {
        // Tests of the lab start the program, and cargo builds it only for its own package's tests.
        let built = Cargo::new("build").args(["-p", "plover"]).succeeds()?;
        let tests = Cargo::new("test").args(["--no-fail-fast"]).args(arguments);
        built && failures.watch(tests)?
    } else {
        let workspace = Workspace::new()?;
        let program = workspace.tests()?.args(["--no-run", "--test", PROGRAM]);
        program.succeeds()? && failures.watch(workspace.tests()?.args(arguments))?
    };
    if passed {
        return Ok(ExitCode::SUCCESS);
    }
    failures.repeat();
    Ok(ExitCode::FAILURE)
}

/// All of them. The examples of the documentation come last: cargo runs them by themselves.
fn all(failures: &mut Failures) -> Result<bool> {
    let workspace = Workspace::new()?;
    if !workspace.tests()?.args(["--no-run"]).succeeds()? {
        return Ok(false);
    }
    let (simulations, others) = test_targets()?
        .into_iter()
        .partition::<Vec<_>, _>(|name| SIMULATIONS.contains(&name.as_str()));
    let tests_of = |names: &[String]| -> Result<Cargo> {
        let options = names.iter().flat_map(|name| ["--test", name]);
        Ok(workspace.tests()?.args(options))
    };
    let path = run::built("simulations.log")?;
    let printed = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    eprintln!(
        "x: simulations run beside the other tests, and print into {} until those have ended",
        path.display()
    );
    let mut beside = tests_of(&simulations)?.beside_others(&printed)?;
    let others = tests_of(&others)?.args(["--lib", "--bins", "--examples"]);
    let mut passed = failures.watch(others)?;
    passed &= beside.wait().context("cannot wait for cargo")?.success();
    failures.show(File::open(&path)?)?;
    passed &= failures.watch(workspace.tests()?.args(["--doc"]))?;
    Ok(passed)
}

/// All packages as one build, with what is off by default: the program is built for its package's tests, and those of
/// the lab start it as it is. Left to themselves they would build it again, with fewer features.
struct Workspace {
    has_ofi: bool,
}

impl Workspace {
    fn new() -> Result<Self> {
        let ofi = packages::ensure(&[OFI]);
        if let Err(error) = &ofi {
            eprintln!("x: the feature `ofi` is left out: {error:#}");
        }
        Ok(Self {
            has_ofi: ofi.is_ok(),
        })
    }

    fn tests(&self) -> Result<Cargo> {
        let tests = Cargo::new("test").args(["--no-fail-fast", "--workspace"]);
        let tests = tests.args(self.has_ofi.then_some(OFI_FEATURES));
        Ok(tests.env("PLOVER_BIN", run::built("plover")?))
    }
}

/// Whether an argument of `cargo test` says that a package is named.
fn names_package(argument: &OsString) -> bool {
    let word = argument.to_string_lossy();
    word.starts_with("-p") || word.starts_with("--package")
}

/// The part of `cargo metadata` that matters.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// The names of all that is in a folder `tests`.
fn test_targets() -> Result<BTreeSet<String>> {
    let metadata: Metadata = run::metadata()?;
    let targets = metadata.packages.into_iter().flat_map(|it| it.targets);
    let tests = targets.filter(|target| target.kind.iter().any(|kind| kind == "test"));
    Ok(tests.map(|target| target.name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulations_and_the_programs_tests_are_targets() {
        let all = test_targets().unwrap();
        for name in SIMULATIONS.into_iter().chain([PROGRAM]) {
            assert!(all.contains(name), "no test has the name {name}: {all:?}");
        }
    }
}

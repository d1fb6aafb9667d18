//! The dependency rule: **core decides, edge acts, app shows, proof proves.**
//!
//! `core` imports only `core`; `edge` may import `core`; `app` may import both, `proof` may
//! import all; nothing imports `proof`. A package's layer is the folder it is in. Dependencies
//! for tests count like others: a core whose tests need a socket has one.

use crate::run::{self, Result};
use anyhow::bail;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Each layer, which is a folder of the repository, and the layers that it may import.
const LAYERS: [(&str, &[&str]); 5] = [
    ("core", &["core"]),
    ("edge", &["core", "edge"]),
    ("app", &["core", "edge", "app"]),
    ("proof", &["core", "edge", "app", "proof"]),
    ("xtask", &[]),
];

/// Crates that do what `core` must not: sockets, files, clocks, threads. Their mere presence
/// among its dependencies is a mistake.
const NOT_IN_CORE: [&str; 9] = [
    "async-std",
    "crossbeam",
    "libc",
    "mio",
    "nix",
    "rayon",
    "rustix",
    "socket2",
    "tokio",
];

/// The part of `cargo metadata` that matters.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

pub(super) fn check() -> Result<()> {
    let metadata: Metadata = run::metadata()?;
    let root = run::root().display().to_string();
    let broken = violations(&metadata, &root);
    if broken.is_empty() {
        Ok(())
    } else {
        bail!("{}", broken.join("\n"))
    }
}

/// Each breach of the rule as a sentence.
fn violations(metadata: &Metadata, root: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let mut layers = BTreeMap::new();
    for package in &metadata.packages {
        let path = package
            .manifest_path
            .strip_prefix(root)
            .unwrap_or(&package.manifest_path);
        let folder = path
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default();
        match LAYERS.iter().find(|(layer, _)| *layer == folder) {
            Some(layer) => drop(layers.insert(package.name.as_str(), layer)),
            None => broken.push(format!("{} is in no layer: {path}", package.name)),
        }
    }
    for package in &metadata.packages {
        let Some((layer, may_import)) = layers.get(package.name.as_str()) else {
            continue;
        };
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            match layers.get(to.as_str()) {
                Some((other, _)) if !may_import.contains(other) => broken.push(format!(
                    "{from} ({layer}) imports {to} ({other}): {layer} must not import {other}"
                )),
                None if *layer == "core" && NOT_IN_CORE.contains(&to.as_str()) => {
                    broken.push(format!("{from} (core) imports {to}: core does no I/O"));
                }
                _ => {}
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(path: &str, dependencies: &[&str]) -> Package {
        Package {
            name: path.rsplit('/').next().unwrap().into(),
            manifest_path: format!("/repo/{path}/Cargo.toml"),
            dependencies: dependencies
                .iter()
                .map(|name| Dependency {
                    name: (*name).into(),
                })
                .collect(),
        }
    }

    fn check(packages: Vec<Package>) -> Vec<String> {
        violations(&Metadata { packages }, "/repo")
    }

    #[test]
    fn allowed_imports_pass() {
        let broken = check(vec![
            package("core/types", &["serde"]),
            package("core/brain", &["types"]),
            package("edge/vm", &["types", "rustix"]),
            package("edge/node", &["brain", "vm"]),
            package("app/show", &["brain", "node"]),
            package("app/command", &["show", "types"]),
            package("proof/sim", &["brain"]),
            package("proof/bench", &["show", "node", "sim"]),
            package("xtask", &["clap"]),
        ]);
        assert_eq!(broken, Vec::<String>::new());
    }

    #[test]
    fn forbidden_imports_are_named() {
        for (importer, imported) in [
            ("core/a", "edge/b"),
            ("core/a", "app/b"),
            ("core/a", "proof/b"),
            ("edge/a", "app/b"),
            ("edge/a", "proof/b"),
            ("app/a", "proof/b"),
            ("xtask", "core/b"),
            ("proof/a", "xtask"),
        ] {
            let name = imported.rsplit('/').next().unwrap();
            let broken = check(vec![package(importer, &[name]), package(imported, &[])]);
            assert_eq!(broken.len(), 1, "{importer} imports {imported}: {broken:?}");
        }
    }

    #[test]
    fn core_does_no_io_and_every_package_has_a_layer() {
        assert_eq!(check(vec![package("core/a", &["mio", "serde"])]).len(), 1);
        assert_eq!(check(vec![package("elsewhere/a", &[])]).len(), 1);
    }
}

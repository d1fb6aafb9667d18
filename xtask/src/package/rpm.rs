//! The `.rpm` packages: the files of the Debian packages, and `[package.metadata.generate-rpm]`.

use crate::run::{self, Result};
use crate::tool::Tool;
use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const CARGO_GENERATE_RPM: Tool = Tool {
    name: "cargo-generate-rpm",
    version: "0.21.1",
    before_version: "cargo-generate-rpm ",
    options: &[],
};

/// The folder of the crate that is packaged, below the repository.
const CRATE: &str = "app/plover";

/// A part of what `[package.metadata.deb]` says.
#[derive(Deserialize)]
struct Deb {
    assets: Vec<Asset>,
    #[serde(default)]
    variants: BTreeMap<String, Deb>,
}

/// A file or a pattern of files, below the crate; where it goes, below `/`, as a folder if it ends with a slash; its mode.
#[derive(Deserialize)]
struct Asset(String, String, String);

/// Makes both packages of what is in `folder`, and prints their paths.
pub(super) fn build(folder: &Path) -> Result<()> {
    let program = CARGO_GENERATE_RPM.path()?;
    let deb = deb()?;
    let into = run::root().join("target/generate-rpm");
    if into.exists() {
        std::fs::remove_dir_all(&into)?;
    }
    for (variant, assets) in [
        ("plover", &deb.assets),
        ("lab", &deb.variants["lab"].assets),
    ] {
        let files = folder.join(format!("{variant}-rpm.toml"));
        std::fs::write(&files, in_toml(assets))?;
        let mut rpm = Command::new(&program);
        // The same libraries wherever it is built: not by a script that only some hosts have.
        rpm.args([
            "generate-rpm",
            "--auto-req",
            "builtin",
            "-p",
            CRATE,
            "--variant",
            variant,
        ]);
        rpm.arg("--metadata-overwrite").arg(&files);
        run::finish(rpm.current_dir(run::root()))?;
    }
    for package in std::fs::read_dir(&into)? {
        println!("{}", package?.path().display());
    }
    Ok(())
}

/// The description of the Debian packages in app/plover/Cargo.toml.
fn deb() -> Result<Deb> {
    let metadata = run::cargo()
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(run::root())
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let plover = packages.into_iter().find(|it| it["name"] == "plover");
    let deb = plover.context("cargo knows no package plover")?["metadata"]["deb"].clone();
    serde_json::from_value(deb).context("[package.metadata.deb] of app/plover/Cargo.toml")
}

/// The files, as cargo-generate-rpm reads them.
fn in_toml(assets: &[Asset]) -> String {
    let root = run::root().join(CRATE);
    let assets = assets.iter().map(|Asset(source, to, mode)| {
        let source = root.join(source);
        // The one folder that has another name there.
        let to = to.replace("zsh/vendor-completions", "zsh/site-functions");
        format!("    {{ source = {source:?}, dest = \"/{to}\", mode = {mode:?} }},\n")
    });
    format!("assets = [\n{}]\n", assets.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_packages_have_a_program() {
        let deb = deb().unwrap();
        let plover = in_toml(&deb.assets);
        assert!(plover.contains("target/package/plover\", dest = \"/usr/bin/\", mode = \"755\""));
        assert!(plover.contains("dest = \"/usr/share/zsh/site-functions/_plover\""));
        assert!(in_toml(&deb.variants["lab"].assets).contains("/usr/lib/plover/"));
    }
}

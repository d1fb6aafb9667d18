//! Programs of the registry, each of one release: installed below `target` on first use.

use crate::run::{self, Result};
use anyhow::Context;
use std::path::PathBuf;
use std::process::Command;

/// A program and its release.
pub(crate) struct Tool {
    /// The crate, which has the program's name.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// The words before the version in what `--version` prints.
    pub(crate) before_version: &'static str,
    /// Further options of `cargo install`.
    pub(crate) options: &'static [&'static str],
}

impl Tool {
    /// The program's path, after it has been installed if it is missing or of another release.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let tools = run::root().join("target/tools");
        let program = tools.join("bin").join(name);
        let has = Command::new(&program).arg("--version").output();
        let has = has.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        if has.is_ok_and(|it| it.trim() == format!("{}{version}", self.before_version)) {
            return Ok(program);
        }
        eprintln!("x: installing {name} {version} into target/tools, once");
        let mut install = run::cargo();
        // They run for seconds, and nobody debugs them.
        install.env("CARGO_PROFILE_DEV_DEBUG", "0");
        install.args(["install", "--quiet", "--locked", "--debug"]);
        install.args(self.options);
        install.args([name, "--version", version, "--root"]);
        // Not with the workspace's own settings, and not into its target folder.
        install.arg(&tools).current_dir(std::env::temp_dir());
        run::finish(&mut install).with_context(|| {
            format!(
                "{name} {version} cannot be installed from the registry: run 'cargo install --locked {}{name} \
                 --version {version} --root {}'",
                self.options
                    .iter()
                    .map(|option| format!("{option} "))
                    .collect::<String>(),
                tools.display()
            )
        })?;
        Ok(program)
    }
}

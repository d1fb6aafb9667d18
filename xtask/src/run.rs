//! Starting other programs, and becoming them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

pub(crate) use anyhow::Result;
use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask is a folder of the repository")
        .to_path_buf()
}

/// The cargo that runs us, and hence the toolchain that `x` chose.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo sets these for us. Passed on, they would look like the user's wishes.
    for variable in [
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
        "CARGO_PKG_NAME",
    ] {
        command.env_remove(variable);
    }
    command
}

/// Where cargo puts a program of this workspace, in the release profile: beside this one.
pub(crate) fn built(program: &str) -> Result<PathBuf> {
    let me = std::env::current_exe().context("this program has no path")?;
    Ok(me.with_file_name(program))
}

/// A cargo invocation on this workspace, in the release profile.
pub(crate) struct Cargo(Command);

impl Cargo {
    /// `cargo SUBCOMMAND`.
    pub(crate) fn new(subcommand: &str) -> Self {
        let mut command = cargo();
        command
            .arg(subcommand)
            .arg("--release")
            .arg("--manifest-path");
        command.arg(root().join("Cargo.toml"));
        Self(command)
    }

    /// `cargo run` of a package's program, which has the package's name; further arguments are
    /// the program's.
    pub(crate) fn run(package: &str) -> Self {
        Self::run_of(package, package)
    }

    /// The same for one of several programs of a package.
    pub(crate) fn run_of(package: &str, program: &str) -> Self {
        // The first build takes minutes and shows its progress; later ones only their errors.
        let built = built(program).is_ok_and(|program| program.exists());
        if !built {
            eprintln!("x: building {program}; the first time this takes minutes");
        }
        let quiet = built.then_some("--quiet");
        Self::new("run")
            .args(quiet)
            .args(["-p", package, "--bin", program, "--"])
    }

    /// `cargo bench` of one of a package's benchmarks; further arguments are criterion's.
    pub(crate) fn bench(package: &str, name: &str) -> Self {
        let mut command = cargo();
        // The profile of benchmarks is the release profile.
        command.arg("bench").arg("--manifest-path");
        command.arg(root().join("Cargo.toml"));
        Self(command).args(["-p", package, "--bench", name, "--"])
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.0.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Drops what it prints on its standard output.
    pub(crate) fn without_output(mut self) -> Self {
        self.0.stdout(Stdio::null());
        self
    }

    /// Replaces this process. Cargo in its turn is replaced by the program it runs.
    pub(crate) fn become_it(mut self) -> Result<ExitCode> {
        let error = self.0.exec();
        Err(error).context("cannot run cargo")
    }

    /// Starts it with its standard output piped.
    pub(crate) fn piped(mut self) -> Result<Child> {
        self.0.stdout(Stdio::piped());
        self.0.spawn().context("cannot run cargo")
    }

    /// Starts it in the time that all others leave of the CPUs (`SCHED_IDLE`). Its output goes into a file.
    pub(crate) fn beside_others(self, output: &File) -> Result<Child> {
        let mut command = Command::new("chrt");
        command.args(["--idle", "0"]).arg(self.0.get_program());
        command.args(self.0.get_args());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(output.try_clone()?);
        command.stderr(output.try_clone()?);
        command.spawn().context("cannot run chrt")
    }

    /// Runs it and waits. `false` if it failed; it has then said why.
    pub(crate) fn succeeds(mut self) -> Result<bool> {
        Ok(self.0.status().context("cannot run cargo")?.success())
    }
}

/// Builds a program of the lab's proofs together with `plover`, and becomes it. Built one after the other, what both use
/// would be built twice, with different features.
pub(crate) fn become_proof(program: &str, arguments: &[OsString]) -> Result<ExitCode> {
    let (plover, proof) = (built("plover")?, built(program)?);
    let is_first = !plover.exists() || !proof.exists();
    if is_first {
        eprintln!("x: building {program} and plover; the first time this takes minutes");
    }
    let packages = ["-p", "plover", "-p", "plover-lab-proof", "--bins"];
    let build = Cargo::new("build").args((!is_first).then_some("--quiet"));
    if !build.args(packages).succeeds()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut command = Command::new(proof);
    if std::env::var_os("PLOVER_BIN").is_none() {
        command.env("PLOVER_BIN", plover);
    }
    let error = command.args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {program}"))
}

/// Runs `cargo ARGS` in the repository, without a profile.
pub(crate) fn plain(args: &[&str]) -> Result<()> {
    finish(cargo().args(args).current_dir(root()))
}

/// Runs a command; anything but success is an error.
pub(crate) fn finish(command: &mut Command) -> Result<()> {
    let name = words(command);
    let status = command
        .status()
        .with_context(|| format!("cannot run `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// A part of what `cargo metadata` says of the workspace's own packages.
pub(crate) fn metadata<T: DeserializeOwned>() -> Result<T> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let text = output_of(cargo.current_dir(root()))?;
    serde_json::from_str(&text).context("cannot read cargo's metadata")
}

/// The standard output of a command.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let name = words(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run `{name}`"))?;
    if !output.status.success() {
        bail!("`{name}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{name}` printed no text"))
}

fn words(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program
        .file_name()
        .map_or_else(OsString::new, OsStr::to_os_string);
    std::iter::once(name.as_os_str())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

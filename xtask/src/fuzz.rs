//! `./x fuzz`: the targets of proof/fuzz under libFuzzer, guided by coverage.
//!
//! ```text
//!   proof/fuzz/corpus/TARGET.txt ──▶ target/fuzz/corpus/TARGET/ ◀──▶ libFuzzer ──▶ target/fuzz/TARGET-crash-…
//!           ▲                                  │
//!           └────────── --keep: the smallest inputs that reach all that was reached
//! ```
//!
//! cargo-fuzz needs a nightly compiler for its sanitizer. Coverage alone is had from a stable one, by flags of LLVM, and the
//! decoders have hardly any `unsafe` code that a sanitizer would look at.

use crate::packages::{self, FUZZER};
use crate::run::{self, Result};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What cargo-fuzz gives the compiler, without a sanitizer; and the checks that release builds leave out.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks";

/// The compiler's name for this machine. With it, cargo leaves build scripts and macros without the flags.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// The longest input that is kept, and the most of a target: a corpus is read and reviewed as text.
const KEPT_BYTES: usize = 600;
const KEPT_INPUTS: usize = 120;

/// Fuzzes one target, or all in turn, for so many minutes each.
pub(crate) fn run(target: Option<&str>, minutes: u32, keep: bool) -> Result<ExitCode> {
    let corpus = run::root().join("proof/fuzz/corpus");
    let mut known: Vec<String> = std::fs::read_dir(&corpus)?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    known.sort();
    let targets = match target {
        None => known,
        Some(name) if known.iter().any(|known| known == name) => vec![name.to_owned()],
        Some(name) => bail!("'{name}' is no target: name one of {}", known.join(", ")),
    };
    packages::ensure(&[FUZZER])?;
    let folder = run::root().join("target/fuzz");
    let program = build(&folder)?;
    for (number, name) in targets.iter().enumerate() {
        eprintln!(
            "x: fuzzing {name} ({} of {}), {minutes} min",
            number + 1,
            targets.len()
        );
        let kept = corpus.join(name).with_extension("txt");
        let inputs = folder.join("corpus").join(name);
        unpack(&kept, &inputs)?;
        let found = Command::new(&program)
            .env("PLOVER_FUZZ_TARGET", name)
            .arg(&inputs)
            .arg(format!("-max_total_time={}", minutes * 60))
            .arg(format!("-artifact_prefix={}/{name}-", folder.display()))
            // Of the clock, and another program may have the CPUs meanwhile.
            .args(["-max_len=8192", "-timeout=300", "-print_final_stats=1"])
            .status()
            .context("cannot start the fuzzer")?;
        if !found.success() {
            eprintln!(
                "x: {name} has failed: its input is {}/{name}-…; mend the decoder, and give the input to a unit test",
                folder.display()
            );
            return Ok(ExitCode::FAILURE);
        }
        if keep {
            pack(&program, name, &inputs, &kept)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn build(folder: &Path) -> Result<PathBuf> {
    let mut cargo = run::cargo();
    cargo
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(run::root().join("Cargo.toml"))
        .args(["-p", "plover-fuzz", "--features", "engine"])
        .args(["--target", HOST, "--target-dir"])
        .arg(folder)
        .env("RUSTFLAGS", FLAGS);
    eprintln!("x: building the fuzzer; the first time this takes minutes");
    run::finish(&mut cargo)?;
    Ok(folder.join(HOST).join("release/plover-fuzz"))
}

/// Makes a file of each line.
fn unpack(kept: &Path, inputs: &Path) -> Result<()> {
    std::fs::create_dir_all(inputs)?;
    let text = std::fs::read_to_string(kept)?;
    for (number, line) in text.lines().enumerate() {
        let wrong = || format!("{}:{}: not hexadecimal", kept.display(), number + 1);
        let pairs = line.as_bytes().chunks(2);
        let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let bytes: Option<Vec<u8>> = bytes.collect();
        std::fs::write(
            inputs.join(format!("kept-{number}")),
            bytes.with_context(wrong)?,
        )?;
    }
    Ok(())
}

/// Replaces the kept inputs by the smallest ones that reach as much as all that were found.
fn pack(program: &Path, name: &str, inputs: &Path, kept: &Path) -> Result<()> {
    let least = inputs.with_extension("least");
    if least.exists() {
        std::fs::remove_dir_all(&least)?;
    }
    std::fs::create_dir_all(&least)?;
    let mut merge = Command::new(program);
    merge.env("PLOVER_FUZZ_TARGET", name).arg("-merge=1");
    run::finish(merge.arg(&least).arg(inputs))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&least)? {
        found.push(std::fs::read(entry?.path())?);
    }
    found.retain(|bytes| !bytes.is_empty() && bytes.len() <= KEPT_BYTES);
    found.sort_by_key(|bytes| (bytes.len(), bytes.clone()));
    found.truncate(KEPT_INPUTS);
    let line = |bytes: &Vec<u8>| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.chain(["\n".into()]).collect::<String>()
    };
    let text: String = found.iter().map(line).collect();
    std::fs::write(kept, text)?;
    Ok(())
}

//! Builds the library with the C compiler that `cc` finds (`CC` is honoured).
//!
//! `cc` itself makes static libraries only, and a preloaded object must be a shared one. So `cc` finds
//! the compiler, and this file runs it.

use std::env;
use std::path::PathBuf;
use std::process::exit;

const SOURCES: [&str; 8] = [
    "src/preload.c",
    "src/ring.c",
    "src/connections.c",
    "src/descriptors.c",
    "src/inputs.c",
    "src/outputs.c",
    "src/clock.c",
    "src/refused.c",
];

fn main() {
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("preload.so");
    let compiler = cc::Build::new().cargo_warnings(false).get_compiler();
    let status = compiler
        .to_command()
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-pthread"])
        .args(["-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&out)
        .args(SOURCES)
        .arg("-ldl")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!(
                "cargo::error=the C compiler could not build the library in edge/preload/src ({status})"
            );
            exit(1);
        }
        Err(error) => {
            println!(
                "cargo::error=no C compiler ({}: {error}): install one, on Debian with \
                 'apt-get install gcc libc6-dev'",
                compiler.path().display()
            );
            exit(1);
        }
    }
}

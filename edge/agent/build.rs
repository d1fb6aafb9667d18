//! Builds the agent with the C compiler that `cc` finds (`CC` is honoured).
//!
//! `cc` itself only makes static libraries, and a preloaded object must be a shared one, so it is
//! used to find the compiler and this file runs it.

use std::env;
use std::path::PathBuf;
use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=src/agent.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("agent.so");
    let compiler = cc::Build::new().cargo_warnings(false).get_compiler();
    let status = compiler
        .to_command()
        .args([
            "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o",
        ])
        .arg(&out)
        .arg("src/agent.c")
        .arg("-ldl")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("cargo::error=the C compiler could not build src/agent.c ({status})");
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

//! Builds the agent with the C compiler that `cc` finds (`CC` is honoured).
//!
//! `cc` itself makes static libraries only, and a preloaded object must be a shared one. So `cc` finds
//! the compiler, and this file runs it.

use std::env;
use std::path::PathBuf;
use std::process::exit;

const SOURCES: [&str; 11] = [
    "src/agent.c",
    "src/orders.c",
    "src/translations.c",
    "src/queues.c",
    "src/firmware.c",
    "src/time.c",
    "src/written.c",
    "src/ahci.c",
    "src/nic.c",
    "src/blocks.c",
    "src/flash.c",
];

fn main() {
    println!("cargo::rerun-if-changed=src");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("agent.so");
    let compiler = cc::Build::new().cargo_warnings(false).get_compiler();
    let status = compiler
        .to_command()
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-pthread"])
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&out)
        .args(SOURCES)
        .arg("-ldl")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!(
                "cargo::error=the C compiler could not build the agent in edge/agent/src ({status})"
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

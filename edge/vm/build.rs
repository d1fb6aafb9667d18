//! Assembles the KVM probe's firmware (see `src/probe/probe.S`) with the C compiler that `cc`
//! finds. It is linked as a flat image, which `cc` itself does not make.

use std::env;
use std::path::PathBuf;
use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=src/probe/probe.S");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("probe.bin");
    let compiler = cc::Build::new().cargo_warnings(false).get_compiler();
    let status = compiler
        .to_command()
        .args(["-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"])
        .args(["-Wl,--oformat=binary", "-Wl,-Ttext=0", "-Wl,-e,0", "-o"])
        .arg(&out)
        .arg("src/probe/probe.S")
        .status();
    let built = status.as_ref().is_ok_and(|status| status.success());
    let bytes = std::fs::metadata(&out).map_or(0, |file| file.len());
    if !built || bytes != 0x10000 {
        println!(
            "cargo::error=could not assemble src/probe/probe.S with {} ({status:?}, {bytes} \
             bytes): a GNU-compatible C compiler for x86-64 is needed",
            compiler.path().display()
        );
        exit(1);
    }
}

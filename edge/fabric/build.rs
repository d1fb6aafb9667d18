//! With the feature `ofi`: builds the layer over libfabric, whose API is inline functions of its
//! headers, with the C compiler that `cc` finds (`CC` and `CFLAGS` are honoured).
//!
//! `pkg-config` says where libfabric is, if it knows; `PKG_CONFIG_PATH` points it to one that is
//! not the distribution's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ofi")]
    ofi::build();
}

#[cfg(feature = "ofi")]
mod ofi {
    use std::process::{Command, exit};

    pub fn build() {
        println!("cargo::rerun-if-changed=native");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let mut build = cc::Build::new();
        build
            .file("native/ofi_shim.c")
            .include("native")
            .warnings(true)
            .extra_warnings(true)
            .cargo_warnings(true);
        for folder in told("--cflags-only-I", "-I") {
            build.include(folder);
        }
        if let Err(error) = build.try_compile("plover_ofi_shim") {
            println!(
                "cargo::error=the feature `ofi` needs a C compiler and libfabric's headers \
                 (on Debian: 'apt-get install gcc libfabric-dev'): {error}"
            );
            exit(1);
        }
        for folder in told("--libs-only-L", "-L") {
            println!("cargo::rustc-link-search=native={folder}");
        }
        println!("cargo::rustc-link-lib=fabric");
    }

    /// The folders that pkg-config names with `flag`; none if it or its file is missing, as the
    /// compiler then looks in the usual places.
    fn told(flag: &str, prefix: &str) -> Vec<String> {
        let output = Command::new("pkg-config")
            .args([flag, "libfabric"])
            .output();
        let text = match output {
            Ok(output) if output.status.success() => output.stdout,
            _ => Vec::new(),
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let folders = text.split_whitespace();
        folders
            .filter_map(|word| word.strip_prefix(prefix))
            .map(str::to_owned)
            .collect()
    }
}

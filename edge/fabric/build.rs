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
    pub fn build() {
        println!("cargo::rerun-if-changed=native");
        let mut build = cc::Build::new();
        build
            .file("native/ofi_shim.c")
            .include("native")
            .warnings(true)
            .extra_warnings(true)
            .cargo_warnings(true);
        // If it or its file is missing, the compiler looks in the usual places.
        let found = pkg_config::Config::new()
            .cargo_metadata(false)
            .env_metadata(true)
            .print_system_libs(false)
            .print_system_cflags(false)
            .probe("libfabric");
        let found = found.map(|it| (it.include_paths, it.link_paths));
        let (include_paths, link_paths) = found.unwrap_or_default();
        build.includes(include_paths);
        if let Err(error) = build.try_compile("plover_ofi_shim") {
            println!(
                "cargo::error=the feature `ofi` needs a C compiler and libfabric's headers \
                 (on Debian: 'apt-get install gcc libfabric-dev'): {error}"
            );
            std::process::exit(1);
        }
        for folder in link_paths {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
        println!("cargo::rustc-link-lib=fabric");
    }
}

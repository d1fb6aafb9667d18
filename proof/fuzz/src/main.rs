//! The fuzzer of one target, which `PLOVER_FUZZ_TARGET` names: libFuzzer's `main`, and its options. `./x fuzz` builds and starts it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plover_fuzz::Target;
use std::sync::LazyLock;

static TARGET: LazyLock<(Target, tempfile::TempDir)> = LazyLock::new(|| {
    let name = std::env::var("PLOVER_FUZZ_TARGET").unwrap_or_default();
    let target = Target::of(&name).unwrap_or_else(|| panic!("'{name}' is no target"));
    (target, plover_fuzz::folder().expect("a folder in memory"))
});

fuzz_target!(|input: &[u8]| {
    let (target, folder) = &*TARGET;
    target.run(folder.path(), input);
});

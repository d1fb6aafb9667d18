//! Guests of two releases of QEMU take each other's state, if their machines have the same versioned type and the same
//! processor (docs/decisions/0054). Needs Debian 13's QEMU in the cache: `guests/newer-qemu`.

use crate::common::{Guest, assert_equal, linux, sync};
use plover_vm::{Accel, Machine, QemuConfig, VmCommand};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The QEMU of the cache; none, with a line that says so, if it is not there.
fn newer() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/newer-qemu");
    let found = Command::new(script).arg("--path").output();
    let found = found.expect("the script runs");
    let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    if path.is_empty() {
        eprintln!("skipped: no second QEMU; run guests/newer-qemu");
    }
    (!path.is_empty()).then(|| path.into())
}

/// A machine of this type; by which QEMU, `None` being the one that is installed.
fn config(machine: Machine, versioned: Option<&str>, qemu: Option<&Path>) -> QemuConfig {
    let mut config = linux(machine, 1);
    config.accel = Accel::Tcg;
    config.qemu = qemu.map(Into::into);
    config.identity.machine_type = versioned.map(Into::into);
    config.identity.cpu = Some("Nehalem".into());
    config
}

/// There and back, twice, while both guests run.
#[test]
fn a_guest_moves_to_another_release_and_back() {
    let Some(newer) = newer() else { return };
    for (machine, versioned) in [(Machine::Q35, "pc-q35-7.2"), (Machine::Pc, "pc-i440fx-7.2")] {
        let mut old = Guest::boot(config(machine, Some(versioned), None));
        let mut new = Guest::start(config(machine, Some(versioned), Some(&newer)));
        let (own, others) = (old.vm.machine_words(), new.vm.machine_words());
        assert_eq!(own.needed, others.needed);
        assert!(own.needed.starts_with(versioned), "{own:?}");
        assert_ne!(own.wanted, others.wanted, "people are told");
        old.wait_ping(1);
        for turn in 0..2 {
            sync(&mut old, &mut new, turn == 0);
            assert_equal(&old, &new);
            new.order(VmCommand::Resume);
            new.wait_ping(2);
            new.type_line(&format!("echo new{turn}$((1+1))"));
            new.wait_console(&format!("new{turn}2"));
            old.order(VmCommand::Resume);
            old.run_for(Duration::from_millis(200));
            sync(&mut new, &mut old, false);
            assert_equal(&old, &new);
            old.order(VmCommand::Resume);
            old.wait_ping(3);
            old.type_line(&format!("echo old{turn}$((1+1))"));
            old.wait_console(&format!("old{turn}2"));
            new.order(VmCommand::Resume);
            new.run_for(Duration::from_millis(200));
        }
    }
}

/// Machines that differ say so before any state travels.
#[test]
fn machines_of_two_releases_say_what_differs() {
    let Some(newer) = newer() else { return };
    let words = |config| Guest::start(config).vm.machine_words().needed;
    // Each release makes its own machine where none is named.
    let of = |qemu: Option<&Path>| words(config(Machine::Q35, None, qemu));
    let (own, others) = (of(None), of(Some(&newer)));
    assert!(
        own.starts_with("pc-q35-") && others.starts_with("pc-q35-10.0"),
        "{own} {others}"
    );
    assert_ne!(own, others);
    // A microvm has no versions.
    let of = |qemu: Option<&Path>| words(config(Machine::Microvm, None, qemu));
    assert!(of(Some(&newer)).starts_with("QEMU 10.0, microvm"));
    // A translator's own processor is another one in each release.
    let of = |qemu: Option<&Path>| {
        let mut config = config(Machine::Q35, Some("pc-q35-7.2"), qemu);
        config.identity.cpu = None;
        words(config)
    };
    let (own, others) = (of(None), of(Some(&newer)));
    let differing = own
        .split(", ")
        .zip(others.split(", "))
        .filter(|(a, b)| a != b);
    assert!(
        differing.clone().count() > 0 && differing.clone().all(|(a, _)| a.starts_with("CPUID ")),
        "{own} {others}"
    );
}

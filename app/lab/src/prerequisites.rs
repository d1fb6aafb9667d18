//! The things this machine must have for a lab. The error has one sentence for each missing thing, which
//! says what to do.

use crate::image::Image;
use crate::options::{Firmware, Options};
use plover_vm::QemuConfig;
use std::path::Path;

/// Something is missing that a person must provide; nothing was started. Commands exit with
/// code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Missing(pub Vec<String>);

/// Looks for everything that can be looked for before anything is made, and finds the guest's image
/// if it needs one. The error names all that is missing at once.
pub fn check(options: &Options) -> Result<Option<Image>, Missing> {
    let mut missing = Vec::new();
    if let Err(Missing(sentences)) = check_root() {
        missing.extend(sentences);
    }
    if !Path::new("/dev/net/tun").exists() {
        missing.push("this kernel has no TAP devices: run `modprobe tun`".into());
    }
    if !on_path("ip") {
        missing.push("the `ip` tool is missing: install the package iproute2".into());
    }
    let code = options.firmware().and_then(Firmware::code);
    if let Some(code) = code.filter(|code| !code.exists()) {
        missing.push(no_uefi(code));
    }
    let firmware_without_disk =
        options.firmware().is_some() && options.disks.is_empty() && !options.guest.is_disk();
    let image = if firmware_without_disk {
        missing.push(
            "--uefi and --bios start the guest from a disk, and it has none: name one with --disk, \
             or take --guest debian"
                .into(),
        );
        None
    } else {
        let needed = Image::needed(options);
        needed.unwrap_or_else(|sentence| {
            missing.push(sentence);
            None
        })
    };
    if missing.is_empty() {
        Ok(image)
    } else {
        Err(Missing(missing))
    }
}

fn no_uefi(file: &Path) -> String {
    let file = file.display();
    format!("there is no UEFI firmware ({file} is missing): install the package ovmf")
}

/// Whether this user may touch a lab.
pub fn check_root() -> Result<(), Missing> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Missing(vec![
        "a lab is made of network namespaces and TAP devices, which needs root: run this with \
         sudo"
            .into(),
    ]))
}

/// Whether the kernel and QEMU can do what replication needs.
///
/// # Errors
/// [`Missing`], or a trial that another time may succeed.
pub fn check_hypervisor(guest: &QemuConfig) -> anyhow::Result<()> {
    match plover_vm::check_host(guest) {
        Err(error) if error.is_lasting() => Err(Missing(vec![error.to_string()]).into()),
        tried => Ok(tried?),
    }
}

/// Whether `PATH` has a program of this name.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-of-plover"));
    }

    #[test]
    fn all_that_is_missing_is_told_at_once() {
        let missing = Missing(vec!["one".into(), "two".into()]);
        assert_eq!(missing.to_string(), "one\ntwo");
        let options = Options {
            kernel: Some("/nowhere/kernel".into()),
            ..Options::default()
        };
        assert!(
            check(&options)
                .unwrap_err()
                .to_string()
                .contains("/nowhere/kernel")
        );
        let options = Options {
            bios: true,
            ..Options::default()
        };
        assert!(check(&options).unwrap_err().to_string().contains("--disk"));
    }
}

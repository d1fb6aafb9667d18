//! `./x lab`: the packages and the guest image of a lab that starts, then `plover lab`.
//!
//! Only `up` needs a guest image and QEMU; `status` must answer at once. So the words are read here just
//! far enough to know what `up` needs. `plover` reads them all, before anything is installed or built.

use crate::guest;
use crate::packages::{self, DISK, GUEST, IMAGES, LAB, UEFI};
use crate::run::{Cargo, Result};
use std::ffi::OsString;
use std::process::ExitCode;

/// Makes sure of the needs, and becomes `plover lab`.
pub(crate) fn run(words: &[OsString]) -> Result<ExitCode> {
    if !starts(words) {
        return Cargo::run("plover").args(["lab"]).args(words).become_it();
    }
    // `--help` at their end: all words before it are parsed, and nothing is done.
    let is_understood = Cargo::run("plover")
        .args(["lab"])
        .args(words)
        .args(["--help"])
        .without_output()
        .succeeds()?;
    if !is_understood {
        return Ok(ExitCode::FAILURE);
    }
    packages::ensure(&[LAB])?;
    if has(words, "--uefi") {
        packages::ensure(&[UEFI])?;
    }
    if is_imported(words) {
        packages::ensure(&[IMAGES])?;
    }
    match image(words) {
        None => {}
        Some(name) if name == guest::DISK => {
            packages::ensure(&[GUEST, DISK])?;
            guest::build_disk()?;
        }
        Some(name) => {
            packages::ensure(&[GUEST])?;
            guest::build(&name)?;
        }
    }
    Cargo::run("plover").args(["lab"]).args(words).become_it()
}

/// Whether `plover lab WORDS` makes a lab: the subcommand is `up`, and no help is asked for.
fn starts(words: &[OsString]) -> bool {
    let mut own = own(words);
    if has(words, "--help") || has(words, "-h") {
        return false;
    }
    while let Some(word) = own.next() {
        match word.to_str() {
            // The one option before the subcommand that has a value.
            Some("--name") => drop(own.next()),
            Some(option) if option.starts_with('-') => {}
            subcommand => return subcommand == Some("up"),
        }
    }
    false
}

/// The guest image that `up` needs; none for a guest that firmware starts from the user's own disk.
fn image(words: &[OsString]) -> Option<String> {
    let name = named(words);
    let firmware = has(words, "--bios") || has(words, "--uefi");
    (!firmware || name == guest::DISK).then_some(name)
}

/// Whether a disk that `up` names has a format that `qemu-img` must import. `plover` reads the words in earnest.
fn is_imported(words: &[OsString]) -> bool {
    own(words).any(|word| {
        let word = word.to_string_lossy();
        let path = word.split(',').next().unwrap_or_default();
        [".qcow2", ".vmdk", ".vdi"]
            .iter()
            .any(|ending| path.ends_with(ending))
    })
}

/// The guest that `up` names.
fn named(words: &[OsString]) -> String {
    let mut words = own(words).map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--guest") {
            Some("") => words.next().map(Into::into),
            Some(rest) => rest.strip_prefix('=').map(String::from),
            None => None,
        };
        if let Some(value) = value {
            return value;
        }
    }
    guest::DEFAULT.into()
}

fn has(words: &[OsString], option: &str) -> bool {
    own(words).any(|word| word == option)
}

/// The words before `--`; those after it belong to a command of the user.
fn own(words: &[OsString]) -> impl Iterator<Item = &OsString> {
    words.iter().take_while(|word| *word != "--")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn only_up_makes_a_lab() {
        for line in ["up", "up --quiet", "--name up up", "--name=a up --bios"] {
            assert!(starts(&words(line)), "{line}");
        }
        for line in [
            "status",
            "up --help",
            "-h up",
            "--name up status",
            "exec -- docker compose up",
            "-- up",
            "logs up",
        ] {
            assert!(!starts(&words(line)), "{line}");
        }
    }

    #[test]
    fn the_guest_is_read_from_the_command_line() {
        let named = |line: &str| named(&words(line));
        assert_eq!(named("up --policy none"), "redis");
        assert_eq!(named("up --guest nginx --quiet"), "nginx");
        assert_eq!(named("up --guest=idle"), "idle");
        assert!(
            guest::recipes()
                .unwrap()
                .contains(&guest::DEFAULT.to_owned())
        );
    }

    #[test]
    fn an_image_that_is_no_raw_one_is_imported() {
        let imported = |line: &str| is_imported(&words(line));
        assert!(imported("up --disk a.raw --disk b.qcow2,cdrom --bios"));
        assert!(imported("up --disk=c.vdi"));
        assert!(!imported("up --disk d.raw -- a.qcow2"));
    }

    #[test]
    fn a_guest_that_boots_its_own_disk_needs_no_image() {
        let image = |line: &str| image(&words(line));
        assert_eq!(image("up"), Some("redis".into()));
        assert_eq!(image("up --disk d.raw --bios"), None);
        assert_eq!(image("up --uefi --guest nginx --disk d.raw"), None);
        assert_eq!(image("up --uefi --guest debian"), Some("debian".into()));
    }
}

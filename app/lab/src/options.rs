//! The choices that a user has about a lab.

use crate::guests::Guest;
use crate::state::LabName;
pub use plover_node::PolicyName;
pub use plover_vm::Firmware;
use std::path::PathBuf;
use std::str::FromStr;

/// The choices of `plover lab up`. The overlay, then the default, decides for a `None`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The lab's name.
    pub name: LabName,
    /// How the guest is protected.
    pub policy: PolicyName,
    /// How many replicas, if not as many as the policy takes.
    pub replicas: Option<u8>,
    /// QEMU's machine type: `microvm` (default), `q35`, `pc`.
    pub machine: Option<String>,
    /// `auto` (default), `kvm`, `tcg`.
    pub accel: Option<String>,
    /// Virtual processors (default 1).
    pub vcpus: Option<u32>,
    /// Guest RAM in MiB (default 256, or what the guest needs).
    pub mem_mib: Option<u32>,
    /// The guest image to run. It also says which service must answer.
    pub guest: Guest,
    /// A kernel to boot instead.
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk that goes with it.
    pub initrd: Option<PathBuf>,
    /// The firmware that starts the guest from its first disk, instead of a kernel.
    pub firmware: Option<Firmware>,
    /// The guest's disks, beside that of its image.
    pub disks: Vec<DiskImage>,
    /// The bus of disks that do not name one: `virtio` (default), `scsi`, `ide`.
    pub disk_bus: Option<String>,
    /// A TOML file whose keys go into every replica's configuration.
    pub overlay: Option<PathBuf>,
    /// Whether the kernel chooses every thread's CPU, also where there are few.
    pub any_cpu: bool,
    /// The `plover` program that runs the daemons; without it the running program.
    pub program: Option<PathBuf>,
}

/// An image of a disk, of which each replica gets a copy of its own, and how the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskImage {
    /// The image.
    pub path: PathBuf,
    /// How it is connected: `virtio`, `scsi`, `ide`.
    pub bus: Option<String>,
    /// The guest cannot write it.
    pub read_only: bool,
}

impl From<PathBuf> for DiskImage {
    fn from(path: PathBuf) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }
}

/// `FILE[,bus=BUS][,readonly]`. Other commas belong to the file's name.
impl FromStr for DiskImage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rest, mut image) = (text, Self::default());
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                None if word == "readonly" => image.read_only = true,
                Some(("bus", bus @ ("virtio" | "scsi" | "ide"))) => image.bus = Some(bus.into()),
                Some(("bus", bus)) => {
                    return Err(format!(
                        "there is no bus '{bus}' for a disk; there are virtio, scsi, ide"
                    ));
                }
                _ => break,
            }
            rest = before;
        }
        if rest.is_empty() {
            return Err("it names no file".into());
        }
        image.path = rest.into();
        Ok(image)
    }
}

impl Options {
    /// How many replicas: as asked for, or what the policy takes. `none` is one, everything else
    /// three.
    pub fn replicas(&self) -> u8 {
        let usual = match self.policy {
            PolicyName::None => 1,
            PolicyName::Preset(_) => 3,
        };
        self.replicas.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_says_how_the_guest_sees_it() {
        let read = |text: &str| text.parse::<DiskImage>();
        let disk = |path: &str, bus: Option<&str>, read_only| {
            Ok(DiskImage {
                path: path.into(),
                bus: bus.map(Into::into),
                read_only,
            })
        };
        assert_eq!(read("/d.raw"), disk("/d.raw", None, false));
        assert_eq!(read("d,bus=scsi,readonly"), disk("d", Some("scsi"), true));
        assert_eq!(read("d,readonly,bus=ide"), disk("d", Some("ide"), true));
        assert_eq!(read("a,b.raw,readonly"), disk("a,b.raw", None, true));
        assert!(read("d,bus=usb").unwrap_err().contains("virtio"));
        assert!(read(",readonly").is_err());
    }
}

//! The choices that a user has about a lab.

use crate::guests::Guest;
use crate::state::LabName;
use clap::Args;
pub use plover_node::PolicyName;
pub use plover_vm::Firmware;
use std::path::PathBuf;
use std::str::FromStr;

/// The choices of `plover lab up`. The overlay, then the default, decides for what is not given.
#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// The lab's name.
    #[arg(skip)]
    pub name: LabName,
    /// How the guest is protected: see `plover policy list`. With `none` it is not protected: the baseline.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: PolicyName,
    /// The number of replicas: 3 or, under policies that need no witness, 2 [default: 3; 1 with `none`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub replicas: Option<u8>,
    /// Hosts beside those of the group, for `plover member`: `plover lab restart --replica 3` starts the replica of the
    /// first of them, which then waits to be added.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub spare: u8,
    /// The guest's machine type [default: microvm].
    #[arg(long, value_parser = ["microvm", "q35", "pc"])]
    pub machine: Option<String>,
    /// The accelerator, which executes the guest's instructions [default: auto].
    #[arg(long, value_parser = ["auto", "kvm", "tcg"])]
    pub accel: Option<String>,
    /// The number of the guest's processors [default: 1].
    #[arg(long, value_name = "N")]
    pub vcpus: Option<u32>,
    /// The number of the guest's network cards. Each but the first has a network of its own, on which the client is 10.77.11.1
    /// (10.77.12.1, …); the guest has to give itself an address there.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub nics: u8,
    /// The guest's memory in MiB [default: 256, or as much as the guest image needs].
    #[arg(long, value_name = "MIB")]
    pub mem_mib: Option<u32>,
    /// The guest image to run. It also says which service must answer.
    #[arg(long, value_enum, default_value = "redis")]
    pub guest: Guest,
    /// The guest works when it takes a TCP connection on this port, whatever --guest says.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub answers: Option<u16>,
    /// Boot this kernel instead of the cached image's.
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The initial RAM disk that goes with --kernel.
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// A disk for the guest beside its own: a raw image, or one whose name ends in .qcow2, .vmdk or .vdi.
    /// Each replica gets a copy. BUS is virtio (the default), scsi or ide. May be repeated. With --bios or
    /// --uefi the first disk is the one that boots.
    #[arg(long = "disk", value_name = "FILE[,bus=BUS][,readonly][,cdrom]")]
    pub disks: Vec<DiskImage>,
    /// Start the guest from its first disk by UEFI, not from a kernel; on q35, or with --machine pc. Needs
    /// the package ovmf.
    #[arg(long, conflicts_with_all = ["bios", "kernel"])]
    pub uefi: bool,
    /// Start the guest from its first disk by SeaBIOS; on q35, or with --machine pc.
    #[arg(long, conflicts_with = "kernel")]
    pub bios: bool,
    /// Let the kernel choose the CPU of every thread. Without this option, the two guests that run are kept
    /// on different CPUs if this machine has too few CPUs for all hosts of the lab.
    #[arg(long)]
    pub any_cpu: bool,
    /// A TOML file. Its keys, such as `[policy] slot_max_ms`, go into every replica's configuration.
    #[arg(long = "config", value_name = "FILE")]
    pub overlay: Option<PathBuf>,
    /// The `plover` program that runs the daemons; without it the running program.
    #[arg(skip)]
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
    /// It is a CD in a drive.
    pub cdrom: bool,
    /// The size in MiB to which it may grow while the guest runs.
    pub max_size_mib: Option<u64>,
}

impl From<PathBuf> for DiskImage {
    fn from(path: PathBuf) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }
}

/// `FILE[,bus=BUS][,readonly][,cdrom][,max=MIB]`. Other commas belong to the file's name.
impl FromStr for DiskImage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rest, mut image) = (text, Self::default());
        while let Some((before, word)) = rest.rsplit_once(',') {
            match word.split_once('=') {
                None if word == "readonly" => image.read_only = true,
                None if word == "cdrom" => (image.read_only, image.cdrom) = (true, true),
                Some(("bus", bus @ ("virtio" | "scsi" | "ide"))) => image.bus = Some(bus.into()),
                Some(("max", mib)) => {
                    let mib = mib
                        .parse()
                        .map_err(|_| format!("'{mib}' is no number of MiB"))?;
                    image.max_size_mib = Some(mib);
                }
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

    /// The firmware that starts the guest from its first disk, instead of a kernel.
    pub fn firmware(&self) -> Option<Firmware> {
        match (self.bios, self.uefi) {
            (true, _) => Some(Firmware::Bios),
            (_, true) => Some(Firmware::Uefi),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_says_how_the_guest_sees_it() {
        let read = |text: &str| text.parse::<DiskImage>();
        let disk = |path: &str, bus: Option<&str>, read_only| {
            Ok::<_, String>(DiskImage {
                path: path.into(),
                bus: bus.map(Into::into),
                read_only,
                ..DiskImage::default()
            })
        };
        assert_eq!(read("/d.raw"), disk("/d.raw", None, false));
        assert_eq!(read("d,bus=scsi,readonly"), disk("d", Some("scsi"), true));
        assert_eq!(read("d,readonly,bus=ide"), disk("d", Some("ide"), true));
        let cd = DiskImage {
            cdrom: true,
            ..disk("d.iso", Some("scsi"), true).unwrap()
        };
        assert_eq!(read("d.iso,cdrom,bus=scsi"), Ok(cd));
        assert_eq!(read("a,b.raw,readonly"), disk("a,b.raw", None, true));
        assert!(read("d,bus=usb").unwrap_err().contains("virtio"));
        assert!(read(",readonly").is_err());
    }
}

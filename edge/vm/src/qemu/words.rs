//! The machine of a guest in words: hosts compare theirs before one takes a copy of the other's guest.

use super::QemuVm;
use crate::{Accel, Boot, DiskBus, DiskDevice, Firmware};
use plover_types::MachineWords;
use serde_json::Value;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// The SeaBIOS that QEMU starts on `q35` and `pc` (Debian, Ubuntu; others).
const SEABIOS: [&str; 2] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/bios-256k.bin",
];

impl QemuVm {
    /// The machine that QEMU has made, once it has started.
    pub fn machine_words(&self) -> MachineWords {
        let config = &self.config;
        let disks: Vec<_> = config.disks.iter().map(disk).collect();
        let needed = format!(
            "QEMU {}, {}, {}, vCPUs {}, NIC {}{}, disks [{}]{}",
            self.version,
            config.machine,
            self.accel,
            config.vcpus,
            config.mac,
            if config.offloads { " offloads" } else { "" },
            disks.join(", "),
            config.identity.words()
        );
        let firmware = match (&config.boot, config.firmware) {
            (Boot::Kernel { .. }, _) => String::new(),
            (Boot::Firmware, Firmware::Uefi) => checksum(&[Firmware::OVMF]),
            (Boot::Firmware, Firmware::Bios) => checksum(&SEABIOS),
        };
        // QEMU's translator makes the same processor on every host, and a named model is one on every host that has it.
        let processor = match (self.accel, &config.identity.cpu) {
            (Accel::Kvm, None) => processor(),
            _ => String::new(),
        };
        let parts = [firmware, processor].into_iter().filter(|p| !p.is_empty());
        let wanted = parts.collect::<Vec<_>>().join(", ");
        MachineWords { needed, wanted }
    }
}

/// QEMU's release, of a QMP greeting: its major and minor number. A third number only mends.
pub(super) fn version(about: &Value) -> String {
    let number = |name: &str| about["version"]["qemu"][name].as_u64().unwrap_or(0);
    format!("{}.{}", number("major"), number("minor"))
}

fn disk(disk: &DiskDevice) -> String {
    let device = match (disk.bus, disk.read_only) {
        (DiskBus::Virtio, false) => "virtio",
        (DiskBus::Virtio, true) => "virtio read-only",
        (DiskBus::Scsi, false) => "scsi",
        (DiskBus::Scsi, true) => "scsi read-only",
        (DiskBus::Ide, false) => "ide",
        (DiskBus::Ide, true) => "ide read-only",
    };
    match &disk.serial {
        Some(serial) => format!("{device} {serial:?}"),
        None => device.into(),
    }
}

/// The first of these files that is there, and a checksum of its content.
fn checksum(files: &[&str]) -> String {
    let mut read = files
        .iter()
        .filter_map(|file| Some((*file, std::fs::read(file).ok()?)));
    let Some((file, bytes)) = read.next() else {
        return "unknown firmware".into();
    };
    let name = Path::new(file).file_name().unwrap_or_default();
    format!("{} {:08x}", name.to_string_lossy(), xxh3_64(&bytes) as u32)
}

/// The name of this host's processor.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| "unknown processor".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_release_that_only_mends_is_the_same_version() {
        let about = |micro| {
            let qemu = json!({"major": 7, "minor": 2, "micro": micro});
            json!({"version": {"qemu": qemu, "package": "Debian 1:7.2+dfsg-7"}})
        };
        assert_eq!(version(&about(22)), "7.2");
        assert_eq!(version(&about(22)), version(&about(5)));
    }
}

//! The machine of a guest in words: hosts compare theirs before one takes a copy of the other's guest.

use super::QemuVm;
use crate::{Accel, DiskBus, DiskDevice, Firmware, Machine, NicDevice, NicModel, QemuConfig};
use plover_disk::Attachment;
use plover_types::MachineWords;
use serde_json::Value;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The machine as QEMU itself says, once it has started.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    /// QEMU's release, without what only mends it: `7.2`.
    pub(super) version: String,
    /// The versioned name of the machine's type, such as `pc-q35-7.2`; `microvm` has no versions.
    pub(super) machine_type: String,
    /// The features that the guest finds in its processor.
    pub(super) features: Vec<String>,
    /// The firmware that starts the machine.
    firmware: String,
    /// The name of this host's processor.
    processor: String,
}

impl Made {
    /// Reads the files that name the firmware and the processor. Later nobody may wait for the disk that they are on.
    pub(super) fn by_files(config: &QemuConfig) -> Self {
        Self {
            firmware: firmware(config),
            processor: host_processor(),
            ..Self::default()
        }
    }
}

impl QemuVm {
    /// The machine that QEMU has made, once it has started.
    ///
    /// A type with a version is the same machine in every release of QEMU that has it, and so it stands for the release
    /// (docs/decisions/0054). Its processor is the same only if its features are: a translator that learns more
    /// instructions adds them to models that exist.
    pub fn machine_words(&self) -> MachineWords {
        let (config, made) = (&self.config, &self.made);
        let marks = self.disks.iter().flat_map(Attachment::marks);
        let disks = config.disks.iter().zip(marks);
        let disks: Vec<_> = disks.map(|(it, mark)| disk(it, mark)).collect();
        let release = format!("QEMU {}", made.version);
        let is_microvm = config.machine == Machine::Microvm;
        let machine = match is_microvm {
            true => format!("{release}, {}", config.machine),
            false => made.machine_type.clone(),
        };
        let nics: Vec<_> = config.nics.iter().map(nic).collect();
        let mut needed = vec![format!(
            "{machine}, {}, vCPUs {}, NIC {}{}, disks [{}]{}{}{}{}{}{}",
            self.accel,
            config.vcpus,
            nics.join(" "),
            if config.offloads { " offloads" } else { "" },
            disks.join(", "),
            if config.rng { ", rng" } else { "" },
            if config.agent { ", agent" } else { "" },
            match config.watchdog {
                None => String::new(),
                Some(watchdog) => format!(", {}", watchdog.name()),
            },
            if config.display { ", display" } else { "" },
            match config.firmware {
                Firmware::Bios => String::new(),
                uefi => format!(", {}", uefi.name()),
            },
            config.identity.words()
        )];
        let mut wanted = Vec::new();
        if !is_microvm {
            wanted.push(release);
            wanted.push(made.firmware.clone());
        }
        match (self.accel, &config.identity.cpu) {
            // The host's own processor: a guest moves to one that can do more, and people are told.
            (Accel::Kvm, None) => {
                wanted.push(made.processor.clone());
                wanted.extend(made.features.clone());
            }
            _ if !is_microvm => needed.extend(made.features.clone()),
            _ => {}
        }
        MachineWords {
            needed: needed.join(", "),
            wanted: wanted.join(", "),
        }
    }
}

/// The firmware that starts the machine; the one that lies beside this QEMU comes before the distribution's.
fn firmware(config: &QemuConfig) -> String {
    if let Some(code) = config.firmware.code() {
        return checksum(&[code.into()]);
    }
    let program = super::process::binary(config);
    let folder = program.canonicalize().ok();
    let beside = folder.as_deref().and_then(|it| it.parent()?.parent());
    let places = beside.into_iter().chain([Path::new("/usr")]);
    let seabios = places.flat_map(|at| SEABIOS.map(|file| at.join(file)));
    checksum(&seabios.collect::<Vec<_>>())
}

/// The SeaBIOS that QEMU starts on `q35` and `pc`, below `/usr` (Debian, Ubuntu; others).
const SEABIOS: [&str; 2] = ["share/seabios/bios-256k.bin", "share/qemu/bios-256k.bin"];

/// The versioned name in what QEMU calls the machine's type: `pc-q35-7.2-machine`.
pub(super) fn machine_type(answer: &Value) -> String {
    let name = answer.as_str().unwrap_or("unknown");
    name.strip_suffix("-machine").unwrap_or(name).to_owned()
}

/// Bits that only say how processors are arranged, by leaf and register: HTT and CMP_LEGACY. Releases of QEMU differ in
/// whether its translator shows them, and no instruction depends on them.
const ARRANGEMENT: [(u64, &str, u64); 2] = [(1, "EDX", 1 << 28), (0x8000_0001, "ECX", 1 << 1)];

/// The features in QEMU's `feature-words`: one word for each register of CPUID that has any.
pub(super) fn features(answer: &Value) -> Vec<String> {
    let word = |it: &Value| {
        let (leaf, register) = (
            it["cpuid-input-eax"].as_u64()?,
            it["cpuid-register"].as_str()?,
        );
        let arrangement = ARRANGEMENT
            .iter()
            .find(|(l, r, _)| (*l, *r) == (leaf, register));
        let bits = it["features"].as_u64()? & !arrangement.map_or(0, |(_, _, bits)| *bits);
        let part = it["cpuid-input-ecx"].as_u64();
        let part = part.map_or_else(String::new, |part| format!(".{part}"));
        (bits != 0).then(|| format!("CPUID {leaf:X}{part} {register} {bits:08x}"))
    };
    answer
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(word)
        .collect()
}

/// QEMU's release, of a QMP greeting: its major and minor number. A third number only mends.
pub(crate) fn version(about: &Value) -> String {
    let number = |name: &str| about["version"]["qemu"][name].as_u64().unwrap_or(0);
    format!("{}.{}", number("major"), number("minor"))
}

/// Hosts of before there were models have virtio's.
fn nic(nic: &NicDevice) -> String {
    match nic.model {
        NicModel::Virtio => nic.mac.to_string(),
        model => format!("{} {}", model.name(), nic.mac),
    }
}

/// A disk that the guest only reads is told by what it holds, too: no replica copies it.
fn disk(disk: &DiskDevice, mark: Option<u64>) -> String {
    let bus = match disk.bus {
        DiskBus::Virtio => "virtio",
        DiskBus::Scsi => "scsi",
        DiskBus::Ide => "ide",
    };
    let kind = match (disk.cdrom, disk.read_only) {
        (true, _) => " cdrom",
        (false, true) => " read-only",
        (false, false) => "",
    };
    let serial = disk.serial.iter().map(|serial| format!(" {serial:?}"));
    let mark = mark.iter().map(|mark| format!(" of content {mark:016x}"));
    format!("{bus}{kind}") + &serial.chain(mark).collect::<String>()
}

/// The first of these files that is there, and a checksum of its content.
fn checksum(files: &[PathBuf]) -> String {
    let mut read = files
        .iter()
        .filter_map(|file| Some((file, std::fs::read(file).ok()?)));
    let Some((file, bytes)) = read.next() else {
        return "unknown firmware".into();
    };
    let name = file.file_name().unwrap_or_default();
    format!("{} {:08x}", name.to_string_lossy(), xxh3_64(&bytes) as u32)
}

/// The name of this host's processor.
pub(crate) fn host_processor() -> String {
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

    /// A processor is told by what its guest can execute: not by how many of it there are.
    #[test]
    fn features_are_told_by_register_and_without_the_arrangement() {
        let word = |leaf: u64, part: Option<u64>, register: &str, bits: u64| {
            let mut word =
                json!({"cpuid-input-eax": leaf, "cpuid-register": register, "features": bits});
            if let Some(part) = part {
                word["cpuid-input-ecx"] = part.into();
            }
            word
        };
        let said = json!([
            word(1, None, "EDX", 0x178b_fbfd),
            word(7, Some(0), "EBX", 0x3a9),
            word(0x8000_0001, None, "ECX", 2),
            word(0x8000_0007, None, "EDX", 0),
        ]);
        assert_eq!(
            features(&said),
            ["CPUID 1 EDX 078bfbfd", "CPUID 7.0 EBX 000003a9"]
        );
        assert_eq!(machine_type(&json!("pc-q35-7.2-machine")), "pc-q35-7.2");
    }
}

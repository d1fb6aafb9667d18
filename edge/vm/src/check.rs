//! Checks that this machine can run a guest. Each error says in one sentence what is missing and what to
//! do.

use crate::qemu::process::{Agent, Process, binary, cannot_start, files};
use crate::{
    Accel, Boot, DiskBus, Firmware, Machine, NicDevice, NicModel, QemuConfig, VmError, Watchdog,
    accel, dirty,
};
use plover_agent::{HELLO_HAS_LOG, HELLO_HAS_ORDERS};
use plover_confine::Files;
use plover_types::Frame;
use rustix::time::Timespec;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The oldest QEMU that was tried. Older ones lack `-netdev dgram`.
const QEMU_MIN: (u32, u32) = (7, 2);

/// A QEMU that has not started the agent's thread by then never will.
const AGENT_DEADLINE: Duration = Duration::from_secs(10);

/// How long a process takes to end at most, once it has closed its sockets.
const END_WITHIN: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Checks that this machine and user can run a guest as `config` says.
pub fn check_host(config: &QemuConfig) -> Result<(), VmError> {
    config.validate()?;
    let qemu = binary(config);
    check_version(&qemu)?;
    boot_files(config)?;
    if config.accel == Accel::Kvm {
        accel::open_kvm().map_err(|why| {
            VmError::Unsupported(format!(
                "accel = \"kvm\" cannot be had: {why}; load the kvm module, give this user \
                 access to it, or use accel = \"tcg\""
            ))
        })?;
    }
    ask_agent(&qemu, &files(config))?;
    if !config.device_memory().is_empty() {
        let kernel = rustix::system::uname();
        let kernel = kernel.release().to_string_lossy();
        dirty::try_here().map_err(|(step, error)| kernel_lacks(&kernel, step, error))?;
    }
    Ok(())
}

/// The longest serial number of a disk: virtio-blk and ATA have no room for more.
const SERIAL_MAX: usize = 20;
/// The most disks; each has a thread.
const DISKS_MAX: usize = 16;
/// microvm has eight places for virtio devices, one of them the NIC's.
const MICROVM_DISKS_MAX: usize = 6;

impl QemuConfig {
    fn validate_nics(&self) -> Result<(), VmError> {
        let bad = |text: String| Err(VmError::Unsupported(text));
        let count = self.nics.len();
        if !(1..=Frame::NICS_MAX).contains(&count) {
            return bad(format!(
                "a guest has 1 to {} network cards, not {count}",
                Frame::NICS_MAX
            ));
        }
        for (i, NicDevice { mac, model }) in self.nics.iter().enumerate() {
            if mac.0[0] & 1 != 0 {
                return bad(format!("mac = {mac}: a group address; use 52:54:00:…"));
            }
            if self.nics[..i].iter().any(|other| other.mac == *mac) {
                return bad(format!(
                    "mac = {mac}: two network cards of the guest have it"
                ));
            }
            if self.machine == Machine::Microvm && *model != NicModel::Virtio {
                return bad(format!(
                    "a network card of model {} is a PCI device: use machine = \"q35\" or \"pc\", or a card of \
                     model \"virtio\"",
                    model.name()
                ));
            }
        }
        Ok(())
    }

    /// Checks that such a guest can exist.
    pub fn validate(&self) -> Result<(), VmError> {
        let bad = |text: String| Err(VmError::Unsupported(text));
        if !(16..=1 << 20).contains(&self.mem_mib) {
            return bad(format!(
                "mem_mib = {}: a guest has 16 MiB to 1 TiB",
                self.mem_mib
            ));
        }
        if !(1..=255).contains(&self.vcpus) {
            return bad(format!("vcpus = {}: a guest has 1 to 255", self.vcpus));
        }
        self.validate_nics()?;
        if self.machine == Machine::Microvm && self.firmware.is_uefi() {
            return bad(
                "machine = \"microvm\" starts its kernel without firmware: for firmware = \"uefi\" \
                 use machine = \"q35\" or \"pc\""
                    .into(),
            );
        }
        if self.machine != Machine::Q35 && self.firmware == Firmware::UefiSecure {
            return bad(
                "firmware = \"uefi-secure\" takes machine = \"q35\", the only one with a system management mode that \
                 protects its keys"
                    .into(),
            );
        }
        match (self.watchdog, self.machine) {
            (Some(Watchdog::Itco), Machine::Microvm | Machine::Pc) => {
                return bad("watchdog = \"itco\" is in the chip set of machine = \"q35\"".into());
            }
            (Some(Watchdog::I6300esb), Machine::Microvm) => {
                return bad(
                    "watchdog = \"i6300esb\" is a PCI device: use machine = \"q35\" or \"pc\""
                        .into(),
                );
            }
            _ => {}
        }
        if self.display && self.machine == Machine::Microvm {
            return bad("display = true is a PCI device: use machine = \"q35\" or \"pc\"".into());
        }
        if !matches!(self.flash.len(), 0 | Firmware::FLASH_BYTES) {
            return bad(format!(
                "UEFI variables of {} bytes: OVMF's image of 4 MiB keeps them in {}",
                self.flash.len(),
                Firmware::FLASH_BYTES
            ));
        }
        self.identity
            .validate(self.machine, self.vcpus)
            .map_err(VmError::Unsupported)?;
        self.validate_disks()
    }

    fn validate_disks(&self) -> Result<(), VmError> {
        let bad = |text: &str| Err(VmError::Unsupported(text.into()));
        let microvm = self.machine == Machine::Microvm;
        let ide = self.disks.iter().filter(|disk| disk.bus == DiskBus::Ide);
        if self.boot == Boot::Firmware && (microvm || self.disks.is_empty()) {
            return bad(
                "a guest without a kernel starts from its first disk, which takes a [[disk]] and \
                 machine = \"q35\" or \"pc\"",
            );
        }
        match (self.machine, ide.count()) {
            (Machine::Microvm, 1..) => {
                return bad("machine = \"microvm\" has no IDE bus: use bus = \"virtio\"");
            }
            (Machine::Pc, 5..) | (Machine::Q35, 7..) => {
                return bad("too many IDE disks: pc has room for 4, q35 for 6");
            }
            _ => {}
        }
        for disk in &self.disks {
            match (disk.bus, disk.cdrom, disk.read_only) {
                (DiskBus::Virtio, true, _) => {
                    return bad("a disk with cdrom = true is on bus = \"scsi\" or \"ide\"");
                }
                (_, true, false) => return bad("a CD is read only"),
                (DiskBus::Ide, false, true) => {
                    return bad(
                        "QEMU has no IDE disk that is read only: take bus = \"virtio\" or \"scsi\", or cdrom = true",
                    );
                }
                _ => {}
            }
        }
        let others = usize::from(self.rng) + usize::from(self.agent) + self.nics.len() - 1;
        if microvm && self.disks.len() + others > MICROVM_DISKS_MAX {
            return bad(
                "machine = \"microvm\" has room for 6 disks, and for one less with each of rng = true, agent = true and a [[nic]]",
            );
        }
        if self.disks.len() > DISKS_MAX {
            return bad("a guest has 16 disks at most");
        }
        let is_bad = |serial: &&str| {
            let visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
            serial.is_empty() || serial.len() > SERIAL_MAX || !serial.bytes().all(visible)
        };
        let mut serials = self.disks.iter().filter_map(|disk| disk.serial.as_deref());
        if let Some(serial) = serials.find(is_bad) {
            return Err(VmError::Unsupported(format!(
                "a disk's serial = {serial:?}: it has 1 to {SERIAL_MAX} letters, digits and signs of ASCII"
            )));
        }
        Ok(())
    }
}

/// A function that Plover calls in QEMU and that this one does not export, by the agent's hello; `None`: it exports all.
pub(crate) fn missing_symbol(hello: u32) -> Option<&'static str> {
    let needed = [
        (HELLO_HAS_ORDERS, "yank_register_instance"),
        (HELLO_HAS_LOG, "memory_region_snapshot_and_clear_dirty"),
    ];
    let missing = needed.into_iter().find(|(bit, _)| hello & bit == 0);
    missing.map(|(_, name)| name)
}

/// The error for a QEMU that lacks that function, or one that goes with it.
pub(crate) fn exports_too_little(qemu: &Path, symbol: &str) -> String {
    format!(
        "'{}' does not export all functions that Plover calls inside QEMU (such as {symbol}): use a build with modules (the \
         qemu-system packages of Debian, Ubuntu and Fedora), and name the binary itself, not a script around it",
        qemu.display()
    )
}

fn kernel_lacks(release: &str, step: &str, error: std::io::Error) -> VmError {
    if let Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::EAGAIN) = error.raw_os_error() {
        return VmError::Io {
            what: step.into(),
            source: error,
        };
    }
    VmError::Unsupported(match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "{step} is not permitted here ({error}), which a guest with UEFI or a display needs: allow userfaultfd in \
             this container, or to this service"
        ),
        _ => format!(
            "Linux {release} cannot track the memory of devices ({step}: {error}), which a guest with UEFI or a display \
             needs: take Linux 6.7 or newer with CONFIG_USERFAULTFD (Debian 12: a backports kernel)"
        ),
    })
}

fn check_version(qemu: &Path) -> Result<(), VmError> {
    let output = Command::new(qemu)
        .arg("--version")
        .output()
        .map_err(|error| cannot_start(qemu, error))?;
    if output.status.code().is_none() {
        let (qemu, how) = (qemu.display(), output.status);
        return Err(VmError::Failed(format!(
            "'{qemu} --version' ended by a {how}"
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let found = parse_version(&text).ok_or_else(|| {
        VmError::Unsupported(format!(
            "'{}' does not say its version as QEMU does: name a qemu-system-x86_64 binary",
            qemu.display()
        ))
    })?;
    if (found.0, found.1) < QEMU_MIN {
        return Err(VmError::Unsupported(format!(
            "'{}' is QEMU {}.{}.{}: {}.{} or newer is needed (Debian 12 has it)",
            qemu.display(),
            found.0,
            found.1,
            found.2,
            QEMU_MIN.0,
            QEMU_MIN.1
        )));
    }
    Ok(())
}

/// The version in `QEMU emulator version 7.2.22 (Debian …)`.
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let rest = text.strip_prefix("QEMU emulator version ")?;
    let number = rest.split([' ', '\n', '(']).next()?;
    let mut parts = number.split('.').map(|part| {
        // Release candidates end in something like "50-rc1".
        let digits = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    Some((
        parts.next()??,
        parts.next()??,
        parts.next().flatten().unwrap_or(0),
    ))
}

fn boot_files(config: &QemuConfig) -> Result<(), VmError> {
    let files = [config.firmware.code(), config.firmware.new_variables()];
    if let Some(missing) = files.into_iter().flatten().find(|file| !file.exists()) {
        return Err(VmError::Unsupported(format!(
            "there is no UEFI firmware {}: install the package ovmf",
            missing.display()
        )));
    }
    let Boot::Kernel { kernel, initrd, .. } = &config.boot else {
        return Ok(());
    };
    let initrd = initrd.iter().map(|file| ("guest.initrd", file));
    for (key, file) in std::iter::once(("guest.kernel", kernel)).chain(initrd) {
        std::fs::File::open(file).map_err(|error| {
            VmError::Unsupported(format!("cannot open {key} = '{}': {error}", file.display()))
        })?;
    }
    Ok(())
}

/// Starts QEMU without a machine and asks the agent inside whether it can work. This tests the loader,
/// the sandbox and the symbols at once.
fn ask_agent(qemu: &Path, files: &Files) -> Result<(), VmError> {
    let (mut link, end) = crate::qemu::links::AgentLink::new()?;
    let arguments = [
        "-M",
        "none",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-S",
    ];
    let arguments = arguments.into_iter().map(OsString::from).collect();
    let agent = Agent {
        socket: std::os::fd::AsFd::as_fd(&end),
        nics: Vec::new(),
    };
    let mut process = Process::start(qemu, arguments, &[], Some(agent), files)?;
    drop(end);
    match link.hello(AGENT_DEADLINE) {
        Ok(value) => match missing_symbol(value) {
            None => Ok(()),
            Some(symbol) => Err(VmError::Unsupported(exports_too_little(qemu, symbol))),
        },
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(VmError::Failed(format!(
            "the agent inside '{}' did not answer within {} s: this host is very busy, or QEMU is no dynamic binary, or \
             LD_PRELOAD does not work",
            qemu.display(),
            AGENT_DEADLINE.as_secs()
        ))),
        Err(error) => {
            // Its socket is closed a moment before it has ended.
            process.ends_within(&END_WITHIN);
            let how = process.ended().unwrap_or_else(|| error.to_string());
            let text = format!(
                "the agent did not start inside '{}' ({how}): QEMU must be a dynamic binary and \
                 LD_PRELOAD must work",
                qemu.display()
            );
            // The end by a signal says nothing about the binary.
            Err(match process.exit_code() {
                Some(_) => VmError::Unsupported(text),
                None => VmError::Failed(text),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn versions_parse() {
        assert_eq!(
            parse_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg)\nCopyright"),
            Some((7, 2, 22))
        );
        assert_eq!(
            parse_version("QEMU emulator version 10.0\n"),
            Some((10, 0, 0))
        );
        assert_eq!(
            parse_version("QEMU emulator version 9.0.50-rc1"),
            Some((9, 0, 50))
        );
        assert_eq!(parse_version("qemu-img version 7.2"), None);
        assert_eq!(parse_version("QEMU emulator version x.y"), None);
    }

    fn config() -> QemuConfig {
        QemuConfig {
            machine: Machine::Q35,
            accel: Accel::Tcg,
            disks: vec![crate::DiskDevice::default()],
            ..QemuConfig::new(Boot::Firmware, "52:54:00:00:00:01".parse().unwrap())
        }
    }

    /// The errors for a QEMU that is missing, too old, no QEMU, or lacks the symbol.
    #[test]
    fn each_unusable_qemu_is_refused_with_advice() {
        let dir = tempfile::tempdir().unwrap();
        let say = |script: Option<&str>| {
            let path = dir.path().join("qemu");
            if let Some(script) = script {
                std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            }
            let config = QemuConfig {
                qemu: Some(path),
                ..config()
            };
            check_host(&config).unwrap_err().to_string()
        };
        let text = say(None);
        assert!(
            text.contains("install it") && !text.contains('\n'),
            "{text}"
        );
        let text = say(Some("echo QEMU emulator version 6.2.0"));
        assert!(text.contains("7.2 or newer"), "{text}");
        let text = say(Some("echo something else"));
        assert!(text.contains("name a qemu-system-x86_64"), "{text}");
        // The agent starts in the shell, which has no such symbol: as in a QEMU without modules.
        let text = say(Some(
            "[ \"$1\" = --version ] && echo QEMU emulator version 8.0.0 && exit\nwhile :; do :; done",
        ));
        assert!(text.contains("does not export all functions"), "{text}");
        let text = say(Some(
            "[ \"$1\" = --version ] && echo QEMU emulator version 8.0.0 && exit\nexit 3",
        ));
        assert!(
            text.contains("yank") || text.contains("the agent did not start"),
            "{text}"
        );
    }

    #[test]
    fn impossible_guests_are_refused() {
        let bad = |change: fn(&mut QemuConfig)| {
            let mut config = config();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(bad(|c| c.mem_mib = 8).contains("mem_mib"));
        assert!(bad(|c| c.vcpus = 0).contains("vcpus"));
        assert!(bad(|c| c.nics[0].mac.0[0] = 1).contains("mac"));
        assert!(bad(|c| c.nics.push(c.nics[0])).contains("two network cards"));
        let many = bad(|c| {
            let nic = |i| NicDevice {
                mac: plover_types::Mac([2, 0, 0, 0, 0, i]),
                model: NicModel::Virtio,
            };
            c.nics = (0..5).map(nic).collect();
        });
        assert!(many.contains("1 to 4"), "{many}");
        assert!(bad(|c| c.identity.uuid = Some("1".into())).contains("uuid"));
        let long = bad(|c| c.disks[0].serial = Some("0123456789-0123456789".into()));
        assert!(long.contains("1 to 20"), "{long}");
        assert!(bad(|c| c.machine = Machine::Microvm).contains("q35"));
        let refused = bad(|c| {
            c.machine = Machine::Microvm;
            c.boot = Boot::Kernel {
                kernel: "/k".into(),
                initrd: None,
                cmdline: String::new(),
            };
            c.firmware = Firmware::Uefi;
        });
        assert!(refused.contains("without firmware"), "{refused}");
    }
}

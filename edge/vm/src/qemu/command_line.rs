//! QEMU's command line.
//!
//! A comment says why each unusual option is there. Together they are the conditions under which saved
//! device state loads into a guest that has run.

use super::disks::connection;
use crate::{
    Accel, AtEnd, Boot, ClockBase, DiskBus, Firmware, Machine, NicDevice, NicModel, QemuConfig,
    Watchdog,
};
use std::ffi::OsString;

/// The numbers of the descriptors that QEMU inherits.
#[derive(Clone, Debug)]
pub(super) struct Inherited {
    pub(super) ram: i32,
    /// In the order of [`QemuConfig::nics`].
    pub(super) nics: Vec<i32>,
    pub(super) qmp: i32,
    pub(super) console: i32,
    /// Of the channel to the guest's agent, if there is one.
    pub(super) guest_agent: Option<i32>,
    /// In the order of [`QemuConfig::disks`].
    pub(super) disks: Vec<i32>,
}

/// The arguments for `config` under `accel`, which is not [`Accel::Auto`] any more.
pub(super) fn arguments(config: &QemuConfig, accel: Accel, fds: &Inherited) -> Vec<OsString> {
    assert_ne!(
        accel,
        Accel::Auto,
        "the accelerator is chosen before QEMU starts"
    );
    let mut line = Line(Vec::new());
    line.option(
        "-name",
        format!("guest={},debug-threads=on", escape(&config.name)),
    );
    // Only the devices named here, and no configuration of the host's user: the machine must be the
    // same on every replica.
    line.flag("-nodefaults");
    line.flag("-no-user-config");
    line.option("-display", "none");
    let flash = uefi(&mut line, config.firmware);
    // suppress-vmdesc: the saved state is then binary only, tens of KiB smaller.
    let identity = &config.identity;
    let machine_type = identity.machine_type.as_deref();
    let machine = machine_type.unwrap_or(config.machine.name());
    line.option(
        "-M",
        format!("{machine},memory-backend=ram,suppress-vmdesc=on{flash}"),
    );
    // Suspend to RAM is not offered. In it QEMU stops the vCPUs and says nothing of it; it ends when something wakes the guest, whatever was
    // ordered, and a state that is loaded into such a guest does not run. A guest that wakes would also go past Secure
    // Boot's protection.
    match config.machine {
        Machine::Q35 => line.option("-global", "ICH9-LPC.disable_s3=1"),
        Machine::Pc => line.option("-global", "PIIX4_PM.disable_s3=1"),
        Machine::Microvm => {}
    }
    // A load without this section skips comparing machine names and sizes, which expects a
    // fresh incoming QEMU.
    line.option("-global", "migration.send-configuration=off");
    // An optimisation for 32-bit Windows. Its state is in guest RAM and is written when device state is
    // loaded.
    line.option("-global", "apic-common.vapic=off");
    match accel {
        Accel::Kvm => {
            line.option("-accel", "kvm");
            // enforce: a host that lacks a feature of the model must not run the guest without it.
            let cpu = match &identity.cpu {
                Some(model) => format!("{},enforce", crate::accel::kvm_cpu(model)),
                None => crate::accel::host_cpu(),
            };
            line.option("-cpu", with_features(cpu, &identity.cpu_features));
        }
        _ => {
            line.option("-accel", "tcg,thread=multi");
            // The translator lacks features of most models, the same ones on each host.
            let cpu = identity.cpu.as_deref().unwrap_or("max").to_owned();
            line.option("-cpu", with_features(cpu, &identity.cpu_features));
        }
    }
    let smp = match &identity.topology {
        Some(it) => format!(
            "{},sockets={},dies={},cores={},threads={}",
            config.vcpus, it.sockets, it.dies, it.cores, it.threads
        ),
        None => config.vcpus.to_string(),
    };
    line.option("-smp", smp);
    if let Some(uuid) = &identity.uuid {
        line.option("-uuid", uuid);
    }
    let system = identity.system.set();
    let system: String = system
        .map(|(name, word)| format!(",{name}={}", escape(word)))
        .collect();
    if !system.is_empty() {
        line.option("-smbios", format!("type=1{system}"));
    }
    if identity.clock == ClockBase::Localtime {
        line.option("-rtc", "base=localtime");
    }
    line.option("-m", format!("{}M", config.mem_mib));
    line.option(
        "-object",
        format!(
            "memory-backend-file,id=ram,size={}M,mem-path=/proc/self/fd/{},share=on",
            config.mem_mib, fds.ram
        ),
    );
    // A guest that resets goes on by itself, if it may. Its other copy does the same a little sooner or later, or
    // never, and the next syncvm makes the two equal again, as after any divergence (docs/decisions/0035). One
    // that powers off or panics stops, and QEMU reports it.
    let reboot = match config.ends.on_reboot {
        AtEnd::Restart => "reset",
        AtEnd::Destroy => "shutdown",
    };
    line.option(
        "-action",
        format!("reboot={reboot},shutdown=pause,panic=pause"),
    );
    if config.machine != Machine::Microvm {
        // By this a guest's kernel says that it has crashed. A microvm describes no such device to its guest.
        line.option("-device", "pvpanic");
    }
    // A guest may take QEMU over: no new processes and no new privileges for QEMU.
    line.option(
        "-sandbox",
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    );
    line.option("-chardev", format!("socket,id=qmp,fd={}", fds.qmp));
    line.option("-mon", "chardev=qmp,mode=control");
    line.option("-chardev", format!("socket,id=console,fd={}", fds.console));
    line.option("-serial", "chardev:console");
    nic(&mut line, config, fds, 0);
    disks(&mut line, config, &fds.disks);
    let kind = match config.machine {
        Machine::Microvm => "device",
        _ => "pci",
    };
    // The devices that a guest may lack come last: the others keep their places.
    if config.rng {
        // Its bytes differ between the hosts until the next sync, as RDRAND's do. Its state has none of them, and it gives
        // none while the guest stands.
        line.option("-object", "rng-builtin,id=rng");
        line.option("-device", format!("virtio-rng-{kind},rng=rng"));
    }
    if let Some(fd) = fds.guest_agent {
        line.option("-chardev", format!("socket,id=agent,fd={fd}"));
        line.option("-device", format!("virtio-serial-{kind},max_ports=2"));
        line.option(
            "-device",
            "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
        );
    }
    if let Some(watchdog) = config.watchdog {
        match watchdog {
            // It is there in any case, without the wire that resets the machine.
            Watchdog::Itco => line.option("-global", "ICH9-LPC.noreboot=off"),
            Watchdog::I6300esb => line.option("-device", "i6300esb"),
        }
        line.option("-action", "watchdog=reset");
    }
    for number in 1..config.nics.len() {
        nic(&mut line, config, fds, number);
    }
    if config.display {
        // It listens nowhere: each viewer is a socket that QEMU is given.
        line.option("-vnc", "none");
        line.option("-device", "VGA");
        line.option("-device", "qemu-xhci");
        line.option("-device", "usb-tablet");
    }
    boot(&mut line, &config.boot);
    // Not to run before the first `cont`.
    line.flag("-S");
    line.0
}

/// A NIC of the guest's.
fn nic(line: &mut Line, config: &QemuConfig, fds: &Inherited, number: usize) {
    let (id, fd) = (format!("net{number}"), fds.nics[number]);
    let NicDevice { mac, model } = config.nics[number];
    line.option(
        "-netdev",
        match config.offloads {
            // A socket, which the agent makes a TAP device in QEMU's eyes.
            true => format!("tap,id={id},fd={fd},vhost=off"),
            false => format!("dgram,id={id},local.type=fd,local.str={fd}"),
        },
    );
    // A guest that announced itself after each load would send frames that the other one does not, and do
    // work that the other one does not. Replicas announce the guest.
    let common = format!("netdev={id},mac={mac}");
    line.option(
        "-device",
        match (model, config.machine) {
            (NicModel::Virtio, Machine::Microvm) => {
                format!("virtio-net-device,{common},guest_announce=off")
            }
            // romfile=: no network boot, and no option ROM that a newer package may change.
            (NicModel::Virtio, _) => {
                format!("virtio-net-pci,{common},guest_announce=off,romfile=")
            }
            (model, _) => format!("{},{common},romfile=", model.name()),
        },
    );
}

/// The two flash chips of UEFI: code, and variables. Returns what the machine is told of them.
fn uefi(line: &mut Line, firmware: Firmware) -> &'static str {
    let Some(code) = firmware.code() else {
        return "";
    };
    let code = escape(&code.to_string_lossy());
    line.option(
        "-blockdev",
        format!("driver=file,node-name=uefi-code,read-only=on,filename={code}"),
    );
    // The chip's content is memory that the agent has put there (`plover_agent::Op::Flash`). QEMU also writes it to the
    // file behind the chip, the whole of it after each load: there is none.
    line.option(
        "-blockdev",
        format!(
            "driver=null-co,node-name=uefi-variables,size={},read-zeroes=on",
            Firmware::FLASH_BYTES
        ),
    );
    if firmware == Firmware::UefiSecure {
        // Only system management mode may write the variables.
        line.option("-global", "driver=cfi.pflash01,property=secure,value=on");
        return ",pflash0=uefi-code,pflash1=uefi-variables,smm=on";
    }
    ",pflash0=uefi-code,pflash1=uefi-variables"
}

/// Each disk is the other end of a socket. An error stops the guest instead of reaching it (`werror`,
/// `rerror`), because its other copy has a disk that works.
fn disks(line: &mut Line, config: &QemuConfig, fds: &[i32]) {
    let pci = config.machine != Machine::Microvm;
    if config.disks.iter().any(|disk| disk.bus == DiskBus::Scsi) {
        let kind = if pci { "pci" } else { "device" };
        line.option("-device", format!("virtio-scsi-{kind},id=scsi"));
    }
    let mut ide = 0;
    for (i, (disk, fd)) in config.disks.iter().zip(fds).enumerate() {
        let read_only = if disk.read_only { "on" } else { "off" };
        line.option(
            "-blockdev",
            format!(
                "driver=nbd,node-name={},server.type=fd,server.str={fd},\
                 read-only={read_only},discard=unmap",
                connection(i, 0)
            ),
        );
        // A node above the connection, so that another connection can take its place (`disks`).
        line.option(
            "-blockdev",
            format!(
                "driver=raw,node-name=disk{i},file={},read-only={read_only},discard=unmap",
                connection(i, 0)
            ),
        );
        let kind = if disk.cdrom { "cd" } else { "hd" };
        let device = match disk.bus {
            DiskBus::Virtio if pci => "virtio-blk-pci".into(),
            DiskBus::Virtio => "virtio-blk-device".into(),
            DiskBus::Scsi => format!("scsi-{kind},bus=scsi.0,scsi-id={i}"),
            DiskBus::Ide => {
                // q35 has six buses of one disk, the PC two of two.
                let (bus, unit) = match config.machine {
                    Machine::Q35 => (ide, 0),
                    _ => (ide / 2, ide % 2),
                };
                ide += 1;
                format!("ide-{kind},bus=ide.{bus},unit={unit}")
            }
        };
        let bootable = config.boot == Boot::Firmware;
        let index = if bootable {
            format!(",bootindex={i}")
        } else {
            String::new()
        };
        let serial = match &disk.serial {
            Some(serial) => escape(serial),
            None => format!("plover-{i}"),
        };
        line.option(
            "-device",
            format!("{device},drive=disk{i},serial={serial},werror=stop,rerror=stop{index}"),
        );
    }
}

fn boot(line: &mut Line, boot: &Boot) {
    match boot {
        Boot::Kernel {
            kernel,
            initrd,
            cmdline,
        } => {
            line.option("-kernel", kernel);
            if let Some(initrd) = initrd {
                line.option("-initrd", initrd);
            }
            let cmdline = if cmdline.is_empty() {
                Boot::DEFAULT_CMDLINE
            } else {
                cmdline
            };
            line.option("-append", cmdline);
        }
        Boot::Firmware => {}
    }
}

struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, name: &str) {
        self.0.push(name.into());
    }

    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.push(name.into());
        self.0.push(value.into());
    }
}

fn with_features(mut cpu: String, features: &[String]) -> String {
    for feature in features {
        cpu.push(',');
        cpu.push_str(feature);
    }
    cpu
}

/// A comma in an option's value is written twice.
fn escape(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests;

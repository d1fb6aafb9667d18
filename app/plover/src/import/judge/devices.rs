//! All devices but disks and network cards.

use super::{At, display};
use crate::import::account::{Said, changed, ignored, kept, not_missed, refused};
use crate::import::domain::Domain;
use plover_vm::{DiskBus, Machine};
use roxmltree::Node;

pub(super) fn judge(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    if at.path == "devices" {
        return Some(kept(""));
    }
    let device = device_of(at.element)?;
    // Whatever kind of device it is, these are libvirt's.
    if at.is_in(&format!("devices/{}/alias", device.tag_name().name())) {
        return Some(ignored("libvirt's name for the device"));
    }
    let is = |name| device.attribute(name).unwrap_or_default();
    Some(match device.tag_name().name() {
        "emulator" => ignored("the old host's QEMU; guest.qemu is Plover's"),
        "controller" => return controller(domain, at, device),
        "serial" => return serial(at, device),
        "console" => match child_attribute(device, "target", "type") {
            Some("serial") | None => kept("the serial port; `plover console` shows it"),
            Some(_) => refused(
                "console",
                "the console is the first serial port: say console=ttyS0 in the guest",
            ),
        },
        "parallel" => refused("parallel", "Plover has no parallel port"),
        "channel" => channel(at, device),
        "input" => display::input(at, device),
        "graphics" => display::graphics(at, device),
        "video" => display::video(at, device),
        "sound" => refused("sound", "Plover has no sound"),
        "audio" if is("type") == "none" => kept(""),
        "audio" => refused("sound", "Plover has no sound"),
        "tpm" => refused(
            "tpm",
            "the TPM's state is in a file of the old host, which no sync copies: unseal first what the guest has sealed in it \
             (BitLocker, LUKS)",
        ),
        "rng" => rng(at, device),
        "watchdog" => watchdog(domain, at, device),
        "memballoon" if is("model") == "none" => kept(""),
        "memballoon" => not_missed("balloon", "the guest keeps all of its memory"),
        "panic" if ["", "isa", "pvpanic"].contains(&is("model")) => kept("a pvpanic device"),
        "panic" => refused("panic", "only a pvpanic device tells Plover of a crash"),
        "hostdev" => refused("hostdev", "a device of one host is not on the others"),
        "redirdev" | "redirfilter" | "hub" | "smartcard" => {
            refused("usb", "a device of one client cannot move to another host")
        }
        "filesystem" => refused(
            "filesystem",
            "a folder of the old host is not on the others: copy it onto a disk, or mount it by network",
        ),
        "shmem" => refused(
            "shmem",
            "memory that others write cannot be kept equal on two hosts",
        ),
        "memory" => refused(
            "memory-device",
            "the guest's memory is one piece: raise <memory> instead",
        ),
        "vsock" => refused(
            "vsock",
            "a socket to the old host leads nowhere on the others",
        ),
        "iommu" => refused("iommu", "Plover's machine has no IOMMU"),
        "crypto" => refused("crypto", "Plover has no such device"),
        _ => return None,
    })
}

/// The child of `<devices>` that `element` is, or is in.
fn device_of<'n>(element: Node<'n, 'n>) -> Option<Node<'n, 'n>> {
    element.ancestors().find(|node| {
        let above = node.parent_element();
        above.is_some_and(|above| above.has_tag_name("devices"))
    })
}

fn child_attribute<'n>(device: Node<'n, 'n>, child: &str, name: &str) -> Option<&'n str> {
    let mut children = device.children();
    children.find(|it| it.has_tag_name(child))?.attribute(name)
}

fn controller(domain: &Domain<'_>, at: &At<'_, '_>, device: Node<'_, '_>) -> Option<Said> {
    let has = |bus| domain.kept_disks().iter().any(|disk| disk.bus == bus);
    let kind = device.attribute("type")?;
    let model = device.attribute("model").unwrap_or_default();
    Some(match kind {
        "pci" | "virtio-serial" | "ide" | "sata" | "fdc" | "scsi" | "usb"
            if at.path.contains("/address") =>
        {
            changed("QEMU gives the device its place on the bus")
        }
        "pci" => changed("Plover's devices are on the root bus"),
        "usb" if model == "none" => kept(""),
        "usb" if !display::has_display(device) => not_missed("usb", "Plover has no USB bus"),
        "usb" if model == "qemu-xhci" => kept("the display's pointer is on it"),
        "usb" => changed("the display's pointer is on a qemu-xhci"),
        "virtio-serial" => not_missed(
            "virtio-serial",
            "it is there for channels, which have their own line",
        ),
        "fdc" => not_missed("floppy", "Plover has no floppy drives"),
        "sata" | "ide" => match domain.machine {
            Machine::Q35 if kind == "sata" => kept("part of the machine"),
            Machine::Pc if kind == "ide" => kept("part of the machine"),
            _ => changed("the machine has its own controller"),
        },
        "scsi" if !has(DiskBus::Scsi) => not_missed("scsi-controller", "no disk is on it"),
        "scsi" if model == "virtio-scsi" || model == "virtio-transitional" => kept(""),
        "scsi" => refused(
            "scsi-controller",
            "the controller is virtio-scsi: see that the guest's initramfs has its driver",
        ),
        _ => return None,
    })
}

fn serial(at: &At<'_, '_>, device: Node<'_, '_>) -> Option<Said> {
    let siblings = device.parent_element()?.children();
    let first = siblings.into_iter().find(|it| it.has_tag_name("serial"));
    if first != Some(device) {
        return Some(refused("serial", "a guest has one serial port"));
    }
    let target = child_attribute(device, "target", "type");
    if !matches!(target, None | Some("isa-serial")) {
        return Some(refused("serial", "the serial port is the PC's (ttyS0)"));
    }
    let is_host_side = ["source", "protocol", "log"]
        .iter()
        .any(|name| at.is_in(&format!("devices/serial/{name}")));
    Some(
        if is_host_side || (at.path == "devices/serial@type" && at.value != "pty") {
            changed("its other end is `plover console`, and nothing else of the host")
        } else {
            kept("ttyS0; `plover console` shows it")
        },
    )
}

fn rng(at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    let mut before = device.prev_siblings().skip(1);
    if before.any(|it| it.has_tag_name("rng")) {
        return not_missed("rng", "one source of random bytes is enough");
    }
    if at.is_in("devices/rng/address") {
        return changed("QEMU gives the device its place on the bus");
    }
    if at.is_in("devices/rng/rate") {
        return changed("the guest takes as many random bytes as it wants");
    }
    match at.path {
        "devices/rng@model" => kept("virtio-rng").sets("rng", true),
        "devices/rng/backend@model" if at.value == "egd" => {
            changed("the bytes come from the kernel of whichever host the guest runs on")
        }
        _ => kept("from the kernel of whichever host the guest runs on"),
    }
}

fn watchdog(domain: &Domain<'_>, at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    let model = device.attribute("model").unwrap_or_default();
    let fits = match model {
        "itco" => domain.machine == Machine::Q35,
        "i6300esb" => true,
        _ => false,
    };
    let mut before = device.prev_siblings().skip(1);
    if !fits {
        return refused(
            "watchdog",
            format!(
                "Plover has no watchdog {model} on {}: take i6300esb, which the guest must have a driver for",
                domain.machine
            ),
        );
    }
    if before.any(|it| it.has_tag_name("watchdog")) {
        return refused("watchdog", "Plover gives a guest one watchdog");
    }
    if at.is_in("devices/watchdog/address") {
        return changed("QEMU gives the device its place on the bus");
    }
    match at.path {
        "devices/watchdog@model" => kept("").sets("watchdog", model),
        "devices/watchdog@action" if at.value != "reset" => {
            changed("a guest whose watchdog runs out reboots")
        }
        _ => kept("a guest whose watchdog runs out reboots"),
    }
}

fn channel(at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    match child_attribute(device, "target", "name") {
        Some(name) if name.starts_with("org.qemu.guest_agent") => agent(at),
        Some(name)
            if name.starts_with("com.redhat.spice") || name.starts_with("org.qemu.vdagent") =>
        {
            not_missed(
                "clipboard",
                "viewers of VNC copy and paste nothing between guest and desk",
            )
        }
        _ => refused(
            "channel",
            "a channel to a program of the old host leads nowhere on the others",
        ),
    }
}

fn agent(at: &At<'_, '_>) -> Said {
    if at.is_in("devices/channel/address") {
        return changed("QEMU gives the device its place on the bus");
    }
    if at.is_in("devices/channel/source") {
        return changed("its other end is `plover guest`, and nothing else of the host");
    }
    match at.path {
        "devices/channel/target@name" => kept("`plover guest` asks the agent").sets("agent", true),
        "devices/channel/target@state" => ignored("whether an agent runs just now"),
        "devices/channel@type" => {
            changed("its other end is `plover guest`, and nothing else of the host")
        }
        _ => kept(""),
    }
}

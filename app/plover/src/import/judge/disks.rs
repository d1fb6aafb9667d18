//! `<disk>`.

use super::At;
use crate::import::account::{Said, changed, ignored, kept, not_missed, refused};
use crate::import::domain::{Disk, Domain, Fate};
use plover_vm::{DiskBus, Machine};

/// The longest serial number that Plover gives a disk.
const SERIAL_MAX: usize = 20;

pub(super) fn judge(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    let disk = domain.disk_of(at.element)?;
    let place = match &disk.fate {
        Fate::Kept(place) => *place,
        Fate::Gone(said) => return Some(said.clone()),
    };
    // Of the names behind `devices/disk`.
    let path = at.path.strip_prefix("devices/disk")?;
    Some(match (path, at.value) {
        ("@device", "cdrom") => {
            kept("a CD drive with this image; eject it first if the guest needs it no more")
                .sets_disk(place, "cdrom", true)
        }
        ("" | "@type" | "@device", _) => kept(""),
        ("@snapshot", _) => ignored("for libvirt's snapshots; Plover has none"),
        ("@model", "virtio") => kept(""),
        ("@model", "virtio-transitional") => kept("QEMU's virtio disks are that"),
        ("/driver", _) => kept(""),
        ("/driver@name", "qemu") => kept(""),
        ("/driver@type", "raw") => kept(""),
        ("/driver@type", _) => changed("a raw copy is made of it; the image itself is not written"),
        (
            "/driver@cache"
            | "/driver@io"
            | "/driver@discard"
            | "/driver@detect_zeroes"
            | "/driver@error_policy"
            | "/driver@rerror_policy"
            | "/driver@iothread"
            | "/driver@ioeventfd"
            | "/driver@event_idx"
            | "/driver@queues"
            | "/driver@queue_size"
            | "/driver@copy_on_read"
            | "/driver@discard_no_unref",
            _,
        ) => changed(
            "Plover serves the disk: flushes reach the disks of two hosts, discards free space (docs/disks.md)",
        ),
        _ if path.starts_with("/driver/metadata_cache") => ignored("of the qcow2 image"),
        ("/source", _) => source(domain, disk, place),
        ("/source@file" | "/source@dev", _) => kept(""),
        ("/source@index" | "/source@startupPolicy", _) => ignored("libvirt's note on the old host"),
        _ if path.starts_with("/source/seclabel") => {
            ignored("libvirt's confinement of QEMU; Plover's is its own (docs/security.md)")
        }
        _ if path.starts_with("/backingStore") => {
            ignored("the copy is of the whole disk, with what is in backing files")
        }
        ("/target", _) => bus(domain, disk, place),
        ("/target@bus", _) => kept(""),
        ("/target@dev", name) => named(domain, place, name),
        ("/target@tray" | "/target@removable" | "/target@rotation_rate", _) => {
            not_missed("disk-kind", "the guest sees a disk of QEMU's usual kind")
        }
        ("/serial", serial)
            if serial.len() <= SERIAL_MAX && serial.is_ascii() && !serial.is_empty() =>
        {
            kept("").sets_disk(place, "serial", serial)
        }
        ("/serial", _) => refused(
            "disk-serial",
            format!(
                "a serial number has at most {SERIAL_MAX} characters: see that the guest does not need it"
            ),
        ),
        ("/wwn" | "/vendor" | "/product", _) => refused(
            "disk-identity",
            "Plover gives a disk a serial number and nothing else: see that the guest does not need it",
        ),
        ("/boot" | "/boot@order", _) => kept("disks stand in this order in the configuration"),
        ("/readonly", _) if disk.is_cdrom => kept("the same file on every host"),
        ("/readonly", _) => kept("the same file on every host").sets_disk(place, "readonly", true),
        ("/alias" | "/alias@name", _) => ignored("libvirt's name for the device"),
        _ if path.starts_with("/address") => changed("QEMU gives the device its place on the bus"),
        _ if path.starts_with("/iotune") => not_missed(
            "iotune",
            "Plover does not limit a disk: see `systemctl edit plover@NAME`",
        ),
        _ if path.starts_with("/blockio") || path.starts_with("/geometry") => refused(
            "disk-geometry",
            "Plover's disks have blocks of 512 bytes and QEMU's geometry: a file system that needs others does not mount",
        ),
        _ => return None,
    })
}

fn source(domain: &Domain<'_>, disk: &Disk<'_>, place: usize) -> Said {
    let path = domain.raw_path(disk);
    let to = path.to_string_lossy().into_owned();
    let said = if disk.is_block {
        kept("in place; every host needs a device of this name and size")
    } else {
        changed(match disk.read_only {
            true => "a copy of it on every host",
            false => "a copy of it on the first host; the others get its content",
        })
    };
    let grows = disk
        .bytes()
        .ok()
        .flatten()
        .is_some_and(|bytes| bytes % (1 << 20) != 0);
    let mut said = said.sets_disk(place, "path", to);
    if grows && !disk.is_block {
        said.why += "; it grows to a whole MiB";
    }
    said
}

fn bus(domain: &Domain<'_>, disk: &Disk<'_>, place: usize) -> Said {
    let name = match disk.bus {
        DiskBus::Virtio => "virtio",
        DiskBus::Scsi => "scsi",
        DiskBus::Ide => "ide",
    };
    let was_sata = disk
        .node
        .children()
        .any(|child| child.attribute("bus") == Some("sata"));
    let said = if was_sata && domain.machine == Machine::Pc {
        changed("on IDE, since Plover's machine pc has no SATA")
    } else {
        kept("")
    };
    said.sets_disk(place, "bus", name)
}

/// libvirt's name of a target is a hint. The guest names a disk by where it finds it, which follows the configuration's order.
fn named(domain: &Domain<'_>, place: usize, name: &str) -> Said {
    let kept_disks = || domain.disks.iter().filter_map(Disk::place);
    if kept_disks().is_sorted() {
        return kept("");
    }
    changed(format!(
        "by the boot order it is disk {} of {} now: {name} may have another name in the guest, so mount by UUID",
        place + 1,
        kept_disks().count()
    ))
}

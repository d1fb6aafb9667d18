//! A libvirt domain: what rules of several nodes have to know.

use super::account::{Said, changed, refused};
use crate::init::group::{self, bytes_of};
use anyhow::{Context, Result, bail, ensure};
use plover_types::Frame;
use plover_vm::{DiskBus, Firmware, Machine};
use roxmltree::{Document, Node};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The operator's wishes for an import, as far as a judgement depends on it.
#[derive(Debug)]
pub struct Intent {
    /// The group's name.
    pub name: String,
    /// The folder for the raw disks, on each host.
    pub folder: PathBuf,
    /// The TAP of each host for the first network card.
    pub tap: String,
    /// The bridges of the cards' networks, in the cards' order, as far as they are not the XML's.
    pub bridges: Vec<String>,
    /// The sizes of disks that are not on this host, in MiB, by the name of their target.
    pub mib: HashMap<String, u64>,
}

/// The fate of a disk.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It is the `[[disk]]` of this place.
    Kept(usize),
    /// The guest does not get it; said of all that is in the element.
    Gone(Said),
}

/// A `<disk>`.
#[derive(Clone, Debug)]
pub struct Disk<'a> {
    pub node: Node<'a, 'a>,
    /// The name of its target, such as `vda`.
    pub target: &'a str,
    pub bus: DiskBus,
    /// The file or device of the old host.
    pub source: &'a Path,
    pub is_block: bool,
    /// `qemu-img`'s name of its format.
    pub format: &'a str,
    pub read_only: bool,
    /// A medium in a CD drive.
    pub is_cdrom: bool,
    pub fate: Fate,
}

/// The UEFI variables of a domain.
#[derive(Clone, Copy, Debug)]
pub struct Nvram<'a> {
    /// The file of the old host.
    pub source: &'a Path,
    /// `qemu-img`'s name of its format.
    pub format: &'a str,
    /// Its size, if it is raw and on this host.
    pub bytes: Option<u64>,
}

impl Nvram<'_> {
    /// Whether a guest can start with them, as far as that is known.
    pub fn fits(&self) -> bool {
        self.bytes
            .is_none_or(|bytes| bytes == Firmware::FLASH_BYTES as u64)
    }
}

/// A domain, read once.
pub struct Domain<'a> {
    pub root: Node<'a, 'a>,
    pub intent: Intent,
    pub machine: Machine,
    pub firmware: Firmware,
    /// In the order of the document.
    pub disks: Vec<Disk<'a>>,
    /// The network cards that the guest keeps, in the order of the document.
    pub nics: Vec<Node<'a, 'a>>,
}

/// A child element by its name.
pub fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// The element at the end of a path of names.
pub fn find<'a>(node: Node<'a, 'a>, path: &str) -> Option<Node<'a, 'a>> {
    path.split('/').try_fold(node, child)
}

/// An element's own text.
pub fn text<'a>(node: Node<'a, 'a>) -> &'a str {
    node.text().unwrap_or_default().trim()
}

fn attribute<'a>(node: Node<'a, 'a>, path: &str, name: &str) -> Option<&'a str> {
    find(node, path)?.attribute(name)
}

impl<'a> Domain<'a> {
    /// Reads a domain.
    pub fn read(document: &'a Document<'a>, intent: Intent) -> Result<Self> {
        let root = document.root_element();
        ensure!(
            root.has_tag_name("domain"),
            "this is a <{}>, not a <domain>: give it what `virsh dumpxml --inactive` prints",
            root.tag_name().name()
        );
        let kind = find(root, "os/type");
        let machine = kind
            .and_then(|kind| kind.attribute("machine"))
            .unwrap_or("pc");
        let devices = child(root, "devices").into_iter();
        let devices: Vec<_> = devices.flat_map(|devices| devices.children()).collect();
        let of = |name: &'static str| {
            devices
                .iter()
                .copied()
                .filter(move |it| it.has_tag_name(name))
        };
        let mut domain = Self {
            root,
            intent,
            machine: if machine.starts_with("q35") || machine.starts_with("pc-q35") {
                Machine::Q35
            } else {
                Machine::Pc
            },
            firmware: firmware(root),
            disks: Vec::new(),
            nics: of("interface")
                .filter(|nic| is_usual_nic(*nic))
                .take(Frame::NICS_MAX)
                .collect(),
        };
        domain.disks = of("disk").map(|node| disk(node, domain.machine)).collect();
        let mut order: Vec<usize> = (0..domain.disks.len()).collect();
        order.retain(|i| matches!(domain.disks[*i].fate, Fate::Kept(_)));
        // Firmware tries disks in this order. Those without a number come last, as they stand.
        order.sort_by_key(|i| boot_order(domain.disks[*i].node).unwrap_or(u32::MAX));
        for (place, i) in order.into_iter().enumerate() {
            domain.disks[i].fate = Fate::Kept(place);
        }
        Ok(domain)
    }

    /// The TAP of the network card of this place.
    pub fn tap(&self, place: usize) -> String {
        group::tap(&self.intent.tap, place)
    }

    /// The bridge of its network, if it is not the XML's.
    pub fn bridge(&self, place: usize) -> Option<&str> {
        let named = self.intent.bridges.get(place).map(String::as_str);
        named.filter(|name| !name.is_empty())
    }

    /// The file with its UEFI variables, if the XML names one.
    pub fn nvram(&self) -> Option<Nvram<'a>> {
        let node = find(self.root, "os/nvram").filter(|_| self.firmware.is_uefi())?;
        let source = child(node, "source").and_then(|it| it.attribute("file"));
        let source = source.unwrap_or_else(|| text(node));
        let (source, format) = (Path::new(source), node.attribute("format").unwrap_or("raw"));
        let found = std::fs::metadata(source).ok().filter(|_| format == "raw");
        (!source.as_os_str().is_empty()).then_some(Nvram {
            source,
            format,
            bytes: found.map(|file| file.len()),
        })
    }

    /// The disk that `element` is, or is in.
    pub fn disk_of(&self, element: Node<'_, '_>) -> Option<&Disk<'a>> {
        let mut above = element.ancestors();
        above.find_map(|node| self.disks.iter().find(|disk| disk.node == node))
    }

    /// The disks that the guest keeps, in the order of the configuration.
    pub fn kept_disks(&self) -> Vec<&Disk<'a>> {
        let mut kept: Vec<_> = self
            .disks
            .iter()
            .filter_map(|disk| Some((disk.place()?, disk)))
            .collect();
        kept.sort_by_key(|(place, _)| *place);
        kept.into_iter().map(|(_, disk)| disk).collect()
    }

    /// This replica's path of a disk.
    pub fn raw_path(&self, disk: &Disk<'_>) -> PathBuf {
        if disk.is_block {
            return disk.source.into();
        }
        let kind = if disk.is_cdrom { "iso" } else { "raw" };
        let name = format!("{}-{}.{kind}", self.intent.name, disk.target);
        self.intent.folder.join(name)
    }

    /// A disk's size in MiB, rounded up.
    pub fn mib(&self, disk: &Disk<'_>) -> Result<u64> {
        let source = disk.source.display();
        let found = disk.bytes()?.map(|bytes| bytes.div_ceil(1 << 20));
        match (self.intent.mib.get(disk.target), found) {
            (Some(said), Some(found)) if *said != found => {
                bail!("{source} has {found} MiB here, and --disk-mib says {said}")
            }
            (Some(mib), _) => Ok(*mib),
            (None, Some(mib)) => Ok(mib),
            (None, None) => bail!(
                "there is no {source} on this host that tells the size of {}: give --disk-mib {}=MIB, or run this where it is",
                disk.target,
                disk.target
            ),
        }
    }
}

impl Disk<'_> {
    /// Its place in the configuration, if the guest keeps it.
    pub fn place(&self) -> Option<usize> {
        match self.fate {
            Fate::Kept(place) => Some(place),
            Fate::Gone(_) => None,
        }
    }

    /// The size that the guest sees, if the disk is on this host.
    pub fn bytes(&self) -> Result<Option<u64>> {
        if self.format != "qcow2" || self.is_block {
            return bytes_of(self.source);
        }
        let Ok(file) = File::open(self.source) else {
            return Ok(None);
        };
        let source = self.source.display();
        let bytes = qcow2_bytes(&file);
        let bytes = bytes.with_context(|| format!("cannot read the header of {source}"))?;
        ensure!(
            bytes.is_some(),
            "{source} is no qcow2 image, as the domain says it is"
        );
        Ok(bytes)
    }
}

/// The size that a qcow2 image has for its guest; `None` if it is none.
fn qcow2_bytes(file: &File) -> std::io::Result<Option<u64>> {
    // The header: "QFI\xfb", a version, the backing file's name, cluster bits; then the size.
    let mut head = [0; 32];
    match file.read_exact_at(&mut head, 0) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut size = [0; 8];
    size.copy_from_slice(&head[24..]);
    let is_qcow2 = head.starts_with(b"QFI\xfb");
    Ok(is_qcow2.then(|| u64::from_be_bytes(size)))
}

/// The size that a disk image, qcow2 or raw, has for its guest.
///
/// # Errors
/// It cannot be read, or is empty.
pub fn image_bytes(image: &Path) -> Result<u64> {
    let read = || File::open(image).and_then(|file| qcow2_bytes(&file));
    let qcow2 = read().with_context(|| format!("cannot read the image {}", image.display()))?;
    match qcow2 {
        Some(bytes) => Ok(bytes),
        None => Ok(bytes_of(image)?.unwrap_or(0)),
    }
}

/// The place of a device in the boot order, from 1.
pub fn boot_order(device: Node<'_, '_>) -> Option<u32> {
    let boot = device.children().find(|child| child.has_tag_name("boot"))?;
    boot.attribute("order")?.parse().ok()
}

fn firmware(root: Node<'_, '_>) -> Firmware {
    let loader = find(root, "os/loader");
    let is_uefi = attribute(root, "os", "firmware") == Some("efi")
        || loader.is_some_and(|loader| {
            let file = loader.text().unwrap_or_default();
            loader.attribute("type") == Some("pflash")
                || file.contains("OVMF")
                || file.contains("edk2")
        });
    let features = find(root, "os/firmware").into_iter();
    let mut features = features.flat_map(|it| it.children());
    let is_secure = loader.and_then(|it| it.attribute("secure")) == Some("yes")
        || features.any(|it| {
            it.attribute("name") == Some("secure-boot") && it.attribute("enabled") == Some("yes")
        });
    match (is_uefi, is_secure) {
        (false, _) => Firmware::Bios,
        (true, false) => Firmware::Uefi,
        (true, true) => Firmware::UefiSecure,
    }
}

/// A card whose frames come from a network of the host's.
pub fn is_usual_nic(nic: Node<'_, '_>) -> bool {
    let kind = nic.attribute("type").unwrap_or_default();
    ["bridge", "network", "direct", "user", "ethernet"].contains(&kind)
}

fn disk<'a>(node: Node<'a, 'a>, machine: Machine) -> Disk<'a> {
    let target = attribute(node, "target", "dev").unwrap_or_default();
    let bus = attribute(node, "target", "bus").unwrap_or(match target.get(..2) {
        Some("vd") => "virtio",
        Some("sd") => "scsi",
        _ => "ide",
    });
    let kind = node.attribute("type").unwrap_or("file");
    let device = node.attribute("device").unwrap_or("disk");
    let source = match kind {
        "block" => attribute(node, "source", "dev"),
        _ => attribute(node, "source", "file"),
    };
    let format = attribute(node, "driver", "type").unwrap_or("raw");
    let gone = match (device, kind, bus) {
        ("cdrom" | "floppy", _, _) if source.is_none() && child(node, "source").is_none() => {
            Some(changed("the guest does not see this drive; it was empty"))
        }
        ("cdrom", "file", "scsi" | "ide" | "sata") if source.is_some() => None,
        ("cdrom" | "floppy", _, _) => Some(refused(
            device,
            "Plover has no drive for this medium: eject it (`virsh change-media DOMAIN TARGET --eject --config`)",
        )),
        ("disk", "file" | "block", "ide" | "sata") if child(node, "readonly").is_some() => {
            Some(refused(
                "disk",
                "QEMU has no IDE or SATA disk that is read only: put it on virtio or scsi",
            ))
        }
        ("disk", "file" | "block", "virtio" | "scsi" | "ide" | "sata") if source.is_none() => {
            Some(refused(
                "disk",
                "it names no file and no device: it cannot be copied",
            ))
        }
        ("disk", "file" | "block", "virtio" | "scsi" | "ide" | "sata") => None,
        ("disk", "file" | "block", bus) => Some(refused(
            "disk-bus",
            format!(
                "Plover has no disks on the bus {bus}: put it on virtio, and see that the guest has the driver"
            ),
        )),
        ("disk", kind, _) => Some(refused(
            "disk",
            format!(
                "Plover's disks are files or block devices of each host, not of the type {kind}: copy it into a raw \
                 file first"
            ),
        )),
        (device, _, _) => Some(refused(
            "disk",
            format!(
                "Plover has no device {device}: each host has a copy of a disk, not the device itself"
            ),
        )),
    };
    let gone = gone.or_else(|| {
        let encrypted = node.descendants().any(|child| child.has_tag_name("encryption"));
        if encrypted {
            Some(refused(
                "encryption",
                "Plover has no keys of disks: decrypt it (`qemu-img convert`), and encrypt in the guest or the host's block device",
            ))
        } else if child(node, "shareable").is_some() {
            Some(refused(
                "shared-disk",
                "no other machine can write a disk that Plover copies: take it from the other one first",
            ))
        } else if child(node, "transient").is_some() {
            Some(refused(
                "transient",
                "Plover keeps what a guest writes: remove <transient/>",
            ))
        } else if format != "raw" && (format != "qcow2" || kind == "block") {
            Some(refused(
                "disk",
                format!("the format {format} on a {kind} is not taken: convert it to raw (`qemu-img convert`)"),
            ))
        } else {
            None
        }
    });
    let is_cdrom = device == "cdrom";
    Disk {
        node,
        target,
        bus: match (bus, machine) {
            ("virtio", _) => DiskBus::Virtio,
            ("scsi", _) => DiskBus::Scsi,
            _ => DiskBus::Ide,
        },
        source: Path::new(source.unwrap_or_default()),
        is_block: kind == "block",
        format,
        read_only: is_cdrom || child(node, "readonly").is_some(),
        is_cdrom,
        fate: gone.map_or(Fate::Kept(0), Fate::Gone),
    }
}

//! The rules: what becomes of each node, by its path in the XML.
//!
//! A path has names only: `devices/disk/target@dev`. Each rule names its nodes. A node without one is refused, and its kind
//! (what `--without` takes) is its path.

mod cpu;
mod devices;
mod disks;
mod display;
mod nics;

use super::account::{Said, changed, ignored, is_below, kept, name_of, not_missed, refused};
use super::domain::{Domain, find, text};
use plover_vm::{Firmware, Machine};
use roxmltree::Node;

/// A node that is judged.
struct At<'p, 'n> {
    /// Its names, from below the domain on; `@` before an attribute's.
    path: &'p str,
    /// An attribute's value, or an element's own text.
    value: &'p str,
    /// The element, also of an attribute.
    element: Node<'n, 'n>,
}

impl At<'_, '_> {
    /// Whether it is this element, an attribute of it, or inside of it.
    fn is_in(&self, path: &str) -> bool {
        is_below(self.path, path)
    }
}

/// Judges an element, or the attribute of it that is named.
pub fn judge<'n>(domain: &Domain<'n>, element: Node<'n, 'n>, attribute: Option<&str>) -> Said {
    let mut names: Vec<_> = element
        .ancestors()
        .filter(Node::is_element)
        .map(name_of)
        .collect();
    // The domain itself.
    names.pop();
    names.reverse();
    let mut path = names.join("/");
    let mut value = text(element);
    if let Some(attribute) = attribute {
        let local = attribute.rsplit(':').next().unwrap_or(attribute);
        let mut all = element.attributes();
        value = all
            .find(|it| it.name() == local)
            .map_or("", |it| it.value());
        path = format!("{path}@{attribute}");
    }
    let at = At {
        path: &path,
        value,
        element,
    };
    let said = if at.is_in("devices/disk") {
        disks::judge(domain, &at)
    } else if at.is_in("devices/interface") {
        nics::judge(domain, &at)
    } else if at.is_in("devices") {
        devices::judge(domain, &at)
    } else if at.is_in("cpu") || at.is_in("vcpu") || at.is_in("vcpus") {
        cpu::judge(domain, &at)
    } else if at.is_in("os") || at.is_in("sysinfo") {
        firmware(domain, &at)
    } else if at.is_in("features") || at.is_in("clock") {
        features(&at)
    } else {
        whole(domain, &at)
    };
    said.unwrap_or_else(|| {
        refused(
            at.path,
            "not known to Plover: see what it does for the guest (https://libvirt.org/formatdomain.html)",
        )
    })
}

/// Changes of which the XML says nothing.
pub fn notes(domain: &Domain<'_>) -> Vec<Said> {
    let mut notes = vec![changed(
        "the guest takes one restart: it is shut down under libvirt, and boots under Plover",
    )];
    if find(domain.root, "cpu").is_none() {
        notes.push(changed(
            "no <cpu>: the guest had QEMU's qemu64, and sees all of its host's processor now; guest.cpu names another",
        ));
    }
    notes.extend(cpu::usual_topology(domain));
    let kind = find(domain.root, "os/type");
    if kind.and_then(|kind| kind.attribute("machine")).is_none() {
        notes.push(kept("libvirt's usual machine").sets("machine", "pc"));
    }
    notes.push(kept("").sets("firmware", domain.firmware.name()));
    for disk in domain.kept_disks() {
        if let (Some(place), None) = (disk.place(), find(disk.node, "serial")) {
            let why = format!(
                "the guest reads the serial number plover-{place} of {}, which had none",
                disk.target
            );
            notes.push(changed(why));
        }
    }
    if domain.nics.is_empty() {
        notes.push(changed(
            "no network card is taken over, and Plover gives every guest one: it sees a new card",
        ));
    }
    notes
}

/// Its identity, its memory, and its ends.
fn whole(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    Some(match (at.path, at.value) {
        ("" | "devices", _) => kept(""),
        ("@type", "kvm") => kept("each host needs /dev/kvm").sets("accel", "kvm"),
        ("@type", "qemu") => kept("").sets("accel", "tcg"),
        ("@type", _) => refused("hypervisor", "Plover runs guests of QEMU and KVM only"),
        ("@id", _) => {
            ignored("the number of the running domain; `virsh dumpxml --inactive` leaves it out")
        }
        ("name", name) if name == domain.intent.name => kept("the group's name"),
        ("name", _) => changed(format!(
            "the group is called {}; the guest does not read it",
            domain.intent.name
        )),
        ("uuid", uuid) => kept("").sets("uuid", uuid),
        ("genid", _) => refused(
            "genid",
            "Plover has no VM generation ID: only a Windows domain controller looks at it",
        ),
        ("title" | "description", _) => ignored("a note for people"),
        ("memory" | "memory@unit", _) => memory(at),
        ("memory@dumpCore", _) => ignored("for core dumps of QEMU"),
        ("currentMemory" | "currentMemory@unit", _) => {
            let of = |name| find(domain.root, name).and_then(kib_of);
            if of("currentMemory") == of("memory") {
                kept("all of its memory")
            } else {
                changed("the guest has all of its memory from the start, since there is no balloon")
            }
        }
        ("maxMemory" | "maxMemory@unit" | "maxMemory@slots", _) => not_missed(
            "memory-hotplug",
            "memory cannot be added to a guest that runs",
        ),
        ("on_poweroff", "destroy" | "restart") => kept("").sets("on_poweroff", at.value),
        ("on_reboot", "destroy" | "restart") => kept("").sets("on_reboot", at.value),
        ("on_crash", "destroy" | "restart") => kept("").sets("on_crash", at.value),
        ("on_crash", "coredump-destroy") => {
            changed("no core is dumped").sets("on_crash", "destroy")
        }
        ("on_crash", "coredump-restart") => {
            changed("no core is dumped").sets("on_crash", "restart")
        }
        ("on_poweroff" | "on_reboot" | "on_crash", _) => refused(
            "preserve",
            "a guest that has ended restarts or is off (docs/operate.md): say restart or destroy",
        ),
        ("on_lockfailure", _) => ignored("libvirt's locks of disks; Plover has QEMU's"),
        ("pm" | "pm/suspend-to-mem" | "pm/suspend-to-disk", _) => kept(""),
        ("pm/suspend-to-mem@enabled" | "pm/suspend-to-disk@enabled", "yes") => kept(""),
        ("pm/suspend-to-mem@enabled" | "pm/suspend-to-disk@enabled", _) => {
            changed("the machine offers sleep states; see that the guest does not go to sleep")
        }
        _ if at.is_in("metadata") => ignored("notes of programs around libvirt"),
        _ if at.is_in("seclabel") => {
            ignored("libvirt's confinement of QEMU; Plover's is its own (docs/security.md)")
        }
        _ if at.is_in("memoryBacking") || at.is_in("memtune") || at.is_in("numatune") => ignored(
            "how the old host held the memory; Plover keeps it in one file, in pages of 4 KiB",
        ),
        _ if at.is_in("cputune") || at.is_in("resource") || at.is_in("blkiotune") => ignored(
            "a share of the old host: see [host] in docs/keys.md, and `systemctl edit plover@NAME`",
        ),
        _ if at.is_in("iothreads") || at.is_in("iothreadids") => {
            ignored("threads of QEMU on the old host; Plover's disks have one each")
        }
        _ if at.is_in("launchSecurity") => refused(
            "launch-security",
            "memory that the host cannot read cannot be compared or copied",
        ),
        _ => return None,
    })
}

/// A number with the unit of its element, in KiB.
fn kib_of(element: Node<'_, '_>) -> Option<u64> {
    let number: u64 = text(element).parse().ok()?;
    let (multiply, divide): (u64, u64) = match element.attribute("unit").unwrap_or("KiB") {
        "b" | "bytes" => (1, 1024),
        "KB" => (1000, 1024),
        "k" | "KiB" => (1, 1),
        "MB" => (1_000_000, 1024),
        "M" | "MiB" => (1 << 10, 1),
        "GB" => (1_000_000_000, 1024),
        "G" | "GiB" => (1 << 20, 1),
        "T" | "TiB" => (1 << 30, 1),
        _ => return None,
    };
    Some(number.checked_mul(multiply)? / divide)
}

fn memory(at: &At<'_, '_>) -> Said {
    let kib = kib_of(at.element);
    let mib = kib.and_then(|kib| i64::try_from(kib / 1024).ok());
    let (Some(kib), Some(mib)) = (kib, mib) else {
        return refused(
            "memory",
            "this is no amount of memory that libvirt would write",
        );
    };
    if at.path.contains('@') {
        return kept("");
    }
    let said = match kib % 1024 {
        0 => kept(""),
        rest => changed(format!("{rest} KiB less, for whole MiB")),
    };
    said.sets("mem_mib", mib)
}

fn secure_boot(domain: &Domain<'_>) -> Said {
    match domain.machine {
        Machine::Q35 => kept("Secure Boot, with the keys of the UEFI variables"),
        _ => refused(
            "secure-boot",
            "Secure Boot takes a machine of type q35: turn it off in the guest first",
        ),
    }
}

/// The file with the UEFI variables.
fn nvram(domain: &Domain<'_>) -> Said {
    let Some(nvram) = domain.nvram() else {
        return ignored("no file with variables: the guest starts with those of a new machine");
    };
    match nvram.bytes {
        Some(bytes) if !nvram.fits() => refused(
            "nvram",
            format!(
                "its {} KiB are the variables of another build of OVMF than the one with images of 4 MiB, whose variables \
                 have {} KiB: without them the guest must start by \\EFI\\BOOT\\BOOTX64.EFI (in Debian: `grub-install \
                 --force-extra-removable`)",
                bytes >> 10,
                Firmware::FLASH_BYTES >> 10
            ),
        ),
        _ => kept("the variables come along, by one of the printed steps"),
    }
}

/// Machine type, firmware, boot order, SMBIOS.
fn firmware(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    Some(match (at.path, at.value) {
        ("os" | "os/firmware" | "os/smbios", _) => kept(""),
        ("os@firmware", "efi") => kept("OVMF, as the package ovmf of each host has it"),
        ("os@firmware", "bios") => kept(""),
        ("os/type", "hvm") => kept(""),
        ("os/type", _) => refused("hypervisor", "Plover runs whole machines (hvm) only"),
        ("os/type@arch", "x86_64") => kept(""),
        ("os/type@arch", _) => refused("arch", "Plover runs guests of x86_64 only"),
        ("os/type@machine", name) => machine(domain, name),
        ("os/firmware/feature" | "os/firmware/feature@name" | "os/firmware/feature@enabled", _) => {
            match (
                at.element.attribute("name"),
                at.element.attribute("enabled"),
            ) {
                (Some("secure-boot"), Some("yes")) => secure_boot(domain),
                (Some("secure-boot" | "enrolled-keys"), _) => kept(""),
                _ => return None,
            }
        }
        ("os/loader@secure", "yes") => secure_boot(domain),
        (
            "os/loader"
            | "os/loader@type"
            | "os/loader@readonly"
            | "os/loader@secure"
            | "os/loader@stateless"
            | "os/loader@format",
            _,
        ) => match domain.firmware {
            Firmware::Bios => changed("SeaBIOS, as each host's QEMU has it"),
            _ => changed("OVMF, as the package ovmf of each host has it"),
        },
        _ if at.is_in("os/nvram") => nvram(domain),
        ("os/boot" | "os/boot@dev", _) => boot(at),
        ("os/bootmenu" | "os/bootmenu@enable" | "os/bootmenu@timeout", _) => {
            if at.element.attribute("enable") == Some("yes") {
                not_missed("boot-menu", "the firmware shows no menu")
            } else {
                kept("")
            }
        }
        ("os/bios" | "os/bios@useserial" | "os/bios@rebootTimeout", _) => {
            not_missed("bios", "SeaBIOS has its usual settings")
        }
        ("os/smbios@mode", "emulate" | "sysinfo") => kept(""),
        ("os/smbios@mode", _) => refused(
            "smbios",
            "the guest read the words of the old host's SMBIOS, which the new hosts do not have: write them into \
             <sysinfo>",
        ),
        ("os/kernel", path) => kept("the same file on every host").sets("kernel", path),
        ("os/initrd", path) => kept("the same file on every host").sets("initrd", path),
        ("os/cmdline", words) => kept("").sets("cmdline", words),
        ("sysinfo" | "sysinfo@type" | "sysinfo/system", _)
            if at
                .element
                .attribute("type")
                .is_none_or(|kind| kind == "smbios") =>
        {
            kept("")
        }
        ("sysinfo/system/entry" | "sysinfo/system/entry@name", _) => return system(domain, at),
        _ if at.is_in("sysinfo") => refused(
            "sysinfo",
            "Plover sets the system block of the SMBIOS (guest.system), not this",
        ),
        _ => return None,
    })
}

fn machine(domain: &Domain<'_>, name: &str) -> Said {
    match name {
        "q35" | "pc" => kept("").sets("machine", name),
        _ if name.starts_with("pc-q35-") || name.starts_with("pc-i440fx-") => {
            kept("every host's QEMU must have it (qemu-system-x86_64 -M help)")
                .sets("machine", domain.machine.name())
                .sets("machine_type", name)
        }
        _ => refused(
            "machine",
            format!("Plover's machines are q35 and pc, not {name}"),
        )
        .sets("machine", domain.machine.name()),
    }
}

fn boot(at: &At<'_, '_>) -> Said {
    let all = at.element.parent_element().into_iter();
    let mut all = all
        .flat_map(|os| os.children())
        .filter(|it| it.has_tag_name("boot"));
    let is_first = all.next() == Some(at.element);
    match at.element.attribute("dev") {
        Some("hd") => kept("the firmware starts the first disk"),
        Some("network") if is_first => refused(
            "netboot",
            "the network card has no boot ROM: let the guest start from its disk",
        ),
        Some("network") => not_missed("netboot", "only disks are tried"),
        _ => not_missed("media-boot", "only disks are tried"),
    }
}

fn system(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    let smbios = find(domain.root, "os/smbios").and_then(|it| it.attribute("mode"));
    if smbios != Some("sysinfo") {
        return Some(ignored(
            "without <smbios mode=\"sysinfo\"> the guest did not see it",
        ));
    }
    let key = match at.element.attribute("name")? {
        "manufacturer" => "system.manufacturer",
        "product" => "system.product",
        "version" => "system.version",
        "serial" => "system.serial",
        "sku" => "system.sku",
        "family" => "system.family",
        // libvirt takes only the domain's own.
        "uuid" => return Some(kept("guest.uuid")),
        _ => return None,
    };
    Some(match at.path.contains('@') {
        true => kept(""),
        false => kept("").sets(key, text(at.element)),
    })
}

/// `<features>` and `<clock>`.
fn features(at: &At<'_, '_>) -> Option<Said> {
    let is_on = at.element.attribute("state") != Some("off");
    let minus = |feature: &str| {
        let feature = vec![toml::Value::from(feature)];
        kept("").sets("cpu_features", feature)
    };
    Some(match (at.path, at.value) {
        ("features" | "features/acpi" | "features/apic" | "features/pae" | "features/kvm", _) => {
            kept("")
        }
        ("features/apic@eoi", "on") => kept(""),
        ("features/smm" | "features/smm@state", _) if is_on => kept("QEMU's machine has it"),
        ("features/smm" | "features/smm@state", _) => {
            changed("the machine has the mode nevertheless")
        }
        ("features/vmport" | "features/vmport@state", _) if is_on => kept(""),
        ("features/vmport" | "features/vmport@state", _) => {
            changed("the machine has VMware's port; only VMware's tools look for it")
        }
        ("features/kvm/hidden", _) if !is_on => kept(""),
        ("features/kvm/hidden", _) => minus("-kvm"),
        ("features/kvm/hidden@state" | "features/pmu@state", _) => kept(""),
        ("features/pmu", _) if is_on => kept(""),
        ("features/pmu", _) => minus("-pmu"),
        _ if at.is_in("features/hyperv") => hyperv(at)?,
        ("clock" | "clock/timer", _) => kept(""),
        ("clock@offset", "utc" | "localtime") => kept("").sets("clock", at.value),
        (
            "clock@offset" | "clock@adjustment" | "clock@basis" | "clock@timezone" | "clock@start",
            _,
        ) => refused(
            "clock",
            "the machine's clock starts with UTC or local time: set the domain to <clock offset=\"utc\"/>, and the \
             guest's clock right once",
        ),
        ("clock/timer@name" | "clock/timer@present" | "clock/timer@tickpolicy", _) => timer(at)?,
        _ => return None,
    })
}

/// KVM's imitation of Hyper-V, which Windows looks for.
fn hyperv(at: &At<'_, '_>) -> Option<Said> {
    let path = at.path.strip_prefix("features/hyperv")?;
    let kind = at.element.tag_name().name();
    let is_off = at.element.attribute("state") == Some("off");
    Some(match (kind, path) {
        (_, "" | "@mode") if at.value != "passthrough" => kept(""),
        (_, "@mode") => refused(
            "hyperv",
            "name the interfaces one by one, as mode=\"custom\"",
        ),
        _ if is_off => kept(""),
        ("relaxed" | "vpindex" | "runtime" | "reset" | "frequencies", _) => {
            let feature = toml::Value::from(format!("+hv-{kind}"));
            match path.contains('@') {
                true => kept(""),
                false => kept("").sets("cpu_features", vec![feature]),
            }
        }
        ("spinlocks", "/spinlocks@retries") => {
            let feature = toml::Value::from(format!("hv-spinlocks={}", at.value));
            kept("").sets("cpu_features", vec![feature])
        }
        ("spinlocks", _) => kept(""),
        ("vendor_id", _) => changed("the guest reads \"Microsoft Hv\""),
        _ => writes_by_itself(),
    })
}

fn writes_by_itself() -> Said {
    refused(
        "hyperv",
        "by this interface of Hyper-V's KVM writes into the guest's memory by itself, which was not tried with Plover; Windows \
         runs without it, slower",
    )
}

fn timer(at: &At<'_, '_>) -> Option<Said> {
    let is = |name| at.element.attribute(name);
    let absent = is("present") == Some("no");
    Some(match (is("name")?, is("tickpolicy")) {
        ("rtc", Some("catchup")) => changed(
            "the RTC does not make up for ticks that it has lost; only Windows before 8 counts them",
        ),
        ("rtc", _) => kept(""),
        // This is what QEMU does by default.
        ("pit", None | Some("delay")) => kept(""),
        ("pit", _) => changed("ticks that are late are delivered late"),
        ("hpet", _) if absent => changed("the machine has an HPET, beside its other timers"),
        ("hpet", _) => kept(""),
        ("kvmclock", _) if !absent => kept(""),
        ("kvmclock", _) if at.path.ends_with("@present") => {
            kept("").sets("cpu_features", vec![toml::Value::from("-kvmclock")])
        }
        ("kvmclock", _) => kept(""),
        ("hypervclock", _) if absent => kept(""),
        ("hypervclock", _) => writes_by_itself(),
        _ => return None,
    })
}

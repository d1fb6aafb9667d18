//! `<interface>`.

use super::At;
use crate::import::account::{Said, changed, ignored, kept, not_missed, refused};
use crate::import::domain::{Domain, boot_order, is_usual_nic};
use plover_types::Frame;
use plover_vm::Machine;

pub(super) fn judge(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    let mut above = at.element.ancestors();
    let nic = above.find(|node| node.has_tag_name("interface"))?;
    let Some(place) = domain.nics.iter().position(|kept| *kept == nic) else {
        return Some(match is_usual_nic(nic) {
            true => refused(
                "nic",
                format!(
                    "a guest has {} network cards: bring this one's network to another, as a VLAN",
                    Frame::NICS_MAX
                ),
            ),
            false => refused(
                "nic",
                "Plover's cards are connected to TAP devices, not to this",
            ),
        });
    };
    let path = at.path.strip_prefix("devices/interface")?;
    let tap = domain.tap(place);
    Some(match (path, at.value) {
        ("" | "/vlan", _) => kept(""),
        ("@type" | "/source", _) => network(domain, place, nic.attribute("type")?),
        (
            "/source@bridge" | "/source@network" | "/source@dev" | "/source@mode"
            | "/source@portgroup",
            _,
        ) => network(domain, place, nic.attribute("type")?),
        ("/source@portid", _) => ignored("libvirt's number of the port"),
        ("@managed" | "@trustGuestRxFilters", _) => ignored("of the old host's device"),
        ("/mac", _) if place > 0 => kept("").sets_nic(place, "mac", nic_mac(at)?),
        ("/mac", _) => kept("").sets("mac", nic_mac(at)?),
        ("/mac@address" | "/mac@type" | "/mac@check", _) => kept(""),
        ("/model", _) => kept(""),
        ("/model@type", "virtio" | "virtio-transitional") => kept("virtio-net"),
        ("/model@type", model @ ("e1000e" | "e1000" | "rtl8139")) => {
            let said = kept(
                "a card that QEMU imitates; virtio-net is faster, once the guest has its driver",
            );
            match place {
                0 => said.sets("nic_model", model),
                _ => said.sets_nic(place, "model", model),
            }
        }
        ("/model@type", model) => refused(
            "nic-model",
            format!(
                "Plover has no card {model}: install the driver of virtio-net in the guest, and let its domain have \
                 that card, before it moves"
            ),
        ),
        ("/target" | "/target@dev" | "/target@managed", _) => {
            ignored(format!("the old host's TAP; {tap} is Plover's"))
        }
        ("/mtu", _) => kept(""),
        ("/mtu@size", "1500") => kept("what the guest has without being told"),
        ("/mtu@size", size) => refused(
            "mtu",
            format!("the card does not tell the guest an MTU of {size}: it begins with 1500"),
        ),
        ("/vlan@trunk", "yes") => changed(
            "the guest tags its frames, which leave on a match of whole frames or on a sync only (docs/limits.md)",
        ),
        ("/vlan@trunk", _) => kept(""),
        ("/vlan/tag", _) => kept("the TAP gets this VLAN on each host, by hand"),
        ("/vlan/tag@id", _) => kept("the TAP gets this VLAN on each host, by hand"),
        _ if path.starts_with("/virtualport") => {
            match at.element.ancestors().find_map(|it| it.attribute("type")) {
                Some("openvswitch") => changed(format!(
                    "{tap} becomes a new port of the Open vSwitch on each host"
                )),
                _ => refused(
                    "virtualport",
                    "Plover does not sign a TAP in at a switch: make the port by hand",
                ),
            }
        }
        _ if path.starts_with("/filterref") => refused(
            "filterref",
            format!(
                "no filter of libvirt's is on {tap}: write its rules for that device on each host (nft)"
            ),
        ),
        _ if path.starts_with("/bandwidth") => not_missed(
            "bandwidth",
            format!("Plover does not limit a card: `tc qdisc` on {tap} does"),
        ),
        _ if path.starts_with("/port") => not_missed(
            "port-isolation",
            format!("`bridge link set dev {tap} isolated on` does it on each host"),
        ),
        _ if path.starts_with("/driver") => {
            changed("one queue and no vhost, since the frames pass through Plover")
        }
        ("/link" | "/link@state", _) if at.element.attribute("state") != Some("down") => kept(""),
        ("/link" | "/link@state", _) => refused("link", "the card's cable is always in"),
        ("/boot" | "/boot@order", _) => netboot(domain, nic),
        _ if path.starts_with("/rom") => changed("the card has no boot ROM"),
        ("/alias" | "/alias@name", _) => ignored("libvirt's name for the device"),
        _ if path.starts_with("/address") => {
            let name = match domain.machine {
                _ if place > 0 => "otherwise",
                Machine::Pc => "ens2, not as before",
                _ => "enp0s1, not as before",
            };
            changed(format!(
                "the card is in another slot, so Linux calls it {name}: let the guest's network \
                 configuration match its MAC address"
            ))
        }
        _ if path.starts_with("/acpi") => changed("the card has no name from the firmware (eno1)"),
        _ => return None,
    })
}

fn nic_mac(at: &At<'_, '_>) -> Option<String> {
    Some(at.element.attribute("address")?.to_owned())
}

fn network(domain: &Domain<'_>, place: usize, kind: &str) -> Said {
    let tap = domain.tap(place);
    match (domain.bridge(place), kind) {
        (Some(bridge), _) => changed(format!("{tap} becomes a port of {bridge} on each host")),
        (None, "bridge") => kept(format!(
            "{tap} becomes a port of the bridge of this name on each host"
        )),
        (None, _) => refused(
            "network",
            "this network ends on the old host: name a bridge that all hosts have on it with --bridge, one for each card, and \
             see that the guest has an address there",
        ),
    }
}

fn netboot(domain: &Domain<'_>, nic: roxmltree::Node<'_, '_>) -> Said {
    let mut disks = domain.kept_disks().into_iter();
    let first = disks.next().and_then(|disk| boot_order(disk.node));
    if boot_order(nic) < first {
        return refused(
            "netboot",
            "the network card has no boot ROM: let the guest start from its disk",
        );
    }
    not_missed("netboot", "only disks are tried")
}

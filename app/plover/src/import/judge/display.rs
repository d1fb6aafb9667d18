//! The display, and its keyboard and pointer.

use super::At;
use crate::import::account::{Said, changed, kept, refused};
use roxmltree::Node;

/// Whether a domain has a display, by any device of it.
pub(super) fn has_display(device: Node<'_, '_>) -> bool {
    has_video(device) || all(device).any(|it| it.has_tag_name("graphics"))
}

fn has_video(device: Node<'_, '_>) -> bool {
    all(device).any(|it| it.has_tag_name("video") && model(it) != "none")
}

fn all<'n>(device: Node<'n, 'n>) -> impl Iterator<Item = Node<'n, 'n>> {
    let devices = device.parent_element();
    devices.into_iter().flat_map(|above| above.children())
}

/// The first model of a `<video>`; libvirt takes another default for each machine.
fn model<'n>(video: Node<'n, 'n>) -> &'n str {
    let model = video.children().find(|it| it.has_tag_name("model"));
    let name = model.and_then(|it| it.attribute("type"));
    name.unwrap_or("default")
}

fn is_first(device: Node<'_, '_>) -> bool {
    let mut before = device.prev_siblings().skip(1);
    !before.any(|it| it.has_tag_name(device.tag_name()))
}

pub(super) fn graphics(at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    if !is_first(device) {
        return changed("`plover display` shows the one display that there is");
    }
    match at.path {
        // libvirt gives it a card of its own.
        "devices/graphics" if !has_video(device) => kept("").sets("display", true),
        "devices/graphics" => kept("`plover display` shows it"),
        "devices/graphics@type" if at.value == "vnc" => kept("`plover display` shows it"),
        "devices/graphics@type" => changed("`plover display` shows it, to viewers that speak VNC"),
        _ => changed(
            "`plover display` says where viewers connect: on this host, and without a password",
        ),
    }
}

pub(super) fn video(at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    let model = model(device);
    if model == "none" {
        return kept("");
    }
    if !is_first(device) {
        return refused("video", "Plover gives a guest one display");
    }
    match at.path {
        "devices/video" => kept("").sets("display", true),
        _ if model == "vga" => kept("a VGA card of 16 MiB with one head"),
        _ => changed(
            "a VGA card of 16 MiB with one head, for which every system has a driver; the guest finds other hardware",
        ),
    }
}

pub(super) fn input(at: &At<'_, '_>, device: Node<'_, '_>) -> Said {
    let is = |name| device.attribute(name).unwrap_or_default();
    if !has_display(device) {
        return match is("bus") {
            "ps2" => kept("part of the machine; nothing is typed on it"),
            _ => refused(
                "input",
                "without a display nothing is typed: use the serial console (`plover console`)",
            ),
        };
    }
    match (is("type"), is("bus")) {
        ("keyboard" | "mouse", "ps2") => kept("part of the machine"),
        ("tablet", "usb") if at.is_in("devices/input/address") => {
            changed("QEMU gives the device its place on the bus")
        }
        ("tablet", "usb") => kept("the display's pointer"),
        ("keyboard" | "mouse" | "tablet", _) => {
            changed("the keyboard is the PC's (PS/2), and the pointer a USB tablet")
        }
        _ => refused("input", "a device of one host is not on the others"),
    }
}

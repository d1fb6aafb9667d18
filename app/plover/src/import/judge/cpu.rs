//! `<vcpu>` and `<cpu>`.

use super::At;
use crate::import::account::{Said, changed, ignored, kept, not_missed, refused};
use crate::import::domain::{Domain, find, text};
use roxmltree::Node;

pub(super) fn judge(domain: &Domain<'_>, at: &At<'_, '_>) -> Option<Said> {
    let mode = find(domain.root, "cpu").and_then(|cpu| cpu.attribute("mode"));
    Some(match (at.path, at.value) {
        ("vcpu", number) if number.parse::<u32>().is_err() => {
            refused("vcpu", "this is no number of processors")
        }
        ("vcpu", _) => match at.element.attribute("current") {
            None => kept("").sets("vcpus", vcpus(domain)),
            Some(_) => changed("processors cannot be added to a guest that runs")
                .sets("vcpus", vcpus(domain)),
        },
        ("vcpu@placement" | "vcpu@cpuset", _) => {
            ignored("the old host's choice of processors; [host] in docs/keys.md is Plover's")
        }
        ("vcpu@current", _) => changed("processors cannot be added to a guest that runs"),
        _ if at.is_in("vcpus") => changed("processors cannot be added to a guest that runs"),
        ("cpu" | "cpu/topology", _) => kept(""),
        ("cpu@mode", "custom") => kept(""),
        ("cpu@mode", "host-passthrough") => changed(
            "the host's processor without stolen time and asynchronous page faults, by which the host would write into the \
             guest's memory; all hosts need the same model",
        ),
        ("cpu@mode", "host-model") => changed(
            "the host's processor itself, not the model nearest to it; hosts of different models: name one with guest.cpu",
        ),
        ("cpu@mode", "maximum") => changed("all that the host's processor has"),
        ("cpu@match", "exact") => kept(""),
        ("cpu@match", _) => changed("the model as it is, on each host"),
        ("cpu@check", _) => ignored("a host that lacks a feature does not start the guest"),
        ("cpu@migratable", "on") => kept(""),
        ("cpu@migratable", _) => {
            changed("the guest does not see features that cannot move to another host")
        }
        ("cpu/model", "") => kept(""),
        ("cpu/model", _) if mode.is_some_and(|mode| mode != "custom") => {
            ignored("libvirt's note of the old host's processor")
        }
        ("cpu/model", name) => kept("").sets("cpu", name),
        ("cpu/model@fallback" | "cpu/vendor", _) => {
            ignored("a host that lacks a feature does not start the guest")
        }
        ("cpu/model@vendor_id", _) => {
            refused("cpu-vendor", "the guest reads the vendor of its model")
        }
        ("cpu/topology@sockets", _) => part(at, "topology.sockets")?,
        ("cpu/topology@dies", _) => part(at, "topology.dies")?,
        ("cpu/topology@cores", _) => part(at, "topology.cores")?,
        ("cpu/topology@threads", _) => part(at, "topology.threads")?,
        ("cpu/topology@clusters", "1") => kept(""),
        ("cpu/topology@clusters", _) => {
            refused("cpu-topology", "Plover's processors have no clusters")
        }
        ("cpu/feature" | "cpu/feature@policy" | "cpu/feature@name", _) => feature(at)?,
        _ if at.is_in("cpu/cache") => changed("the guest reads the caches that QEMU describes"),
        _ if at.is_in("cpu/maxphysaddr") => {
            not_missed("cpu-address-bits", "the width of addresses is QEMU's")
        }
        _ if at.is_in("cpu/numa") => refused("numa", "the guest's memory is one node"),
        _ => return None,
    })
}

/// How many processors the guest has when it starts.
fn vcpus(domain: &Domain<'_>) -> i64 {
    let vcpu = find(domain.root, "vcpu");
    let number = |vcpu: Node<'_, '_>| {
        let current = vcpu.attribute("current").unwrap_or_default();
        current.parse().or_else(|_| text(vcpu).parse::<u32>()).ok()
    };
    vcpu.and_then(number).unwrap_or(1).into()
}

/// libvirt gives each processor a socket if nothing else is said; QEMU would put them all into one.
pub(super) fn usual_topology(domain: &Domain<'_>) -> Option<Said> {
    let vcpus = vcpus(domain);
    if find(domain.root, "cpu/topology").is_some() || vcpus == 1 {
        return None;
    }
    let said = kept("a socket for each processor, as libvirt has it without <topology>");
    Some(
        said.sets("topology.sockets", vcpus)
            .sets("topology.cores", 1),
    )
}

/// A number of the topology. It holds for all processors that the guest may have; one that starts with fewer has QEMU's.
fn part(at: &At<'_, '_>, key: &'static str) -> Option<Said> {
    let number: u32 = at.value.parse().ok()?;
    let root = at.element.ancestors().filter(Node::is_element).last()?;
    let vcpu = root.children().find(|child| child.has_tag_name("vcpu"));
    if vcpu.is_some_and(|vcpu| vcpu.attribute("current").is_some()) {
        return Some(changed(
            "QEMU arranges the processors that the guest starts with",
        ));
    }
    Some(kept("").sets(key, i64::from(number)))
}

fn feature(at: &At<'_, '_>) -> Option<Said> {
    let name = at.element.attribute("name")?;
    let policy = at.element.attribute("policy").unwrap_or("require");
    let sign = match policy {
        "require" | "force" => '+',
        "disable" => '-',
        "optional" => {
            return Some(changed(
                "the guest does without it, unless the model has it",
            ));
        }
        _ => {
            return Some(refused(
                "cpu-feature",
                "Plover asks for features, and hides them; it forbids no hosts",
            ));
        }
    };
    if at.path.contains('@') {
        return Some(kept(""));
    }
    let feature = toml::Value::from(format!("{sign}{name}"));
    Some(kept("").sets("cpu_features", vec![feature]))
}

//! The machine as the guest reads it, beside its devices: names, numbers and the processor.
//!
//! A guest that moves in from elsewhere keeps these, because software inside is bound to them: licences to the UUID and
//! the serial number, compiled programs to the processor, a Windows to the clock's base. The same on all replicas, which
//! compare them before one takes a copy of the other's guest (`qemu::words`).

use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The base of the guest's real-time clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockBase {
    /// UTC, as Linux has it.
    #[default]
    Utc,
    /// The local time of the host that boots the guest, as Windows has it. All hosts need the same `/etc/localtime`, a link into `/usr`.
    Localtime,
}

/// How the virtual processors are arranged. The product of these numbers must be `guest.vcpus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Sockets.
    pub sockets: u32,
    /// Dies in a socket.
    #[serde(default = "default_parts")]
    pub dies: u32,
    /// Cores in a die.
    pub cores: u32,
    /// Threads of a core.
    #[serde(default = "default_parts")]
    pub threads: u32,
}

fn default_parts() -> u32 {
    1
}

impl Topology {
    /// How many processors these are; `None` if no machine has so many.
    pub fn vcpus(&self) -> Option<u32> {
        let parts = [self.dies, self.cores, self.threads];
        let product = parts
            .iter()
            .try_fold(self.sockets, |n, part| n.checked_mul(*part));
        product.filter(|n| *n > 0)
    }
}

/// The words of the guest's SMBIOS system block, as `dmidecode --type system` shows them; QEMU's own where a key is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SystemWords {
    /// The manufacturer.
    pub manufacturer: Option<String>,
    /// The product's name.
    pub product: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Its serial number. cloud-init looks for its data source here.
    pub serial: Option<String>,
    /// Its SKU number.
    pub sku: Option<String>,
    /// The family of products.
    pub family: Option<String>,
}

impl SystemWords {
    /// The words that are set, with QEMU's names for them.
    pub(crate) fn set(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let words = [
            ("manufacturer", &self.manufacturer),
            ("product", &self.product),
            ("version", &self.version),
            ("serial", &self.serial),
            ("sku", &self.sku),
            ("family", &self.family),
        ];
        words
            .into_iter()
            .filter_map(|(name, word)| Some((name, word.as_deref()?)))
    }
}

/// The machine as the guest reads it. Everything is QEMU's own where it is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// A versioned name of the machine type, such as `pc-q35-7.2`.
    pub machine_type: Option<String>,
    /// QEMU's name of the processor model.
    pub cpu: Option<String>,
    /// Features of the processor, each with `+` or `-` before its name, or `=` and a number behind it.
    pub cpu_features: Vec<String>,
    /// The arrangement of the processors.
    pub topology: Option<Topology>,
    /// The machine's UUID.
    pub uuid: Option<String>,
    /// The base of its clock.
    pub clock: ClockBase,
    /// Its SMBIOS system block.
    pub system: SystemWords,
}

impl Identity {
    /// All that is set, in words: two replicas compare them. Empty if nothing is. The type of the machine is not among
    /// them: QEMU itself says which one it has made.
    pub(crate) fn words(&self) -> String {
        let mut words = String::new();
        let mut add = |name: &str, value: &str| {
            let _ = write!(words, ", {name} {value}");
        };
        if let Some(cpu) = &self.cpu {
            add("CPU", cpu);
        }
        if !self.cpu_features.is_empty() {
            add("CPU features", &self.cpu_features.join(" "));
        }
        if let Some(t) = &self.topology {
            let (sockets, dies, cores, threads) = (t.sockets, t.dies, t.cores, t.threads);
            add("topology", &format!("{sockets}/{dies}/{cores}/{threads}"));
        }
        if let Some(uuid) = &self.uuid {
            add("UUID", uuid);
        }
        if self.clock == ClockBase::Localtime {
            add("clock", "localtime");
        }
        for (name, word) in self.system.set() {
            add(&format!("system {name}"), &format!("{word:?}"));
        }
        words
    }

    /// Whether such a machine can exist. The error names the key.
    pub(crate) fn validate(&self, machine: crate::Machine, vcpus: u32) -> Result<(), String> {
        if let Some(name) = &self.machine_type {
            let family = match machine {
                crate::Machine::Q35 => "pc-q35-",
                crate::Machine::Pc => "pc-i440fx-",
                crate::Machine::Microvm => {
                    return Err("machine = \"microvm\" has no versioned machine_type".into());
                }
            };
            if !name.starts_with(family) || !is_name(name) {
                return Err(format!(
                    "machine_type = \"{name}\": on machine = \"{machine}\" it begins with {family} \
                     (qemu-system-x86_64 -M help)"
                ));
            }
        }
        if let Some(cpu) = self.cpu.as_ref().filter(|cpu| !is_name(cpu)) {
            return Err(format!(
                "cpu = \"{cpu}\" is no name of a model (qemu-system-x86_64 -cpu help)"
            ));
        }
        let is_feature = |text: &String| match text.split_once('=') {
            Some((name, number)) => is_name(name) && number.parse::<u32>().is_ok(),
            None => text.strip_prefix(['+', '-']).is_some_and(is_name),
        };
        if let Some(feature) = self.cpu_features.iter().find(|text| !is_feature(text)) {
            return Err(format!(
                "cpu_features: \"{feature}\" is not + or - and a feature's name, such as \"-svm\", nor a name, = and a number, such as \
                 \"hv-spinlocks=8191\""
            ));
        }
        if let Some(topology) = self.topology.filter(|it| it.vcpus() != Some(vcpus)) {
            return Err(format!(
                "topology: {} sockets, {} dies, {} cores and {} threads are not vcpus = {vcpus}",
                topology.sockets, topology.dies, topology.cores, topology.threads
            ));
        }
        if let Some(uuid) = self.uuid.as_ref().filter(|uuid| !is_uuid(uuid)) {
            return Err(format!(
                "uuid = \"{uuid}\": a UUID is like 2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e"
            ));
        }
        let bad = |(_, word): &(_, &str)| word.is_empty() || word.chars().any(char::is_control);
        if let Some((name, word)) = self.system.set().find(bad) {
            return Err(format!(
                "system.{name} = {word:?}: leave it out, or give it one line of text"
            ));
        }
        Ok(())
    }
}

/// A word that QEMU reads as one name: no comma, no `=`.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.chars().all(fits)
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups
            .iter()
            .all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Machine;

    #[test]
    fn a_mistake_is_named_by_its_key() {
        let bad = |change: fn(&mut Identity)| {
            let mut identity = Identity::default();
            change(&mut identity);
            identity.validate(Machine::Q35, 4).unwrap_err()
        };
        for (change, names) in [
            (
                (|i| i.machine_type = Some("pc-i440fx-7.2".into())) as fn(&mut Identity),
                "pc-q35-",
            ),
            (
                |i| i.machine_type = Some("pc-q35-7.2,smm=off".into()),
                "machine_type",
            ),
            (|i| i.cpu = Some("host,+x".into()), "cpu ="),
            (|i| i.cpu_features = vec!["svm".into()], "\"svm\""),
            (|i| i.cpu_features = vec!["+a,b=c".into()], "cpu_features"),
            (|i| i.cpu_features = vec!["a=b".into()], "\"a=b\""),
            (|i| i.uuid = Some("1234".into()), "uuid"),
            (|i| i.system.serial = Some("a\nb".into()), "system.serial"),
            (
                |i| {
                    i.topology = Some(Topology {
                        sockets: 1,
                        dies: 1,
                        cores: 3,
                        threads: 1,
                    });
                },
                "vcpus = 4",
            ),
        ] {
            let error = bad(change);
            assert!(error.contains(names), "{names}: {error}");
        }
        let microvm = Identity {
            machine_type: Some("pc-q35-7.2".into()),
            ..Identity::default()
        };
        assert!(microvm.validate(Machine::Microvm, 1).is_err());
    }

    /// Replicas with different machines tell each other: no part may be missing from the words.
    #[test]
    fn every_part_is_in_the_words_that_replicas_compare() {
        assert_eq!(Identity::default().words(), "");
        let word = |text: &str| Some(text.to_owned());
        let all = Identity {
            machine_type: word("pc-q35-7.2"),
            cpu: word("Haswell"),
            cpu_features: vec!["-hle".into()],
            topology: Some(Topology {
                sockets: 1,
                dies: 2,
                cores: 3,
                threads: 4,
            }),
            uuid: word("2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e"),
            clock: ClockBase::Localtime,
            system: SystemWords {
                manufacturer: word("m1"),
                product: word("p1"),
                version: word("v1"),
                serial: word("s1"),
                sku: word("k1"),
                family: word("f1"),
            },
        };
        let words = all.words();
        for part in [
            "Haswell",
            "-hle",
            "1/2/3/4",
            "2d3ad8f3",
            "localtime",
            "m1",
            "p1",
            "v1",
            "s1",
            "k1",
            "f1",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        all.validate(Machine::Q35, 24).unwrap();
    }
}

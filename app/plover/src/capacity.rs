//! The memory that a replica takes, and that a host has for replicas.
//!
//! `plover check` compares the two. Under Pacemaker the agents count by the same figures, so that a lost member is replaced only
//! on a host with room (`ocf/repair.rs`).

use plover_node::ReplicaConfig;
use std::fmt;
use std::str::FromStr;

/// The memory of a replica and its QEMU beside the guest's, in MiB. Up to 145 were measured where QEMU translates the guest's code;
/// under KVM it has no translated code to keep.
const BESIDE_MIB: u64 = 192;

/// The memory for the pages of a syncvm until it is complete, in MiB. A syncvm begins when the guest has written as much.
const SYNC_MIB: u64 = 256;

/// The host keeps so much for itself, in MiB, and a fiftieth of all its memory.
const HOST_MIB: u64 = 1024;
const HOST_PART: u64 = 50;

/// The attribute of a node that says what it has for replicas, in MiB.
pub const MEMORY: &str = "plover_memory_mib";

/// The attribute of a node that says which member of a guest it has: a [`Place`].
pub fn of_member(guest: &str) -> String {
    format!("plover-{guest}-member")
}

/// The attribute of a node that says which replica may get the place of a member there: `3@192.0.2.13:7700`.
pub fn of_spare(guest: &str) -> String {
    format!("plover-{guest}-spare")
}

/// The memory that a replica takes, in MiB: the same in each role, since it may come to have any.
pub fn of_replica(config: &ReplicaConfig) -> u64 {
    let guest = u64::from(config.guest.mem_mib);
    guest + guest.min(SYNC_MIB) + BESIDE_MIB
}

/// The memory that this host has for replicas, in MiB, if its kernel tells.
pub fn of_host() -> Option<u64> {
    of_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn of_meminfo(meminfo: &str) -> Option<u64> {
    let total = mib_of(meminfo, "MemTotal:")?;
    // Memory in huge pages is not for guests of Plover.
    let huge = mib_of(meminfo, "Hugetlb:").unwrap_or(0);
    Some(total.saturating_sub(HOST_MIB + total / HOST_PART + huge))
}

/// The number behind `key` in the text of `/proc/meminfo`, in MiB.
pub fn mib_of(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

/// A member's place on a node, as the attribute `plover-NAME-member` tells it: `0, 948 MiB`, and `3, 948 MiB, given 1764341000`
/// while it is only given to a spare replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The replica.
    pub id: u8,
    /// The memory that it takes.
    pub memory_mib: u64,
    /// When it was given to a spare replica that is no member yet, in seconds since 1970.
    pub given_s: Option<u64>,
}

impl Place {
    /// That of a member.
    pub fn of_member(id: u8, memory_mib: u64) -> Self {
        Self {
            id,
            memory_mib,
            given_s: None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} MiB", self.id, self.memory_mib)?;
        match self.given_s {
            Some(at) => write!(f, ", given {at}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Place {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, rest) = text.split_once(", ").unwrap_or((text, "0"));
        let (memory, given) = match rest.split_once(", given ") {
            Some((memory, given)) => (memory, Some(given)),
            None => (rest, None),
        };
        Ok(Self {
            id: id.parse()?,
            memory_mib: memory.trim_end_matches(" MiB").parse()?,
            given_s: given.map(str::parse).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_a_part_of_its_memory_for_itself() {
        let text = "MemTotal:       65536000 kB\nMemAvailable:   2048 kB\nHugetlb:   1048576 kB\n";
        assert_eq!(mib_of(text, "MemAvailable:"), Some(2));
        assert_eq!(mib_of(text, "SwapFree:"), None);
        assert_eq!(of_meminfo(text), Some(64_000 - 1024 - 1280 - 1024));
        let small = "MemTotal: 524288 kB\n";
        assert_eq!(of_meminfo(small), Some(0), "512 MiB are none to give");
    }

    #[test]
    fn a_place_is_read_as_it_is_written() {
        let place = Place::of_member(3, 948);
        assert_eq!(place.to_string(), "3, 948 MiB");
        assert_eq!("3, 948 MiB".parse(), Ok(place));
        let given = Place {
            given_s: Some(1_764_341_000),
            ..place
        };
        assert_eq!(given.to_string(), "3, 948 MiB, given 1764341000");
        assert_eq!("3, 948 MiB, given 1764341000".parse(), Ok(given));
        assert!("3, 948 MiB, given x".parse::<Place>().is_err());
        assert_eq!("3".parse::<Place>().map(|it| it.memory_mib), Ok(0));
        assert!("x, 3 MiB".parse::<Place>().is_err());
    }
}

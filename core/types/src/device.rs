//! A guest's devices and CPUs.

use crate::{Micros, told};
use serde::{Deserialize, Serialize};

/// The state of a guest's devices and CPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// As the hypervisor serialised it; opaque.
    pub bytes: Vec<u8>,
    /// When that guest stopped, by the clock of the host that loads it: a guest that goes on from here has
    /// missed the time since. Zero if that is not known; then it misses nothing.
    pub stopped_at: Micros,
}

/// The longest words of another replica's machine, in bytes: a processor's features are the most of them.
const WORDS_BYTES_MAX: usize = 64 << 10;

/// The machine that a hypervisor has made, in words: two replicas compare theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineWords {
    /// Whatever a state must find alike where it is loaded: the hypervisor's version, the machine's type and
    /// devices.
    #[serde(deserialize_with = "told::<WORDS_BYTES_MAX, _>")]
    pub needed: String,
    /// Parts that should be alike, and that a state loads without: firmware, processor. Where the guest has its host's own
    /// processor, also the processor's features, a part of the form `CPUID 7.0 EBX 000003a9` for each register.
    #[serde(deserialize_with = "told::<WORDS_BYTES_MAX, _>")]
    pub wanted: String,
}

impl MachineWords {
    /// Features that the processor of `source` shows its guest and this machine's does not, in the form of the parts: the
    /// guest may use what it has found for as long as it runs. A machine that names no features is taken to have them
    /// all: hosts of before they were told do not.
    pub fn lacks(&self, source: &Self) -> Vec<String> {
        let own: Vec<_> = features(&self.wanted).collect();
        if own.is_empty() {
            return Vec::new();
        }
        let lacking = features(&source.wanted).filter_map(|(register, bits)| {
            let same = own.iter().find(|(own, _)| *own == register);
            let lacking = bits & !same.map_or(0, |(_, bits)| *bits);
            (lacking != 0).then(|| format!("{FEATURES}{register} {lacking:08x}"))
        });
        lacking.collect()
    }
}

const FEATURES: &str = "CPUID ";

/// Registers of CPUID, and their bits.
fn features(words: &str) -> impl Iterator<Item = (&str, u32)> {
    words.split(", ").filter_map(|part| {
        let (register, bits) = part.strip_prefix(FEATURES)?.rsplit_once(' ')?;
        Some((register, u32::from_str_radix(bits, 16).ok()?))
    })
}

impl From<Vec<u8>> for DeviceState {
    /// A state whose age is not known.
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            stopped_at: Micros::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(wanted: &str) -> MachineWords {
        MachineWords {
            needed: String::new(),
            wanted: wanted.into(),
        }
    }

    #[test]
    fn a_processor_lacks_what_only_the_other_one_has() {
        let older = host("AMD EPYC 7401, CPUID 1 EDX 078bfbfd, CPUID 7.0 EBX 00000201");
        let newer = host(
            "AMD EPYC 7543, CPUID 1 EDX 078bfbfd, CPUID 7.0 EBX 00000301, CPUID 7.0 ECX 00000010",
        );
        assert_eq!(newer.lacks(&older), [""; 0]);
        assert_eq!(
            older.lacks(&newer),
            ["CPUID 7.0 EBX 00000100", "CPUID 7.0 ECX 00000010"]
        );
        let silent = host("AMD EPYC 7401");
        assert_eq!(
            silent.lacks(&newer),
            [""; 0],
            "it is of before they were told"
        );
        assert_eq!(newer.lacks(&silent), [""; 0]);
    }
}

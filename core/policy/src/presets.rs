//! The systems of the papers, as policies.
//!
//! `str` and `plan2` are one policy: PLOVER §6.3 says that they differ in how inputs are ordered (STR's
//! own protocol, or Paxos) and in little else; here both use the log. `plan3` is the whole of PLOVER.

use crate::axes::{Input, Policy, ReleaseWhen, Secondary, Sent, SyncWhen};
use plover_types::Micros;
use serde::Serialize;

/// A policy with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Preset {
    /// The name by which a configuration chooses it.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// A description of one line.
    pub about: &'static str,
    /// The axes.
    pub policy: Policy,
}

const REMUS: Policy = Policy {
    input: Input::None,
    secondary: Secondary::Waits,
    sync: SyncWhen::Every(Micros::from_ms(100)),
    sent: Sent::AllOfPrimary,
    release: ReleaseWhen::Synced,
    clean_replies: false,
};

const STR: Policy = Policy {
    input: Input::Total,
    secondary: Secondary::Runs,
    sync: SyncWhen::Every(Micros::from_ms(25)),
    sent: Sent::Divergent,
    release: ReleaseWhen::Synced,
    clean_replies: false,
};

const COLO: Policy = Policy {
    input: Input::PerConnection,
    secondary: Secondary::Runs,
    sync: SyncWhen::Mismatch,
    sent: Sent::AllOfPrimary,
    release: ReleaseWhen::Matched,
    clean_replies: false,
};

/// Virtualized state machine replication (PLOVER §3).
pub const VSMR: Preset = Preset {
    name: "vsmr",
    aliases: &["plan3"],
    about: "virtualized state machine replication, PLOVER itself",
    policy: Policy {
        sync: SyncWhen::Idle,
        ..STR
    },
};

/// PLOVER's inputs and pages with COLO's release (docs/decisions/0011).
pub const HYBRID: Preset = Preset {
    name: "hybrid",
    aliases: &[],
    about: "PLOVER's order and pages with COLO's release",
    policy: Policy {
        sync: SyncWhen::Mismatch,
        release: ReleaseWhen::Matched,
        ..STR
    },
};

/// The policy of a configuration that names none (docs/decisions/0031).
pub static DEFAULT: &Preset = &HYBRID;

/// All presets.
pub static PRESETS: [Preset; 13] = [
    VSMR,
    Preset {
        name: "remus-25",
        aliases: &[],
        about: "Remus as MC builds it, its own slot of 25 ms",
        policy: Policy {
            sync: SyncWhen::Every(Micros::from_ms(25)),
            ..REMUS
        },
    },
    Preset {
        name: "remus-25+clean",
        aliases: &[],
        about: "Remus with clean replies: reads at once, writes with the checkpoint",
        policy: Policy {
            sync: SyncWhen::Every(Micros::from_ms(25)),
            clean_replies: true,
            ..REMUS
        },
    },
    Preset {
        name: "remus-100",
        aliases: &["remus"],
        about: "Remus as MC builds it, MC's slot of 100 ms",
        policy: REMUS,
    },
    Preset {
        name: "adaptive-remus",
        aliases: &[],
        about: "Remus that checkpoints as soon as an output waits",
        policy: Policy {
            sync: SyncWhen::Output(Micros::from_ms(100)),
            ..REMUS
        },
    },
    Preset {
        name: "str",
        aliases: &[],
        about: "synchronization traffic reduction: slots of 25 ms, divergent pages",
        policy: STR,
    },
    Preset {
        name: "plan1",
        aliases: &[],
        about: "PLOVER without total order and idle slots (its §6.3)",
        policy: Policy {
            input: Input::PerConnection,
            ..STR
        },
    },
    Preset {
        name: "plan2",
        aliases: &[],
        about: "PLOVER without idle slots (its §6.3)",
        policy: STR,
    },
    Preset {
        name: "colo",
        aliases: &[],
        about: "coarse-grained lock-stepping: released when both sides say the same",
        policy: COLO,
    },
    HYBRID,
    Preset {
        name: "hybrid-semi",
        aliases: &[],
        about: "hybrid whose secondary's guest rests where that yields more",
        policy: Policy {
            secondary: Secondary::Semi,
            ..HYBRID.policy
        },
    },
    Preset {
        name: "hybrid+clean",
        aliases: &[],
        about: "hybrid-semi with clean replies",
        policy: Policy {
            secondary: Secondary::Semi,
            clean_replies: true,
            ..HYBRID.policy
        },
    },
    Preset {
        name: "colo++",
        aliases: &[],
        about: "COLO whose secondary's guest rests where that yields more, with clean replies",
        policy: Policy {
            secondary: Secondary::Semi,
            clean_replies: true,
            ..COLO
        },
    },
];

impl Preset {
    /// The preset of this name or alias.
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS
            .iter()
            .find(|preset| preset.name == name || preset.aliases.contains(&name))
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS
            .iter()
            .flat_map(|preset| std::iter::once(preset.name).chain(preset.aliases.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_found() {
        let names: Vec<_> = Preset::names().collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        for name in names {
            assert!(Preset::find(name).is_some(), "{name}");
        }
        assert_eq!(
            Preset::find("remus").map(|preset| preset.name),
            Some("remus-100")
        );
        assert_eq!(Preset::find("remos"), None);
    }
}

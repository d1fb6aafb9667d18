//! A policy: one choice on each of five axes (docs/policies.md).
//!
//! Every system that the papers compare is such a policy, so all of them run on one engine and differ in
//! nothing else. The engine looks at the axes, never at a name.
//!
//! Some choices exclude each other. [`Policy::check`] says which two axes do not go together, and why.

use plover_types::Micros;
use serde::Deserialize;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::fmt;

/// In which order the guests are fed what clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// Both sides take all frames in the log's order (PLOVER §3.1).
    Total,
    /// Both sides take the frames of each connection in the log's order; frames of different
    /// connections may overtake each other on the secondary (COLO; PLOVER §6.3, Plan1).
    PerConnection,
    /// Only the leader is fed, and nothing is logged (Remus).
    None,
}

/// The axis *secondary*: its guest runs between two syncs, waits, or rests where that yields more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Secondary {
    /// It runs on the same inputs.
    Runs,
    /// It stands still, and its memory takes each checkpoint.
    Waits,
    /// It runs on the same inputs, or rests for a slot: the leader measures which of the two yields more
    /// (docs/decisions/0049).
    Semi,
}

/// The axis *sync*: when a slot ends. A full guard or log ends it under every choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncWhen {
    /// The guest is idle and outputs wait; bounded by [`crate::SlotConfig`] (PLOVER §4.3).
    Idle,
    /// This long after the guest went on from the last one (Remus, MC, STR).
    Every(Micros),
    /// An output waits; after this long also without one (adaptive Remus).
    Output(Micros),
    /// The outputs of the two sides differ, or one side's stay without counterpart for too
    /// long, or the slot has run long (COLO §3).
    Mismatch,
}

/// The axis *sent*: the pages that a sync sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sent {
    /// Those of both sides' dirty pages whose hashes differ (PLOVER §4.4).
    Divergent,
    /// All pages that the leader's guest has written, unhashed. If the secondary's guest ran too, also the
    /// pages that it has written (docs/decisions/0017).
    AllOfPrimary,
}

/// When an output goes out to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReleaseWhen {
    /// The secondary has acknowledged the state behind it.
    Synced,
    /// The secondary's guest has sent the same itself, or has acknowledged the state.
    Matched,
}

/// One choice on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// In which order guests are fed.
    pub input: Input,
    /// Whether the secondary's guest runs, waits, or does either.
    pub secondary: Secondary,
    /// When a slot ends.
    pub sync: SyncWhen,
    /// The pages that a sync sends.
    pub sent: Sent,
    /// When outputs go out.
    pub release: ReleaseWhen,
    /// Whether replies that programs in the guest call clean leave as soon as their cut is acknowledged
    /// (docs/decisions/0065).
    pub clean_replies: bool,
}

/// A policy that cannot be run. Nothing was started; choose another value on one of the axes
/// that are named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Two choices exclude each other.
    #[error("{first} and {second} do not go together: {why}")]
    Impossible {
        /// One axis and its choice.
        first: String,
        /// The other.
        second: String,
        /// Why not.
        why: &'static str,
    },
    /// Two replicas are too few for it.
    #[error(
        "{axis} needs a third replica as witness: one order of all inputs is agreed by a majority, and \
         two that go on without each other have none; with two use remus-25, remus-100, \
         adaptive-remus or colo, or let them wait for each other's end (group.fencing)"
    )]
    NeedsThird {
        /// The axis and its choice.
        axis: String,
    },
    /// A time is missing, or zero.
    #[error("sync = \"{when}\" needs an interval of at least {} µs, not {interval}", INTERVAL_MIN.0)]
    Interval {
        /// The choice.
        when: &'static str,
        /// The given interval.
        interval: Micros,
    },
}

/// The shortest interval: a sync takes some hundred microseconds at the very least, and a slot
/// in which the guest does not run makes no progress.
const INTERVAL_MIN: Micros = Micros(100);

impl Policy {
    /// Whether the choices go together, and can be run.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.check_interval()?;
        self.check_mix()
    }

    /// Whether a group of two may be protected so. Each of the two goes on without the other, so after a
    /// cut both serve clients. One order of all inputs needs a majority.
    ///
    /// # Errors
    /// The text says which axis needs a third replica, and why.
    pub fn check_pair(&self) -> Result<(), PolicyError> {
        if self.input == Input::Total {
            return Err(PolicyError::NeedsThird {
                axis: self.input.axis(),
            });
        }
        Ok(())
    }

    fn check_interval(&self) -> Result<(), PolicyError> {
        match self.sync {
            SyncWhen::Every(interval) | SyncWhen::Output(interval) if interval < INTERVAL_MIN => {
                Err(PolicyError::Interval {
                    when: self.sync.name(),
                    interval,
                })
            }
            _ => Ok(()),
        }
    }

    fn check_mix(&self) -> Result<(), PolicyError> {
        let (input, secondary) = (self.input.axis(), self.secondary.axis());
        let (sync, sent, release) = (self.sync.axis(), self.sent.axis(), self.release.axis());
        let waits = self.secondary == Secondary::Waits;
        let matched = self.release == ReleaseWhen::Matched;
        let rules = [
            (
                waits && self.input != Input::None,
                (&input, &secondary),
                "a guest that stands still takes no inputs",
            ),
            (
                !waits && self.input == Input::None,
                (&input, &secondary),
                "a guest that runs without the inputs does other work than the leader's",
            ),
            (
                waits && self.sent == Sent::Divergent,
                (&secondary, &sent),
                "a guest that stands still has done nothing that could have come out the same",
            ),
            (
                waits && matched,
                (&secondary, &release),
                "a guest that stands still sends nothing to match",
            ),
            (
                self.sync == SyncWhen::Mismatch && !matched,
                (&sync, &release),
                "outputs are only compared where a match releases them",
            ),
        ];
        match rules.into_iter().find(|(excluded, ..)| *excluded) {
            None => Ok(()),
            Some((_, (first, second), why)) => Err(PolicyError::Impossible {
                first: first.clone(),
                second: second.clone(),
                why,
            }),
        }
    }
}

/// An axis as it stands in a configuration: `key = "value"`.
macro_rules! choices {
    ($axis:ty, $key:literal, { $($choice:pat => $name:literal,)* }) => {
        impl $axis {
            /// The choice's name in configurations and tables.
            pub fn name(self) -> &'static str {
                match self { $($choice => $name,)* }
            }

            fn axis(self) -> String {
                format!(concat!($key, " = \"{}\""), self.name())
            }
        }
    };
}

choices!(Input, "input", {
    Self::Total => "total",
    Self::PerConnection => "per-connection",
    Self::None => "none",
});
choices!(Secondary, "secondary", {
    Self::Runs => "runs",
    Self::Waits => "waits",
    Self::Semi => "semi",
});
choices!(SyncWhen, "sync", {
    Self::Idle => "idle",
    Self::Every(_) => "every",
    Self::Output(_) => "output",
    Self::Mismatch => "mismatch",
});
choices!(Sent, "sent", {
    Self::Divergent => "divergent",
    Self::AllOfPrimary => "all-of-primary",
});
choices!(ReleaseWhen, "release", {
    Self::Synced => "synced",
    Self::Matched => "matched",
});

impl SyncWhen {
    /// The interval, for the choices that have one.
    pub fn interval(self) -> Option<Micros> {
        match self {
            Self::Idle | Self::Mismatch => None,
            Self::Every(interval) | Self::Output(interval) => Some(interval),
        }
    }
}

impl fmt::Display for SyncWhen {
    /// With the interval, for people: `every 25 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.interval()) {
            (Self::Output(_), Some(interval)) => f.pad(&format!("output, or {}", short(interval))),
            (_, Some(interval)) => f.pad(&format!("{} {}", self.name(), short(interval))),
            (_, None) => f.pad(self.name()),
        }
    }
}

/// `25 ms` rather than `25.000 ms`.
fn short(span: Micros) -> String {
    if span.0 % 1000 == 0 {
        format!("{} ms", span.0 / 1000)
    } else {
        span.to_string()
    }
}

impl fmt::Display for Policy {
    /// In a line, the choices that all replicas of a group have to share: all but `clean_replies`, which is the
    /// leader's alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "input {}, secondary {}, sync {}, sent {}, release {}",
            self.input.name(),
            self.secondary.name(),
            self.sync,
            self.sent.name(),
            self.release.name()
        )
    }
}

impl Serialize for Policy {
    /// As a configuration writes it, for programs: the axes' names, and `interval_ms` where
    /// there is one.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Policy", 7)?;
        fields.serialize_field("input", self.input.name())?;
        fields.serialize_field("secondary", self.secondary.name())?;
        fields.serialize_field("sync", self.sync.name())?;
        match self.sync.interval() {
            Some(interval) => fields.serialize_field("interval_ms", &(interval.0 as f64 / 1e3))?,
            None => fields.skip_field("interval_ms")?,
        }
        fields.serialize_field("sent", self.sent.name())?;
        fields.serialize_field("release", self.release.name())?;
        fields.serialize_field("clean_replies", &self.clean_replies)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::{PRESETS, VSMR};

    /// Over all policies: a mix is refused with both axes named, or it is allowed; none is refused for
    /// one axis alone.
    #[test]
    fn impossible_mixes_name_both_axes() {
        let mut possible = 0;
        for policy in every_policy() {
            match policy.check_mix() {
                Ok(()) => possible += 1,
                Err(PolicyError::Impossible { first, second, .. }) => {
                    let axes = [
                        policy.input.axis(),
                        policy.secondary.axis(),
                        policy.sync.axis(),
                        policy.sent.axis(),
                        policy.release.axis(),
                    ];
                    assert!(axes.contains(&first) && axes.contains(&second) && first != second);
                }
                Err(other) => panic!("{policy:?}: {other}"),
            }
        }
        // Waits: three triggers. Runs and semi: two inputs, two kinds sent, and of trigger and release
        // seven pairs, since only `matched` goes with `mismatch`.
        assert_eq!(possible, 3 + 2 * (2 * 2 * 7));
    }

    fn every_policy() -> Vec<Policy> {
        let interval = Micros::from_ms(25);
        let mut all = Vec::new();
        for input in [Input::Total, Input::PerConnection, Input::None] {
            for secondary in [Secondary::Runs, Secondary::Waits, Secondary::Semi] {
                for sync in [
                    SyncWhen::Idle,
                    SyncWhen::Every(interval),
                    SyncWhen::Output(interval),
                    SyncWhen::Mismatch,
                ] {
                    for sent in [Sent::Divergent, Sent::AllOfPrimary] {
                        for release in [ReleaseWhen::Synced, ReleaseWhen::Matched] {
                            all.push(Policy {
                                input,
                                secondary,
                                sync,
                                sent,
                                release,
                                clean_replies: false,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn every_preset_goes_together() {
        for preset in &PRESETS {
            assert_eq!(preset.policy.check_mix(), Ok(()), "{}", preset.name);
            assert_eq!(preset.policy.check_interval(), Ok(()), "{}", preset.name);
        }
        assert_eq!(VSMR.policy.check(), Ok(()));
    }

    #[test]
    fn a_slot_without_length_is_refused() {
        let policy = Policy {
            sync: SyncWhen::Every(Micros(0)),
            ..VSMR.policy
        };
        let error = policy.check().unwrap_err().to_string();
        assert!(
            error.contains("every") && error.contains("interval"),
            "{error}"
        );
    }
}

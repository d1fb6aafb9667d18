//! `[policy]`: a preset's name, axes that differ from it, and the bounds.

use plover_policy::{
    DEFAULT, Input, Policy, Preset, ReleaseWhen, Secondary, Sent, SyncWhen, UnprotectedOutput,
};
use plover_types::Micros;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// The name of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum PolicyName {
    /// No replication: the guest and its NIC path alone.
    None,
    /// One of [`plover_policy::PRESETS`].
    Preset(&'static Preset),
}

impl PolicyName {
    /// As it stands in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Preset(preset) => preset.name,
        }
    }
}

impl Default for PolicyName {
    fn default() -> Self {
        Self::Preset(DEFAULT)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "none" {
            return Ok(Self::None);
        }
        Preset::find(name).map(Self::Preset).ok_or_else(|| {
            let names: Vec<_> = Preset::names().collect();
            format!("there is no policy '{name}': none, {}", names.join(", "))
        })
    }
}

impl TryFrom<String> for PolicyName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

/// The choices of [`SyncWhen`], without their intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncName {
    /// The guest is idle and outputs wait.
    Idle,
    /// Every `interval_ms`.
    Every,
    /// An output waits, or `interval_ms` have passed.
    Output,
    /// The outputs of the two sides differ.
    Mismatch,
}

/// `[policy]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// A policy of `plover policy list`, or `none` (default `hybrid`).
    pub name: PolicyName,
    /// The order in which the guests get inputs (default: the policy's).
    pub input: Option<Input>,
    /// Whether the secondary's guest runs between two syncs, waits, or rests where that yields more (default: the
    /// policy's).
    pub secondary: Option<Secondary>,
    /// When a slot ends (default: the policy's).
    pub sync: Option<SyncName>,
    /// The interval of `sync = "every"` and `"output"`, in ms (default: the policy's).
    pub interval_ms: Option<u64>,
    /// The pages that a sync sends (default: the policy's).
    pub sent: Option<Sent>,
    /// When an output leaves (default: the policy's).
    pub release: Option<ReleaseWhen>,
    /// The guest counts as idle after this many µs without work, at least 1 (default 100). Learning makes it up to
    /// twice as short or eight times as long.
    pub idle_threshold_us: Option<u64>,
    /// A slot with waiting outputs may always run this long, in ms, before a busy guest is paused (default 4).
    pub slot_min_ms: Option<u64>,
    /// A slot with waiting outputs never runs longer than this, in ms (default 50).
    pub slot_max_ms: Option<u64>,
    /// A slot without waiting outputs ends after this, in ms (default 500).
    pub quiet_max_ms: Option<u64>,
    /// At the end of a slot the leader waits at most this long, in ms, for the secondary's guest to finish its
    /// inputs (default 20). Within it, measured syncs decide.
    pub wait_max_ms: Option<u64>,
    /// With `sync = "mismatch"`: an output that the secondary's guest has not sent after this long, in ms, ends
    /// the slot (default 100; 200 with `input = "per-connection"`).
    pub unmatched_max_ms: Option<u64>,
    /// With `sync = "mismatch"`: a slot in which all outputs agree ends after this, in ms (default 1000; 10000
    /// with `input = "per-connection"`).
    pub matched_max_ms: Option<u64>,
    /// With `sync = "mismatch"`: whether the secondary's guest gets an input only when it has sent as much as
    /// the leader's had (default true; false with `input = "per-connection"`).
    pub paced: Option<bool>,
    /// Whether replies that programs in the guest call clean leave before the sync that ends their slot. Over TCP a
    /// takeover resets their connections ([Clean replies](policies.md#clean-replies); default: the policy's).
    pub clean_replies: Option<bool>,
    /// Whether outputs go out or are held while only one replica holds the guest's state.
    pub unprotected_output: UnprotectedOutput,
    /// Whether only the differing subpages of divergent pages are sent, not whole pages (default true).
    pub subpages: Option<bool>,
    /// Whether the log and syncs are compressed on their way (default: true where `sent = "divergent"`): a third
    /// of the bytes, and longer pauses. `false` for links that are faster than a CPU.
    pub compress: Option<bool>,
    /// A sync begins when held outputs take this many MiB (default 8).
    pub guard_mib: Option<usize>,
    /// MiB of frames that may wait for the guest while it is paused, as in a network card's queue; more are dropped
    /// (default 16: what comes in 13 ms at 10 Gbit/s).
    pub input_mib: Option<usize>,
}

impl PolicyConfig {
    /// The axes: those of the preset, changed by the keys that are set beside its name.
    ///
    /// # Errors
    /// The text says which choices do not go together.
    pub fn axes(&self) -> Result<Policy, String> {
        let base = match self.name {
            PolicyName::Preset(preset) => preset.policy,
            PolicyName::None => {
                return match self.first_axis_set() {
                    None => Ok(DEFAULT.policy),
                    Some(axis) => Err(format!(
                        "policy.name = \"none\" replicates nothing, so policy.{axis} means nothing"
                    )),
                };
            }
        };
        let policy = Policy {
            input: self.input.unwrap_or(base.input),
            secondary: self.secondary.unwrap_or(base.secondary),
            sync: self.sync_when(base.sync)?,
            sent: self.sent.unwrap_or(base.sent),
            release: self.release.unwrap_or(base.release),
            clean_replies: self.clean_replies.unwrap_or(base.clean_replies),
        };
        match policy.check() {
            Ok(()) => Ok(policy),
            Err(error) => Err(format!("policy.name = \"{}\": {error}", self.name)),
        }
    }

    /// Whether records are compressed on their way. By default they are where a sync sends only divergent
    /// pages. Systems that send all of the leader's pages do not compress them, as in their papers.
    pub(crate) fn compresses(&self) -> bool {
        let sent = self.axes().unwrap_or(DEFAULT.policy).sent;
        self.compress.unwrap_or(sent == Sent::Divergent)
    }

    fn first_axis_set(&self) -> Option<&'static str> {
        let set = [
            ("input", self.input.is_some()),
            ("secondary", self.secondary.is_some()),
            ("sync", self.sync.is_some()),
            ("interval_ms", self.interval_ms.is_some()),
            ("sent", self.sent.is_some()),
            ("release", self.release.is_some()),
            ("clean_replies", self.clean_replies.is_some()),
        ];
        set.into_iter()
            .find_map(|(axis, is_set)| is_set.then_some(axis))
    }

    fn sync_when(&self, base: SyncWhen) -> Result<SyncWhen, String> {
        let interval = self.interval_ms.map(Micros::from_ms).or(base.interval());
        // Without an interval it is zero, which the check of the axes refuses by name.
        let some = interval.unwrap_or_default();
        let when = match self.sync {
            Some(SyncName::Idle) => SyncWhen::Idle,
            Some(SyncName::Mismatch) => SyncWhen::Mismatch,
            Some(SyncName::Every) => SyncWhen::Every(some),
            Some(SyncName::Output) => SyncWhen::Output(some),
            None => match base {
                SyncWhen::Every(_) => SyncWhen::Every(some),
                SyncWhen::Output(_) => SyncWhen::Output(some),
                other => other,
            },
        };
        if self.interval_ms.is_some() && when.interval().is_none() {
            return Err(format!(
                "policy.interval_ms goes with sync = \"every\" or \"output\", not \"{}\"",
                when.name()
            ));
        }
        Ok(when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(text: &str) -> Result<Policy, String> {
        let config: PolicyConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.axes()
    }

    #[test]
    fn keys_beside_a_preset_override_its_axes() {
        assert_eq!(axes("").unwrap(), DEFAULT.policy);
        let policy = axes("name = 'str'\ninterval_ms = 40").unwrap();
        assert_eq!(policy.sync, SyncWhen::Every(Micros::from_ms(40)));
        let policy = axes("name = 'vsmr'\nsync = 'output'\ninterval_ms = 7").unwrap();
        assert_eq!(policy.sync, SyncWhen::Output(Micros::from_ms(7)));
        assert_eq!(policy.input, DEFAULT.policy.input);
        assert!(axes("name = 'colo++'").unwrap().clean_replies);
        let policy = axes("name = 'colo++'\nclean_replies = false").unwrap();
        assert!(!policy.clean_replies);
    }

    #[test]
    fn records_are_compressed_where_hashes_are_compared() {
        let compresses = |text| toml::from_str::<PolicyConfig>(text).unwrap().compresses();
        assert!(compresses(""));
        assert!(compresses("name = 'vsmr'"));
        assert!(!compresses("name = 'remus-25'"));
        assert!(!compresses("compress = false"));
        assert!(compresses("name = 'colo'\ncompress = true"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("name = 'remos'", vec!["remos", "remus-25", "none"]),
            (
                "secondary = 'waits'",
                vec!["input = \"total\"", "secondary = \"waits\""],
            ),
            (
                "name = 'remus'\ninput = 'total'",
                vec!["input = \"total\"", "secondary = \"waits\""],
            ),
            (
                "name = 'vsmr'\nsync = 'mismatch'",
                vec!["sync = \"mismatch\"", "release = \"synced\""],
            ),
            ("name = 'vsmr'\nsync = 'every'", vec!["every", "interval"]),
            ("interval_ms = 5", vec!["interval_ms", "mismatch"]),
            ("name = 'none'\nsent = 'divergent'", vec!["none", "sent"]),
            ("input = 'some'", vec!["per-connection"]),
        ] {
            let error = axes(text).unwrap_err();
            for named in named {
                assert!(error.contains(named), "{text}: {error}");
            }
        }
    }
}

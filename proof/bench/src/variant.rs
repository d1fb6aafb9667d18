//! A policy with other settings, measured beside it: `vsmr+slot_max_ms=20+group.durability=disk`.
//!
//! The settings behind the policy's name are keys of a replica's configuration, of `[policy]` if no table is
//! named. They reach the lab in a file, by `plover lab up --config`. The replica checks whether such a key exists.

use anyhow::{Context, Result, bail};
use plover_policy::Preset;
use std::path::Path;

/// A policy's name, and the settings that differ from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant<'a> {
    pub policy: &'a str,
    settings: Vec<(&'a str, &'a str)>,
}

impl<'a> Variant<'a> {
    /// Reads `POLICY` or `POLICY+KEY=VALUE+…`.
    pub fn parse(text: &'a str) -> Result<Self> {
        let (policy, settings) = text.split_at(policy_bytes(text));
        let parts = settings.split('+').skip(1);
        let setting = |part: &'a str| match part.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
            _ => bail!("'{part}' in '{text}' is no setting; write POLICY+KEY=VALUE"),
        };
        let settings = parts.map(setting).collect::<Result<_>>()?;
        Ok(Self { policy, settings })
    }

    /// Whether anything differs from the policy.
    pub fn is_other(&self) -> bool {
        !self.settings.is_empty()
    }

    /// The settings as a configuration.
    fn overlay(&self) -> String {
        let mut text = String::new();
        for (key, value) in &self.settings {
            let is_bare = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
            let quoted = match is_bare {
                true => (*value).to_owned(),
                false => format!("{value:?}"),
            };
            let table = if key.contains('.') { "" } else { "policy." };
            text += &format!("{table}{key} = {quoted}\n");
        }
        text
    }

    /// Options of `plover lab up` that pass the settings on in `file`.
    pub fn options(&self, file: &Path) -> Result<Vec<String>> {
        if !self.is_other() {
            return Ok(Vec::new());
        }
        std::fs::write(file, self.overlay())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(vec!["--config".into(), file.display().to_string()])
    }
}

/// The length of the policy's name, in which a '+' may stand: `colo+++slot_max_ms=20`.
fn policy_bytes(text: &str) -> usize {
    let is_it = |name: &&str| {
        let rest = text.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+'))
    };
    let known = Preset::names().filter(is_it).map(str::len).max();
    known.unwrap_or_else(|| text.find('+').unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_keys() {
        let variant =
            Variant::parse("vsmr+group.durability=disk+slot_max_ms=20+subpages=false").unwrap();
        assert_eq!(variant.policy, "vsmr");
        assert_eq!(
            variant.overlay(),
            "group.durability = \"disk\"\npolicy.slot_max_ms = 20\npolicy.subpages = false\n"
        );
        assert!(!Variant::parse("vsmr").unwrap().is_other());
        assert!(!Variant::parse("colo++").unwrap().is_other());
        for (text, policy) in [
            ("colo+slot_max_ms=20", "colo"),
            ("colo+++slot_max_ms=20", "colo++"),
        ] {
            let variant = Variant::parse(text).unwrap();
            assert_eq!(variant.policy, policy);
            assert_eq!(variant.overlay(), "policy.slot_max_ms = 20\n");
        }
        for wrong in ["vsmr+", "vsmr+subpages", "vsmr+=1", "vsmr+subpages="] {
            let error = Variant::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("KEY=VALUE"), "{wrong}: {error}");
        }
    }
}

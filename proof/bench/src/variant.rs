//! A policy with other settings, measured beside it: `vsmr+slot_max_ms=20+group.durability=disk`.
//!
//! The settings behind the policy's name are keys of a replica's configuration, of `[policy]` if no table is
//! named. They reach the lab in a file, by `plover lab up --config`. The replica checks whether such a key exists.

use anyhow::{Context, Result, bail};
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
        let mut parts = text.split('+');
        let policy = parts.next().unwrap_or_default();
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
        for wrong in ["vsmr+", "vsmr+subpages", "vsmr+=1", "vsmr+subpages="] {
            let error = Variant::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("KEY=VALUE"), "{wrong}: {error}");
        }
    }
}

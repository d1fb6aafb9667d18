//! The policies that are measured: all that Plover has, the guest unreplicated, and QEMU's own COLO.

use crate::stock_colo;
use plover_policy::{PRESETS, Preset};
use std::collections::BTreeMap;

/// The policies that `--quick` has time for: the systems that the papers compare, and Plover's own
/// default.
const QUICK: [&str; 7] = [
    "none",
    "vsmr",
    "hybrid",
    "remus-25",
    "remus-100",
    "str",
    "colo",
];

/// The names of the policies, the baseline first. If a policy has two names, only the first.
pub(super) fn names(quick: bool) -> Vec<String> {
    let mut distinct: Vec<&Preset> = Vec::new();
    for preset in &PRESETS {
        if distinct.iter().all(|seen| seen.policy != preset.policy) {
            distinct.push(preset);
        }
    }
    let ours = distinct.iter().map(|preset| preset.name);
    let all = ["none"].into_iter().chain(ours).chain([stock_colo::NAME]);
    all.filter(|name| !quick || QUICK.contains(name))
        .map(Into::into)
        .collect()
}

/// The policies that this version refuses, with its reasons.
pub(super) fn refused() -> BTreeMap<String, String> {
    let reason = |preset: &Preset| {
        let why = preset.policy.check().err()?;
        Some((preset.name.into(), why.to_string()))
    };
    PRESETS.iter().filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_first_and_each_policy_has_one_name() {
        let all = names(false);
        assert_eq!(all.first().map(String::as_str), Some("none"));
        assert_eq!(all.last().map(String::as_str), Some(stock_colo::NAME));
        let mut sorted = all.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        assert_eq!(names(true).len(), QUICK.len(), "all of them exist");
    }
}

//! The policies that `plover` knows, as it lists them: a new one is measured without a word here.
//! And QEMU's own COLO, which stands beside them.

use crate::lab::plover;
use crate::stock_colo;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// One of `plover policy list --json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Policy {
    pub name: String,
    /// Where it stands on each axis; null for `none`.
    axes: Value,
    /// Why this version cannot run it.
    pub refused: Option<String>,
}

/// What `--quick` has time for: the systems that the papers compare, and what goes past them.
const QUICK: [&str; 7] = [
    "none",
    "vsmr",
    "hybrid",
    "remus-25",
    "remus-100",
    "str",
    "colo",
];

/// Asks `plover`. The baseline comes first, and of two names for one policy the first.
pub(super) fn all() -> Result<Vec<Policy>> {
    let output = Command::new(plover())
        .args(["policy", "list", "--json"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run plover; build it with ./x")?;
    ensure!(
        output.status.success(),
        "`plover policy list --json` failed ({})",
        output.status
    );
    let listed = serde_json::from_slice(&output.stdout);
    let mut all = distinct(listed.context("`plover policy list --json` printed something else")?);
    all.push(Policy {
        name: stock_colo::NAME.into(),
        axes: Value::Null,
        refused: None,
    });
    Ok(all)
}

fn distinct(mut listed: Vec<Policy>) -> Vec<Policy> {
    listed.sort_by_key(|policy| policy.name != "none");
    let mut seen = Vec::new();
    listed.retain(|policy| {
        let new = !seen.contains(&policy.axes);
        seen.push(policy.axes.clone());
        new
    });
    listed
}

/// The names of those that are measured.
pub(super) fn names(all: &[Policy], quick: bool) -> Vec<String> {
    let wanted = |policy: &&Policy| !quick || QUICK.contains(&policy.name.as_str());
    all.iter()
        .filter(wanted)
        .map(|policy| policy.name.clone())
        .collect()
}

/// Those that `plover` refuses, with its reasons.
pub(super) fn refused(all: &[Policy]) -> BTreeMap<String, String> {
    let reason = |policy: &Policy| Some((policy.name.clone(), policy.refused.clone()?));
    all.iter().filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_for_each_policy_and_the_baseline_first() {
        let listed = serde_json::json!([
            {"name": "str", "aliases": [], "about": "", "axes": {"sync": "every"}, "refused": null},
            {"name": "plan2", "axes": {"sync": "every"}, "refused": null},
            {"name": "colo", "axes": {"sync": "mismatch"}, "refused": "not built yet"},
            {"name": "none", "axes": null, "refused": null},
        ]);
        let all = distinct(serde_json::from_value(listed).unwrap());
        assert_eq!(names(&all, false), ["none", "str", "colo"]);
        assert_eq!(refused(&all)["colo"], "not built yet");
        assert_eq!(refused(&all).len(), 1);
    }
}

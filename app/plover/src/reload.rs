//! `plover reload`: a changed configuration file, while its replica runs.

use crate::output;
use anyhow::{Context, Result};
use plover_lab::control::Control;
use plover_node::{Change, Effect};
use serde_json::{Value, json};
use std::fmt;
use std::process::ExitCode;

/// Has the replica read its file again, and prints what becomes of each key that has changed.
pub fn run(control: &Control, dry_run: bool, as_json: bool) -> Result<ExitCode> {
    let answer = control.request(&json!({"op": "reload", "dry_run": dry_run}))?;
    if as_json {
        output::line(answer)?;
    } else {
        output::print(Reloaded::of(&answer)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A replica's answer, for people.
#[derive(Debug)]
struct Reloaded {
    replica: u64,
    file: String,
    dry_run: bool,
    changes: Vec<Change>,
}

impl Reloaded {
    fn of(answer: &Value) -> Result<Self> {
        let read = || {
            Some(Self {
                replica: answer["id"].as_u64()?,
                file: answer["file"].as_str()?.into(),
                dry_run: answer["dry_run"].as_bool()?,
                changes: serde_json::from_value(answer["changes"].clone()).ok()?,
            })
        };
        read().context("the replica's answer is not understood: it is of another release")
    }

    fn has(&self, effect: Effect) -> bool {
        self.changes.iter().any(|change| change.effect == effect)
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, file, .. } = self;
        if self.changes.is_empty() {
            return writeln!(f, "replica {replica}: {file} says what is in force already");
        }
        let width = |of: fn(&Change) -> usize| self.changes.iter().map(of).max().unwrap_or(0);
        let keys = width(|change| change.key.len());
        let values = width(|change| change_in_words(change).chars().count());
        for change in &self.changes {
            let effect = match (change.effect, self.dry_run) {
                (Effect::Now, false) => "is in force".to_string(),
                (effect, _) => effect.to_string(),
            };
            writeln!(
                f,
                "{:<keys$}  {:<values$}  {effect}",
                change.key,
                change_in_words(change)
            )?;
        }
        if self.has(Effect::Restart) {
            writeln!(
                f,
                "\nTo start a host's service again without an outage: `plover drain`, `systemctl restart`, `plover undrain`."
            )?;
        }
        if self
            .changes
            .iter()
            .any(|change| change.key.ends_with(".size_mib"))
        {
            writeln!(
                f,
                "\nA disk grows while the guest runs by `plover disk grow`, up to its max_size_mib, with no change of the files before."
            )?;
        }
        if self.has(Effect::Group) {
            writeln!(
                f,
                "\nWhat takes effect with all hosts is the same in all their files, and the guest boots anew: change the files, \
                 `plover shutdown`, stop the services of all hosts, that of group.first_leader last, start them, and `plover bootstrap` on that host. Do not start the \
                 service of one host again before: its replica would not fit to the others."
            )?;
        }
        Ok(())
    }
}

fn change_in_words(change: &Change) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".into());
    format!("{} → {}", value(&change.from), value(&change.to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(dry_run: bool, changes: &Value) -> String {
        let answer = json!({"id": 1, "file": "/f", "dry_run": dry_run, "changes": changes});
        Reloaded::of(&answer).unwrap().to_string()
    }

    #[test]
    fn a_disk_that_is_to_grow_need_not_wait_for_all_hosts() {
        let grows =
            json!([{"key": "disk[0].size_mib", "from": "64", "to": "128", "effect": "group"}]);
        assert!(told(true, &grows).contains("`plover disk grow`"));
    }

    #[test]
    fn every_change_has_a_line_and_its_advice() {
        let changes = json!([
            {"key": "policy.slot_max_ms", "from": null, "to": "40", "effect": "now"},
            {"key": "group.timeout_ms", "from": "150", "to": null, "effect": "restart"},
        ]);
        let said = told(false, &changes);
        assert!(
            said.contains("policy.slot_max_ms  default → 40   is in force\n"),
            "{said}"
        );
        assert!(
            said.contains("plover drain") && !said.contains("bootstrap"),
            "{said}"
        );
        assert!(!told(true, &changes).contains("is in force"));
        assert!(told(false, &json!([])).contains("/f says what is in force already"));
    }
}

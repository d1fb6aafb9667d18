//! `plover policy`: the ways to protect a guest, as data.

use crate::cli::PolicyCommand;
use crate::output;
use anyhow::Result;
use plover_lab::options::PolicyName;
use plover_policy::{DEFAULT, PRESETS, Preset, Secondary};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// The description of `none`, which is no point on the axes.
const NONE_ABOUT: &str = "not replicated at all: the baseline";

/// The rule behind `secondary = "semi"`, and where its findings are.
const SEMI_ABOUT: &str = "  \
  In each slot the secondary's guest runs, so that its outputs are compared, or rests, so that it costs no CPU.
  The leader measures the outputs that slots of either kind release in a second, in short trials, and keeps to the
  kind with more of them. Each output that left early counts a quarter more. `plover status` has the figures.";

/// The description of clean replies.
const CLEAN_ABOUT: &str = "  \
  Replies that programs in the guest call clean, because the last sync explains them, leave at once. Over TCP they
  do where the secondary's guest stands, and a takeover resets these connections.";

/// Runs one of the commands.
pub fn run(command: PolicyCommand) -> Result<ExitCode> {
    match command {
        PolicyCommand::List { json: true } => {
            let all = PRESETS.iter().map(preset_json).chain([none_json()]);
            output::line(Value::Array(all.collect()))?;
        }
        PolicyCommand::List { json: false } => output::print(table())?,
        PolicyCommand::Show { name, json } => {
            let (value, text) = match name {
                PolicyName::None => (none_json(), format!("none: {NONE_ABOUT}\n")),
                PolicyName::Preset(preset) => (preset_json(preset), describe(preset)),
            };
            if json {
                output::line(value)?;
            } else {
                output::print(text)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn none_json() -> Value {
    json!({"name": "none", "aliases": [], "about": NONE_ABOUT, "default": false, "axes": null, "needs_witness": false, "refused": null})
}

fn preset_json(preset: &Preset) -> Value {
    json!({
        "name": preset.name,
        "aliases": preset.aliases,
        "about": preset.about,
        "default": preset == DEFAULT,
        "axes": preset.policy,
        "needs_witness": preset.policy.check_pair().is_err(),
        "refused": preset.policy.check().err().map(|error| error.to_string()),
    })
}

fn table() -> String {
    let mut text = format!(
        "{:<15} {:<15} {:<10} {:<19} {:<15} {}\n",
        "policy", "input", "secondary", "sync when", "sent", "release"
    );
    for preset in &PRESETS {
        let policy = &preset.policy;
        let mark = if policy.check().is_ok() { ' ' } else { '*' };
        let row = format!(
            "{:<15} {:<15} {:<10} {:<19} {:<15} {}",
            format!("{}{mark}", preset.name),
            policy.input.name(),
            policy.secondary.name(),
            policy.sync,
            policy.sent.name(),
            policy.release.name()
        );
        let clean = if policy.clean_replies { ", clean" } else { "" };
        let _ = writeln!(text, "{row}{clean}");
    }
    let _ = writeln!(text, "{:<15} {NONE_ABOUT}", "none");
    let _ = writeln!(text);
    let of_pairs = PRESETS
        .iter()
        .filter(|preset| preset.policy.check_pair().is_ok());
    let of_pairs: Vec<&str> = of_pairs.map(|preset| preset.name).collect();
    let _ = writeln!(
        text,
        "with two replicas, which can split:\n  {}\nwith two replicas and group.fencing: all",
        of_pairs.join(", ")
    );
    let _ = writeln!(text, "{} is the default", DEFAULT.name);
    for preset in PRESETS.iter().filter(|preset| !preset.aliases.is_empty()) {
        let also = preset.aliases.join(", ");
        let _ = writeln!(text, "{} is also called {also}", preset.name);
    }
    if PRESETS.iter().any(|preset| preset.policy.check().is_err()) {
        let _ = writeln!(text, "* refused by this version: plover policy show NAME");
    }
    text
}

fn describe(preset: &Preset) -> String {
    let policy = &preset.policy;
    let mut text = format!("{}: {}\n", preset.name, preset.about);
    for (axis, choice) in [
        ("input", policy.input.name().to_string()),
        ("secondary", policy.secondary.name().to_string()),
        ("sync when", policy.sync.to_string()),
        ("sent", policy.sent.name().to_string()),
        ("release", policy.release.name().to_string()),
    ] {
        let _ = writeln!(text, "  {axis:<10} {choice}");
    }
    if policy.secondary == Secondary::Semi {
        let _ = writeln!(text, "{SEMI_ABOUT}");
    }
    if policy.clean_replies {
        let _ = writeln!(text, "{CLEAN_ABOUT}");
    }
    if !preset.aliases.is_empty() {
        let _ = writeln!(text, "  also called {}", preset.aliases.join(", "));
    }
    if preset == DEFAULT {
        let _ = writeln!(text, "  the default");
    }
    let replicas = match policy.check_pair() {
        Ok(()) => "two, which can split, or three",
        Err(_) => "two with group.fencing, or three",
    };
    let _ = writeln!(text, "  {:<10} {replicas}", "replicas");
    if let Err(error) = policy.check() {
        let _ = writeln!(text, "  refused by this version: {error}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_policy_and_no_ragged_line() {
        let table = table();
        for preset in &PRESETS {
            assert!(table.contains(preset.name), "{table}");
            assert!(describe(preset).contains(preset.about));
            assert_eq!(
                preset_json(preset)["axes"]["input"],
                preset.policy.input.name()
            );
        }
        assert!(
            table
                .lines()
                .all(|line| line.len() < 100 && line == line.trim_end()),
            "{table}"
        );
    }
}

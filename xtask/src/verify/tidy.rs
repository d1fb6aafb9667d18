//! Tidiness: habits of STYLE.md that no other tool checks.

use super::files;
use crate::run::{self, Result};
use anyhow::{Context, bail};

/// The line that each crate of `core` has. Clippy bans the calls that it must not make
/// (`core/clippy.toml`).
const NO_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// A longer file gives a warning and no error: a table may be long.
const LINES_MAX: usize = 500;

/// The most lines of a file of `core`.
const CORE_LINES_MAX: usize = 400;

pub(super) fn check() -> Result<()> {
    let mut broken = Vec::new();
    for path in files(".")? {
        let is_rust = path.ends_with(".rs");
        if !is_rust && !path.ends_with("Cargo.toml") {
            continue;
        }
        let text = std::fs::read_to_string(run::root().join(&path))
            .with_context(|| format!("cannot read {path}"))?;
        let lines = text.lines().count();
        if is_rust && path.starts_with("core/") && lines > CORE_LINES_MAX {
            broken.push(format!(
                "{path} has {lines} lines, more than the {CORE_LINES_MAX} of a file of core: make it two"
            ));
        } else if is_rust && lines > LINES_MAX {
            eprintln!("warning: {path} has {lines} lines; could it be two?");
        }
        if path.starts_with("core/") && path.ends_with("/src/lib.rs") && !text.contains(NO_UNSAFE) {
            broken.push(format!("{path}: say '{NO_UNSAFE}'"));
        }
        if path != "Cargo.toml" && path.ends_with("/Cargo.toml") && !inherits_lints(&text) {
            broken.push(format!("{path}: say '[lints] workspace = true'"));
        }
    }
    broken.extend(decisions(&files("docs/decisions")?));
    if broken.is_empty() {
        Ok(())
    } else {
        bail!("{}", broken.join("\n"))
    }
}

fn inherits_lints(manifest: &str) -> bool {
    let mut lines = manifest
        .lines()
        .skip_while(|line| line.trim() != "[lints]")
        .skip(1);
    lines
        .next()
        .is_some_and(|line| line.replace(' ', "") == "workspace=true")
}

/// Decisions are called `0001-what.md`, each number once, without gaps.
fn decisions(paths: &[String]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut numbers = Vec::new();
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or_default();
        let number = name
            .split_once('-')
            .map(|(number, _)| number)
            .unwrap_or_default();
        match number.parse::<usize>() {
            Ok(value) if number.len() == 4 && name.ends_with(".md") => numbers.push(value),
            _ => broken.push(format!("{path}: a decision is called 0001-what-it-is.md")),
        }
    }
    numbers.sort_unstable();
    if !numbers.iter().copied().eq(1..=numbers.len()) {
        broken.push(format!(
            "docs/decisions: numbers repeat or leave gaps: {numbers:?}"
        ));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_numbered() {
        let check = |names: &[&str]| {
            let paths: Vec<_> = names
                .iter()
                .map(|n| format!("docs/decisions/{n}"))
                .collect();
            decisions(&paths).len()
        };
        assert_eq!(check(&["0001-a.md", "0002-b-c.md"]), 0);
        assert_eq!(check(&["0001-a.md", "0001-b.md"]), 1);
        assert_eq!(check(&["0001-a.md", "0003-b.md"]), 1);
        assert_eq!(check(&["0001-a.md", "notes.md"]), 1);
        assert_eq!(check(&["1-a.md"]), 1);
    }

    #[test]
    fn lints_are_inherited() {
        assert!(inherits_lints(
            "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"
        ));
        assert!(!inherits_lints("[package]\nname = \"a\"\n"));
        assert!(!inherits_lints("[lints]\nworkspace = false\n"));
    }
}

//! The checks of the guide that mdBook does not make.
//!
//! ```text
//!  book          exits with 1 and says what is wrong; writes nothing
//!  book --write  writes the pages of configuration keys and of events anew
//! ```

mod events;
mod keys;
mod links;
mod messages;
mod names;
mod source;

use anyhow::{Context, Result};
use source::Source;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// The pages that are made from the code.
const KEYS: &str = "docs/keys.md";
const EVENTS: &str = "docs/events.md";

/// Pages outside of the guide whose links and names are checked, too.
const BESIDE: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "PROMISES.md",
    "STYLE.md",
    "guests/README.md",
];

/// Pages by their path in the repository.
type Pages = BTreeMap<String, String>;

fn main() -> Result<ExitCode> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::set_current_dir(&root).context("cannot enter the repository")?;
    let source = Source::read()?;
    let made = [
        (KEYS, keys::page(&source)?),
        (EVENTS, events::page(&source)?),
    ];
    if std::env::args().nth(1).as_deref() == Some("--write") {
        for (path, page) in made {
            std::fs::write(path, page).with_context(|| format!("cannot write {path}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let pages = pages()?;
    let mut wrong = links::check(&pages);
    wrong.extend(names::check(&pages, &source));
    wrong.extend(messages::check(&pages, &source)?);
    for (path, page) in &made {
        if pages.get(*path) != Some(page) {
            wrong.push(format!(
                "{path} is not what the code says: run 'cargo run --release -p xtask --features book \
                 --bin book -- --write'"
            ));
        }
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    Ok(ExitCode::from(u8::from(!wrong.is_empty())))
}

fn pages() -> Result<Pages> {
    let mut pages = Pages::new();
    let in_docs = source::files("docs", "md")?;
    for path in BESIDE.iter().map(|&path| path.to_owned()).chain(in_docs) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        pages.insert(path, text);
    }
    Ok(pages)
}

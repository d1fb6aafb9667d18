//! `ARCHITECTURE.md` has a row for each message that replicas send each other, and for no other.

use crate::Pages;
use crate::source::Source;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use syn::Item;

const PAGE: &str = "ARCHITECTURE.md";

/// The enums whose variants are the messages, each with the heading of its table.
const TABLES: [(&str, &str, &str); 3] = [
    (
        "core/apus/src/message.rs",
        "Message",
        "Messages of the log lane",
    ),
    ("core/replica/src/log_ops.rs", "LogOp", "Entries of the log"),
    (
        "core/syncvm/src/message.rs",
        "Body",
        "Messages of the bulk lane",
    ),
];

pub(crate) fn check(pages: &Pages, source: &Source) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (path, name, heading) in TABLES {
        let sent = variants(source, path, name)?;
        let told = rows(&pages[PAGE], heading);
        let missing = sent.difference(&told);
        wrong.extend(missing.map(|it| format!("{PAGE}: '{heading}' has no row for `{it}`")));
        let gone = told.difference(&sent);
        wrong.extend(gone.map(|it| format!("{PAGE}: '{heading}': {name} has no `{it}`")));
    }
    Ok(wrong)
}

fn variants(source: &Source, path: &str, name: &str) -> Result<BTreeSet<String>> {
    let text = source.texts.get(path);
    let text = text.with_context(|| format!("there is no {path}"))?;
    let file = syn::parse_file(text).with_context(|| format!("cannot parse {path}"))?;
    let found = file.items.into_iter().find_map(|item| match item {
        Item::Enum(it) if it.ident == name => Some(it.variants),
        _ => None,
    });
    let variants = found.with_context(|| format!("{path} has no enum {name}"))?;
    Ok(variants.iter().map(|it| it.ident.to_string()).collect())
}

/// The first names of the rows of the table below a heading.
fn rows(page: &str, heading: &str) -> BTreeSet<String> {
    let below = page
        .lines()
        .skip_while(|line| line.trim_start_matches('#').trim() != heading);
    let section = below.skip(1).take_while(|line| !line.starts_with('#'));
    let first = section.filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    first.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_their_heading() {
        let page =
            "## A\n| message |\n|---|\n| `One` | x |\n\n| `Two` | `Not` |\n### B\n| `Three` |";
        let expected = ["One", "Two"].map(str::to_owned);
        assert_eq!(rows(page, "A"), BTreeSet::from(expected));
        assert_eq!(rows(page, "C"), BTreeSet::new());
    }
}

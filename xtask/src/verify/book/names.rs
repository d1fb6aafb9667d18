//! Checks that files, functions and messages that the pages name exist.

use crate::Pages;
use crate::source::{ROOMS, Source};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};
use std::path::Path;

/// Pages about code that is gone.
const OF_THE_PAST: [&str; 3] = [
    "docs/decisions/0019-work-before-the-pause.md",
    "docs/decisions/0020-a-slot-by-what-it-costs.md",
    "docs/measurements.md",
];

/// A block of code of this kind holds messages of the program, one a line, with `…` for the values in
/// them.
const MESSAGES: &str = "message";

/// Shorter pieces of a message prove nothing.
const PIECE_MIN: usize = 8;

pub(crate) fn check(pages: &Pages, source: &Source) -> Vec<String> {
    let said = plain(source);
    let mut wrong = Vec::new();
    for (page, text) in pages {
        if OF_THE_PAST.contains(&page.as_str()) {
            continue;
        }
        let mut in_messages = false;
        for event in Parser::new(text) {
            match event {
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(kind))) => {
                    in_messages = &*kind == MESSAGES;
                }
                Event::End(TagEnd::CodeBlock) => in_messages = false,
                Event::Text(text) if in_messages => {
                    let missing = text.lines().filter(|line| !is_said(line, &said));
                    wrong.extend(missing.map(|line| format!("{page}: no program says '{line}'")));
                }
                Event::Code(code) => {
                    wrong.extend(missing(&code, source).map(|why| format!("{page}: {why}")));
                }
                _ => {}
            }
        }
    }
    wrong
}

/// The fault in a piece of code in a text: a file, `file:function`, or the name of a test.
fn missing(code: &str, source: &Source) -> Option<String> {
    let first = code.split(' ').next().unwrap_or_default();
    let (path, function) = first.split_once(':').unwrap_or((first, ""));
    if ROOMS
        .iter()
        .any(|room| path.starts_with(&format!("{room}/")))
    {
        let paths = expand(path);
        if let Some(path) = paths.iter().find(|path| !Path::new(path).exists()) {
            return Some(format!("there is no {path}"));
        }
        let name = function.rsplit("::").next().unwrap_or_default();
        let has = |path: &String| {
            let text = source.texts.get(path);
            text.is_some_and(|text| defines(text, name))
        };
        if !name.is_empty() && !paths.iter().any(has) {
            return Some(format!("{path} has no function {name}"));
        }
        return None;
    }
    // The names of tests are sentences. Shorter names may be the system's. Those of metrics are put together from
    // parts; a test of `plover metrics` checks them.
    let is_metric = code.starts_with("plover_");
    let is_test = !is_metric
        && code.matches('_').count() >= 3
        && code
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let known = || source.texts.values().any(|text| text.contains(code));
    (is_test && !known()).then(|| format!("nothing is called {code}"))
}

/// Whether a source has a function of just this name.
fn defines(text: &str, name: &str) -> bool {
    text.match_indices(&format!("fn {name}"))
        .any(|(at, found)| text[at + found.len()..].starts_with(['(', '<']))
}

/// `a/{b,c}.rs` is two files.
fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let Some((choices, after)) = rest.split_once('}') else {
        return vec![path.to_owned()];
    };
    choices
        .split(',')
        .flat_map(|choice| expand(&format!("{before}{choice}{after}")))
        .collect()
}

/// All sources as one text, in which a string that is broken over lines is whole.
fn plain(source: &Source) -> String {
    let mut all = String::new();
    for (path, text) in &source.texts {
        if path.ends_with(".rs") {
            let mut joined = false;
            for line in text.lines() {
                let line = if joined { line.trim_start() } else { line };
                joined = line.ends_with('\\');
                all.push_str(line.strip_suffix('\\').unwrap_or(line));
                if !joined {
                    all.push('\n');
                }
            }
        }
    }
    all.replace("\\\"", "\"")
}

fn is_said(line: &str, said: &str) -> bool {
    let mut pieces = line
        .split('…')
        .map(str::trim)
        .filter(|it| it.len() >= PIECE_MIN);
    pieces.all(|piece| said.contains(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_across_lines_and_values() {
        let said = "error(\"{path} is damaged ({why}); move it away\")";
        assert!(is_said("… is damaged (…); move it away", said));
        assert!(!is_said("… is damaged: remove it", said));
    }

    #[test]
    fn names_of_metrics_are_not_taken_for_tests() {
        let source = Source {
            texts: Default::default(),
            ..Source::default()
        };
        assert_eq!(missing("plover_a_b_c_total", &source), None);
        assert!(missing("a_test_that_is_gone", &source).is_some());
    }

    #[test]
    fn braces_are_choices() {
        assert_eq!(expand("a/{b,c}/d.rs"), ["a/b/d.rs", "a/c/d.rs"]);
        assert_eq!(expand("a/b.rs"), ["a/b.rs"]);
    }
}

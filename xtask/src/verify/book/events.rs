//! The page of the log's events, made from the places that log them.
//!
//! Every line that a replica logs as information, a warning or an error has a stable name, `event = "…"`, and its sentence
//! as a literal after it. Text is enough to find them: the tokens of a macro have no syntax of their own.

use crate::source::Source;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The sources whose lines a replica of a protected VM logs.
const LOGGED: [&str; 7] = [
    "edge/node/",
    "edge/vm/",
    "edge/disk/",
    "edge/store/",
    "edge/fabric/",
    "edge/confine/",
    "app/plover/src/logging.rs",
];

const LEVELS: [(&str, &str); 3] = [("info", "INFO"), ("warn", "WARN"), ("error", "ERROR")];

const HEAD: &str = "# Every event of the log

The log of `plover replica` has a sentence for each event, and with it the event's name in the field `event`, which stays the same from release to
release. [Operate](operate.md#the-log) says where the log goes and how to search it. This page is made from the code; `./x verify` checks that it is current.
A part of a sentence in braces is filled in.

| event | level | sentence |
|---|---|---|
";

#[derive(Debug, PartialEq)]
struct Event {
    level: &'static str,
    sentence: String,
}

pub(crate) fn page(source: &Source) -> Result<String> {
    let mut events: BTreeMap<String, Event> = BTreeMap::new();
    for (path, text) in &source.texts {
        if !path.ends_with(".rs") || !LOGGED.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        for (name, event) in logged(text).with_context(|| path.clone())? {
            let before = events.insert(name.clone(), event);
            let same = before
                .as_ref()
                .is_none_or(|it| Some(it) == events.get(&name));
            ensure!(
                same,
                "{path}: the event {name} has another sentence elsewhere"
            );
        }
    }
    let mut page = HEAD.to_owned();
    for (name, Event { level, sentence }) in events {
        let _ = writeln!(page, "| `{name}` | {level} | {sentence} |");
    }
    Ok(page)
}

/// The events that a source logs, by name.
fn logged(text: &str) -> Result<Vec<(String, Event)>> {
    let mut events = Vec::new();
    for (macro_name, level) in LEVELS {
        for (at, begin) in text.match_indices(&format!("{macro_name}!(")) {
            // A macro whose name only ends so.
            if text[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                continue;
            }
            let line = text[..at].lines().count();
            let inside = text[at + begin.len()..].trim_start();
            let named = inside.strip_prefix("event = ").and_then(literal);
            let Some((name, rest)) = named else {
                bail!("line {line}: it logs without `event = \"…\"` in the first place");
            };
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            ensure!(
                name.chars().all(plain),
                "line {line}: '{name}' is no name of an event"
            );
            let sentence = sentence(rest);
            let sentence =
                sentence.with_context(|| format!("line {line}: {name} has no sentence"))?;
            events.push((name, Event { level, sentence }));
        }
    }
    Ok(events)
}

/// The literal that begins a text, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = inside.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &inside[at + 1..])),
            '\\' => match chars.next()?.1 {
                // The literal goes on in the next line.
                '\n' => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                escaped => value.push(escaped),
            },
            c => value.push(c),
        }
    }
    None
}

/// The sentence among the fields after an event's name: the first literal that is a field of its own.
fn sentence(mut fields: &str) -> Option<String> {
    loop {
        fields = fields.split_once(',')?.1.trim_start();
        if let Some((sentence, _)) = literal(fields) {
            return Some(sentence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<(String, Event)> {
        Ok(logged(text)?.remove(0))
    }

    #[test]
    fn name_level_and_sentence_are_found() {
        let text = "tracing::warn!(\n  event = \"disk_slow\", %path, ms = a(b, c),\n  \"{path} is \\\n   slow, \\\"very\\\"\");";
        let (name, event) = one(text).unwrap();
        assert_eq!(name, "disk_slow");
        let sentence = "{path} is slow, \"very\"".to_owned();
        let level = "WARN";
        assert_eq!(event, Event { level, sentence });
    }

    #[test]
    fn a_line_without_a_name_or_a_sentence_is_an_error() {
        for text in [
            "tracing::info!(\"it began\");",
            "info!(\"it began\");",
            "tracing::info!(%peer, event = \"begun\", \"it began\");",
            "tracing::info!(event = \"Begun!\", \"it began\");",
            "tracing::info!(event = \"begun\", %peer);",
        ] {
            assert!(one(text).is_err(), "{text}");
        }
        for text in ["tracing::debug!(\"frames\");", "my_info!(\"frames\");"] {
            assert!(logged(text).unwrap().is_empty(), "{text}");
        }
    }
}

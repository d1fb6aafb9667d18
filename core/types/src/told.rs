//! Texts for people that another replica tells.

use serde::{Deserialize, Deserializer};

/// The longest reason that is kept, in bytes. A longer one is cut: it is shown in a log, in the status and on a page, and kept
/// in memory for each event.
pub const REASON_BYTES_MAX: usize = 512;

/// Reads a text for people, for `#[serde(deserialize_with = …)]`: of at most `MAX` bytes, and in one line. A longer one ends
/// with `…`; a control character becomes a space, so that no peer writes a line of its own into a log.
///
/// # Errors
/// There is no text.
pub fn told<'de, const MAX: usize, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let mut text = String::deserialize(from)?;
    if text.len() > MAX {
        const CUT: char = '…';
        let mut end = MAX - CUT.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push(CUT);
    }
    if text.contains(char::is_control) {
        text = text.replace(char::is_control, " ");
    }
    // What was cut off is not kept in memory.
    text.shrink_to_fit();
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;
    use serde::Serialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Said(#[serde(deserialize_with = "told::<10, _>")] String);

    #[test]
    fn a_text_is_one_short_line() {
        for (said, read) in [
            ("short", "short"),
            ("0123456789", "0123456789"),
            ("0123456789a", "0123456…"),
            ("012345öööö", "012345…"),
            ("a\nb\u{1b}[2J\u{85}", "a b [2J "),
            ("", ""),
        ] {
            let bytes = wire::encode(&Said(said.into()));
            assert_eq!(wire::decode::<Said>(&bytes).unwrap(), Said(read.into()));
        }
    }
}

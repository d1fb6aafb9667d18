//! The registers that clients use: keys of Redis, some with small values and some with large ones.

use crate::redis::Connection;
use plover_register_proof::history::{Action, Answer, Key, Operation};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

/// Registers with small values. Few enough that clients meet at a key.
pub const SMALL_KEYS: u32 = 5;

/// Registers with large values, which only one client uses: keys from here on.
pub const LARGE_KEY: Key = 100;
/// How many.
pub const LARGE_KEYS: u32 = 4;
const LARGE_BYTES: usize = 16 << 10;

/// All registers.
pub fn keys() -> impl Iterator<Item = Key> {
    (0..SMALL_KEYS).chain(LARGE_KEY..LARGE_KEY + LARGE_KEYS)
}

/// The name of a register in Redis.
fn name(key: Key) -> String {
    format!("chaos:{key}")
}

/// A value as Redis holds it.
fn text(key: Key, value: u64) -> String {
    if key < LARGE_KEY {
        return value.to_string();
    }
    let letter = char::from(b'a' + (value % 26) as u8);
    format!("{value}:{}", letter.to_string().repeat(LARGE_BYTES))
}

/// The value in what Redis held. It must be whole.
fn value(key: Key, found: Option<&[u8]>) -> io::Result<Option<u64>> {
    let Some(bytes) = found else { return Ok(None) };
    let said = String::from_utf8_lossy(bytes);
    let number = said.split(':').next().and_then(|word| word.parse().ok());
    match number {
        Some(number) if text(key, number) == said => Ok(Some(number)),
        _ => Err(io::Error::new(
            ErrorKind::InvalidData,
            format!(
                "key {key} holds what nobody wrote: {} bytes that begin with {:?}",
                bytes.len(),
                said.chars().take(40).collect::<String>()
            ),
        )),
    }
}

/// The values of registers that were read.
pub fn values(reads: &[Operation]) -> BTreeMap<Key, Option<u64>> {
    reads.iter().map(|it| (it.key, it.found())).collect()
}

/// Asks Redis for it.
///
/// # Errors
/// The connection is lost, or the register holds what nobody wrote.
pub(super) fn ask(connection: &mut Connection, key: Key, action: Action) -> io::Result<Answer> {
    let name = name(key);
    Ok(match action {
        Action::Write(it) => {
            connection.set(&name, &text(key, it))?;
            Answer::Done
        }
        Action::Read => Answer::Found(value(key, connection.get(&name)?.as_deref())?),
        Action::Swap(it) => {
            let found = connection.swap(&name, &text(key, it))?;
            Answer::Found(value(key, found.as_deref())?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_whole_or_an_error() {
        for key in [0, LARGE_KEY] {
            let held = text(key, 27);
            assert_eq!(value(key, Some(held.as_bytes())).unwrap(), Some(27));
            assert_eq!(value(key, None).unwrap(), None);
            let torn = value(key, Some(&held.as_bytes()[1..]));
            assert_ne!(torn.ok(), Some(Some(27)));
        }
        let held = text(LARGE_KEY, 27);
        let short = &held.as_bytes()[..held.len() - 1];
        assert!(
            value(LARGE_KEY, Some(short))
                .unwrap_err()
                .to_string()
                .contains("nobody wrote")
        );
    }
}

//! The state machine: numbers by key. Reads go through the log like writes.

use plover_log::StateMachine;
use plover_types::Viewstamp;
use std::collections::BTreeMap;

/// A number for each key; 0 until it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers(BTreeMap<u64, u64>);

/// The entry that reads `key`.
pub fn read(key: u64) -> Vec<u8> {
    key.to_le_bytes().to_vec()
}

/// The entry that writes `value` to `key`.
pub fn write(key: u64, value: u64) -> Vec<u8> {
    [key.to_le_bytes(), value.to_le_bytes()].concat()
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

impl StateMachine for Registers {
    fn apply(&mut self, _at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>) {
        let Some((key, rest)) = number(entry) else {
            return;
        };
        if let Some((value, _)) = number(rest) {
            self.0.insert(key, value);
        }
        let value = self.0.get(&key).copied().unwrap_or(0);
        answer.extend_from_slice(&value.to_le_bytes());
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        for (key, value) in &self.0 {
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String> {
        self.0.clear();
        let mut rest = snapshot.unwrap_or_default();
        while !rest.is_empty() {
            let (key, after) = number(rest).ok_or("half a key")?;
            let (value, after) = number(after).ok_or("a key without a value")?;
            self.0.insert(key, value);
            rest = after;
        }
        Ok(())
    }
}

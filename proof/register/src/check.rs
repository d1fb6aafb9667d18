//! Histories, and whether they are linearizable.

use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What a client did with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It asked to write this value.
    Write(u64),
    /// It asked for the value.
    Read,
    /// The write was answered.
    Written,
    /// The read was answered with this value.
    Found(u64),
}

/// An event of the client with this name.
pub type Record = (u64, Event);

/// What all clients did with each key, in the order in which it happened.
#[derive(Debug, Default)]
pub struct Histories(Mutex<BTreeMap<u64, Vec<Record>>>);

impl Histories {
    /// Records an event. The beginning of an operation is recorded before it is sent, and its answer
    /// after it has come, so that the operation took place in between.
    pub fn note(&self, key: u64, client: u64, event: Event) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.entry(key).or_default().push((client, event));
    }

    /// All of them, by key.
    pub fn take(self) -> BTreeMap<u64, Vec<Record>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one key's history is linearizable.
///
/// # Panics
///
/// If a client began two operations without an answer: such a client has to change its name.
pub fn is_linearizable(history: &[Record]) -> bool {
    let mut tester = LinearizabilityTester::new(Register(0));
    for (client, event) in history {
        let noted = match *event {
            Event::Write(value) => tester.on_invoke(*client, RegisterOp::Write(value)),
            Event::Read => tester.on_invoke(*client, RegisterOp::Read),
            Event::Written => tester.on_return(*client, RegisterRet::WriteOk),
            Event::Found(value) => tester.on_return(*client, RegisterRet::ReadOk(value)),
        };
        noted.expect("one operation at a time for each client");
    }
    tester.is_consistent()
}

/// The history with one stale read: the last read of a value that had been overwritten returns what
/// was there before. `None` if nothing was overwritten and then read.
pub fn with_a_stale_read(history: &[Record]) -> Option<Vec<Record>> {
    let mut stale = history.to_vec();
    for end in (0..history.len()).rev() {
        let (reader, Event::Found(found)) = history[end] else {
            continue;
        };
        let asked = history[..end]
            .iter()
            .rposition(|it| *it == (reader, Event::Read))?;
        // A write that was answered before the read was asked for; what it overwrote is gone.
        let answered = history[..asked]
            .iter()
            .rposition(|it| it.1 == Event::Written);
        let older = answered.and_then(|answered| {
            let (writer, _) = history[answered];
            let is_asking = |it: &Record| it.0 == writer && matches!(it.1, Event::Write(_));
            let begun = history[..answered].iter().rposition(is_asking)?;
            let before = history[..begun]
                .iter()
                .rposition(|it| it.1 == Event::Written)?;
            let (writer, _) = history[before];
            let asking = history[..before].iter().rev();
            asking.copied().find_map(|it| match it {
                (name, Event::Write(value)) if name == writer && value != found => Some(value),
                _ => None,
            })
        });
        if let Some(value) = older {
            stale[end].1 = Event::Found(value);
            return Some(stale);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use Event::{Found, Read, Write, Written};

    #[test]
    fn what_happened_in_an_order_is_linearizable() {
        let overlapping = [
            (1, Write(7)),
            (2, Read),
            (2, Found(7)),
            (3, Read),
            (1, Written),
        ];
        assert!(is_linearizable(&overlapping));
        assert!(is_linearizable(&[(1, Write(7)), (2, Read), (2, Found(0))]));
        let lost = [
            (1, Write(7)),
            (2, Write(8)),
            (2, Written),
            (3, Read),
            (3, Found(7)),
        ];
        assert!(is_linearizable(&lost), "an unanswered write may come late");
    }

    #[test]
    fn a_stale_read_is_caught() {
        let good = [
            (1, Write(7)),
            (1, Written),
            (1, Write(8)),
            (1, Written),
            (2, Read),
            (2, Found(8)),
        ];
        assert!(is_linearizable(&good));
        let stale = with_a_stale_read(&good).expect("8 overwrote 7");
        assert_eq!(stale[5], (2, Found(7)));
        assert!(!is_linearizable(&stale));
        assert_eq!(with_a_stale_read(&good[..2]), None);
        let back = [
            (1, Write(7)),
            (2, Read),
            (2, Found(7)),
            (3, Read),
            (3, Found(0)),
        ];
        assert!(!is_linearizable(&back), "what was read once stays");
    }
}

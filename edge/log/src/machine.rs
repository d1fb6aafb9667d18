//! What the log is for: the state that its entries change.

use plover_types::Viewstamp;

/// State that is replicated by applying the same entries in the same order everywhere.
///
/// `apply` must be deterministic: the same entries make the same state and the same answers on
/// every replica, so no clock, no randomness, no order of a hash table. Whether that holds is
/// what the output check sees ([`Config::check_outputs`](crate::Config)).
pub trait StateMachine {
    /// Applies one committed entry, on every replica, in order, once in the life of the state.
    /// What it appends to `answer` goes to the proposer; `answer` comes empty.
    fn apply(&mut self, at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>);

    /// Appends the whole state to `out`. A replica that is too far behind for the log gets it,
    /// and so does the disk before the log is trimmed.
    fn snapshot(&self, out: &mut Vec<u8>);

    /// Becomes what [`snapshot`](Self::snapshot) wrote, or the state before the first entry
    /// when `snapshot` is `None`. What came out of another version of the program may be
    /// refused, with a sentence that says why; the replica then stops.
    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String>;
}

/// No state: the log itself is what is kept. Answers are empty.
///
/// A log that is trimmed forgets its oldest entries then, on purpose: it keeps the newest
/// [`Config::retain_bytes`](crate::Config).
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnly;

impl StateMachine for LogOnly {
    fn apply(&mut self, _at: Viewstamp, _entry: &[u8], _answer: &mut Vec<u8>) {}
    fn snapshot(&self, _out: &mut Vec<u8>) {}
    fn restore(&mut self, _snapshot: Option<&[u8]>) -> Result<(), String> {
        Ok(())
    }
}

//! The state that the entries of the log change.

use plover_types::Viewstamp;

/// State that is replicated by applying the same entries in the same order everywhere.
///
/// `apply` must be deterministic: the same entries make the same state and the same answers on
/// every replica. So it uses no clock, no randomness, no order of a hash table. The output check
/// finds replicas that answer differently ([`Config::check_outputs`](crate::Config)).
pub trait StateMachine {
    /// Applies one committed entry: on every replica, in order, once. `answer` is empty; what is
    /// appended to it goes to the proposer. It has at most 16 MiB: a longer one is left out, and the
    /// proposer gets an empty answer.
    fn apply(&mut self, at: Viewstamp, entry: &[u8], answer: &mut Vec<u8>);

    /// Appends the whole state to `out`. It is written to disk before the log is trimmed, and
    /// sent to a replica that is too far behind for the log. Such a replica takes at most 1 GiB.
    fn snapshot(&self, out: &mut Vec<u8>);

    /// Becomes what [`snapshot`](Self::snapshot) wrote, or with `None` the state before the first
    /// entry.
    ///
    /// # Errors
    /// Why the snapshot is refused, such as being of another version of the program. The replica
    /// then stops.
    fn restore(&mut self, snapshot: Option<&[u8]>) -> Result<(), String>;
}

/// No state: only the log itself is kept, its newest [`Config::retain_bytes`](crate::Config).
/// Answers are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnly;

impl StateMachine for LogOnly {
    fn apply(&mut self, _at: Viewstamp, _entry: &[u8], _answer: &mut Vec<u8>) {}
    fn snapshot(&self, _out: &mut Vec<u8>) {}
    fn restore(&mut self, _snapshot: Option<&[u8]>) -> Result<(), String> {
        Ok(())
    }
}

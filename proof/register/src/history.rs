//! What clients of registers did and saw.

use serde::Serialize;

/// The name of a register.
pub type Key = u32;

/// What a client asked for. Every value is written at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Reads (`GET` in Redis).
    Read,
    /// Writes (`SET`).
    Write(u64),
    /// Writes, and returns what was there (`GETSET`). If a guest got this request twice, the second answer
    /// would be the value that it writes.
    Swap(u64),
}

impl Action {
    /// The value that it writes.
    pub fn writes(self) -> Option<u64> {
        match self {
            Self::Read => None,
            Self::Write(value) | Self::Swap(value) => Some(value),
        }
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The write is done.
    Done,
    /// This value was there, or none.
    Found(Option<u64>),
}

/// One operation of one client. Times are those of one monotonic clock, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The client. One has one operation at a time; after an operation without an answer it takes a new name.
    pub client: u64,
    /// The key.
    pub key: Key,
    /// What it asked for.
    pub action: Action,
    /// A moment before the request was sent.
    pub invoked_us: u64,
    /// The answer, and a moment after it had come. Without one the operation is *ambiguous*: it has taken effect,
    /// or will at any later time, or never.
    pub answer: Option<(u64, Answer)>,
}

impl Operation {
    /// The value that it found.
    pub fn found(&self) -> Option<u64> {
        match self.answer {
            Some((_, Answer::Found(found))) => found,
            _ => None,
        }
    }

    /// When the answer had come.
    pub fn returned_us(&self) -> Option<u64> {
        self.answer.map(|(at, _)| at)
    }
}

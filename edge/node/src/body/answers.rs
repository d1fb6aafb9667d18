//! Answers to jobs on pages, in the order of the jobs.
//!
//! A job that needs no disk is answered at once. Another thread does those that do, and the answers of
//! later jobs wait for them.

use plover_replica::Event;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Jobs whose answers were not taken yet.
#[derive(Debug)]
pub(super) struct Answers {
    /// `None` where the disk's thread still works on it.
    waiting: VecDeque<Option<Event>>,
    made: (Sender<Event>, Receiver<Event>),
}

impl Answers {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            made: channel(),
        }
    }

    /// Takes an answer that is ready. Returns it if no earlier answer is outstanding.
    pub(super) fn now(&mut self, answer: Event) -> Option<Event> {
        if self.waiting.is_empty() {
            return Some(answer);
        }
        self.waiting.push_back(Some(answer));
        None
    }

    /// Where to send an answer that is not ready yet. One thread makes all of those, in order.
    pub(super) fn later(&mut self) -> Sender<Event> {
        self.waiting.push_back(None);
        self.made.0.clone()
    }

    /// The next answer whose turn has come.
    pub(super) fn take(&mut self) -> Option<Event> {
        for answer in self.made.1.try_iter() {
            let place = self.waiting.iter_mut().find(|place| place.is_none());
            *place.expect("somebody asked") = Some(answer);
        }
        self.waiting.front()?.as_ref()?;
        self.waiting.pop_front().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_replica::JobId;

    #[test]
    fn a_request_after_disk_work_waits_for_it() {
        let mut answers = Answers::new();
        let hashed = |count: usize| Event::Hashed(JobId(1), vec![Default::default(); count]);
        let count = |event: Option<Event>| match event {
            Some(Event::Hashed(_, digests)) => Some(digests.len()),
            _ => None,
        };
        assert_eq!(count(answers.now(hashed(1))), Some(1));
        let (second, third) = (answers.later(), answers.later());
        assert_eq!(count(answers.now(hashed(4))), None);
        assert_eq!(count(answers.take()), None);
        second.send(hashed(2)).unwrap();
        assert_eq!(count(answers.take()), Some(2));
        assert_eq!(count(answers.take()), None);
        third.send(hashed(3)).unwrap();
        assert_eq!(count(answers.take()), Some(3));
        assert_eq!(count(answers.take()), Some(4));
        assert_eq!(count(answers.now(hashed(5))), Some(5));
    }
}

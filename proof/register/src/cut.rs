//! Where a key's history is cut, and how long operations are made short before ([`crate::check`] says why that
//! changes no verdict).

use crate::history::Operation;
use std::collections::BTreeMap;

/// Narrows the time of each write whose value was found, and of its finders, to when they can have taken effect. `open`
/// are ambiguous writes.
///
/// Each value is written once, so one that was overwritten is never found again. Hence a write took effect after every
/// operation that had ended when some finder of its value began, and that did not find the value itself. And a finder
/// took effect after the write.
pub(crate) fn narrow(operations: &mut [Operation], open: &mut [Operation]) {
    let given = operations.to_vec();
    let mut written_since: BTreeMap<u64, u64> = BTreeMap::new();
    for it in operations.iter_mut().chain(open) {
        let Some(value) = it.action.writes() else {
            continue;
        };
        let finders = || given.iter().filter(|other| other.found() == Some(value));
        let (Some(last), Some(first_answer)) = (
            finders().map(|finder| finder.invoked_us).max(),
            finders().filter_map(Operation::returned_us).min(),
        ) else {
            continue;
        };
        let earlier = given.iter().filter(|other| {
            let ended = other.returned_us().is_some_and(|at| at < last);
            ended && other.found() != Some(value)
        });
        let since = earlier.map(|other| other.invoked_us).max();
        let from = it.invoked_us.max(since.unwrap_or(0));
        let to = it
            .returned_us()
            .map_or(first_answer, |at| at.min(first_answer));
        // Otherwise nothing explains the history, which the search says with all its operations.
        if from <= to {
            it.invoked_us = from;
            it.answer = it.answer.map(|(_, answer)| (to, answer));
            written_since.insert(value, from);
        }
    }
    for it in operations {
        let written = it.found().and_then(|value| written_since.get(&value));
        let from = it.invoked_us.max(written.copied().unwrap_or(0));
        if it.returned_us().is_some_and(|to| from <= to) {
            it.invoked_us = from;
        }
    }
}

/// Cuts one key's answered operations after each that overlaps no other. Such a one is the last of its part.
pub(crate) fn parts(mut operations: Vec<Operation>) -> Vec<Vec<Operation>> {
    operations.sort_by_key(|it| it.invoked_us);
    let mut parts: Vec<Vec<Operation>> = vec![Vec::new()];
    // The latest answer to any operation so far.
    let mut until = 0;
    for (place, operation) in operations.iter().enumerate() {
        let returned = operation.returned_us().unwrap_or(u64::MAX);
        let after_all = operation.invoked_us > until;
        let next = operations.get(place + 1);
        let before_all = next.is_none_or(|next| next.invoked_us > returned);
        until = until.max(returned);
        if let Some(part) = parts.last_mut() {
            part.push(*operation);
        }
        if after_all && before_all && next.is_some() {
            parts.push(Vec::new());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{read, write};

    #[test]
    fn parts_end_where_the_register_rests() {
        let operations = vec![
            write(1, 10, 20, 1),
            write(1, 30, 60, 2),
            read(2, 40, 50, Some(2)),
            read(3, 55, 70, Some(2)),
            read(1, 80, 90, Some(2)),
            read(1, 91, 99, Some(2)),
        ];
        let lengths: Vec<usize> = parts(operations).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 4, 1]);
    }
}

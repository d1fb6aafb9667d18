//! The search for an order of operations that explains their answers.
//!
//! `stateright` does it: it tries all orders, keeps nothing in mind and copies the history at each step. Where one long
//! operation overlaps many others it may not end. Then a second search decides, which tries each set of operations
//! with each value once (Lowe, 2017, "Testing for linearizability"). A test compares the two.

use crate::history::{Action, Answer, Operation};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialSpec};
use std::collections::HashSet;
use std::sync::mpsc;
use std::time::Duration;

/// A part that is explained takes `stateright` microseconds. One that takes so long goes to the second search.
const SEARCH_WITHIN: Duration = Duration::from_secs(5);

/// Each operation is a call on the searching thread's stack.
const STACK_BYTES: usize = 256 << 20;

/// The second search gives up after so many sets of operations.
const SETS_MAX: usize = 1_000_000;

/// The specification: a key of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) Option<u64>);

impl SequentialSpec for Register {
    type Op = Action;
    type Ret = Answer;

    fn invoke(&mut self, action: &Action) -> Answer {
        let before = self.0;
        self.0 = action.writes().or(before);
        match action {
            Action::Write(_) => Answer::Done,
            Action::Read | Action::Swap(_) => Answer::Found(before),
        }
    }
}

/// Whether some order explains the operations; `None` if that was not found out.
pub(crate) fn search(initial: Register, operations: &[Operation]) -> Option<bool> {
    let tester = tester(initial, operations);
    let (answer, answers) = mpsc::channel();
    // Not scoped: a search that takes too long is left alone, and ends with the process.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let thread = thread.spawn(move || answer.send(tester.is_consistent()));
    thread.ok()?;
    let found = answers.recv_timeout(SEARCH_WITHIN).ok();
    found.or_else(|| remembering(initial, operations))
}

/// The operations as `stateright` takes them: one after the other, in the order of time.
pub(crate) fn tester(
    initial: Register,
    operations: &[Operation],
) -> LinearizabilityTester<u64, Register> {
    // At the same µs, an operation begins before another one ends: then they overlap, which forbids less.
    let mut moments: Vec<(u64, bool, &Operation)> = Vec::new();
    for operation in operations {
        moments.push((operation.invoked_us, false, operation));
        if let Some(at) = operation.returned_us() {
            moments.push((at, true, operation));
        }
    }
    moments.sort_by_key(|(at, is_answer, _)| (*at, *is_answer));
    let mut tester = LinearizabilityTester::new(initial);
    for (_, is_answer, operation) in moments {
        let client = operation.client;
        let noted = match operation.answer {
            Some((_, answer)) if is_answer => tester.on_return(client, answer),
            _ => tester.on_invoke(client, operation.action),
        };
        noted.expect("one operation at a time for each client");
    }
    tester
}

/// The second search. It carries the operations out one by one, first those that ended first.
pub(crate) fn remembering(initial: Register, operations: &[Operation]) -> Option<bool> {
    let mut operations = operations.to_vec();
    operations.sort_by_key(|it| it.returned_us().unwrap_or(u64::MAX));
    // One bit for each operation that was carried out, and the value after them.
    let start = (vec![0_u64; operations.len().div_ceil(64)], initial.0);
    let mut tried = HashSet::from([start.clone()]);
    let mut stack = vec![start];
    while let Some((done, value)) = stack.pop() {
        let left = || {
            let all = operations.iter().enumerate();
            all.filter(|(place, _)| (done[place / 64] >> (place % 64)) & 1 == 0)
        };
        // None may be carried out after another one that had ended when it began.
        let Some(until) = left().filter_map(|(_, it)| it.returned_us()).min() else {
            return Some(true);
        };
        for (place, it) in left().filter(|(_, it)| it.invoked_us <= until) {
            let mut register = Register(value);
            let answer = register.invoke(&it.action);
            if it.answer.is_some_and(|(_, said)| said != answer) {
                continue;
            }
            let mut next = (done.clone(), register.0);
            next.0[place / 64] |= 1 << (place % 64);
            if tried.insert(next.clone()) {
                stack.push(next);
            }
        }
        if tried.len() > SETS_MAX {
            return None;
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thirty writes at the same time, then reads: too many orders for a search without memory.
    #[test]
    fn many_operations_at_the_same_time_are_explained() {
        let operation = |client, from, to, action, answer| Operation {
            client,
            key: 1,
            action,
            invoked_us: from,
            answer: Some((to, answer)),
        };
        let writes = |count: u64| {
            (0..count).map(move |it| operation(it, it, 1000, Action::Write(it), Answer::Done))
        };
        let read = |at, found| operation(99, at, at + 5, Action::Read, Answer::Found(Some(found)));
        let mut history: Vec<Operation> = writes(30).collect();
        history.extend([read(500, 3), read(1010, 7)]);
        assert_eq!(remembering(Register(None), &history), Some(true));
        let mut history: Vec<Operation> = writes(12).collect();
        history.extend([read(500, 3), read(1010, 7), read(1020, 3)]);
        assert_eq!(remembering(Register(None), &history), Some(false));
    }
}

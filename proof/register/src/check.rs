//! Whether what clients saw is linearizable: each operation took effect at one moment between its request and
//! its answer, as if there were one guest that never failed.
//!
//! A search ([`crate::search`]) finds an order that explains a key's history. It takes some dozen operations and no more.
//! Histories are cut therefore, and no cut changes the verdict:
//!
//! * **By key.** A history is linearizable if each key's part is (Herlihy and Wing, 1990, section 3.1).
//! * **Where a key rests.** If an operation overlaps no other one of its key, its own answer says what the register holds then.
//!   It ends one part, and the next one begins with that value.
//! * **Long writes.** A request that TCP sent again may be under way for seconds, and no key rests meanwhile. Each value is
//!   written once. So a write whose value was found took effect before the first answer that found it, and not before any
//!   operation that had ended when the last one that found it began: else it would have been overwritten, and never found. Its time is
//!   narrowed to that, and an operation that found a value took effect after its write.
//! * **Ambiguous operations.** One whose value nobody ever found is left out: if some order with it explains the history, so
//!   does that order without it. One whose value was found goes into the part where it was found first. Before, it has not
//!   taken effect or another write has hidden it; and it takes effect once.
//!
//! ```text
//!  client 1   ──w1──        ──w3────────
//!  client 2          ──r1──      ──r3──    ──r3──
//!             ───1── ───2── ──────3────────┴──────   parts
//! ```
//!
//! A test compares this with the search over whole histories, on random ones.

use crate::cut::{narrow, parts};
use crate::history::{Action, Answer, Key, Operation};
use crate::search::{Register, search};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Operations with an answer.
    pub answered: usize,
    /// Those without.
    pub ambiguous: usize,
    /// The most operations in one part.
    pub longest: usize,
}

impl Checked {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            ambiguous: self.ambiguous + other.ambiguous,
            longest: self.longest.max(other.longest),
        }
    }
}

/// A history that no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: Key,
    /// What it held at first.
    pub initial: Option<u64>,
    /// The part of its history.
    pub part: Vec<Operation>,
    /// Whether all orders were tried.
    pub certain: bool,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = if self.certain {
            "no order explains"
        } else {
            "within the time for it, no order was found that explains"
        };
        write!(
            f,
            "not linearizable: {found} what clients saw of key {}",
            self.key
        )?;
        write!(f, ", which held {:?} at first:", self.initial)?;
        let begin = self.part.first().map_or(0, |it| it.invoked_us);
        for it in &self.part {
            let from = it.invoked_us.saturating_sub(begin);
            write!(f, "\n  client {:<6} {from:>9} us to ", it.client)?;
            match it.answer {
                Some((to, answer)) => {
                    let to = to.saturating_sub(begin);
                    write!(f, "{to:>9} us  {:?}: {answer:?}", it.action)?;
                }
                None => write!(f, "      ?       {:?}: no answer", it.action)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

/// Checks a history that comes in pieces. At the end of each piece no operation is under way, but for those that are
/// ambiguous.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    /// What each key held when the piece began.
    values: BTreeMap<Key, Option<u64>>,
    /// Ambiguous writes of all pieces whose value was never found.
    open: Vec<Operation>,
}

impl Judge {
    /// Begins with these values.
    pub fn begin(&mut self, values: BTreeMap<Key, Option<u64>>) {
        self.values = values;
    }

    /// What each key held when the piece began.
    pub fn values(&self) -> &BTreeMap<Key, Option<u64>> {
        &self.values
    }

    /// Ambiguous writes that may still take effect.
    pub fn open(&self) -> &[Operation] {
        &self.open
    }

    /// Checks a piece, of which `last` are the values at its end.
    ///
    /// # Errors
    /// It is not linearizable.
    pub fn close(
        &mut self,
        piece: &[Operation],
        last: BTreeMap<Key, Option<u64>>,
    ) -> Result<Checked, Violation> {
        let mut checked = Checked::default();
        let mut keys: BTreeMap<Key, Vec<Operation>> = BTreeMap::new();
        for operation in piece {
            if operation.answer.is_some() {
                keys.entry(operation.key).or_default().push(*operation);
                checked.answered += 1;
            } else {
                checked.ambiguous += 1;
            }
        }
        self.forgive(piece);
        for (key, operations) in keys {
            let initial = self.values.get(&key).copied().flatten();
            let longest = self.judge(initial, operations)?;
            checked.longest = checked.longest.max(longest);
        }
        self.begin(last);
        Ok(checked)
    }

    /// Checks a whole history, of registers that hold nothing at first.
    ///
    /// # Errors
    /// It is not linearizable.
    pub fn whole(history: &[Operation]) -> Result<Checked, Violation> {
        Self::default().close(history, BTreeMap::new())
    }

    /// Takes up the ambiguous writes of a piece that is not checked.
    pub fn forgive(&mut self, piece: &[Operation]) {
        let ambiguous = |it: &&Operation| it.answer.is_none() && it.action.writes().is_some();
        self.open.extend(piece.iter().filter(ambiguous));
    }

    /// Checks one key's answered operations, part by part. Returns the length of the longest part.
    fn judge(
        &mut self,
        mut initial: Option<u64>,
        mut operations: Vec<Operation>,
    ) -> Result<usize, Violation> {
        let key = operations.first().map(|it| it.key);
        let all = std::mem::take(&mut self.open).into_iter();
        let (mut open, others): (Vec<_>, Vec<_>) = all.partition(|it| Some(it.key) == key);
        narrow(&mut operations, &mut open);
        self.open = others;
        self.open.append(&mut open);
        let mut longest = 0;
        for mut part in parts(operations) {
            longest = longest.max(part.len());
            let (key, last) = (part[0].key, part[part.len() - 1]);
            let found: BTreeSet<u64> = part.iter().filter_map(Operation::found).collect();
            let mut effective = Vec::new();
            self.open.retain(|it| {
                let is_found = it.key == key
                    && it
                        .action
                        .writes()
                        .is_some_and(|value| found.contains(&value));
                if is_found {
                    effective.push(*it);
                }
                !is_found
            });
            part.extend(effective);
            let explained = search(Register(initial), &part);
            if explained != Some(true) {
                part.sort_by_key(|it| it.invoked_us);
                return Err(Violation {
                    key,
                    initial,
                    part,
                    certain: explained.is_some(),
                });
            }
            initial = last.action.writes().or(last.found());
        }
        Ok(longest)
    }
}

/// The history with one stale read: the last read that can return what had been overwritten before it was asked for does
/// so. `None` if nothing was overwritten and then read.
pub fn with_a_stale_read(history: &[Operation]) -> Option<Vec<Operation>> {
    let ended_before = |it: &Operation, us: u64| it.returned_us().is_some_and(|at| at < us);
    let writes = |key| {
        let of_key = move |it: &&Operation| it.key == key && it.action.writes().is_some();
        history.iter().filter(of_key)
    };
    for (place, read) in history.iter().enumerate().rev() {
        if read.action != Action::Read || read.answer.is_none() {
            continue;
        }
        let newer = writes(read.key).filter(|it| ended_before(it, read.invoked_us));
        let Some(newer) = newer.max_by_key(|it| it.invoked_us) else {
            continue;
        };
        let older = writes(read.key).filter(|it| ended_before(it, newer.invoked_us));
        if let Some(value) = older.filter_map(|it| it.action.writes()).next_back() {
            let mut stale = history.to_vec();
            stale[place].answer = Some((read.returned_us()?, Answer::Found(Some(value))));
            return Some(stale);
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::search;
    use Action::{Read, Swap, Write};
    use plover_types::SplitMix64;
    use stateright::semantics::{ConsistencyTester, SequentialSpec};

    const KEY: Key = 3;

    fn operation(client: u64, from: u64, to: u64, action: Action, answer: Answer) -> Operation {
        Operation {
            client,
            key: KEY,
            action,
            invoked_us: from,
            answer: Some((to, answer)),
        }
    }

    pub(crate) fn read(client: u64, from: u64, to: u64, found: Option<u64>) -> Operation {
        operation(client, from, to, Read, Answer::Found(found))
    }

    pub(crate) fn write(client: u64, from: u64, to: u64, value: u64) -> Operation {
        operation(client, from, to, Write(value), Answer::Done)
    }

    fn swap(client: u64, from: u64, to: u64, value: u64, found: Option<u64>) -> Operation {
        operation(client, from, to, Swap(value), Answer::Found(found))
    }

    fn unanswered(client: u64, from: u64, action: Action) -> Operation {
        Operation {
            action,
            answer: None,
            ..read(client, from, 0, None)
        }
    }

    fn holds(piece: &[Operation]) -> bool {
        Judge::default().close(piece, BTreeMap::new()).is_ok()
    }

    /// One write was sent again after seconds; four clients went on meanwhile.
    #[test]
    fn a_long_write_that_was_found_late_is_explained_in_time() {
        let mut piece = vec![write(9, 5, 9_000, 7)];
        for round in 0..80 {
            let (at, value) = (10 + round * 100, 1000 + round);
            for client in 1..4 {
                let value = value + client * 1000;
                piece.push(write(client, at, at + 50, value));
            }
            piece.push(read(4, at + 10, at + 60, Some(value + 1000)));
            piece.push(read(4, at + 70, at + 80, Some(value + 3000)));
        }
        piece.push(read(4, 8_500, 9_100, Some(7)));
        assert!(holds(&piece));
        let late = read(5, 9_200, 9_300, Some(1000));
        piece.push(late);
        assert!(!holds(&piece), "an older value came back");
    }

    /// Seen once: a read and a swap without an answer were under way for 7 s, and took effect together at its end.
    #[test]
    fn a_long_read_of_a_late_ambiguous_write_is_explained_in_time() {
        let mut history = vec![
            unanswered(65, 0, Swap(1)),
            read(40, 4, 70_000, Some(1)),
            swap(43, 70_500, 70_900, 9999, Some(1)),
        ];
        for round in 0..200u64 {
            let (at, value) = (10 + 300 * round, 10 + 10 * round);
            history.push(write(71, at, at + 100, value));
            history.push(swap(72, at + 10, at + 110, value + 1, Some(value)));
            history.push(read(73, at + 20, at + 120, Some(value + 1)));
            history.push(read(71, at + 150, at + 170, Some(value + 1)));
        }
        let checked = Judge::whole(&history).unwrap();
        assert!(checked.longest < 20, "{checked:?}");
        // A second look at the value after it was overwritten is a violation.
        history.push(read(44, 71_000, 71_100, Some(1)));
        assert!(Judge::whole(&history).is_err());
    }

    #[test]
    fn what_one_guest_could_have_answered_is_explained() {
        assert!(holds(&[
            write(1, 10, 20, 7),
            read(2, 15, 30, Some(7)),
            swap(1, 40, 50, 8, Some(7)),
            read(2, 60, 70, Some(8)),
        ]));
        // Two writes at the same time, in an order that only a later read shows.
        for last in [7, 8] {
            let both = [write(1, 10, 30, 7), write(2, 20, 40, 8)];
            assert!(holds(&[both[0], both[1], read(3, 50, 60, Some(last))]));
        }
    }

    #[test]
    fn a_stale_read_is_caught() {
        let stale = [
            write(1, 10, 20, 7),
            write(1, 30, 40, 8),
            read(2, 50, 60, Some(7)),
        ];
        let violation = Judge::default().close(&stale, BTreeMap::new()).unwrap_err();
        assert_eq!((violation.key, violation.certain), (KEY, true));
        assert!(
            violation.to_string().contains("Read: Found(Some(7))"),
            "{violation}"
        );
        assert!(!holds(&[
            write(1, 10, 90, 7),
            read(2, 20, 30, Some(7)),
            read(3, 40, 50, None),
        ]));
    }

    #[test]
    fn a_lost_write_is_caught() {
        assert!(!holds(&[write(1, 10, 20, 7), read(2, 30, 40, None)]));
        let mut judge = Judge::default();
        let seven = BTreeMap::from([(KEY, Some(7))]);
        judge.close(&[write(1, 10, 20, 7)], seven).unwrap();
        let lost = judge.close(&[read(2, 30, 40, None)], BTreeMap::new());
        assert!(lost.is_err(), "the piece before says 7");
    }

    #[test]
    fn a_request_that_was_carried_out_twice_is_caught() {
        let twice = swap(1, 10, 20, 7, Some(7));
        assert!(!holds(&[twice]));
    }

    #[test]
    fn an_ambiguous_write_may_take_effect_or_not_and_late() {
        let asked = unanswered(9, 10, Write(7));
        assert!(holds(&[asked, read(1, 20, 30, Some(7))]));
        assert!(holds(&[
            asked,
            read(1, 20, 30, None),
            read(1, 40, 50, None)
        ]));
        assert!(holds(&[
            asked,
            read(1, 20, 30, None),
            read(1, 40, 50, Some(7))
        ]));
        assert!(holds(&[
            unanswered(9, 10, Swap(7)),
            write(1, 20, 30, 8),
            swap(1, 40, 50, 9, Some(7)),
        ]));
        // In a later piece.
        let mut judge = Judge::default();
        judge
            .close(&[asked], BTreeMap::from([(KEY, None)]))
            .unwrap();
        assert_eq!(judge.open(), [asked]);
        let late = [read(1, 40, 50, None), read(1, 60, 70, Some(7))];
        judge
            .close(&late, BTreeMap::from([(KEY, Some(7))]))
            .unwrap();
        assert!(judge.open().is_empty());
    }

    #[test]
    fn an_ambiguous_write_takes_effect_once_and_not_before_it_was_asked_for() {
        let asked = unanswered(9, 10, Write(7));
        assert!(!holds(&[
            asked,
            read(1, 20, 30, Some(7)),
            write(1, 40, 50, 8),
            read(1, 60, 70, Some(7)),
        ]));
        assert!(!holds(&[read(1, 1, 5, Some(7)), asked]));
        assert!(!holds(&[
            asked,
            read(1, 20, 30, Some(7)),
            read(1, 40, 50, None)
        ]));
    }

    /// A register whose answers are wrong now and then, and its clients. `wrong` answers in a hundred.
    fn random_history(random: &mut SplitMix64, wrong: u64) -> Vec<Operation> {
        let mut register = Register(None);
        let (mut busy_until, mut now) = ([0; 3], 0);
        let mut history = Vec::new();
        for number in 1..=random.range(3, 9) {
            // One after the other takes effect at `now`; they overlap around it.
            now += 10;
            let client = random.range(0, 2);
            let from = (now - random.range(0, 25).min(now)).max(busy_until[client as usize] + 1);
            if from > now {
                continue;
            }
            let action = [Read, Write(number), Swap(number)][random.range(0, 2) as usize];
            let to = now + random.range(0, 25);
            busy_until[client as usize] = to;
            if random.range(0, 5) == 0 && action != Read {
                // Without an answer, and perhaps without effect. The client takes a new name.
                if random.range(0, 1) == 0 {
                    register.invoke(&action);
                }
                history.push(unanswered(100 + number, from, action));
                continue;
            }
            let answer = match register.invoke(&action) {
                Answer::Found(_) if random.range(0, 99) < wrong => {
                    Answer::Found(Some(random.range(1, number)))
                }
                answer => answer,
            };
            history.push(operation(client, from, to, action, answer));
        }
        history
    }

    /// Cutting a history changes no verdict: compared with the search over the whole.
    #[test]
    fn parts_are_judged_as_the_whole() {
        let mut random = SplitMix64::new(1);
        let mut verdicts = [0, 0];
        for round in 0..3000 {
            let history = random_history(&mut random, if round % 2 == 0 { 0 } else { 30 });
            let whole = search::tester(Register(None), &history).is_consistent();
            let found = search::remembering(Register(None), &history);
            assert_eq!(found, Some(whole), "{history:#?}");
            assert_eq!(holds(&history), whole, "{history:#?}");
            assert!(whole || round % 2 == 1, "{history:#?}");
            verdicts[usize::from(whole)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 300), "{verdicts:?}");
    }
}

//! The happenings of a simulated world, by time. Happenings of the same time come in the order in
//! which they were planned, so that a run depends on nothing but its seed.

use plover_types::Micros;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Planned<H> {
    at: Micros,
    order: u64,
    what: H,
}

impl<H> PartialEq for Planned<H> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<H> Eq for Planned<H> {}

impl<H> PartialOrd for Planned<H> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<H> Ord for Planned<H> {
    /// The soonest is the greatest, because the heap hands out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// The plan.
#[derive(Debug)]
pub struct Timetable<H> {
    heap: BinaryHeap<Planned<H>>,
    planned: u64,
    now: Micros,
}

impl<H> Default for Timetable<H> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            planned: 0,
            now: Micros::ZERO,
        }
    }
}

impl<H> Timetable<H> {
    /// The world's time.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// How many things were planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Plans `what` for `at`, or for now if that has passed.
    pub fn at(&mut self, at: Micros, what: H) {
        self.planned += 1;
        self.heap.push(Planned {
            at: at.max(self.now),
            order: self.planned,
            what,
        });
    }

    /// Plans `what` for a while from now.
    pub fn after(&mut self, span: Micros, what: H) {
        self.at(self.now + span, what);
    }

    /// Time goes on to what happens next.
    pub fn pop(&mut self) -> Option<H> {
        let planned = self.heap.pop()?;
        self.now = planned.at;
        Some(planned.what)
    }
}

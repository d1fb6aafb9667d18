//! A person who types on the guest's console.
//!
//! The lines go to the replica that leads, as with `plover lab console`. They come in pastes of
//! several lines, so that a guest has seldom read all of them when it is paused. A line typed while
//! no replica leads is lost with the connection, and was never in the log.

use crate::rng::Rng;
use crate::schedule::Happening;
use crate::world::World;
use plover_replica::{Event, OperatorInput};

/// The person at the console.
#[derive(Debug)]
pub struct Typist {
    rng: Rng,
    lines: u64,
}

impl Typist {
    /// A person who has typed nothing yet.
    pub fn new(rng: Rng) -> Self {
        Self { rng, lines: 0 }
    }

    /// The next line: its number.
    fn line(&mut self) -> Vec<u8> {
        self.lines += 1;
        self.lines.to_le_bytes().to_vec()
    }
}

impl World {
    /// Types a paste, and plans the next.
    pub(crate) fn type_some(&mut self) {
        let pause = self.typist.rng.micros((20_000, 3_000_000));
        self.plan.after(pause, Happening::Type);
        let Some(leader) = self.leader() else { return };
        for _ in 0..self.typist.rng.range(1, 12) {
            let line = self.typist.line();
            self.give_input(leader, OperatorInput::Console(line));
        }
        // The guest's echo, which the person looks at.
        self.tell(leader, Event::Printed);
        self.coverage.hit("console: typed");
    }
}

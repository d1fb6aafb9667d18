//! The datagrams of a guest that says which of them are clean.

use super::FakeGuest;
use crate::clean::{Datagram, Told};
use plover_types::{Frame, Reply};

/// How often a datagram is clean, and how often the guest says so of one that is.
const CLEAN: f64 = 0.9;
const SAYS_SO: f64 = 0.8;

impl FakeGuest {
    /// It stands at this cut. The history that it will name is on its disks, as all that it says is.
    pub fn tell_cut(&mut self, cut: u64) {
        self.devices.told = Some(Told {
            cut,
            history: self.devices.flushed,
            sent: 0,
        });
    }

    /// Its words about its datagrams since this was last asked.
    pub fn take_words(&mut self) -> Vec<Reply> {
        std::mem::take(&mut self.words)
    }

    /// Sends a datagram now and then.
    pub(super) fn send_datagram(&mut self) -> Option<Frame> {
        if self.habits.datagrams == 0.0 || !self.rng.chance(self.habits.datagrams) {
            return None;
        }
        let told = self.devices.told.as_mut()?;
        let mut datagram = Datagram {
            cut: told.cut,
            number: told.sent,
            history: told.history,
        };
        let is_clean = self.rng.chance(CLEAN);
        if is_clean {
            told.sent += 1;
        } else {
            datagram.number = self.rng.word();
            datagram.history = self.devices.history;
            self.write_disks(datagram.history);
        }
        let says_so = is_clean && self.rng.chance(SAYS_SO);
        self.words.push(datagram.word(says_so));
        Some(datagram.encode())
    }
}

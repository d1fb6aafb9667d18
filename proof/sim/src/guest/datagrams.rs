//! The datagrams of a guest that says which of them are clean, and its stream of clean words.

use super::FakeGuest;
use crate::clean::{Datagram, Told, word_of_stream};
use crate::history::Histories;
use crate::listener::{Bare, CLIENT, is_old};
use crate::spoken::{CONNECTIONS_MAX, WORD_BYTES};
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

    /// Says words of its stream now and then. Each is as good as drawn by lot, so another guest says another one in its
    /// place.
    pub(super) fn say_clean_words(&mut self, histories: &mut Histories) -> Vec<Frame> {
        let chance = self.habits.clean_stream;
        let (Some(told), true) = (self.devices.told, chance > 0.0) else {
            return Vec::new();
        };
        if !self.rng.chance(chance) {
            return Vec::new();
        }
        let connection = self.connection_to(CLIENT);
        if connection == CONNECTIONS_MAX {
            return Vec::new();
        }
        let is_clean = self.rng.chance(CLEAN);
        let stream = self.devices.streams.get(&CLIENT);
        let opens = stream.is_none_or(|stream| stream.connection < Some(connection));
        // The history that it names is on its disks.
        if opens || !is_clean {
            self.write_disks(self.devices.history);
        }
        let mut sent: Vec<_> = self
            .open(CLIENT, connection, histories)
            .into_iter()
            .collect();
        let at = self.devices.streams[&CLIENT].place;
        let words: Vec<u32> = (0..self.rng.range(1, 4))
            .map(|_| self.rng.word() as u32)
            .collect();
        let history = match is_clean {
            true => told.history,
            false => self.devices.history,
        };
        if is_clean && self.rng.chance(SAYS_SO) {
            let bytes = (words.len() * WORD_BYTES) as u32;
            self.words
                .push(word_of_stream(connection, at, bytes, told.cut));
        }
        sent.push(self.speak_of(history, CLIENT, &words, false, histories));
        sent
    }

    /// A segment of the listener's or of a leader's. An old number is answered by what the guest expects, as TCP does.
    pub(super) fn hear_bare(&mut self, bare: &Bare, histories: &mut Histories) -> Option<Frame> {
        let history = self.devices.flushed;
        let stream = self.devices.streams.entry(CLIENT).or_default();
        let is_open = stream.is_open && stream.connection == Some(bare.connection);
        let expected = stream.heard;
        if bare.rst {
            if is_open && bare.seq == expected {
                stream.is_open = false;
            }
            return None;
        }
        if is_open {
            return is_old(bare.seq, expected)
                .then(|| self.speak_of(history, CLIENT, &[], false, histories));
        }
        let ack = bare.ack.unwrap_or_default();
        Some(self.refuse((CLIENT, bare.connection), ack, history, histories))
    }
}

//! Datagrams of one flow: the oldest of the one side is compared with the oldest of the other.

use crate::guard::OutputNo;
use std::collections::VecDeque;

/// What waits for its counterpart; only one side has anything waiting at a time.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    ours: VecDeque<(OutputNo, Vec<u8>)>,
    theirs: VecDeque<Vec<u8>>,
    /// Datagrams that were sent by both, counted.
    pub paired: u64,
    /// Datagrams that the secondary's guest has sent.
    pub said: u64,
    /// The two have differed: nothing more is compared.
    pub broken: bool,
}

impl Flow {
    /// Our guest has sent this. Returns whether the other has, and whether they agree.
    pub fn ours(&mut self, no: OutputNo, datagram: &[u8]) -> Pairing {
        match self.theirs.pop_front() {
            _ if self.broken => Pairing::Waits,
            None => {
                self.ours.push_back((no, datagram.to_vec()));
                Pairing::Waits
            }
            Some(other) => self.pair(no, other == datagram),
        }
    }

    /// The secondary's guest has sent this.
    pub fn theirs(&mut self, datagram: &[u8]) -> Pairing {
        self.said += 1;
        match self.ours.pop_front() {
            _ if self.broken => Pairing::Waits,
            None => {
                self.theirs.push_back(datagram.to_vec());
                Pairing::Waits
            }
            Some((no, other)) => self.pair(no, other == datagram),
        }
    }

    /// The number of the first of ours that waits.
    pub fn waits(&self) -> Option<OutputNo> {
        self.ours.front().map(|(no, _)| *no)
    }

    fn pair(&mut self, no: OutputNo, equal: bool) -> Pairing {
        if equal {
            self.paired += 1;
            Pairing::Equal(no)
        } else {
            self.broken = true;
            Pairing::Different
        }
    }
}

/// What came of comparing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    Waits,
    /// This output of ours has been sent by both.
    Equal(OutputNo),
    Different,
}

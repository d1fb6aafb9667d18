//! Datagrams of one flow: the oldest of one side is compared with the oldest of the other.

use plover_types::OutputNo;
use std::collections::VecDeque;

/// Datagrams that wait for their counterpart; only one side has any waiting at a time.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    ours: VecDeque<(OutputNo, Vec<u8>)>,
    theirs: VecDeque<Vec<u8>>,
    /// How many datagrams both have sent.
    pub paired: u64,
    /// How many datagrams the secondary's guest has sent.
    pub their_count: u64,
    /// The two have differed, so nothing more is compared.
    pub broken: bool,
}

impl Flow {
    /// Our guest has sent this.
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
        self.their_count += 1;
        match self.ours.pop_front() {
            _ if self.broken => Pairing::Waits,
            None => {
                self.theirs.push_back(datagram.to_vec());
                Pairing::Waits
            }
            Some((no, other)) => self.pair(no, other == datagram),
        }
    }

    /// The number of our first datagram that waits.
    pub fn first_waiting(&self) -> Option<OutputNo> {
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

/// The result of one more datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// Its counterpart has not come.
    Waits,
    /// This output of ours has been sent by both.
    Equal(OutputNo),
    /// It is not its counterpart.
    Different,
}

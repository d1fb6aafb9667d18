//! The connections of the slot that is running and of the last ones before it.
//!
//! ```text
//!             begin                  begin        begin         begin
//!   used ──────────────▶ before[0] ───────▶ [1] ───────▶ [2] ────────▶ forgotten ──▶ freed, a few at a time
//!    ▲ the first segment     │               │            │
//!    └───────────────────────┴───────────────┴────────────┘
//! ```
//!
//! The guest stands while a slot begins, and there may be ten thousand connections. So a slot begins in the same time
//! whatever their number, and each connection begins anew when it is used.

use crate::connection::Connection;
use plover_packets::{Route, Segment};
use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

/// Connections at once. An idle one takes some 300 bytes to 1 KB, so all of them 20 to 64 MB; and bytes that had no match in
/// the slot in which they were sent stay as long as their connection.
const CONNECTIONS_MAX: usize = 1 << 16;

/// A connection without segments for this many slots is forgotten. That is safe: the next segment
/// begins it anew, and at worst a retransmission across that costs a sync.
const IDLE_SLOTS_MAX: usize = 3;

/// Forgotten connections that are freed whenever one comes to those that are used, so that they are not many.
const FREED_AT_ONCE: usize = 4;

type Table = BTreeMap<Route, Connection>;

#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// Those with a segment in the slot that is running.
    used: Table,
    old: Old,
}

/// Those whose last segment was in a slot before it.
#[derive(Debug, Default)]
struct Old {
    /// The newest slot first.
    before: VecDeque<Table>,
    forgotten: Vec<Table>,
}

impl Connections {
    /// The next slot begins. `followed`: all that our guest has sent in the last one was seen; if not, the place of no
    /// stream is known.
    pub fn begin(&mut self, followed: bool) {
        let Old { before, forgotten } = &mut self.old;
        before.push_front(std::mem::take(&mut self.used));
        let kept = if followed { IDLE_SLOTS_MAX } else { 0 };
        let old = before.drain(kept.min(before.len())..);
        forgotten.extend(old.filter(|table| !table.is_empty()));
    }

    /// The connection that `first` is sent on; a new one if none is known. `None` if there are too many.
    pub fn of(&mut self, route: Route, first: &Segment<'_>) -> Option<&mut Connection> {
        let used = self.used.len();
        match self.used.entry(route) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) => {
                self.old.free_some();
                let connection = match self.old.take(&route) {
                    Some(known) => known.begun_anew(),
                    None if self.old.makes_room(used) => Connection::new(first),
                    None => return None,
                };
                Some(place.insert(connection))
            }
        }
    }

    /// A connection that was used in this slot.
    pub fn get(&self, route: &Route) -> Option<&Connection> {
        self.used.get(route)
    }

    /// As [`Self::get`].
    pub fn get_mut(&mut self, route: &Route) -> Option<&mut Connection> {
        self.used.get_mut(route)
    }

    /// Those that were used in this slot.
    pub fn used(&self) -> impl Iterator<Item = (&Route, &Connection)> {
        self.used.iter()
    }
}

impl Old {
    fn take(&mut self, route: &Route) -> Option<Connection> {
        self.before.iter_mut().find_map(|table| table.remove(route))
    }

    fn free_some(&mut self) {
        for _ in 0..FREED_AT_ONCE {
            let Some(table) = self.forgotten.last_mut() else {
                return;
            };
            table.pop_first();
            if table.is_empty() {
                self.forgotten.pop();
            }
        }
    }

    /// Frees as many as there must be freed for one more beside `used`, those that were not used for longest first. Whether
    /// that was enough.
    fn makes_room(&mut self, used: usize) -> bool {
        let tables = self.before.iter().chain(&self.forgotten);
        let mut all = used + tables.map(Table::len).sum::<usize>();
        while all >= CONNECTIONS_MAX {
            let mut tables = self
                .forgotten
                .iter_mut()
                .chain(self.before.iter_mut().rev());
            if tables.find_map(Table::pop_first).is_none() {
                return false;
            }
            all -= 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plover_packets::Packet;
    use plover_types::Frame;

    /// A bare acknowledgement of this connection.
    fn frame(n: u32) -> Frame {
        let mut bytes = vec![0; 54];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..18].copy_from_slice(&[0x45, 0, 0, 40]);
        bytes[23] = 6;
        bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[30] = (n >> 16) as u8;
        bytes[36..38].copy_from_slice(&(n as u16).to_be_bytes());
        bytes[46..48].copy_from_slice(&[0x50, 0x10]);
        Frame(bytes)
    }

    /// Whether there was room for connection `n`.
    fn is_used(connections: &mut Connections, n: u32) -> bool {
        let frame = frame(n);
        let Packet::Segment(route, segment) = Packet::of(&frame) else {
            panic!("no segment: {frame:?}");
        };
        connections.of(route, &segment).is_some()
    }

    fn counts(connections: &Connections) -> (usize, Vec<usize>, usize) {
        let Old { before, forgotten } = &connections.old;
        let before = before.iter().map(Table::len).collect();
        let forgotten = forgotten.iter().map(Table::len).sum();
        (connections.used.len(), before, forgotten)
    }

    #[test]
    fn a_connection_is_known_as_long_as_it_is_used_now_and_then() {
        let mut connections = Connections::default();
        for n in 0..10 {
            assert!(is_used(&mut connections, n));
        }
        for _ in 0..3 {
            connections.begin(true);
        }
        assert!(is_used(&mut connections, 0));
        assert_eq!(counts(&connections), (1, vec![0, 0, 9], 0));
        connections.begin(true);
        assert_eq!(counts(&connections), (0, vec![1, 0, 0], 9));
        for n in 10..13 {
            is_used(&mut connections, n);
        }
        assert_eq!(counts(&connections), (3, vec![1, 0, 0], 0));
        connections.begin(false);
        assert_eq!(counts(&connections), (0, vec![], 4));
    }

    #[test]
    fn the_oldest_make_room_and_those_of_the_slot_do_not() {
        let mut connections = Connections::default();
        let max = CONNECTIONS_MAX as u32;
        for n in 0..max - 2 {
            assert!(is_used(&mut connections, n));
        }
        connections.begin(true);
        for n in 0..max {
            assert!(is_used(&mut connections, n), "{n}");
        }
        assert!(!is_used(&mut connections, max));
        assert_eq!(counts(&connections), (CONNECTIONS_MAX, vec![0], 0));
        connections.begin(true);
        assert!(is_used(&mut connections, max), "a new slot");
    }
}

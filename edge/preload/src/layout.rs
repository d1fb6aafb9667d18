//! `shared.h` in Rust.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The first word of the memory.
pub const SHARED_MAGIC: u32 = 0x504c_5652;
/// The version of its layout.
pub const SHARED_VERSION: u32 = 5;
/// Connections at a time.
pub const SLOTS: usize = 4096;
/// The bits of a slot's number in `by_port`.
pub const SLOT_BITS: u32 = 12;
/// Where the ring begins.
pub const RING_AT: usize = 1 << 20;
/// The bytes of the ring.
pub const RING_BYTES: usize = 4 << 20;
/// The most bytes of a record behind its head.
pub const PAYLOAD_BYTES_MAX: usize = 32 << 10;
/// The program has not accepted a connection yet.
pub const REFS_NOT_ACCEPTED: u32 = 0x4000_0000;
/// plover has given up a connection that the program has not accepted.
pub const REFS_GIVEN_UP: u32 = 0x8000_0000;

/// No connection.
pub const SLOT_FREE: u32 = 0;
/// A client's own.
pub const SLOT_CLIENT: u32 = 1;
/// One on which plover replays the log.
pub const SLOT_REPLAY: u32 = 2;

/// One connection.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// [`SLOT_CLIENT`], for instance.
    pub kind: AtomicU32,
    /// The epoch in which it is read.
    pub epoch: AtomicU32,
    /// The client's address, network order.
    pub ip: AtomicU32,
    /// The client's port.
    pub port: AtomicU32,
    /// Inputs from this number on are not in the log.
    pub lost_from: AtomicU64,
    /// Descriptors of the program.
    pub refs: AtomicU32,
    ended: AtomicU32,
    broken: AtomicU32,
    /// Which use of the slot this is.
    pub generation: AtomicU32,
    /// The time at which a replayed one is accepted, µs since 1970.
    pub time_us: AtomicU64,
    /// Bytes that the program has sent, or is sending.
    pub sent: AtomicU64,
    swallowed: AtomicU32,
    unused: u32,
}

/// The head of the shared memory.
#[derive(Debug)]
#[repr(C)]
pub struct Shared {
    /// [`SHARED_MAGIC`].
    pub magic: AtomicU32,
    /// [`SHARED_VERSION`].
    pub version: AtomicU32,
    /// Reads end at the commit.
    pub wait_read: AtomicU32,
    /// The program's output is copied into the ring.
    pub copies_output: AtomicU32,
    /// Outgoing connections and UDP are allowed.
    pub allows_outgoing: AtomicU32,
    /// Where the program listens.
    pub port: AtomicU32,
    /// Where clients connect, network order.
    pub listen_ip: AtomicU32,
    /// The port where clients connect.
    pub listen_port: AtomicU32,
    /// This process.
    pub plover_pid: AtomicU32,
    /// The program's time is the log's.
    pub log_clock: AtomicU32,
    /// Proves that a process is the program's.
    pub secret: [AtomicU32; 4],
    /// The abstract name of the socket where it fetches clients' sockets.
    pub door: [AtomicU32; 10],
    gap: [u32; 8],
    /// Inputs up to this number are committed.
    pub committed: AtomicU64,
    /// Bytes of the ring that plover has taken.
    pub tail: AtomicU64,
    /// Rises with each change that a thread may wait for.
    pub bell: AtomicU32,
    /// Only connections of this epoch are read.
    pub epoch: AtomicU32,
    /// plover waits for its eventfd.
    pub sleeps: AtomicU32,
    /// The epoch in which the program's time follows this host's; 0 for none.
    pub clock_epoch: AtomicU32,
    /// The time of what the program is given next, µs since 1970.
    pub next_us: AtomicU64,
    /// No other replica leads before this: CLOCK_BOOTTIME, µs.
    pub leased_until: AtomicU64,
    gap_2: [u32; 20],
    /// Bytes of the ring that the program has filled.
    pub head: AtomicU64,
    /// The number of the last input.
    pub inputs: AtomicU64,
    /// The thread that takes an input or fills the ring.
    pub lock: AtomicU32,
    lock_waiters: AtomicU32,
    /// Threads that wait for the bell.
    pub waiters: AtomicU32,
    /// The program listens at its port through the library.
    pub listens: AtomicU32,
    /// The program's time, µs since 1970.
    pub now_us: AtomicU64,
    /// Processes that the program has made of itself, or tried to.
    pub forks: AtomicU32,
    /// The slot, from 1 on, that the thread with the lock reads from; 0 for none.
    pub reading: AtomicU32,
    gap_3: [u32; 20],
    /// Generation and slot, by the port of plover's end.
    pub by_port: [AtomicU32; 65536],
    /// All connections.
    pub slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(size_of::<Shared>() == 384 + 4 * 65536 + 64 * SLOTS);
const _: () = assert!(size_of::<Shared>() <= RING_AT);
const _: () = assert!(std::mem::offset_of!(Shared, committed) == 128);
const _: () = assert!(std::mem::offset_of!(Shared, head) == 256);
const _: () = assert!(std::mem::offset_of!(Shared, by_port) == 384);

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program has accepted a client.
    Accept,
    /// It has read these bytes.
    Bytes,
    /// It has read the end.
    End,
    /// It has closed the connection. `flag`: the connection was broken.
    Close,
    /// It has sent these bytes.
    Output,
    /// Words for the operator.
    Note,
    /// Its time goes on: to so many µs since 1970, in eight bytes.
    Clock,
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes behind it.
    pub bytes: usize,
    /// Its kind.
    pub kind: Kind,
    /// See [`Kind::Close`].
    pub flag: bool,
    /// The slot, from 0 on; of no meaning for a note and the clock.
    pub slot: usize,
    /// The slot's epoch; of the clock, the program's.
    pub epoch: u32,
    /// The number of the last input.
    pub number: u64,
    /// Bytes that the program has sent on the connection.
    pub sent: u64,
}

impl Record {
    /// The bytes of a head.
    pub const BYTES: usize = 32;

    /// The record of these bytes, unless they are none.
    pub fn decode(head: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u16::from_ne_bytes(head[at..at + 2].try_into().expect("two bytes"));
        let kind = match half(4) {
            1 => Kind::Accept,
            2 => Kind::Bytes,
            3 => Kind::End,
            4 => Kind::Close,
            5 => Kind::Output,
            6 => Kind::Note,
            7 => Kind::Clock,
            _ => return None,
        };
        let has_slot = !matches!(kind, Kind::Note | Kind::Clock);
        let slot = (word(8) as usize).checked_sub(usize::from(has_slot))?;
        let bytes = word(0) as usize;
        let is_length_sound = match kind {
            Kind::Accept | Kind::End | Kind::Close => bytes == 0,
            Kind::Bytes | Kind::Output | Kind::Note => (1..=PAYLOAD_BYTES_MAX).contains(&bytes),
            Kind::Clock => bytes == 8,
        };
        let is_sound = slot < SLOTS && is_length_sound;
        is_sound.then(|| Self {
            bytes,
            kind,
            flag: half(6) != 0,
            slot,
            epoch: word(12),
            number: long(16),
            sent: long(24),
        })
    }

    /// The bytes that it takes in the ring.
    pub fn whole(&self) -> usize {
        Self::BYTES + self.bytes.next_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_records_are_taken() {
        let head = |bytes: u32, kind: u16, slot: u32| {
            let mut head = [0; Record::BYTES];
            head[..4].copy_from_slice(&bytes.to_ne_bytes());
            head[4..6].copy_from_slice(&kind.to_ne_bytes());
            head[8..12].copy_from_slice(&slot.to_ne_bytes());
            head
        };
        let record = Record::decode(&head(10, 2, 1)).unwrap();
        assert_eq!(
            (record.kind, record.slot, record.whole()),
            (Kind::Bytes, 0, 48)
        );
        for (bytes, kind, slot) in [
            (10, 2, 0),
            (10, 2, SLOTS as u32 + 1),
            (10, 9, 1),
            (10, 7, 0),
            (10, 1, 1),
            (0, 2, 1),
            (PAYLOAD_BYTES_MAX as u32 + 1, 2, 1),
        ] {
            assert_eq!(
                Record::decode(&head(bytes, kind, slot)),
                None,
                "{bytes} {kind} {slot}"
            );
        }
    }
}

//! Where a replica says that it naps, and on which core: words that all its peers can read, and it
//! alone can write.
//!
//! A peer that has put something into its ring looks here whether to ring. With a word for each
//! peer, a replica of nine would store sixteen times for each of its naps, into lines that
//! the others' caches hold; so it stores twice.
//!
//! ```text
//!   0                                    awake
//!   number << 20 | count << 16 | peers   naps, until so many of `peers`, a bit each, have written
//! ```
//!
//! **Who rings.** To wake a sleeper costs both sides far more than to write to it. A leader who needs four
//! answers should not be woken by the first three; nor can it know who will be last. So each of those
//! named says on its own board that it has written, and then counts how many have: whoever completes
//! the number rings.
//!
//! ```text
//!   backup                                 another backup
//!     answered := n   (own board)            answered := n   (own board)
//!     ── fence ──                            ── fence ──
//!     how many have? enough: ring            how many have? enough: ring
//! ```
//!
//! Whichever of the two fences comes second sees both, so the last one never misses that it is; two
//! may ring. Who has written before the nap says nothing: the sleeper does not count it any more. And
//! who cannot see the boards of all who are named rings at once.
//!
//! **Who is rung first.** A bell that wakes another core takes a while to arrive, and much of that
//! time the one who rings stands still; in a virtual machine 15 µs and more. One that is rung right after
//! it for the same core costs nothing of that. And who sleeps on the own core may take it
//! from whoever wakes it, so that later bells are late. So those who slept on other cores are rung first.

use super::memory::{BadMemory, Mapping, PAGE_BYTES, SEALS, check};
use plover_types::{Awaited, ReplicaId, ReplicaSet};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::ProtFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The words: the nap, where it was taken, and from here on one for each peer, the number of its nap that
/// this replica has answered last. They are no neighbours of the first two, which others look at all the time.
const NAP: usize = 0;
const CORE: usize = 1;
const ANSWERED: usize = 8;

/// A nap that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nap {
    /// From 1; after 2^44, years of them, they begin anew.
    pub number: u64,
    pub awaited: Awaited,
}

impl Nap {
    /// As it stands on the board.
    pub fn word(self) -> u64 {
        let Awaited { from, count } = self.awaited;
        self.number << 20 | (count as u64 & 0xf) << 16 | u64::from(from.0)
    }

    /// What a board says, if `me` is named there.
    pub fn of(word: u64, me: ReplicaId) -> Option<Self> {
        let from = ReplicaSet(word as u16);
        let count = (word >> 16) as usize & 0xf;
        let number = word >> 20;
        let awaited = Awaited { from, count };
        from.contains(me).then_some(Self { number, awaited })
    }
}

/// A replica's own.
#[derive(Debug)]
pub(super) struct Board {
    mapping: Mapping,
    memory: OwnedFd,
}

impl Board {
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("plover-board", flags)?;
        rustix::fs::ftruncate(&memory, PAGE_BYTES as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let mapping = Mapping::new(memory.as_fd(), PAGE_BYTES, access)?;
        // From here on nobody else can get a mapping that it could write to.
        let seals = SEALS | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals)?;
        Ok(Self { mapping, memory })
    }

    /// To hand to a peer.
    pub fn offer(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    pub fn naps(&self, nap: Nap) {
        let core = rustix::thread::sched_getcpu();
        self.mapping
            .word(CORE)
            .store(core as u64, Ordering::Relaxed);
        self.say(nap.word());
    }

    /// Says that this replica has written to `peer` since that fell asleep for `nap`.
    pub fn answers(&self, peer: ReplicaId, nap: Nap) {
        self.mapping
            .word(ANSWERED + usize::from(peer.0))
            .store(nap.number, Ordering::Relaxed);
    }

    pub fn is_awake(&self) {
        self.say(0);
    }

    fn say(&self, word: u64) {
        self.mapping.word(NAP).store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Board {
    /// As if it had fallen asleep on `core`.
    pub fn poke_core(&self, core: u64) {
        self.mapping.word(CORE).store(core, Ordering::Relaxed);
    }
}

/// A peer's.
#[derive(Debug)]
pub(super) struct BoardOf(Mapping);

impl BoardOf {
    /// Maps what a peer offers, if it is what it should be.
    pub fn map(memory: &OwnedFd) -> Result<Self, BadMemory> {
        check(memory, PAGE_BYTES)?;
        let mapping = Mapping::new(memory.as_fd(), PAGE_BYTES, ProtFlags::READ)?;
        Ok(Self(mapping))
    }

    pub fn nap(&self) -> &AtomicU64 {
        self.0.word(NAP)
    }

    /// Whether it says that it has written to `sleeper` since that fell asleep for `nap`.
    pub fn has_answered(&self, sleeper: ReplicaId, nap: Nap) -> bool {
        let word = self.0.word(ANSWERED + usize::from(sleeper.0));
        word.load(Ordering::Relaxed) == nap.number
    }

    /// Where it last fell asleep.
    pub fn core(&self) -> u64 {
        self.0.word(CORE).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_see_a_nap_and_cannot_make_one() {
        let board = Board::new().unwrap();
        let memory = board.offer().unwrap();
        let seen = BoardOf::map(&memory).unwrap();
        let nap = |number, from, count| Nap {
            number,
            awaited: Awaited { from, count },
        };
        let two = nap(7, ReplicaSet::of([ReplicaId(0), ReplicaId(2)]), 2);
        board.naps(two);
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(seen.core() < cores.max(4096) as u64);
        let nap_of = |id| Nap::of(seen.nap().load(Ordering::Relaxed), ReplicaId(id));
        assert_eq!(
            [0, 1, 2, 15].map(nap_of),
            [Some(two), None, Some(two), None]
        );
        let anyone = nap(8, ReplicaSet::ALL, 1);
        board.naps(anyone);
        assert_eq!([0, 15].map(nap_of), [Some(anyone); 2]);
        board.is_awake();
        assert_eq!([0, 15].map(nap_of), [None; 2]);
        board.answers(ReplicaId(15), two);
        assert!(seen.has_answered(ReplicaId(15), two));
        assert!(!seen.has_answered(ReplicaId(15), anyone));
        assert!(!seen.has_answered(ReplicaId(14), two));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        assert!(Mapping::new(memory.as_fd(), PAGE_BYTES, access).is_err());
    }

    #[test]
    fn another_size_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        assert!(matches!(BoardOf::map(&memory), Err(BadMemory::Seals)));
        rustix::fs::fcntl_add_seals(&memory, SEALS).unwrap();
        assert!(matches!(
            BoardOf::map(&memory),
            Err(BadMemory::Size { found: 0, .. })
        ));
    }
}

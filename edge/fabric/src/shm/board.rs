//! Where a replica says that it naps, and on which core: words that all its peers can read, and it
//! alone can write.
//!
//! A peer that has put something into its ring looks here whether to ring. With a word for each
//! peer, a replica of nine would store sixteen times for each of its naps, into lines that
//! the others' caches hold; so it stores twice.
//!
//! ```text
//!   0                         awake
//!   number << 16 | peers      naps; those of `peers`, a bit each, are to end it
//! ```
//!
//! **Who is rung first.** A bell that wakes another core takes a while to arrive, and much of that
//! time the one who rings stands still; in a virtual machine 15 µs and more. One that is rung right after
//! it for the same core costs nothing of that. And who sleeps on the own core may take it
//! from whoever wakes it, so that later bells are late. So those who slept on other cores are rung first.

use super::memory::{BadMemory, Mapping, PAGE_BYTES, SEALS, check};
use plover_types::{ReplicaId, ReplicaSet};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::ProtFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The words.
const NAP: usize = 0;
const CORE: usize = 1;

/// The word of a nap. Naps are numbered from 1, and 2^48 of them are enough for a century.
pub(crate) fn nap_word(number: u64, peers: ReplicaSet) -> u64 {
    number << 16 | u64::from(peers.0)
}

/// The nap that `me` is to end, by its number, if this is one.
pub(crate) fn nap_of(word: u64, me: ReplicaId) -> Option<u64> {
    let asks_me = ReplicaSet(word as u16).contains(me);
    asks_me.then_some(word >> 16)
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

    pub fn naps(&self, number: u64, peers: ReplicaSet) {
        let core = rustix::thread::sched_getcpu();
        self.mapping
            .word(CORE)
            .store(core as u64, Ordering::Relaxed);
        self.say(nap_word(number, peers));
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
        board.naps(7, ReplicaSet::of([ReplicaId(0), ReplicaId(2)]));
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(seen.core() < cores.max(4096) as u64);
        let nap_of = |id| nap_of(seen.nap().load(Ordering::Relaxed), ReplicaId(id));
        assert_eq!([0, 1, 2, 15].map(nap_of), [Some(7), None, Some(7), None]);
        board.naps(8, ReplicaSet::ALL);
        assert_eq!([0, 15].map(nap_of), [Some(8); 2]);
        board.is_awake();
        assert_eq!([0, 15].map(nap_of), [None; 2]);
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

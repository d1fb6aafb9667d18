//! The status page: each replica says on it whether it sleeps, and on which core. All its peers can
//! read it, and it alone can write it.
//!
//! A peer that has put something into the replica's ring looks here whether to ring the doorbell. One
//! page for all peers is cheaper than a word for each of them: a replica of nine would store sixteen
//! times for each of its sleeps, into lines that the others' caches hold.
//!
//! ```text
//!   0                                    awake
//!   number << 20 | count << 16 | peers   sleeps, until so many of `peers`, a bit each, have written
//! ```
//!
//! **Which peer rings** (docs/decisions/0027). A wake-up costs both sides far more than a write. A leader
//! that needs four answers should not be woken by the first three; nor can it know which one will be
//! last. So each of the named peers says on its own page that it has written, and then counts how
//! many have: the one that completes the number rings.
//!
//! ```text
//!   backup                                 another backup
//!     answered := n   (own page)             answered := n   (own page)
//!     ── fence ──                            ── fence ──
//!     how many have? enough: ring            how many have? enough: ring
//! ```
//!
//! Whichever of the two fences comes second sees both, so the last one never misses that it is the
//! last; two may ring. A peer that has written before the sleep is not counted by the others, because
//! the sleeper has taken it off the number. A peer that cannot see the pages of all that are named
//! rings at once.
//!
//! **Which doorbell is rung first** (docs/decisions/0021). A wake-up of another core takes a while to
//! arrive, and much of that time the ringing side stands still; in a virtual machine 15 µs and more.
//! Another ring for the same core right after it costs nothing of that. And a sleeper on the own core
//! may take that core from the ringing side as soon as it is rung, so that later doorbells are late.
//! So the sleepers on other cores are rung first.

use super::memory::{self, BadMemory};
use crate::mapping::{Mapping, PAGE_BYTES};
use plover_types::{Awaited, ReplicaId, ReplicaSet};
use rustix::fs::SealFlags;
use rustix::mm::ProtFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// The page's words: the sleep, its core, and from `ANSWERED` on one for each peer, the number of its
/// sleep that this replica has answered last. These do not share a cache line with the first two, which
/// the others look at all the time.
const SLEEP: usize = 0;
const CORE: usize = 1;
const ANSWERED: usize = 8;

/// A sleep that was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// From 1; after 2^44, years of them, they begin anew.
    pub number: u64,
    pub awaited: Awaited,
}

impl Sleep {
    /// As it stands on the page.
    pub fn word(self) -> u64 {
        let Awaited { from, count } = self.awaited;
        (self.number << 20) | ((count as u64 & 0xf) << 16) | u64::from(from.0)
    }

    /// The sleep on a page, if `me` is to end it.
    pub fn read(word: u64, me: ReplicaId) -> Option<Self> {
        let from = ReplicaSet(word as u16);
        let count = (word >> 16) as usize & 0xf;
        let number = word >> 20;
        let awaited = Awaited { from, count };
        from.contains(me).then_some(Self { number, awaited })
    }
}

/// A replica's own page.
#[derive(Debug)]
pub struct StatusPage {
    mapping: Mapping,
    memory: OwnedFd,
}

impl StatusPage {
    pub fn new() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Nobody else can get a mapping that it could write to.
        let seals = SealFlags::FUTURE_WRITE;
        let (mapping, memory) = memory::make("plover-status", PAGE_BYTES, access, seals)?;
        Ok(Self { mapping, memory })
    }

    /// To hand to a peer.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    pub fn sleeps(&self, sleep: Sleep) {
        let core = rustix::thread::sched_getcpu();
        self.mapping
            .word(CORE)
            .store(core as u64, Ordering::Relaxed);
        self.say(sleep.word());
    }

    /// Says that this replica has written to `peer` since that one fell asleep for `sleep`.
    pub fn answers(&self, peer: ReplicaId, sleep: Sleep) {
        self.mapping
            .word(ANSWERED + usize::from(peer.0))
            .store(sleep.number, Ordering::Relaxed);
    }

    pub fn awake(&self) {
        self.say(0);
    }

    fn say(&self, word: u64) {
        self.mapping.word(SLEEP).store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl StatusPage {
    /// As if it had fallen asleep on `core`.
    pub fn poke_core(&self, core: u64) {
        self.mapping.word(CORE).store(core, Ordering::Relaxed);
    }
}

/// A peer's page.
#[derive(Debug)]
pub struct PeerPage(Mapping);

impl PeerPage {
    /// Maps what a peer offers, if it is what it should be.
    pub fn map(memory: &OwnedFd) -> Result<Self, BadMemory> {
        Ok(Self(memory::map(memory, PAGE_BYTES, ProtFlags::READ)?))
    }

    pub fn sleep(&self) -> &AtomicU64 {
        self.0.word(SLEEP)
    }

    /// Whether it says that it has written to `sleeper` since that one fell asleep for `sleep`.
    pub fn has_answered(&self, sleeper: ReplicaId, sleep: Sleep) -> bool {
        let word = self.0.word(ANSWERED + usize::from(sleeper.0));
        word.load(Ordering::Relaxed) == sleep.number
    }

    /// Where it last fell asleep.
    pub fn core(&self) -> u64 {
        self.0.word(CORE).load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn peers_see_a_sleep_and_cannot_announce_one() {
        let page = StatusPage::new().unwrap();
        let memory = page.descriptor().unwrap();
        let seen = PeerPage::map(&memory).unwrap();
        let sleep = |number, from, count| Sleep {
            number,
            awaited: Awaited { from, count },
        };
        let two = sleep(7, ReplicaSet::of([ReplicaId(0), ReplicaId(2)]), 2);
        page.sleeps(two);
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(seen.core() < cores.max(4096) as u64);
        let sleep_of = |id| Sleep::read(seen.sleep().load(Ordering::Relaxed), ReplicaId(id));
        assert_eq!(
            [0, 1, 2, 15].map(sleep_of),
            [Some(two), None, Some(two), None]
        );
        let anyone = sleep(8, ReplicaSet::ALL, 1);
        page.sleeps(anyone);
        assert_eq!([0, 15].map(sleep_of), [Some(anyone); 2]);
        page.awake();
        assert_eq!([0, 15].map(sleep_of), [None; 2]);
        page.answers(ReplicaId(15), two);
        assert!(seen.has_answered(ReplicaId(15), two));
        assert!(!seen.has_answered(ReplicaId(15), anyone));
        assert!(!seen.has_answered(ReplicaId(14), two));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        assert!(Mapping::shared(memory.as_fd(), PAGE_BYTES, access).is_err());
    }
}

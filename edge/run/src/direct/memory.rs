//! The memory that a preloaded program shares with this process.
//!
//! The program may write anything there at any time. So nothing that this process has to know is read back from
//! it but records, which are checked, and a few counters that do no harm if they are wrong.

use plover_preload::{
    Kind, PAYLOAD_BYTES_MAX, RING_AT, RING_BYTES, Record, SHARED_MAGIC, SHARED_VERSION, SLOT_FREE,
    SLOTS, Shared, Slot,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

const WHOLE: usize = RING_AT + RING_BYTES;

/// The time of a program that has had no client ever, µs since 1970: 2000-01-01. It is the same on all replicas.
const FIRST_TIME_US: u64 = 946_684_800_000_000;

/// The settings that the program reads when it starts.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub wait_read: bool,
    pub copies_output: bool,
    pub allows_outgoing: bool,
    pub log_clock: bool,
    pub port: u16,
    pub listen: std::net::SocketAddrV4,
    pub secret: [u8; 16],
    pub door: String,
}

/// The memory of one program.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    at: NonNull<u8>,
    /// Bytes of the ring that were taken.
    tail: u64,
    committed: u64,
    payload: Vec<u8>,
}

/// The program has written into the ring what it must not.
#[derive(Debug)]
pub(super) struct Rubbish;

impl Memory {
    /// The memory of a program whose time begins at `time_us`, or with no time yet, 0.
    pub fn new(terms: &Terms, time_us: u64) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("plover-program", flags)?;
        rustix::fs::ftruncate(&file, WHOLE as u64)?;
        // A file that the program could shorten would end this process at its next access.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let protect = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                WHOLE,
                protect,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self {
            file,
            at,
            tail: 0,
            committed: 0,
            payload: vec![0; PAYLOAD_BYTES_MAX],
        };
        let shared = memory.shared();
        let set = |word: &AtomicU32, value: u32| word.store(value, SeqCst);
        set(&shared.magic, SHARED_MAGIC);
        set(&shared.version, SHARED_VERSION);
        set(&shared.wait_read, terms.wait_read.into());
        set(&shared.copies_output, terms.copies_output.into());
        set(&shared.allows_outgoing, terms.allows_outgoing.into());
        set(&shared.log_clock, terms.log_clock.into());
        set(&shared.port, terms.port.into());
        set(
            &shared.listen_ip,
            u32::from_ne_bytes(terms.listen.ip().octets()),
        );
        set(&shared.listen_port, terms.listen.port().into());
        set(&shared.plover_pid, std::process::id());
        let words = |to: &[AtomicU32], bytes: &[u8]| {
            for (word, part) in to.iter().zip(bytes.chunks(4)) {
                let mut whole = [0; 4];
                whole[..part.len()].copy_from_slice(part);
                word.store(u32::from_ne_bytes(whole), SeqCst);
            }
        };
        memory.set(&shared.now_us, time_us.max(FIRST_TIME_US));
        memory.set(&shared.next_us, time_us);
        words(&shared.secret, &terms.secret);
        words(&shared.door, terms.door.as_bytes());
        Ok(memory)
    }

    pub fn shared(&self) -> &Shared {
        // SAFETY: the mapping is WHOLE bytes long, lives as long as `self`, is aligned to a page, and was zero at
        // first, which is a valid `Shared`. All fields that change are atomic, as the program changes them, too.
        // The file is sealed, so the mapping stays whole.
        unsafe { self.at.cast::<Shared>().as_ref() }
    }

    pub fn slot(&self, number: usize) -> &Slot {
        &self.shared().slots[number]
    }

    /// Whether the program has filled something in that was not taken.
    pub fn has_more(&self) -> bool {
        self.shared().head.load(SeqCst) != self.tail
    }

    /// No other replica leads before `until`, µs of CLOCK_BOOTTIME. Threads that wait for that are woken.
    pub fn lease(&self, until: u64) {
        let before = self.shared().leased_until.swap(until, SeqCst);
        let now = boot_us();
        if before <= now && now < until {
            self.ring();
        }
    }

    /// The next record, and its bytes. It stays until [`Self::took`].
    pub fn next(&mut self) -> Result<Option<(Record, &[u8])>, Rubbish> {
        let filled = self.shared().head.load(SeqCst).wrapping_sub(self.tail);
        if filled == 0 {
            return Ok(None);
        }
        if filled > RING_BYTES as u64 || filled < Record::BYTES as u64 {
            return Err(Rubbish);
        }
        let mut head = [0; Record::BYTES];
        self.copy_out(self.tail, &mut head);
        let record = Record::decode(&head).ok_or(Rubbish)?;
        if record.whole() as u64 > filled {
            return Err(Rubbish);
        }
        let mut payload = std::mem::take(&mut self.payload);
        self.copy_out(
            self.tail + Record::BYTES as u64,
            &mut payload[..record.bytes],
        );
        self.payload = payload;
        Ok(Some((record, &self.payload[..record.bytes])))
    }

    fn copy_out(&self, from: u64, to: &mut [u8]) {
        let place = (from % RING_BYTES as u64) as usize;
        let first = to.len().min(RING_BYTES - place);
        let (one, other) = to.split_at_mut(first);
        // SAFETY: both sources lie in the ring, which is RING_BYTES long from RING_AT on: `place + first` is at most
        // its end, and the rest begins at its beginning. The targets are this process's own. The program may write
        // there meanwhile, so the bytes may be any, and they are only copied.
        unsafe {
            let ring = self.at.as_ptr().add(RING_AT);
            std::ptr::copy_nonoverlapping(ring.add(place), one.as_mut_ptr(), one.len());
            std::ptr::copy_nonoverlapping(ring, other.as_mut_ptr(), other.len());
        }
    }

    /// The record is dealt with.
    pub fn took(&mut self, record: &Record) {
        self.tail += record.whole() as u64;
        self.shared().tail.store(self.tail, SeqCst);
    }

    /// Inputs up to this number are committed.
    pub fn commit(&mut self, number: u64) {
        if number > self.committed {
            self.committed = number;
            self.shared().committed.store(number, SeqCst);
        }
    }

    /// Wakes all threads that wait.
    pub fn ring(&self) {
        let shared = self.shared();
        shared.bell.fetch_add(1, SeqCst);
        if shared.waiters.load(SeqCst) > 0 {
            let _ = futex::wake(&shared.bell, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Only connections of `epoch` are read from now on.
    pub fn begin_epoch(&self, epoch: u32) {
        self.shared().epoch.store(epoch, SeqCst);
        self.ring();
    }

    /// The time of the next input, as [`Self::set_next_time`] has set it or the program has spoilt it.
    pub fn next_time(&self) -> u64 {
        self.shared().next_us.load(SeqCst)
    }

    /// The time of the next input.
    pub fn set_next_time(&self, us: u64) {
        self.shared().next_us.store(us, SeqCst);
    }

    /// The epoch in which the program's time follows this host's; 0 for none.
    pub fn follow_host_in(&self, epoch: u32) {
        self.shared().clock_epoch.store(epoch, SeqCst);
    }

    /// The thread that takes an input just now.
    pub fn lock_owner(&self) -> Option<u32> {
        Some(self.shared().lock.load(SeqCst)).filter(|it| *it != 0)
    }

    /// Takes the lock from a thread that has ended with it. All records were taken, the last one with this number of inputs;
    /// one that the thread had begun is not there. Returns the slot that it has read from, perhaps: what it has read is lost.
    pub fn unlock_for(&self, owner: u32, inputs: u64) -> Option<usize> {
        let shared = self.shared();
        // Nobody else changes these while the lock is held.
        shared.inputs.store(inputs, SeqCst);
        let reading = shared.reading.swap(0, SeqCst) as usize;
        if shared
            .lock
            .compare_exchange(owner, 0, SeqCst, SeqCst)
            .is_ok()
        {
            let _ = futex::wake(&shared.lock, futex::Flags::empty(), 1);
        }
        reading.checked_sub(1).filter(|slot| *slot < SLOTS)
    }

    /// How often the program has made a process of itself.
    pub fn forks(&self) -> u32 {
        self.shared().forks.load(SeqCst)
    }

    /// Bytes of the ring that were taken, and those that the program has filled.
    pub fn taken_and_filled(&self) -> (u64, u64) {
        (self.tail, self.shared().head.load(SeqCst))
    }

    /// The record of the end of a connection that no process has open any more. `number` is that of the last record.
    pub fn close_of(&self, slot: usize, number: u64) -> Record {
        let shared = self.slot(slot);
        Record {
            bytes: 0,
            kind: Kind::Close,
            flag: true,
            slot,
            epoch: shared.epoch.load(SeqCst),
            number,
            sent: shared.sent.load(SeqCst),
        }
    }

    pub fn free(&self, number: usize) {
        self.slot(number).kind.store(SLOT_FREE, SeqCst);
    }

    pub fn set(&self, word: &AtomicU64, value: u64) {
        word.store(value, SeqCst);
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `at` is the mapping of WHOLE bytes that `new` has made, and no reference to it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), WHOLE) };
    }
}

fn boot_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// The same point of time, µs of CLOCK_BOOTTIME: a program of a host that was suspended knows that the lease is over.
pub(super) fn of_the_boot_clock(at: Instant) -> u64 {
    // In this order: a pause between the two makes it earlier, and not later.
    let us = boot_us();
    let now = Instant::now();
    let micros = |span: Duration| span.as_micros() as u64;
    us.saturating_add(micros(at.saturating_duration_since(now)))
        .saturating_sub(micros(now.saturating_duration_since(at)))
}

/// Whether the record is an input, which is counted.
pub(super) fn is_input(record: &Record) -> bool {
    matches!(
        record.kind,
        Kind::Accept | Kind::Bytes | Kind::End | Kind::Clock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let terms = Terms {
            wait_read: false,
            copies_output: true,
            allows_outgoing: false,
            log_clock: false,
            port: 1,
            listen: "192.0.2.1:2".parse().unwrap(),
            secret: [7; 16],
            door: "a door".into(),
        };
        Memory::new(&terms, 0).unwrap()
    }

    fn put(memory: &Memory, at: u64, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            let place = (at as usize + offset) % RING_BYTES;
            // SAFETY: the place is in the ring, and nothing else uses the memory of this test.
            unsafe { memory.at.as_ptr().add(RING_AT + place).write(*byte) };
        }
    }

    fn head(bytes: u32, kind: u16) -> [u8; Record::BYTES] {
        let mut head = [0; Record::BYTES];
        head[..4].copy_from_slice(&bytes.to_ne_bytes());
        head[4..6].copy_from_slice(&kind.to_ne_bytes());
        head[8] = 1;
        head
    }

    #[test]
    fn records_are_taken_in_order_and_around_the_end() {
        let mut memory = memory();
        let mut at = 0_u64;
        for round in 0..400_u32 {
            let bytes = vec![round as u8; 20_000];
            put(&memory, at, &head(20_000, 2));
            put(&memory, at + 32, &bytes);
            at += 32 + 20_000;
            memory.set(&memory.shared().head, at);
            let (record, taken) = memory.next().unwrap().unwrap();
            assert!(taken == &bytes[..], "{round}");
            memory.took(&record);
            assert!(memory.next().unwrap().is_none() && !memory.has_more());
        }
    }

    #[test]
    fn rubbish_is_found_and_never_followed() {
        for (filled, bytes, kind) in [
            (u64::MAX, 8, 2),
            (RING_BYTES as u64 + 8, 8, 2),
            (8, 8, 2),
            (40, 16, 2),
            (1 << 20, u32::MAX, 2),
            (1 << 20, 8, 0),
        ] {
            let mut memory = memory();
            put(&memory, 0, &head(bytes, kind));
            memory.set(&memory.shared().head, filled);
            assert!(memory.next().is_err(), "{filled} {bytes} {kind}");
        }
    }
}

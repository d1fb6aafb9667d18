//! The channel of clean replies: memory that programs in the guest and `plover` share (docs/decisions/0065).
//!
//! It lies below 1 MiB of the guest's memory, at [`AT`], where Linux keeps nothing. `guests/clean/plover_clean.h`
//! describes it for the guest's side. All numbers are little endian:
//!
//! | bytes | what | written by |
//! |---|---|---|
//! | 0..16 | [`MAGIC`]; without it nothing here is read or written | guest |
//! | 16..24 | the number of the last cut, 0 before the first | `plover`, while the guest stands |
//! | 64..72 | how many records were begun | guest |
//! | 4096.. | [`RECORDS`] records of [`RECORD_BYTES`]; record n is the n-th modulo their number | guest |
//!
//! A record:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | n + 1 as soon as the record is whole, 0 while it is written |
//! | 8..16 | the cut as of which the bytes are clean, 0 if they are not |
//! | 16..24 | UDP: FNV-1a of the payload; TCP: how many bytes the program has sent on the connection before |
//! | 24..28 | how many bytes they are; UDP: of the payload |
//! | 28..30, 30..32 | the guest's port, the client's |
//! | 32 | the IP protocol: 17 (UDP) or 6 (TCP) |
//! | 40..56, 56..72 | the guest's address, the client's, as IPv6; zeros for one that is not known |
//!
//! The guest writes what it likes here. At worst a word about its own datagrams is wrong or lost.

use crate::ram::Ram;
use plover_types::{About, PAGE_BYTES, PageNo, Reply, SyncNo};
use std::net::{IpAddr, Ipv6Addr};

/// Where the channel begins in the guest's memory.
const AT: usize = 0x7_0000;
const MAGIC: &[u8; 16] = b"plover-clean-01\n";
const CUT: usize = 16;
const BEGUN: usize = 64;
const FIRST_RECORD: usize = 4096;
const RECORDS: u64 = 768;
pub(crate) const RECORD_BYTES: usize = 80;

/// The number of the IP protocol.
const TCP: u8 = 6;

/// The page that the cut is written to.
pub(crate) const PAGE: PageNo = PageNo((AT / PAGE_BYTES) as u32);

/// The reader of one guest's channel.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    /// The next record to read, once the channel was looked at.
    next: Option<u64>,
    /// The cut was written since the last scan.
    is_dirty: bool,
}

impl Channel {
    /// Passes over all words that are there now.
    pub fn begin_anew(&mut self) {
        self.next = None;
    }

    /// Writes the number of a cut for the guest's programs, if one of them has set the channel up.
    pub fn tell_cut(&mut self, ram: &Ram, sync: SyncNo) {
        if is_there(ram) {
            ram.store(AT + CUT, sync.0);
            self.is_dirty = true;
        }
    }

    /// Whether the cut was written since this was last asked.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.is_dirty)
    }

    /// Adds what the guest's programs have said since the last call. Returns whether some of it is lost.
    pub fn take(&mut self, ram: &Ram, replies: &mut Vec<Reply>) -> bool {
        if !is_there(ram) {
            return self.next.take().is_some();
        }
        let begun = ram.load(AT + BEGUN);
        let Some(next) = self.next.replace(begun) else {
            return false;
        };
        let count = begun.wrapping_sub(next);
        if count > RECORDS {
            return true;
        }
        for no in (0..count).map(|more| next.wrapping_add(more)) {
            match read(ram, no) {
                Found::Whole(reply) => replies.push(reply),
                Found::Rubbish => return true,
                // A program is about to write it, and sends its datagram only then. It is read the next time.
                Found::Begun => {
                    self.next = Some(no);
                    return false;
                }
            }
        }
        false
    }
}

fn is_there(ram: &Ram) -> bool {
    let mut magic = [0; MAGIC.len()];
    ram.copy_out(AT, &mut magic);
    &magic == MAGIC
}

enum Found {
    Whole(Reply),
    /// It is not whole yet.
    Begun,
    /// It was overwritten, or is none.
    Rubbish,
}

fn read(ram: &Ram, no: u64) -> Found {
    let at = AT + FIRST_RECORD + (no % RECORDS) as usize * RECORD_BYTES;
    let mark = no.wrapping_add(1);
    let found = ram.load(at);
    if found != mark {
        let is_newer = found.wrapping_sub(mark) < u64::MAX / 2;
        return match found != 0 && is_newer {
            true => Found::Rubbish,
            false => Found::Begun,
        };
    }
    let mut record = [0; RECORD_BYTES];
    ram.copy_out(at, &mut record);
    if ram.load(at) != mark {
        return Found::Rubbish;
    }
    match decode(&record) {
        Some(reply) => Found::Whole(reply),
        None => Found::Rubbish,
    }
}

pub(crate) fn decode(record: &[u8; RECORD_BYTES]) -> Option<Reply> {
    let number = |at: usize| Some(u64::from_le_bytes(record[at..at + 8].try_into().ok()?));
    let port = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = record[at..at + 16].try_into().ok()?;
        let known = bytes != [0; 16];
        known.then(|| Ipv6Addr::from(bytes).to_canonical())
    };
    let (cut, protocol) = (number(8)?, record[32]);
    let about = match protocol {
        TCP => About::Stream { at: number(16)? },
        _ => About::Datagram { hash: number(16)? },
    };
    Some(Reply {
        clean_as_of: (cut > 0).then_some(SyncNo(cut)),
        guest: (address(40), port(28)),
        client: (address(56)?, port(30)),
        protocol,
        bytes: u32::from_le_bytes(record[24..28].try_into().ok()?),
        about,
    })
}

#[cfg(test)]
mod tests;

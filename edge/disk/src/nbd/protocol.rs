//! The part of the NBD protocol (its `doc/proto.md`) that QEMU needs: the fixed newstyle handshake, and simple replies; for a
//! backup also structured ones, with the metadata context `base:allocation`.

use super::Extent;

/// The server's first message.
pub(super) const GREETING: [u8; 16] = *b"NBDMAGICIHAVEOPT";
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// The fixed newstyle handshake (bit 0), without its padding (bit 1).
pub(super) const HANDSHAKE_FLAGS: u16 = 0b11;

/// Names the export and ends the handshake.
pub(super) const OPTION_GO: u32 = 7;
/// Answers to reads come in chunks.
pub(super) const OPTION_STRUCTURED_REPLY: u32 = 8;
/// Names what the client will ask about: only of extents is anything known.
pub(super) const OPTION_SET_META_CONTEXT: u32 = 10;
const EXTENTS_CONTEXT: &[u8] = b"base:allocation";
const EXTENTS_ID: u32 = 1;

/// Answers to options.
pub(super) const REPLY_ACK: u32 = 1;
pub(super) const REPLY_INFO: u32 = 3;
pub(super) const REPLY_META_CONTEXT: u32 = 4;
pub(super) const REPLY_UNSUPPORTED: u32 = (1 << 31) | 1;
pub(super) const REPLY_INVALID: u32 = (1 << 31) | 3;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_WRITE_ZEROES: u16 = 1 << 6;

/// Flags of a request: durable before the answer; zeroes without a hole.
const COMMAND_FUA: u16 = 1;
const COMMAND_NO_HOLE: u16 = 1 << 1;
const COMMAND_ONLY_ONE: u16 = 1 << 3;

/// Chunks of a structured reply: the only one of its request, and what is in it.
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const CHUNK_DONE: u16 = 1;
const CHUNK_DATA: u16 = 1;
const CHUNK_EXTENTS: u16 = 5;
const CHUNK_ERROR: u16 = (1 << 15) | 1;

/// Flags of an extent.
const EXTENT_HOLE: u32 = 1;
const EXTENT_ZERO: u32 = 1 << 1;

/// The most bytes of an option, and of a read or write. QEMU splits longer requests.
pub(super) const OPTION_BYTES_MAX: u32 = 4096;
pub(super) const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The protocol's error numbers.
pub(super) const EPERM: u32 = 1;
pub(super) const EIO: u32 = 5;
pub(super) const EINVAL: u32 = 22;
pub(super) const ENOSPC: u32 = 28;
pub(super) const ESHUTDOWN: u32 = 108;

/// Bytes of a request without its data, and of a reply.
pub(super) const REQUEST_BYTES: usize = 28;
pub(super) const REPLY_BYTES: usize = 16;
/// Bytes of a chunk before the data that were read, or before extents: its head, and an offset, or four bytes and a context.
pub(super) const CHUNK_BYTES: usize = CHUNK_HEAD_BYTES + 8;
const CHUNK_HEAD_BYTES: usize = 20;

/// An option's number and the length of its data, if `bytes` begin one.
pub(super) fn option(bytes: [u8; 16]) -> Option<(u32, u32)> {
    let (magic, rest) = split(&bytes)?;
    let (number, rest) = split(rest)?;
    let (length, _) = split(rest)?;
    (u64::from_be_bytes(magic) == OPTION_MAGIC)
        .then(|| (u32::from_be_bytes(number), u32::from_be_bytes(length)))
}

/// An answer to an option.
pub(super) fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for word in [option, kind, data.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

/// Whether the data of [`OPTION_GO`] is well formed.
pub(super) fn is_go(data: &[u8]) -> bool {
    let parse = || {
        let (name, rest) = split(data)?;
        let rest = rest.get(u32::from_be_bytes(name) as usize..)?;
        let (wanted, rest) = split(rest)?;
        (rest.len() == 2 * usize::from(u16::from_be_bytes(wanted))).then_some(())
    };
    parse().is_some()
}

/// Whether the data of [`OPTION_SET_META_CONTEXT`] names the extents; `None` if it is not well formed.
pub(super) fn wants_extents(data: &[u8]) -> Option<bool> {
    let (name, rest) = split(data)?;
    let rest = rest.get(u32::from_be_bytes(name) as usize..)?;
    let (count, mut rest) = split(rest)?;
    let mut wants = false;
    for _ in 0..u32::from_be_bytes(count) {
        let (length, after) = split(rest)?;
        let (query, after) = after.split_at_checked(u32::from_be_bytes(length) as usize)?;
        wants |= query == EXTENTS_CONTEXT;
        rest = after;
    }
    rest.is_empty().then_some(wants)
}

/// The data of [`REPLY_META_CONTEXT`].
pub(super) fn extents_context() -> Vec<u8> {
    [&EXTENTS_ID.to_be_bytes(), EXTENTS_CONTEXT].concat()
}

/// Extents, as they lie in a chunk.
pub(super) fn extents(extents: &[(u64, Extent)]) -> Vec<u8> {
    let one = |(bytes, kind): &(u64, Extent)| {
        let flags = match kind {
            Extent::Data => 0,
            Extent::Zero => EXTENT_HOLE | EXTENT_ZERO,
            Extent::Elsewhere => EXTENT_HOLE,
        };
        let bytes = u32::try_from(*bytes).unwrap_or(!4095);
        [bytes.to_be_bytes(), flags.to_be_bytes()].concat()
    };
    extents.iter().flat_map(one).collect()
}

/// Makes the only chunk that answers `request` of `buffer`, in which its data lie after [`CHUNK_BYTES`].
pub(super) fn chunk(request: &Request, error: u32, buffer: &mut Vec<u8>) {
    let kind = match request.command {
        _ if error != 0 => CHUNK_ERROR,
        Command::Extents => CHUNK_EXTENTS,
        _ => CHUNK_DATA,
    };
    match kind {
        CHUNK_ERROR => {
            buffer.truncate(CHUNK_HEAD_BYTES);
            buffer.extend(error.to_be_bytes());
            // No words.
            buffer.extend(0u16.to_be_bytes());
        }
        CHUNK_EXTENTS => {
            buffer.drain(CHUNK_HEAD_BYTES..CHUNK_HEAD_BYTES + 4);
            buffer[CHUNK_HEAD_BYTES..][..4].copy_from_slice(&EXTENTS_ID.to_be_bytes());
        }
        _ => buffer[CHUNK_HEAD_BYTES..][..8].copy_from_slice(&request.offset.to_be_bytes()),
    }
    let mut head = CHUNK_MAGIC.to_be_bytes().to_vec();
    head.extend(CHUNK_DONE.to_be_bytes());
    head.extend(kind.to_be_bytes());
    head.extend(request.cookie.to_be_bytes());
    head.extend(((buffer.len() - CHUNK_HEAD_BYTES) as u32).to_be_bytes());
    buffer[..CHUNK_HEAD_BYTES].copy_from_slice(&head);
}

fn export_flags(read_only: bool) -> u16 {
    if read_only {
        HAS_FLAGS | READ_ONLY
    } else {
        HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES
    }
}

/// The two pieces of information about the export.
pub(super) fn infos(bytes: u64, read_only: bool) -> [Vec<u8>; 2] {
    let mut about = INFO_EXPORT.to_be_bytes().to_vec();
    about.extend(bytes.to_be_bytes());
    about.extend(export_flags(read_only).to_be_bytes());
    let mut sizes = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
    for size in [1, plover_types::DISK_BLOCK_BYTES as u32, TRANSFER_BYTES_MAX] {
        sizes.extend(size.to_be_bytes());
    }
    [about, sizes]
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    /// Asks what the bytes are.
    Extents,
    Unknown,
}

/// A request, without the data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) command: Command,
    /// Durable before it is answered.
    pub(super) fua: bool,
    /// The zeroes stay allocated.
    pub(super) no_hole: bool,
    /// One extent is enough.
    pub(super) only_one: bool,
    /// Returned with the answer.
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Request {
    /// `None` if these are not a request: the client has lost its place in the stream.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let (magic, rest) = split(bytes)?;
        if u32::from_be_bytes(magic) != REQUEST_MAGIC {
            return None;
        }
        let (flags, rest) = split(rest)?;
        let (command, rest) = split(rest)?;
        let (cookie, rest) = split(rest)?;
        let (offset, rest) = split(rest)?;
        let (length, _) = split(rest)?;
        let flags = u16::from_be_bytes(flags);
        Some(Self {
            command: match u16::from_be_bytes(command) {
                0 => Command::Read,
                1 => Command::Write,
                2 => Command::Disconnect,
                3 => Command::Flush,
                4 => Command::Trim,
                6 => Command::WriteZeroes,
                7 => Command::Extents,
                _ => Command::Unknown,
            },
            fua: flags & COMMAND_FUA != 0,
            no_hole: flags & COMMAND_NO_HOLE != 0,
            only_one: flags & COMMAND_ONLY_ONE != 0,
            cookie: u64::from_be_bytes(cookie),
            offset: u64::from_be_bytes(offset),
            bytes: u32::from_be_bytes(length),
        })
    }
}

/// The head of an answer; `error` is 0 if there is none.
pub(super) fn reply(cookie: u64, error: u32) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    bytes[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

fn split<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    bytes.split_first_chunk().map(|(head, rest)| (*head, rest))
}

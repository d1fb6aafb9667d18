//! An NBD server for one connection of one QEMU, or `qemu-img`, to one image.
//!
//! Requests are carried out one after the other, so a flush covers all requests answered before it. The
//! crates that serve NBD support neither flushes nor FUA (docs/decisions/0012).
//!
//! A guest may have taken over the QEMU at the other end. Whatever it sends, the server reads and writes
//! only inside the image, keeps at most one request in memory, and at worst ends the connection.

mod protocol;
#[cfg(test)]
mod tests;

use crate::image::Image;
use protocol::{Command, REPLY_BYTES, REQUEST_BYTES, Request, TRANSFER_BYTES_MAX};
use std::io::{self, Read, Write};

/// The kind of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// It has to be read.
    Data,
    /// It is zero.
    Zero,
    /// It is what the client has already.
    Elsewhere,
}

/// What is served: an image for its guest, or a disk as it was ([`crate::Snapshot`]).
pub(crate) trait Backing {
    /// Its size.
    fn bytes(&self) -> u64;
    /// Whether every change is refused.
    fn is_read_only(&self) -> bool;
    /// Reads, when that may be.
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()>;
    /// Whether a client may ask for extents.
    fn tells_extents(&self) -> bool {
        false
    }
    /// The lengths and kinds of the runs from `offset`, in their order: of all `bytes` or fewer, and at least one.
    fn extents(&self, _offset: u64, _bytes: u64) -> io::Result<Vec<(u64, Extent)>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Carries `change` out on the image, when that may be, and notes that these bytes have changed. As it is here, of one
    /// that is only read, it refuses.
    fn change(
        &self,
        _offset: u64,
        _bytes: u64,
        _change: &mut dyn FnMut(&Image) -> io::Result<()>,
    ) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    /// Makes all changes durable.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    /// A request begins or ends.
    fn busy(&self, _busy: bool) {}
    /// A request failed.
    fn failed(&self, _what: &str, _error: &io::Error) {}
}

/// Serves until the client leaves or violates the protocol.
pub(crate) fn serve(stream: &mut (impl Read + Write), backing: &impl Backing) -> io::Result<()> {
    let session = shake_hands(stream, backing)?;
    let mut buffer = Vec::new();
    loop {
        let mut head = [0; REQUEST_BYTES];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        backing.busy(true);
        let answered = answer(stream, backing, session, &head, &mut buffer);
        backing.busy(false);
        if !answered? {
            return Ok(());
        }
    }
}

fn out_of_place(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The options that client and server have agreed on.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// Reads are answered in chunks.
    structured: bool,
    /// The client may ask for extents.
    extents: bool,
}

/// The handshake. Unknown options are answered as such: a client that wants to leave then hangs up.
fn shake_hands(stream: &mut (impl Read + Write), backing: &impl Backing) -> io::Result<Session> {
    use protocol as p;
    let mut session = Session::default();
    let mut greeting = p::GREETING.to_vec();
    greeting.extend(p::HANDSHAKE_FLAGS.to_be_bytes());
    stream.write_all(&greeting)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    if u32::from_be_bytes(flags) & !u32::from(p::HANDSHAKE_FLAGS) != 0 {
        return Err(out_of_place("unknown handshake flags"));
    }
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let (option, length) = p::option(head).ok_or_else(|| out_of_place("no option"))?;
        if length > p::OPTION_BYTES_MAX {
            return Err(out_of_place("an endless option"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |kind, data: &[u8]| stream.write_all(&p::option_reply(option, kind, data));
        match option {
            p::OPTION_GO if !p::is_go(&data) => reply(p::REPLY_INVALID, &[])?,
            p::OPTION_GO => {
                for info in p::infos(backing.bytes(), backing.is_read_only()) {
                    reply(p::REPLY_INFO, &info)?;
                }
                reply(p::REPLY_ACK, &[])?;
                return Ok(session);
            }
            p::OPTION_STRUCTURED_REPLY if backing.tells_extents() && data.is_empty() => {
                session.structured = true;
                reply(p::REPLY_ACK, &[])?;
            }
            p::OPTION_SET_META_CONTEXT if session.structured => {
                match p::wants_extents(&data) {
                    None => {
                        reply(p::REPLY_INVALID, &[])?;
                        continue;
                    }
                    Some(false) => session.extents = false,
                    Some(true) => {
                        session.extents = true;
                        reply(p::REPLY_META_CONTEXT, &p::extents_context())?;
                    }
                }
                reply(p::REPLY_ACK, &[])?;
            }
            _ => reply(p::REPLY_UNSUPPORTED, &[])?,
        }
    }
}

/// Carries one request out and answers it. `false` if it ends the connection.
fn answer(
    stream: &mut (impl Read + Write),
    backing: &impl Backing,
    session: Session,
    head: &[u8; REQUEST_BYTES],
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    use protocol as p;
    let request = Request::decode(head).ok_or_else(|| out_of_place("no request"))?;
    let chunked = session.structured && matches!(request.command, Command::Read | Command::Extents);
    // The answer's head is first in the buffer, so that one write sends all of it.
    let head = if chunked { p::CHUNK_BYTES } else { REPLY_BYTES };
    buffer.clear();
    buffer.resize(head, 0);
    if request.command == Command::Write {
        if request.bytes > TRANSFER_BYTES_MAX {
            return Err(out_of_place("an endless write"));
        }
        buffer.resize(head + request.bytes as usize, 0);
        stream.read_exact(&mut buffer[head..])?;
    }
    if request.command == Command::Disconnect {
        return Ok(false);
    }
    let error = match request.command {
        Command::Extents if session.extents => tell_extents(backing, &request, buffer),
        _ => carry_out(backing, &request, buffer),
    };
    let error = error.err().unwrap_or(0);
    if chunked {
        p::chunk(&request, error, buffer);
    } else {
        if error != 0 || request.command != Command::Read {
            buffer.truncate(head);
        }
        buffer[..head].copy_from_slice(&p::reply(request.cookie, error));
    }
    stream.write_all(buffer)?;
    Ok(true)
}

/// Whether all bytes of a request lie inside what is served.
fn is_inside(backing: &impl Backing, request: &Request) -> bool {
    let end = request.offset.checked_add(u64::from(request.bytes));
    end.is_some_and(|end| end <= backing.bytes())
}

/// Puts what the bytes of a request are into `buffer` after the answer's head.
fn tell_extents(
    backing: &impl Backing,
    request: &Request,
    buffer: &mut Vec<u8>,
) -> Result<(), u32> {
    if request.bytes == 0 || !is_inside(backing, request) {
        return Err(protocol::EINVAL);
    }
    let extents = backing
        .extents(request.offset, u64::from(request.bytes))
        .map_err(|error| {
            backing.failed("look at", &error);
            protocol::EIO
        })?;
    let most = if request.only_one { 1 } else { extents.len() };
    buffer.extend(protocol::extents(&extents[..most.min(extents.len())]));
    Ok(())
}

/// Carries one request out. The data of a read or write is in `buffer` after the answer's head.
fn carry_out(backing: &impl Backing, request: &Request, buffer: &mut Vec<u8>) -> Result<(), u32> {
    let (offset, bytes) = (request.offset, u64::from(request.bytes));
    if !is_inside(backing, request) && request.command != Command::Flush {
        return Err(protocol::EINVAL);
    }
    let changes = matches!(
        request.command,
        Command::Write | Command::Trim | Command::WriteZeroes
    );
    if changes && backing.is_read_only() {
        return Err(protocol::EPERM);
    }
    let done = match request.command {
        Command::Read if request.bytes > TRANSFER_BYTES_MAX => return Err(protocol::EINVAL),
        Command::Read => {
            let head = buffer.len();
            buffer.resize(head + request.bytes as usize, 0);
            backing.read(offset, &mut buffer[head..])
        }
        Command::Flush => backing.flush(),
        Command::Write => backing.change(offset, bytes, &mut |image| {
            image.write(offset, &buffer[REPLY_BYTES..])
        }),
        Command::Trim | Command::WriteZeroes => {
            let hole = request.command == Command::Trim || !request.no_hole;
            backing.change(offset, bytes, &mut |image| {
                image.write_zeroes(offset, bytes, hole)
            })
        }
        Command::Disconnect | Command::Extents | Command::Unknown => return Err(protocol::EINVAL),
    };
    let done = done.and_then(|()| {
        if changes && request.fua {
            backing.flush()
        } else {
            Ok(())
        }
    });
    done.map_err(|error| {
        backing.failed(name(request.command), &error);
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => protocol::ENOSPC,
            io::ErrorKind::NotConnected => protocol::ESHUTDOWN,
            _ => protocol::EIO,
        }
    })
}

fn name(command: Command) -> &'static str {
    match command {
        Command::Read => "read",
        Command::Flush => "flush",
        _ => "write",
    }
}

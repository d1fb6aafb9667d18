//! The server: Redis's protocol on many connections, and what it does for each command.

use crate::clock::Clock;
use crate::net::SOCKETS;
use crate::resp::{Parsed, Words};
use crate::store::{Refused, Store};
use crate::writer::{Pattern, Writer};
use core::fmt::{self, Write};
use core::ptr::addr_of_mut;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Duration;

const PORT: u16 = 6379;
/// Bytes of a connection's buffers.
const IN_BYTES: usize = 32 << 10;
const OUT_BYTES: usize = 128 << 10;
/// Bytes of a request, but for `UPLOAD`.
const REQUEST_BYTES: usize = 16 << 10;
/// Bytes of an answer, but for `DOWNLOAD`: `MGET` of 256 values.
const ANSWER_BYTES: usize = 24 << 10;
/// Bytes of a download, at most.
const DOWNLOAD_BYTES_MAX: u64 = 1 << 30;
/// A client that has gone without a word is forgotten after so long.
const SILENCE: Duration = Duration::from_secs(120);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The same while there is something to send. `smoltcp` does not probe a closed window. If the client's window update was
/// lost, the answer to a keep-alive says that the window is open.
const PROBE: Duration = Duration::from_secs(1);

static mut IN: [[u8; IN_BYTES]; SOCKETS] = [[0; IN_BYTES]; SOCKETS];
static mut OUT: [[u8; OUT_BYTES]; SOCKETS] = [[0; OUT_BYTES]; SOCKETS];
static mut REQUESTS: [[u8; REQUEST_BYTES]; SOCKETS] = [[0; REQUEST_BYTES]; SOCKETS];
static mut STORE: Store = Store::new();
static mut WORDS: Words = Words::new();
static mut ANSWER: Answer = Answer {
    bytes: [0; ANSWER_BYTES],
    count: 0,
};

/// The state of a connection.
#[derive(Clone, Copy)]
enum Doing {
    /// A request.
    Reading,
    /// A download with so many bytes left.
    Sending(u64),
    /// An upload with so many bytes left, of so many.
    Taking(usize, usize),
    /// Nothing more: what came was no request.
    Closing,
}

struct Connection {
    socket: SocketHandle,
    request: &'static mut [u8; REQUEST_BYTES],
    /// Bytes of `request` that have come.
    filled: usize,
    doing: Doing,
}

/// All connections, and what they share.
pub struct Server {
    connections: [Connection; SOCKETS],
    shared: Shared,
}

struct Shared {
    store: &'static mut Store,
    words: &'static mut Words,
    answer: &'static mut Answer,
}

/// All that a connection works with while it has its turn.
struct Turn<'a> {
    shared: &'a mut Shared,
    writer: &'a mut Writer,
    clock: &'a Clock,
}

impl Server {
    /// Makes the sockets. Call it once.
    pub fn new(sockets: &mut SocketSet<'static>) -> Self {
        // SAFETY: `new` is called once, so that these are the only references.
        let (ins, outs, requests) = unsafe {
            (
                &mut *addr_of_mut!(IN),
                &mut *addr_of_mut!(OUT),
                &mut *addr_of_mut!(REQUESTS),
            )
        };
        // SAFETY: as above.
        let shared = unsafe {
            Shared {
                store: &mut *addr_of_mut!(STORE),
                words: &mut *addr_of_mut!(WORDS),
                answer: &mut *addr_of_mut!(ANSWER),
            }
        };
        let mut buffers = ins.iter_mut().zip(outs).zip(requests);
        let connections = core::array::from_fn(|_| {
            let ((ins, outs), request) = buffers.next().expect("there are as many of each");
            let ins = SocketBuffer::new(ins.as_mut_slice());
            let mut socket = Socket::new(ins, SocketBuffer::new(outs.as_mut_slice()));
            socket.set_nagle_enabled(false);
            socket.set_ack_delay(None);
            socket.set_timeout(Some(SILENCE));
            socket.set_keep_alive(Some(KEEP_ALIVE));
            Connection {
                socket: sockets.add(socket),
                request,
                filled: 0,
                doing: Doing::Reading,
            }
        });
        Self {
            connections,
            shared,
        }
    }

    /// Does what the connections ask for. Whether there was anything.
    pub fn serve(
        &mut self,
        sockets: &mut SocketSet<'static>,
        writer: &mut Writer,
        clock: &Clock,
    ) -> bool {
        let mut any = false;
        let mut turn = Turn {
            shared: &mut self.shared,
            writer,
            clock,
        };
        for connection in &mut self.connections {
            let socket = sockets.get_mut::<Socket>(connection.socket);
            any |= connection.serve(socket, &mut turn);
        }
        any
    }
}

impl Connection {
    fn serve(&mut self, socket: &mut Socket<'static>, turn: &mut Turn<'_>) -> bool {
        if !socket.is_open() {
            (self.filled, self.doing) = (0, Doing::Reading);
            return socket.listen(PORT).is_ok();
        }
        let mut any = false;
        while self.step(socket, turn) {
            any = true;
        }
        let is_read = !socket.may_recv() && !socket.is_listening();
        if is_read && socket.may_send() && self.is_over(socket) {
            socket.close();
            any = true;
        }
        // The interval counts from the next acknowledgement, so it is set as soon as there is something to send. While data
        // is in flight, the retransmission timer runs instead. A connection that becomes idle sends its first keep-alive
        // after `PROBE`, and the later ones after `KEEP_ALIVE`.
        let is_sending = socket.send_queue() > 0;
        socket.set_keep_alive(Some(if is_sending { PROBE } else { KEEP_ALIVE }));
        any
    }

    /// Whether a client that sends no more has all of its answers. Without room for an answer, `request` may hold more
    /// requests; with room, it holds at most a part of one.
    fn is_over(&self, socket: &Socket<'static>) -> bool {
        match self.doing {
            Doing::Reading => self.filled == 0 || room(socket) >= ANSWER_BYTES,
            Doing::Taking(left, _) => left > 0,
            Doing::Sending(_) | Doing::Closing => false,
        }
    }

    /// One request, or a piece of one. Whether there was anything to do.
    fn step(&mut self, socket: &mut Socket<'static>, turn: &mut Turn<'_>) -> bool {
        match self.doing {
            Doing::Reading => self.read(socket, turn),
            Doing::Closing => {
                let drop = |ins: &mut [u8]| (ins.len(), ());
                let _ = socket.recv(drop);
                false
            }
            Doing::Sending(0) => {
                let is_room = room(socket) >= 2;
                if is_room {
                    let _ = socket.send_slice(b"\r\n");
                    self.doing = Doing::Reading;
                }
                is_room
            }
            Doing::Sending(left) => {
                let fill = |room: &mut [u8]| {
                    let bytes = room.len().min(left as usize);
                    room[..bytes].fill(b'x');
                    (bytes, bytes)
                };
                let sent = socket.send(fill).unwrap_or(0);
                self.doing = Doing::Sending(left - sent as u64);
                sent > 0
            }
            Doing::Taking(left, all) => {
                let held = self.filled.min(left);
                self.request.copy_within(held..self.filled, 0);
                self.filled -= held;
                let taken = if left > held {
                    let take = |ins: &mut [u8]| {
                        let bytes = ins.len().min(left - held);
                        (bytes, bytes)
                    };
                    held + socket.recv(take).unwrap_or(0)
                } else {
                    held
                };
                self.doing = Doing::Taking(left - taken, all);
                if left == taken && room(socket) >= ANSWER_BYTES {
                    self.doing = Doing::Reading;
                    turn.shared.answer.count = 0;
                    let _ = write!(turn.shared.answer, ":{all}\r\n");
                    turn.shared.answer.send(socket);
                    return true;
                }
                taken > 0
            }
        }
    }

    fn read(&mut self, socket: &mut Socket<'static>, turn: &mut Turn<'_>) -> bool {
        let came = socket.recv_slice(&mut self.request[self.filled..]);
        self.filled += came.unwrap_or(0);
        if self.filled == 0 || room(socket) < ANSWER_BYTES {
            return false;
        }
        turn.shared.answer.count = 0;
        let input = &self.request[..self.filled];
        let used = match turn.shared.words.parse(input) {
            Parsed::Request(bytes) => {
                let mut words = turn.shared.words.of(&input[..bytes]);
                let mut work = Work {
                    store: turn.shared.store,
                    answer: turn.shared.answer,
                    writer: turn.writer,
                    clock: turn.clock,
                };
                if let Some(left) = work.execute(&mut words) {
                    self.doing = Doing::Sending(left);
                }
                bytes
            }
            Parsed::Upload(bytes, all) => {
                self.doing = Doing::Taking(all + 2, all);
                bytes
            }
            Parsed::Incomplete if self.filled < REQUEST_BYTES => return false,
            Parsed::Incomplete => {
                return self.refuse(socket, turn.shared, "the request is too long");
            }
            Parsed::Bad(why) => return self.refuse(socket, turn.shared, why),
        };
        self.request.copy_within(used..self.filled, 0);
        self.filled -= used;
        turn.shared.answer.send(socket);
        true
    }

    /// Answers what is no request, and closes.
    fn refuse(&mut self, socket: &mut Socket<'static>, shared: &mut Shared, why: &str) -> bool {
        shared.answer.count = 0;
        let _ = write!(shared.answer, "-ERR Protocol error: {why}\r\n");
        shared.answer.send(socket);
        (self.filled, self.doing) = (0, Doing::Closing);
        socket.close();
        false
    }
}

/// Bytes that a connection can take at once.
fn room(socket: &Socket<'static>) -> usize {
    socket.send_capacity() - socket.send_queue()
}

/// An answer in the making.
struct Answer {
    bytes: [u8; ANSWER_BYTES],
    count: usize,
}

impl Answer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.count..self.count + bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }

    fn value(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else {
            return self.put(b"$-1\r\n");
        };
        let _ = write!(self, "${}\r\n", value.len());
        self.put(value);
        self.put(b"\r\n");
    }

    /// To a connection whose [`room`] was enough.
    fn send(&mut self, socket: &mut Socket<'static>) {
        let sent = socket.send_slice(&self.bytes[..self.count]);
        // A connection that the client has reset takes none.
        assert!(
            sent.is_err() || sent == Ok(self.count),
            "the room was measured"
        );
    }
}

impl fmt::Write for Answer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

/// One command, and what it works on.
struct Work<'a> {
    store: &'a mut Store,
    answer: &'a mut Answer,
    writer: &'a mut Writer,
    clock: &'a Clock,
}

impl Work<'_> {
    /// Executes a command. Returns the bytes that a download sends after the answer.
    fn execute(&mut self, words: &mut dyn ExactSizeIterator<Item = &[u8]>) -> Option<u64> {
        let name = words.next()?;
        let mut given: [&[u8]; 3] = [&[]; 3];
        let count = words.len();
        let is =
            |word: &str, needs: usize| name.eq_ignore_ascii_case(word.as_bytes()) && count == needs;
        if name.eq_ignore_ascii_case(b"MGET") && count > 0 {
            let _ = write!(self.answer, "*{count}\r\n");
            words.for_each(|key| self.answer.value(self.store.get(key)));
            return None;
        }
        given
            .iter_mut()
            .zip(words)
            .for_each(|(to, word)| *to = word);
        let [first, second, third] = given;
        if is("PING", 0) {
            self.answer.put(b"+PONG\r\n");
        } else if is("GET", 1) {
            self.answer.value(self.store.get(first));
        } else if is("SET", 2) {
            match self.store.set(first, second) {
                Ok(()) => self.answer.put(b"+OK\r\n"),
                Err(why) => self.refuse(&why),
            }
        } else if is("GETSET", 2) {
            self.swap(first, second);
        } else if is("INCR", 1) {
            self.increment(first);
        } else if is("TIME", 0) {
            let now_us = self.clock.now_us();
            let (seconds, rest) = (now_us / 1_000_000, now_us % 1_000_000);
            let mut digits = Digits::default();
            self.answer.put(b"*2\r\n");
            self.answer.value(Some(digits.of(seconds)));
            self.answer.value(Some(digits.of(rest)));
        } else if is("DBSIZE", 0) {
            let _ = write!(self.answer, ":{}\r\n", self.store.len());
        } else if is("DOWNLOAD", 1) {
            match number(first) {
                Some(bytes) if bytes <= DOWNLOAD_BYTES_MAX => {
                    let _ = write!(self.answer, "${bytes}\r\n");
                    return Some(bytes);
                }
                _ => self.usage("DOWNLOAD BYTES, of at most 1 GiB"),
            }
        } else if is("WRITER", 3) {
            self.set_writer(first, second, third);
        } else if is("WRITER", 0) {
            let _ = write!(self.answer, ":{}\r\n", self.writer.written());
        } else {
            self.usage(
                "a command is one of PING, GET KEY, SET KEY VALUE, GETSET KEY VALUE, MGET KEY..., INCR KEY, TIME, \
                 DBSIZE, DOWNLOAD BYTES, UPLOAD VALUE, WRITER PAGES-A-SECOND PAGES count|clock|fill, WRITER",
            );
        }
        None
    }

    fn swap(&mut self, key: &[u8], value: &[u8]) {
        let before = self.answer.count;
        self.answer.value(self.store.get(key));
        if let Err(why) = self.store.set(key, value) {
            self.answer.count = before;
            self.refuse(&why);
        }
    }

    fn increment(&mut self, key: &[u8]) {
        let held = self.store.get(key).map_or(Some(0), number);
        let Some(value) = held.and_then(|value| value.checked_add(1)) else {
            return self.usage("INCR KEY, of a value that is a number");
        };
        match self.store.set(key, Digits::default().of(value)) {
            Ok(()) => {
                let _ = write!(self.answer, ":{value}\r\n");
            }
            Err(why) => self.refuse(&why),
        }
    }

    fn set_writer(&mut self, rate: &[u8], pages: &[u8], pattern: &[u8]) {
        let most = self.writer.memory_pages();
        match (number(rate), number(pages), Pattern::named(pattern)) {
            (Some(rate), Some(pages), Some(pattern)) if pages <= most => {
                self.writer.set(rate, pages, pattern);
                self.answer.put(b"+OK\r\n");
            }
            _ => {
                let _ = write!(
                    self.answer,
                    "-ERR WRITER PAGES-A-SECOND PAGES count|clock|fill, with at most {most} pages\r\n"
                );
            }
        }
    }

    fn usage(&mut self, text: &str) {
        let _ = write!(self.answer, "-ERR {text}\r\n");
    }

    fn refuse(&mut self, why: &Refused) {
        let text = match why {
            Refused::Key => "-ERR a key has 1 to 46 bytes\r\n",
            Refused::Value => "-ERR a value has at most 80 bytes; for more there is UPLOAD\r\n",
            Refused::Full => "-OOM the table is full\r\n",
        };
        self.answer.put(text.as_bytes());
    }
}

/// A number in decimal digits.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, mut value: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return &self.0[at..];
            }
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

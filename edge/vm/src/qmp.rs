//! QMP, QEMU's control protocol: one JSON object a line, over an inherited socket.
//!
//! Commands may be sent before earlier ones have been answered; QEMU carries them out and answers
//! them in order. Each carries an id, and an answer with an id other than the oldest open one's
//! is an error: from then on nothing the connection says can be believed, and the hypervisor is
//! put down.
//!
//! Everything that comes in is untrusted. Lines are bounded, and what is not understood is an
//! error, never a panic.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// The longest line that is accepted. QEMU's longest answers here are a few KiB.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Unsent commands may pile up to this; QEMU reads them as it carries them out, and few are ever
/// open at a time.
const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// Why the connection is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QmpError {
    /// QEMU closed it, or is gone.
    #[error("QMP connection closed")]
    Closed,
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("QMP line longer than {LINE_BYTES_MAX} bytes")]
    Long,
    /// A line is no QMP message.
    #[error("not a QMP message: {0}")]
    Malformed(String),
    /// An answer to a question that was not asked.
    #[error("QMP answer out of order")]
    OutOfOrder,
    /// QEMU has not read commands for so long that they pile up.
    #[error("QEMU does not read its QMP commands")]
    Stuck,
}

/// One line from QEMU.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// The first line of all, with QEMU's version as (major, minor, micro).
    Greeting {
        /// QEMU's version.
        version: (u64, u64, u64),
        /// The distribution's name for its package.
        package: String,
    },
    /// The answer to a command: the returned value, or the error's text.
    Answer {
        /// The command's id; absent when QEMU could not read it.
        id: Option<u64>,
        /// What it returned.
        result: Result<Value, String>,
    },
    /// Something happened.
    Event {
        /// Its name, such as `SHUTDOWN`.
        name: String,
        /// What goes with it.
        data: Value,
    },
}

/// The message in one line.
pub fn decode(line: &[u8]) -> Result<Message, QmpError> {
    let value: Value =
        serde_json::from_slice(line).map_err(|e| QmpError::Malformed(e.to_string()))?;
    let Value::Object(mut object) = value else {
        return Err(QmpError::Malformed("not an object".into()));
    };
    let id = object.get("id").and_then(Value::as_u64);
    if let Some(result) = object.remove("return") {
        return Ok(Message::Answer {
            id,
            result: Ok(result),
        });
    }
    if let Some(error) = object.remove("error") {
        let text = error
            .get("desc")
            .and_then(Value::as_str)
            .unwrap_or("unknown error")
            .to_owned();
        return Ok(Message::Answer {
            id,
            result: Err(text),
        });
    }
    if let Some(Value::String(name)) = object.remove("event") {
        return Ok(Message::Event {
            name,
            data: object.remove("data").unwrap_or(Value::Null),
        });
    }
    if let Some(greeting) = object.remove("QMP") {
        let number = |part: &str| {
            greeting
                .pointer(&format!("/version/qemu/{part}"))
                .and_then(Value::as_u64)
                .unwrap_or(0)
        };
        let package = greeting
            .pointer("/version/package")
            .and_then(Value::as_str)
            .unwrap_or("");
        return Ok(Message::Greeting {
            version: (number("major"), number("minor"), number("micro")),
            package: package.to_owned(),
        });
    }
    Err(QmpError::Malformed(
        "neither answer, event nor greeting".into(),
    ))
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Bytes that hold no line end, so that a long line is searched once.
    searched: usize,
}

impl Lines {
    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message; `None` until more is read.
    pub fn next_message(&mut self) -> Result<Option<Message>, QmpError> {
        loop {
            let Some(end) = self.bytes[self.searched..].iter().position(|b| *b == b'\n') else {
                self.searched = self.bytes.len();
                let long = self.bytes.len() > LINE_BYTES_MAX;
                return if long { Err(QmpError::Long) } else { Ok(None) };
            };
            let rest = self.bytes.split_off(self.searched + end + 1);
            let line = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return decode(&line).map(Some);
            }
        }
    }
}

/// What came in, with answers tied to what they answer.
#[derive(Debug)]
pub(crate) enum Incoming<T> {
    Greeting {
        version: (u64, u64, u64),
        package: String,
    },
    Answer {
        tag: T,
        result: Result<Value, String>,
    },
    Event {
        name: String,
        data: Value,
    },
}

/// The connection. `T` says what a command was sent for.
pub(crate) struct Qmp<T> {
    socket: OwnedFd,
    lines: Lines,
    outbox: Vec<u8>,
    open: VecDeque<(u64, T)>,
    next_id: u64,
}

impl<T> Qmp<T> {
    /// A client on a connected stream socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            lines: Lines::default(),
            outbox: Vec::new(),
            open: VecDeque::new(),
            next_id: 1,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a command; its answer comes with `tag`.
    pub(crate) fn send(&mut self, tag: T, execute: &str, arguments: Value) -> Result<(), QmpError> {
        let mut command = json!({ "execute": execute, "id": self.next_id });
        if !arguments.is_null() {
            command["arguments"] = arguments;
        }
        self.open.push_back((self.next_id, tag));
        self.next_id += 1;
        self.outbox
            .extend_from_slice(command.to_string().as_bytes());
        self.outbox.push(b'\n');
        self.flush()
    }

    /// Sends what is unsent, as far as there is room.
    fn flush(&mut self) -> Result<(), QmpError> {
        while !self.outbox.is_empty() {
            match send(
                &self.socket,
                &self.outbox,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.outbox.len() < OUTBOX_BYTES_MAX => return Ok(()),
                Err(Errno::AGAIN) => return Err(QmpError::Stuck),
                Err(_) => return Err(QmpError::Closed),
            }
        }
        Ok(())
    }

    /// The next thing that came in, without blocking.
    pub(crate) fn receive(&mut self) -> Result<Option<Incoming<T>>, QmpError> {
        self.flush()?;
        loop {
            if let Some(message) = self.lines.next_message()? {
                return self.tie(message).map(Some);
            }
            let mut buffer = [0; 4096];
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(QmpError::Closed),
                Ok((got, _)) => self.lines.push(&buffer[..got]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => return Err(QmpError::Closed),
            }
        }
    }

    fn tie(&mut self, message: Message) -> Result<Incoming<T>, QmpError> {
        Ok(match message {
            Message::Greeting { version, package } => Incoming::Greeting { version, package },
            Message::Event { name, data } => Incoming::Event { name, data },
            Message::Answer { id, result } => {
                let (expected, tag) = self.open.pop_front().ok_or(QmpError::OutOfOrder)?;
                if id != Some(expected) {
                    return Err(QmpError::OutOfOrder);
                }
                Incoming::Answer { tag, result }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn decodes_what_qemu_says() {
        let greeting = br#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#;
        assert_eq!(
            decode(greeting).unwrap(),
            Message::Greeting {
                version: (7, 2, 22),
                package: "Debian".into()
            }
        );
        assert_eq!(
            decode(br#"{"error": {"class": "GenericError", "desc": "no"}, "id": 3}"#).unwrap(),
            Message::Answer {
                id: Some(3),
                result: Err("no".into())
            }
        );
        assert!(matches!(
            decode(br#"{"event": "STOP", "timestamp": {}}"#).unwrap(),
            Message::Event { name, .. } if name == "STOP"
        ));
        for bad in ["", "{", "[]", "{}", "7", r#"{"event": 7}"#, "\u{0}"] {
            assert!(
                matches!(decode(bad.as_bytes()), Err(QmpError::Malformed(_))),
                "{bad:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn noise_never_panics(pieces: Vec<Vec<u8>>) {
            let mut lines = Lines::default();
            for piece in pieces {
                lines.push(&piece);
                lines.push(b"\n");
                while let Ok(Some(_)) = lines.next_message() {}
            }
        }

        /// However the stream is cut, the same messages come out.
        #[test]
        fn cutting_the_stream_changes_nothing(cuts in proptest::collection::vec(1usize..9, 0..40)) {
            let stream = b"{\"return\": {}, \"id\": 1}\r\n\n{\"event\": \"STOP\"}\n{\"return\": [], \"id\": 2}\n";
            let mut lines = Lines::default();
            let mut messages = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.into_iter().chain([stream.len()]) {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                lines.push(piece);
                rest = tail;
                while let Some(message) = lines.next_message().unwrap() {
                    messages.push(message);
                }
            }
            assert_eq!(messages.len(), 3);
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::default();
        let mut result = Ok(None);
        for _ in 0..=LINE_BYTES_MAX / 4096 {
            lines.push(&[b' '; 4096]);
            result = lines.next_message();
        }
        assert_eq!(result, Err(QmpError::Long));
    }

    #[test]
    fn answers_are_tied_in_order_and_strays_refused() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        let mut qmp = Qmp::new(ours.into());
        qmp.send("a", "stop", Value::Null).unwrap();
        qmp.send("b", "x", json!({ "filename": "f" })).unwrap();
        let mut sent = [0; 200];
        let got = qemu.read(&mut sent).unwrap();
        let sent: Vec<Value> = serde_json::Deserializer::from_slice(&sent[..got])
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(sent[0], json!({ "execute": "stop", "id": 1 }));
        assert_eq!(sent[1]["arguments"]["filename"], "f");

        assert!(qmp.receive().unwrap().is_none());
        qemu.write_all(b"{\"return\": {}, \"id\": 1}\n{\"return\": {}, \"id\": 9}\n")
            .unwrap();
        assert!(matches!(
            qmp.receive(),
            Ok(Some(Incoming::Answer {
                tag: "a",
                result: Ok(_)
            }))
        ));
        assert_eq!(qmp.receive().unwrap_err(), QmpError::OutOfOrder);
        drop(qemu);
        assert_eq!(qmp.receive().unwrap_err(), QmpError::Closed);
    }
}

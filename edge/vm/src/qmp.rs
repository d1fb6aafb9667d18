//! QMP, QEMU's control protocol: one JSON object a line, over an inherited socket.
//!
//! Commands may be sent before earlier ones are answered; QEMU answers them in order. Each carries an
//! id, and an answer must carry the id of the oldest open command. Any other answer is an error, after
//! which the connection cannot be trusted and QEMU is ended.
//!
//! Everything that comes in is untrusted: lines are bounded, and what is not understood is an error,
//! never a panic.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;

/// The longest line that is accepted. QEMU's longest answers here are a few KiB.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Bytes that are read at a time. All that QEMU says in a turn is a few hundred bytes.
const TURN_BYTES: usize = 64 << 10;

/// Bytes of commands that may wait to be sent. QEMU reads commands as it carries them out, and few are
/// ever open at a time.
const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// Why the connection cannot be used any more.
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
    /// An answer to a command that was not sent.
    #[error("QMP answer out of order")]
    OutOfOrder,
    /// QEMU has not read commands for so long that they pile up.
    #[error("QEMU does not read its QMP commands")]
    Stuck,
}

/// One line from QEMU. The id of an answer is absent if QEMU could not read the command's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Message {
    /// The first line of all.
    Greeting {
        /// QEMU's version and capabilities.
        #[serde(rename = "QMP")]
        about: Value,
    },
    /// A command succeeded.
    Return {
        /// The command's id.
        id: Option<u64>,
        /// The returned value.
        #[serde(rename = "return")]
        value: Value,
    },
    /// A command failed.
    Error {
        /// The command's id.
        id: Option<u64>,
        /// Why.
        error: Refusal,
    },
    /// Something happened.
    Event {
        /// Its name, such as `SHUTDOWN`.
        event: String,
        /// Details.
        #[serde(default)]
        data: Value,
    },
}

/// Why QEMU refused a command.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Refusal {
    /// For people.
    pub desc: String,
}

/// The message in one line.
pub fn decode(line: &[u8]) -> Result<Message, QmpError> {
    serde_json::from_slice(line).map_err(|error| QmpError::Malformed(error.to_string()))
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// How many bytes were searched for a line end and have none.
    searched: usize,
}

impl Lines {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message; `None` if more must be read first.
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

/// A message, with an answer's command in place of its id.
#[derive(Debug)]
pub(crate) enum Incoming<T> {
    Greeting(Value),
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
    /// Bytes that may be read before [`Qmp::begin_turn`].
    may_read: usize,
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
            may_read: TURN_BYTES,
        }
    }

    /// Lets [`Self::receive`] read some more. A QEMU that the guest has taken over may send events as fast as they are
    /// read, and must not keep the loop from its other work.
    pub(crate) fn begin_turn(&mut self) {
        self.may_read = TURN_BYTES;
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

    /// Sends a command together with a descriptor. Nothing may wait to be sent before it.
    pub(crate) fn send_with(
        &mut self,
        tag: T,
        execute: &str,
        arguments: &Value,
        fd: BorrowedFd<'_>,
    ) -> Result<(), QmpError> {
        self.flush()?;
        if !self.outbox.is_empty() {
            return Err(QmpError::Stuck);
        }
        let command = json!({ "execute": execute, "id": self.next_id, "arguments": arguments });
        let line = format!("{command}\n").into_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = match sendmsg(&self.socket, &[IoSlice::new(&line)], &mut control, flags) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => return Err(QmpError::Stuck),
            Err(_) => return Err(QmpError::Closed),
        };
        self.outbox.extend_from_slice(&line[sent..]);
        self.open.push_back((self.next_id, tag));
        self.next_id += 1;
        self.flush()
    }

    /// Sends waiting commands, as far as there is room.
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

    /// The next message, without blocking. `None` also when this turn has read its share; what was not read keeps the
    /// socket readable.
    pub(crate) fn receive(&mut self) -> Result<Option<Incoming<T>>, QmpError> {
        self.flush()?;
        loop {
            if let Some(message) = self.lines.next_message()? {
                return self.tie(message).map(Some);
            }
            if self.may_read == 0 {
                return Ok(None);
            }
            let mut buffer = [0; 4096];
            match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(QmpError::Closed),
                Ok((got, _)) => {
                    self.lines.push(&buffer[..got]);
                    self.may_read = self.may_read.saturating_sub(got);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(_) => return Err(QmpError::Closed),
            }
        }
    }

    fn tie(&mut self, message: Message) -> Result<Incoming<T>, QmpError> {
        let (id, result) = match message {
            Message::Greeting { about } => return Ok(Incoming::Greeting(about)),
            Message::Event { event, data } => return Ok(Incoming::Event { name: event, data }),
            Message::Return { id, value } => (id, Ok(value)),
            Message::Error { id, error } => (id, Err(error.desc)),
        };
        match self.open.pop_front() {
            Some((expected, tag)) if id == Some(expected) => Ok(Incoming::Answer { tag, result }),
            _ => Err(QmpError::OutOfOrder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn answers_and_events_of_qemu_are_decoded() {
        let greeting = br#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}"#;
        assert!(matches!(decode(greeting), Ok(Message::Greeting { .. })));
        let refused = br#"{"error": {"class": "GenericError", "desc": "no"}, "id": 3}"#;
        assert!(matches!(
            decode(refused),
            Ok(Message::Error { id: Some(3), error }) if error.desc == "no"
        ));
        let stopped = br#"{"event": "STOP", "timestamp": {}}"#;
        assert!(matches!(decode(stopped), Ok(Message::Event { event, .. }) if event == "STOP"));
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
    fn a_qemu_that_talks_without_end_gets_its_turn_only() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        let mut qmp: Qmp<()> = Qmp::new(ours.into());
        let talks = std::thread::spawn(move || {
            let event = b"{\"event\": \"STOP\"}\n";
            let all = event.repeat(2 * TURN_BYTES / event.len());
            qemu.write_all(&all).unwrap();
            (qemu, all.len() / event.len())
        });
        let mut heard = 0;
        while !talks.is_finished() || heard == 0 {
            qmp.begin_turn();
            let before = heard;
            while qmp.receive().unwrap().is_some() {
                heard += 1;
            }
            assert!(heard - before <= TURN_BYTES / 10, "{heard} after {before}");
        }
        let (_qemu, all) = talks.join().unwrap();
        for _ in 0..4 {
            qmp.begin_turn();
            while qmp.receive().unwrap().is_some() {
                heard += 1;
            }
        }
        assert_eq!(heard, all, "nothing is lost");
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

//! Entries of systemd's journal, in its own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram an entry, and in it
//! a field a line.

use serde_json::{Map, Value};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal, for lines that are JSON objects, as the log writes them. Each becomes an entry: `EVENT`, and every other field
/// by its name in capitals.
#[derive(Clone, Debug)]
pub struct Journal {
    socket: Arc<UnixDatagram>,
    /// The fields of every entry.
    fields: Vec<u8>,
}

impl Journal {
    /// A journal whose entries all have these fields.
    ///
    /// # Errors
    /// There is no journal.
    pub fn open(fields: &[(&str, &str)]) -> io::Result<Self> {
        Self::at(SOCKET, fields)
    }

    fn at(path: &str, fields: &[(&str, &str)]) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        let mut all = Vec::new();
        put(&mut all, "SYSLOG_IDENTIFIER", "plover");
        for (name, value) in fields {
            put(&mut all, name, value);
        }
        Ok(Self {
            socket: Arc::new(socket),
            fields: all,
        })
    }

    fn entry(&self, line: &Map<String, Value>) -> Vec<u8> {
        let mut entry = self.fields.clone();
        for (name, value) in line {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match name.as_str() {
                // The journal knows it.
                "timestamp" => {}
                "level" => put(&mut entry, "PRIORITY", priority(&text)),
                name => put(&mut entry, &name_of(name), &text),
            }
        }
        entry
    }
}

impl Write for Journal {
    /// One line, as the log writes it. One that the journal does not take is lost.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Ok(Value::Object(fields)) = serde_json::from_slice(line) {
            self.socket.send(&self.entry(&fields))?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A field. One with several lines gives its length.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend(name.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend(value.as_bytes());
    entry.push(b'\n');
}

/// The journal takes names of capitals, digits and underscores that begin with a letter.
fn name_of(field: &str) -> String {
    let name: String = field
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    name.trim_start_matches(|c: char| !c.is_ascii_alphabetic())
        .into()
}

/// A level as syslog(3) numbers it.
fn priority(level: &str) -> &'static str {
    match level {
        "ERROR" => "3",
        "WARN" => "4",
        "INFO" => "6",
        _ => "7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_becomes_an_entry_with_fields() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        let mut journal = Journal::at(path, &[("PLOVER_GUEST", "shop")]).unwrap();
        let line = br#"{"timestamp":"now","level":"WARN","event":"peer_silent","peer":2,"message":"a\nb"}"#;
        journal.write_all(line).unwrap();
        let mut entry = [0; 500];
        let count = daemon.recv(&mut entry).unwrap();
        let expected =
            b"SYSLOG_IDENTIFIER=plover\nPLOVER_GUEST=shop\nEVENT=peer_silent\nPRIORITY=4\n\
            MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\nPEER=2\n";
        assert_eq!(
            entry[..count].escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        assert!(journal.write_all(b"no object").is_ok());
    }
}

//! `SET`, `GET`, `GETSET` and `MGET` of Redis's protocol, on one connection that never reconnects.
//!
//! The demo and the fault tests claim that connections survive a failover. A client that silently opened
//! a new connection would prove nothing, so here every error of the connection is final.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

/// The longest answer line and bulk string that is accepted.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// One connection to a Redis.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// `+OK` and the like.
    Simple(String),
    /// `-ERR …`: the command was refused, the connection is whole.
    Refused(String),
    /// A number.
    Number(i64),
    /// A value, or none.
    Bulk(Option<Vec<u8>>),
    /// Several answers.
    Many(Vec<Answer>),
}

impl Connection {
    /// Connects. `patience` bounds this and every later answer.
    pub fn open(address: SocketAddrV4, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address.into(), patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// The socket, to close it from another thread.
    pub fn stream(&self) -> io::Result<TcpStream> {
        self.reader.get_ref().try_clone()
    }

    /// Sends one command and waits for its answer.
    fn command(&mut self, words: &[&[u8]]) -> io::Result<Answer> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            write!(request, "${}\r\n", word.len())?;
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.reader.get_mut().write_all(&request)?;
        read_answer(&mut self.reader, 1)
    }

    /// `SET`; returns when the write is acknowledged.
    pub fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        ok(&self.command(&[b"SET", key.as_bytes(), value.as_bytes()])?)
    }

    /// `GET`: the value, or none.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        bulk(self.command(&[b"GET", key.as_bytes()])?)
    }

    /// `SET` with `PX`: the key expires.
    pub fn set_for(&mut self, key: &str, value: &str, span: Duration) -> io::Result<()> {
        let ms = span.as_millis().to_string();
        let words: [&[u8]; 5] = [
            b"SET",
            key.as_bytes(),
            value.as_bytes(),
            b"PX",
            ms.as_bytes(),
        ];
        ok(&self.command(&words)?)
    }

    /// `BLPOP`: waits for an element of a list that gets none.
    pub fn wait_in_vain(&mut self, list: &str, span: Duration) -> io::Result<()> {
        let s = span.as_secs().to_string();
        match self.command(&[b"BLPOP", list.as_bytes(), s.as_bytes()])? {
            Answer::Bulk(None) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// `INCR`: returns the number that it has become.
    pub fn incr(&mut self, key: &str) -> io::Result<i64> {
        match self.command(&[b"INCR", key.as_bytes()])? {
            Answer::Number(number) => Ok(number),
            other => Err(unexpected(&other)),
        }
    }

    /// `SELECT`: the keys of this connection are those of another database from now on.
    pub fn select(&mut self, database: u8) -> io::Result<()> {
        ok(&self.command(&[b"SELECT", database.to_string().as_bytes()])?)
    }

    /// `CONFIG SET`: changes a setting of the server.
    pub fn configure(&mut self, setting: &str, value: &str) -> io::Result<()> {
        ok(&self.command(&[b"CONFIG", b"SET", setting.as_bytes(), value.as_bytes()])?)
    }

    /// `GETSET`: sets a value, and returns the one before.
    pub fn swap(&mut self, key: &str, value: &str) -> io::Result<Option<Vec<u8>>> {
        bulk(self.command(&[b"GETSET", key.as_bytes(), value.as_bytes()])?)
    }

    /// `MGET`: one value, or none, for each key.
    pub fn get_many(&mut self, keys: &[String]) -> io::Result<Vec<Option<Vec<u8>>>> {
        let mut words: Vec<&[u8]> = vec![b"MGET"];
        words.extend(keys.iter().map(|key| key.as_bytes()));
        let answers = match self.command(&words)? {
            Answer::Many(answers) => answers,
            other => return Err(unexpected(&other)),
        };
        if answers.len() != keys.len() {
            return Err(Error::new(
                ErrorKind::InvalidData,
                "not one answer for each key",
            ));
        }
        answers.into_iter().map(bulk).collect()
    }

    /// `TIME`: the server's clock, since 1970.
    pub fn time(&mut self) -> io::Result<Duration> {
        let answer = self.command(&[b"TIME"])?;
        let number = |part: &Answer| match part {
            Answer::Bulk(Some(digits)) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        };
        let time = match &answer {
            Answer::Many(parts) if parts.len() == 2 => number(&parts[0]).zip(number(&parts[1])),
            _ => None,
        };
        let (s, us) = time.ok_or_else(|| unexpected(&answer))?;
        Ok(Duration::from_secs(s) + Duration::from_micros(us))
    }
}

/// The command was executed.
fn ok(answer: &Answer) -> io::Result<()> {
    match answer {
        Answer::Simple(word) if word == "OK" => Ok(()),
        other => Err(unexpected(other)),
    }
}

/// A value, or none.
fn bulk(answer: Answer) -> io::Result<Option<Vec<u8>>> {
    match answer {
        Answer::Bulk(value) => Ok(value),
        other => Err(unexpected(&other)),
    }
}

/// `InvalidData` says that the answer is wrong. A refusal is not: Redis may load its data, or have no memory.
fn unexpected(answer: &Answer) -> Error {
    let kind = match answer {
        Answer::Refused(_) => ErrorKind::Other,
        _ => ErrorKind::InvalidData,
    };
    Error::new(kind, format!("unexpected answer {answer:?}"))
}

fn read_answer(reader: &mut impl BufRead, depth: u32) -> io::Result<Answer> {
    let malformed = |why: &str| Error::new(ErrorKind::InvalidData, format!("not RESP: {why}"));
    let line = read_line(reader)?;
    let (kind, rest) = line
        .split_at_checked(1)
        .ok_or_else(|| malformed("an empty line"))?;
    let number = || {
        rest.parse::<i64>()
            .map_err(|_| malformed("a number was due"))
    };
    let length = |number: i64| {
        let length = usize::try_from(number)
            .ok()
            .filter(|n| *n <= ANSWER_BYTES_MAX);
        length.ok_or_else(|| malformed("an impossible length"))
    };
    match kind {
        "+" => Ok(Answer::Simple(rest.into())),
        "-" => Ok(Answer::Refused(rest.into())),
        ":" => Ok(Answer::Number(number()?)),
        "$" | "*" if rest == "-1" => Ok(Answer::Bulk(None)),
        "$" => {
            let mut bytes = vec![0; length(number()?)? + 2];
            reader.read_exact(&mut bytes)?;
            if !bytes.ends_with(b"\r\n") {
                return Err(malformed("a value without its end"));
            }
            bytes.truncate(bytes.len() - 2);
            Ok(Answer::Bulk(Some(bytes)))
        }
        "*" if depth > 0 => {
            let count = length(number()?)?;
            (0..count)
                .map(|_| read_answer(reader, depth - 1))
                .collect::<io::Result<_>>()
                .map(Answer::Many)
        }
        _ => Err(malformed("an unknown kind of answer")),
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader
        .by_ref()
        .take(ANSWER_BYTES_MAX as u64)
        .read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") && line.len() < ANSWER_BYTES_MAX {
        // The other side has closed the connection, perhaps in the middle of an answer.
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let line = line.strip_suffix(b"\r\n").ok_or(ErrorKind::InvalidData)?;
    String::from_utf8(line.to_vec()).map_err(|_| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::{Client, Wrong};
    use std::net::{Ipv4Addr, TcpListener};

    fn read(bytes: &[u8]) -> io::Result<Answer> {
        read_answer(&mut &bytes[..], 1)
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(read(b"+OK\r\n").unwrap(), Answer::Simple("OK".into()));
        assert_eq!(read(b":-7\r\n").unwrap(), Answer::Number(-7));
        assert_eq!(
            read(b"*2\r\n$3\r\na\r\n\r\n$-1\r\n").unwrap(),
            Answer::Many(vec![
                Answer::Bulk(Some(b"a\r\n".to_vec()[..3].to_vec())),
                Answer::Bulk(None)
            ])
        );
    }

    #[test]
    fn noise_is_refused() {
        for bad in [
            "",
            "\r\n",
            "+OK",
            "$5\r\nab",
            "$2\r\nabcd",
            "$-2\r\n",
            "$99999999999\r\n",
            "?\r\n",
            ":x\r\n",
            "*1\r\n*1\r\n*1\r\n",
            "*-2\r\n",
            "é\r\n",
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    /// Serves one connection, and answers each command of it with the next of `answers`.
    fn server(answers: &'static [&'static [u8]]) -> SocketAddrV4 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            for answer in answers {
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer).unwrap();
            }
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "the client connected again");
        });
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
    }

    #[test]
    fn a_server_tells_the_time() {
        let address = server(&[b"*2\r\n$2\r\n17\r\n$6\r\n250000\r\n", b"*1\r\n$2\r\n17\r\n"]);
        let mut connection = Connection::open(address, Duration::from_secs(10)).unwrap();
        assert_eq!(connection.time().unwrap(), Duration::from_millis(17_250));
        assert!(connection.time().is_err());
    }

    #[test]
    fn a_wrong_answer_is_told_from_a_refusal_and_from_an_end() {
        let address = server(&[
            b"-LOADING Redis is loading the dataset in memory\r\n",
            b"-MISCONF Redis is configured to save\r\n",
            b":1\r\n",
            b"+OK\r\n",
            b"?\r\n",
            b"*2\r\n$-1\r\n",
        ]);
        let mut client = Connection::open(address, Duration::from_secs(10)).unwrap();
        let keys = ["a".to_owned()];
        let answers = [
            client.write("a", "1"),
            client.read(&keys).map(drop),
            client.write("a", "1"),
            client.read(&keys).map(drop),
            client.write("a", "1"),
            client.read(&keys).map(drop),
        ];
        let are_wrong = answers.map(|answer| answer.unwrap_err().is::<Wrong>());
        assert_eq!(are_wrong, [false, false, true, true, true, false]);
    }

    #[test]
    fn a_lost_connection_stays_lost() {
        let address = server(&[b"+OK\r\n", b"-OOM full\r\n", b"*1\r\n$1\r\n5\r\n"]);
        let mut connection = Connection::open(address, Duration::from_secs(10)).unwrap();
        connection.set("a", "5").unwrap();
        assert!(
            connection
                .set("a", "5")
                .unwrap_err()
                .to_string()
                .contains("OOM")
        );
        assert_eq!(
            connection.get_many(&["a".into()]).unwrap(),
            [Some(b"5".to_vec())]
        );
        assert!(connection.set("a", "5").is_err());
        assert!(connection.set("a", "5").is_err());
    }
}

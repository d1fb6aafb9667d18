//! The client's requests to a server, and where an answer ends.

use anyhow::{Result, bail};
use plover_types::SplitMix64;
use std::io::Write;

/// How many keys requests choose from.
const KEYS: u64 = 10_000;

/// A kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Redis: SET and GET by chance, of ten thousand keys.
    Redis,
    /// Redis: INCR of one key that all connections share.
    RedisIncr,
    /// Redis: TIME, whose answer differs between any two machines.
    RedisTime,
    /// The guest `metal`: `DOWNLOAD`, each answer a value.
    MetalDownload,
    /// The guest `metal`: `UPLOAD`, each request a value.
    MetalUpload,
    /// memcached: set and get by chance, of ten thousand keys.
    Memcached,
    /// The same over UDP, each request and each answer in a datagram.
    MemcachedUdp,
}

/// The requests of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct Traffic {
    /// The kind of requests.
    #[arg(long = "traffic", value_enum)]
    pub kind: Kind,
    /// How many of a hundred requests write.
    #[arg(long)]
    pub updates: u64,
    /// The bytes of a value.
    #[arg(long)]
    pub value_bytes: usize,
}

impl Traffic {
    /// Whether it is Redis's protocol.
    pub fn is_of_redis(self) -> bool {
        !matches!(self.kind, Kind::Memcached | Kind::MemcachedUdp)
    }

    /// Whether it goes over UDP.
    pub fn is_datagrams(self) -> bool {
        self.kind == Kind::MemcachedUdp
    }

    /// Adds one request.
    pub fn request(self, random: &mut SplitMix64, out: &mut Vec<u8>) {
        let key = random.range(0, KEYS - 1);
        let writes = random.range(0, 99) < self.updates;
        // Writing into a vector cannot fail.
        let _ = match self.kind {
            Kind::RedisIncr => write!(out, "*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n"),
            Kind::RedisTime => write!(out, "*1\r\n$4\r\nTIME\r\n"),
            Kind::MetalDownload => {
                let bytes = self.value_bytes.to_string();
                let digits = bytes.len();
                write!(out, "*2\r\n$8\r\nDOWNLOAD\r\n${digits}\r\n{bytes}\r\n")
            }
            Kind::MetalUpload => {
                let bytes = self.value_bytes;
                let _ = write!(out, "*2\r\n$6\r\nUPLOAD\r\n${bytes}\r\n");
                out.resize(out.len() + bytes, b'x');
                write!(out, "\r\n")
            }
            _ if writes => write!(out, "{}", self.set(key, random.next_u64())),
            Kind::Redis => write!(out, "*2\r\n$3\r\nGET\r\n$9\r\nkey:{key:05}\r\n"),
            Kind::Memcached | Kind::MemcachedUdp => write!(out, "get key:{key:05}\r\n"),
        };
    }

    /// The request to set a key.
    fn set(self, key: u64, value: u64) -> String {
        let bytes = self.value_bytes;
        let mut value = format!("{value:0bytes$}");
        value.truncate(bytes);
        if self.is_of_redis() {
            return format!("*3\r\n$3\r\nSET\r\n$9\r\nkey:{key:05}\r\n${bytes}\r\n{value}\r\n");
        }
        format!("set key:{key:05} 0 0 {bytes}\r\n{value}\r\n")
    }

    /// Requests that fill the server before anything is measured: `None` after the last.
    pub fn filling(self, number: u64) -> Option<String> {
        let keys = matches!(
            self.kind,
            Kind::Redis | Kind::Memcached | Kind::MemcachedUdp
        );
        (keys && number < KEYS).then(|| self.set(number, number))
    }

    /// The length of the first answer in `bytes`. `None` if part of it is missing.
    ///
    /// # Errors
    /// The server refused the request, or what it says is not its protocol.
    pub fn answer(self, bytes: &[u8]) -> Result<Option<usize>> {
        if self.is_of_redis() {
            resp(bytes)
        } else {
            memcached(bytes)
        }
    }
}

/// The first line without its end, and where the next begins.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

fn resp(bytes: &[u8]) -> Result<Option<usize>> {
    let (mut at, mut wanted) = (0, 1u64);
    while wanted > 0 {
        let Some((text, next)) = line(&bytes[at..]) else {
            return Ok(None);
        };
        wanted -= 1;
        at += next;
        let number = || {
            std::str::from_utf8(text.get(1..)?)
                .ok()?
                .parse::<i64>()
                .ok()
        };
        match (text.first(), number()) {
            (Some(b'+' | b':'), _) => {}
            (Some(b'$'), Some(length)) => {
                at += usize::try_from(length).map_or(0, |length| length + 2);
                if at > bytes.len() {
                    return Ok(None);
                }
            }
            (Some(b'*'), Some(parts)) => wanted += parts.max(0) as u64,
            _ => bail!("the server answers '{}'", String::from_utf8_lossy(text)),
        }
    }
    Ok(Some(at))
}

fn memcached(bytes: &[u8]) -> Result<Option<usize>> {
    let Some((text, next)) = line(bytes) else {
        return Ok(None);
    };
    if text == b"STORED" || text == b"END" {
        return Ok(Some(next));
    }
    let length = text
        .strip_prefix(b"VALUE ")
        .and_then(|rest| rest.rsplit(|byte| *byte == b' ').next())
        .and_then(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok());
    let Some(length) = length else {
        bail!("the server answers '{}'", String::from_utf8_lossy(text));
    };
    let end = next + length + b"\r\nEND\r\n".len();
    Ok((bytes.len() >= end).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn traffic(kind: Kind) -> Traffic {
        Traffic {
            kind,
            updates: 50,
            value_bytes: 8,
        }
    }

    /// Every answer is found whole, and no part of it is taken for an answer.
    #[test]
    fn answers_end_where_they_end() {
        for (kind, answer) in [
            (Kind::Redis, &b"+OK\r\n"[..]),
            (Kind::Redis, b"$8\r\n12345678\r\n"),
            (Kind::Redis, b"$-1\r\n"),
            (Kind::RedisIncr, b":17\r\n"),
            (Kind::RedisTime, b"*2\r\n$10\r\n1700000000\r\n$2\r\n17\r\n"),
            (Kind::Memcached, b"STORED\r\n"),
            (Kind::Memcached, b"END\r\n"),
            (Kind::Memcached, b"VALUE key:00001 0 4\r\n\r\nEN\r\nEND\r\n"),
        ] {
            for end in 0..answer.len() {
                assert_eq!(traffic(kind).answer(&answer[..end]).unwrap(), None, "{end}");
            }
            let two = [answer, b"+OK\r\n"].concat();
            assert_eq!(traffic(kind).answer(&two).unwrap(), Some(answer.len()));
        }
    }

    #[test]
    fn a_refusal_is_an_error_in_the_servers_words() {
        for (kind, answer, words) in [
            (Kind::Redis, &b"-OOM full\r\n"[..], "OOM full"),
            (Kind::Redis, b"\r\n", "answers"),
            (Kind::Memcached, b"SERVER_ERROR out\r\n", "SERVER_ERROR"),
        ] {
            let said = traffic(kind).answer(answer).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn both_kinds_of_requests_come() {
        let mut random = SplitMix64::new(1);
        let mut out = Vec::new();
        (0..1000).for_each(|_| traffic(Kind::Redis).request(&mut random, &mut out));
        let text = String::from_utf8(out).unwrap();
        let sets = text.matches("SET").count();
        assert!((400..600).contains(&sets), "{sets} of 1000");
        assert_eq!(sets + text.matches("GET").count(), 1000);
        assert!(traffic(Kind::Memcached).filling(KEYS).is_none());
        assert!(traffic(Kind::RedisIncr).filling(0).is_none());
    }
}

//! The guests that `guests/build` can make: what each is called, how much memory it needs, and
//! how to find out that its service works.
//!
//! A service works when it answers a question of its own protocol. An open port says less: a server
//! listens before it can serve, and a failed one may still hold its port. It has to do for a service
//! that the lab does not know (`--answers`).

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::str::FromStr;
use std::time::Duration;

/// A guest of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guest {
    /// Redis, without persistence.
    #[default]
    Redis,
    /// The same Redis, with drivers for the network cards of real machines.
    Cards,
    /// The same Redis, which says which of its replies are clean.
    #[serde(rename = "redis-clean")]
    RedisClean,
    /// memcached, which refuses when full.
    Memcached,
    /// nginx with a few static files.
    Nginx,
    /// PostgreSQL on a RAM disk.
    Postgres,
    /// lighttpd with PHP.
    Php,
    /// Node.js.
    Node,
    /// An echo, and the kernel's own noise.
    Idle,
    /// A whole Debian on a disk: systemd, sshd, PostgreSQL.
    Debian,
    /// Writes to its disk, or to a file if it has none, as `plover-storm` tells it to.
    Storm,
    /// The same in a file of an ext4 file system on its disk, with QEMU's guest agent beside it.
    Agent,
    /// A server without a kernel, which runs natively even where KVM emulates a guest's kernel.
    Metal,
}

/// How to find out that a service works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The TCP port on which it answers.
    pub port: u16,
    /// The bytes to send; empty for a service that speaks first.
    pub question: &'static [u8],
    /// The beginning of a working service's answer.
    pub answer: &'static [u8],
}

/// The request for a page.
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n";

/// The beginning of the answer if there is a page.
const OK: &[u8] = b"HTTP/1.1 200";

/// PostgreSQL's start-up packet, protocol 3.0; it answers `R`, for authentication, once clients
/// are let in, and `E` before.
const HELLO: &[u8] = b"\0\0\0\x17\0\x03\0\0user\0postgres\0\0";

const fn probe(port: u16, question: &'static [u8], answer: &'static [u8]) -> Probe {
    Probe {
        port,
        question,
        answer,
    }
}

impl Guest {
    /// Its name in the cache, and the folder of its recipe.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Cards => "cards",
            Self::RedisClean => "redis-clean",
            Self::Memcached => "memcached",
            Self::Nginx => "nginx",
            Self::Postgres => "postgres",
            Self::Php => "php",
            Self::Node => "node",
            Self::Idle => "idle",
            Self::Debian => "debian",
            Self::Storm => "storm",
            Self::Agent => "agent",
            Self::Metal => "metal",
        }
    }

    /// How to find out that its service works.
    pub const fn probe(self) -> Probe {
        match self {
            Self::Redis | Self::Cards | Self::RedisClean | Self::Metal => {
                probe(6379, b"PING\r\n", b"+PONG")
            }
            Self::Memcached => probe(11211, b"version\r\n", b"VERSION "),
            Self::Nginx | Self::Php | Self::Node => probe(80, GET, OK),
            Self::Postgres | Self::Debian => probe(5432, HELLO, b"R"),
            Self::Idle => probe(7, b"plover\n", b"plover\n"),
            Self::Storm | Self::Agent => probe(7788, b"", b"plover-storm "),
        }
    }

    /// The command that makes its image.
    pub fn script(self) -> String {
        match self {
            Self::Debian => "guests/build-disk".into(),
            _ => format!("guests/build {}", self.name()),
        }
    }

    /// Whether its image is a disk with a whole system, which firmware can boot.
    pub const fn is_disk(self) -> bool {
        matches!(self, Self::Debian)
    }

    /// The memory it needs in MiB, if that is more than a guest has by default.
    pub const fn mem_mib(self) -> Option<u32> {
        match self {
            Self::Postgres | Self::Node | Self::Debian => Some(512),
            _ => None,
        }
    }
}

impl FromStr for Guest {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        ValueEnum::from_str(name, false)
    }
}

impl Probe {
    /// A connection to `port` is enough of an answer.
    pub const fn connection(port: u16) -> Self {
        probe(port, b"", b"")
    }

    /// Asks the service at `address`. `patience` bounds connecting, and each wait after it.
    ///
    /// # Errors
    /// When it cannot be reached, says nothing, or something else.
    pub fn ask(self, address: SocketAddrV4, patience: Duration) -> io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address.into(), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(self.question)?;
        let mut answer = vec![0; self.answer.len()];
        stream.read_exact(&mut answer)?;
        if answer == self.answer {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&answer);
        Err(Error::new(
            ErrorKind::InvalidData,
            format!("unexpected answer {text:?}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::Path;

    #[test]
    fn every_guest_has_a_recipe_and_a_name_of_its_own() {
        let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests");
        for guest in Guest::value_variants() {
            assert_eq!(guest.name().parse(), Ok(*guest));
            let folder = recipes.join(guest.name());
            let recipe = ["recipe", "packages", "build"].map(|name| folder.join(name).exists());
            assert!(recipe.contains(&true), "{} is missing", folder.display());
        }
    }

    /// Asks a service that sends `says` to every client.
    fn ask(says: &'static [u8]) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(says).unwrap();
            // Reads the question: closing with unread input would reset the connection.
            let mut question = [0; 6];
            stream.read_exact(&mut question).unwrap();
        });
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let answer = Guest::Redis.probe().ask(address, Duration::from_secs(10));
        service.join().unwrap();
        answer
    }

    #[test]
    fn a_connection_is_enough_for_an_unknown_service() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ask = || {
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
            Probe::connection(port).ask(address, Duration::from_secs(10))
        };
        ask().unwrap();
        drop(listener);
        assert!(ask().is_err());
    }

    #[test]
    fn only_the_right_answer_counts() {
        ask(b"+PONG\r\n").unwrap();
        assert!(ask(b"-LOADING\r\n").is_err());
        assert!(ask(b"+PO").is_err());
    }
}

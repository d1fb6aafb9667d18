//! memcached. It keeps nothing on a disk, so it has no checkpoints: the log holds all input since its start.

use crate::programs::subject::{Client, Subject, Wrong};
use anyhow::{Result, bail};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct Memcached;

impl Subject for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    /// One worker thread: several of them execute the inputs of different connections in any order.
    fn command(&self, _files: &Path) -> Vec<String> {
        let port = self.port().to_string();
        [
            "memcached",
            "-u",
            "root",
            "-l",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "0",
            "-t",
            "1",
        ]
        .map(String::from)
        .into()
    }

    fn log_mib(&self) -> u32 {
        256
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        let stream = TcpStream::connect_timeout(&at.into(), patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Box::new(Text(BufReader::new(stream))))
    }
}

/// A connection that speaks memcached's text protocol, as `nc` would.
struct Text(BufReader<TcpStream>);

impl Text {
    fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.0.get_mut().write_all(text.as_bytes())?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        if !line.ends_with('\n') {
            bail!("the connection has ended");
        }
        Ok(line.trim_end().into())
    }
}

impl Client for Text {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        self.send(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()))?;
        match self.line()?.as_str() {
            "STORED" => Ok(()),
            other => Err(Wrong(other.into()).into()),
        }
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        self.send(&format!("get {}\r\n", keys.join(" ")))?;
        let mut values = vec![None; keys.len()];
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["END"] => return Ok(values),
                ["VALUE", key, _, bytes] => {
                    let mut value = vec![0; bytes.parse::<usize>()? + 2];
                    self.0.read_exact(&mut value)?;
                    value.truncate(value.len() - 2);
                    let value = String::from_utf8_lossy(&value).into_owned();
                    if let Some(at) = keys.iter().position(|it| it == key) {
                        values[at] = Some(value);
                    }
                }
                _ => return Err(Wrong(line).into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn an_answer_that_is_cut_off_is_no_wrong_answer() {
        let answered = |answer: &'static [u8]| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(answer).unwrap();
            });
            let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
            let client = Memcached.open(Path::new("/"), at, Duration::from_secs(10));
            let written = client.unwrap().write("a", "1");
            server.join().unwrap();
            written.map_err(|error| error.is::<Wrong>())
        };
        assert_eq!(answered(b"STORED\r\n"), Ok(()));
        assert_eq!(answered(b"STO"), Err(false));
        assert_eq!(answered(b"NOT_STORED\r\n"), Err(true));
    }
}

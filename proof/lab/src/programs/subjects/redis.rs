//! Redis, with checkpoints by `SAVE`.

use crate::programs::subject::{Client, Subject, Wrong};
use crate::redis::Connection;
use anyhow::Result;
use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

#[derive(Debug)]
pub struct Redis;

impl Subject for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn command(&self, _files: &Path) -> Vec<String> {
        let port = self.port().to_string();
        [
            "redis-server",
            "--port",
            &port,
            "--save",
            "",
            "--loglevel",
            "warning",
            // A preloaded Redis sees that its clients are on other hosts.
            "--protected-mode",
            "no",
        ]
        .map(String::from)
        .into()
    }

    fn keys(&self) -> String {
        // It listens before it has loaded its data.
        let port = self.port();
        format!(
            "snapshot_cmd = \"redis-cli -e -p {port} save\"\nready_cmd = \"redis-cli -p {port} ping | grep -q PONG\""
        )
    }

    fn open(&self, _files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>> {
        Ok(Box::new(Connection::open(at, patience)?))
    }
}

impl Client for Connection {
    fn write(&mut self, key: &str, value: &str) -> Result<()> {
        self.set(key, value).map_err(judge)
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>> {
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        let values = self.get_many(keys).map_err(judge)?;
        Ok(values.into_iter().map(|value| value.map(text)).collect())
    }
}

/// Whether an answer was wrong. After a refusal, or without an answer, the request may have been executed or not.
fn judge(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::InvalidData => Wrong(error.to_string()).into(),
        _ => error.into(),
    }
}

//! A program, as far as a trial needs to know it.

use super::subjects::{clamav, gerbera, mariadb, memcached, nginx, openldap, redis};
use anyhow::{Context, Result};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

/// A server program.
pub trait Subject: fmt::Debug + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The port on which it listens.
    fn port(&self) -> u16 {
        6380
    }

    /// Writes the configuration files that all replicas share into `files`.
    ///
    /// # Errors
    /// They cannot be written.
    fn set_up(&self, files: &Path) -> Result<()> {
        let _ = files;
        Ok(())
    }

    /// The program and its arguments. It starts in an empty directory, or in that of a checkpoint.
    fn command(&self, files: &Path) -> Vec<String>;

    /// Where it listens on this host.
    fn address(&self, host: usize) -> Ipv4Addr {
        let _ = host;
        Ipv4Addr::LOCALHOST
    }

    /// Lines that are added to `[program]`.
    fn keys(&self) -> String {
        String::new()
    }

    /// How much input the log holds, in MiB. A little, so that checkpoints are taken.
    fn log_mib(&self) -> u32 {
        2
    }

    /// A client, connected to `at`. Each of its answers may take `patience`.
    ///
    /// # Errors
    /// No connection.
    fn open(&self, files: &Path, at: SocketAddrV4, patience: Duration) -> Result<Box<dyn Client>>;

    /// How many keys are read with one request.
    fn keys_at_once(&self) -> usize {
        50
    }

    /// Whether a second write to a key replaces the first, so that keys can be used as registers.
    fn replaces(&self) -> bool {
        true
    }
}

/// A client of a program.
pub trait Client {
    /// Writes; returns when the write is acknowledged.
    ///
    /// # Errors
    /// No answer has come: the write may have happened or not. [`Wrong`]: the answer is not what it should be.
    fn write(&mut self, key: &str, value: &str) -> Result<()>;

    /// Reads the values of some keys.
    ///
    /// # Errors
    /// No answer.
    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<String>>>;
}

/// A program has given a wrong answer.
#[derive(Debug, thiserror::Error)]
#[error("a wrong answer: {0}")]
pub struct Wrong(pub String);

/// Every program.
pub const ALL: [&dyn Subject; 7] = [
    &redis::Redis,
    &memcached::Memcached,
    &mariadb::MariaDb,
    &openldap::OpenLdap,
    &clamav::ClamAv,
    &gerbera::Gerbera,
    &nginx::Nginx,
];

/// The program of this name.
///
/// # Errors
/// There is none; the error lists them.
pub fn named(name: &str) -> Result<&'static dyn Subject> {
    let found = ALL.into_iter().find(|it| it.name() == name);
    found.with_context(|| {
        let names: Vec<&str> = ALL.iter().map(|it| it.name()).collect();
        format!("no program '{name}': it is one of {}", names.join(", "))
    })
}

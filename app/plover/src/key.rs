//! `plover key`: the keys by which replicas know each other.

use crate::output;
use anyhow::{Context, Result};
use clap::Subcommand;
use plover_fabric::keys::{Holder, PrivateKey, PublicKey, trust};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a replica's private key, and print its public key.
    ///
    /// Run it on the replica's host: the private key never leaves it. A file that is there is not overwritten. Afterwards
    /// trust the public key on all hosts of the group.
    #[command(after_help = "Example:\n  plover key new /etc/plover/shop-db.key")]
    New {
        /// The file for the private key: `group.key_file` in the configuration. Only its owner can read it.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the public key that belongs to a private key.
    #[command(after_help = "Example:\n  plover key show /etc/plover/shop-db.key")]
    Show {
        /// The file with the private key.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Trust a public key as one of a replica, or of a client of a log.
    ///
    /// Replicas that run read the file again. A replica may have several
    /// keys: to change one, trust the new key on all hosts, give the replica its new private key and start it again, then
    /// remove the line with the old key on all hosts.
    #[command(
        after_help = "Example:\n  plover key trust /etc/plover/shop-db.trust 1 ed25519:5e8a…"
    )]
    Trust {
        /// The file with the public keys: `group.trust_file` in the configuration. It is made if it is missing.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The id of the replica that has the key. For a client of `plover log`: `client`, which may append and read, or
        /// `admin`, which may change the members as well.
        #[arg(value_name = "ID")]
        holder: Holder,
        /// The public key, as `plover key new` and `plover key show` print it.
        #[arg(value_name = "KEY")]
        key: PublicKey,
    },
}

pub fn run(command: KeyCommand) -> Result<ExitCode> {
    match command {
        KeyCommand::New { file } => {
            let key = PrivateKey::generate().context("the kernel gives no random bytes")?;
            key.write_new(&file)?;
            output::line(format_args!("{}", key.public()))?;
        }
        KeyCommand::Show { file } => {
            output::line(format_args!("{}", PrivateKey::read(&file)?.public()))?;
        }
        KeyCommand::Trust { file, holder, key } => {
            let is_new = trust(&file, holder, key)?;
            let verb = if is_new {
                "now trusts"
            } else {
                "trusts already"
            };
            let file = file.display();
            let whose = match holder {
                Holder::Replica(id) => format!("replica {}", id.0),
                Holder::Client => "a client".into(),
                Holder::Admin => "an administrator".into(),
            };
            output::line(format_args!("{file} {verb} this key of {whose}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

//! `plover tap`: makes the TAP devices of a configuration that names their bridges. The service does it before each start,
//! since the replica itself has no right to.
//!
//! A device that is made here has an alias that names the group. No other one is changed or removed: an operator has made it,
//! or it is another guest's.

use anyhow::{Context, Result, bail, ensure};
use plover_node::{Attached, ReplicaConfig};
use plover_types::Mac;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The first byte of a TAP's own address: that of a bridge is the lowest of its ports', and is not to change with them.
const MAC_BEGINS: u8 = 0xfe;

/// Makes them, for the replica to run as `user`; or removes them.
pub fn run(config: &Path, user: Option<&str>, remove: bool) -> Result<ExitCode> {
    let config = ReplicaConfig::load(config)?;
    let alias = format!("plover {}", config.group.name);
    for card in config.attached() {
        match card.bridge {
            Some(_) if remove => self::remove(card.tap, &alias)?,
            Some(bridge) => make(card, bridge, &alias, user.unwrap_or("root"))?,
            None => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the TAP a port of `bridge`, which is up.
fn make(card: Attached<'_>, bridge: &str, alias: &str, user: &str) -> Result<()> {
    let tap = card.tap;
    let found = of_device(tap, "ifindex").map(|_| of_device(tap, "ifalias").unwrap_or_default());
    if let Some(found) = &found {
        let owner = of_device(tap, "owner");
        let owner = owner.with_context(|| {
            format!("there is a device '{tap}' that is no TAP: give `tap` another name")
        })?;
        ensure!(
            !found.starts_with("plover ") || found == alias,
            "the TAP device '{tap}' is another guest's, {}: give `tap` another name",
            found.trim_start_matches("plover ")
        );
        ensure!(
            owner == uid(user)?,
            "the TAP device '{tap}' is there already, and is not {user}'s but that of the user with the number {owner}: \
             remove it by `ip link del {tap}`, or give `tap` another name"
        );
        if found != alias {
            return Ok(());
        }
    }
    ensure!(
        is_bridge(bridge),
        "there is no bridge '{bridge}' on this host, which the configuration names for the TAP device '{tap}': make it as \
         docs/networks.md says"
    );
    if found.is_none() {
        // Without an owner it would be everybody's.
        ip(&["tuntap", "add", tap, "mode", "tap", "user", user])?;
        ip(&["link", "set", tap, "alias", alias])?;
    }
    let Mac(mut own) = card.mac;
    own[0] = MAC_BEGINS;
    // A bridge's frames are no longer than its ports take.
    let mtu = of_device(bridge, "mtu").unwrap_or_else(|| "1500".into());
    ip(&[
        "link",
        "set",
        tap,
        "address",
        &Mac(own).to_string(),
        "mtu",
        &mtu,
    ])?;
    ip(&["link", "set", tap, "master", bridge, "up"])
}

fn remove(tap: &str, alias: &str) -> Result<()> {
    match of_device(tap, "ifalias") {
        Some(found) if found == alias => ip(&["link", "del", tap]),
        _ => Ok(()),
    }
}

/// Whether this host has a bridge of this name.
pub fn is_bridge(name: &str) -> bool {
    device(name, "bridge").exists()
}

/// A file of a network device in `/sys`.
pub fn of_device(device: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(self::device(device, key)).ok()?;
    Some(text.trim().to_owned())
}

fn device(name: &str, key: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name).join(key)
}

/// The number of this user.
fn uid(user: &str) -> Result<String> {
    let asked = Command::new("id").args(["-u", user]).output();
    let asked = asked.context("cannot run 'id' (package coreutils)")?;
    ensure!(
        asked.status.success(),
        "there is no user '{user}' on this host"
    );
    Ok(String::from_utf8_lossy(&asked.stdout).trim().to_owned())
}

fn ip(words: &[&str]) -> Result<()> {
    let asked = Command::new("ip").args(words).output();
    let asked = asked.context("cannot run 'ip' (package iproute2)")?;
    if !asked.status.success() {
        let why = String::from_utf8_lossy(&asked.stderr);
        bail!("`ip {}` failed: {}", words.join(" "), why.trim());
    }
    Ok(())
}

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

/// The first byte of a TAP's own address, where the guest's begins with something else: that of a bridge is the lowest of its
/// ports', and is not to change with them.
const MAC_BEGINS: [u8; 2] = [0xfe, 0xfa];

/// Where the kernel shows the network devices.
const DEVICES: &str = "/sys/class/net";

/// Makes them, for the replica to run as `user`; or removes them.
pub fn run(config: &Path, user: Option<&str>, remove: bool) -> Result<ExitCode> {
    let config = ReplicaConfig::load(config)?;
    let alias = format!("plover {}", config.group.name);
    let kept: Vec<_> = config
        .attached()
        .filter(|_| !remove)
        .filter_map(|card| Some((card, card.bridge?)))
        .collect();
    // Also those that an earlier file named.
    for tap in made_before(&alias) {
        if !kept.iter().any(|(card, _)| card.tap == tap) && !is_in_use(&tap) {
            ip(&["link", "del", &tap])?;
        }
    }
    for (card, bridge) in kept {
        make(card, bridge, &alias, user.unwrap_or("root"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The devices with this alias.
fn made_before(alias: &str) -> Vec<String> {
    let entries = std::fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| of_device(name, "ifalias").is_some_and(|found| found == alias))
        .collect()
}

/// Whether a replica has the TAP, such as one that was started by hand.
fn is_in_use(tap: &str) -> bool {
    of_device(tap, "carrier").is_some_and(|carrier| carrier == "1")
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
            "the TAP device '{tap}' is another guest's, {}: give `tap` another name, or if that guest is no more remove it by \
             `ip link del {tap}`",
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
        ip(&["link", "set", tap, "alias", alias]).inspect_err(|_| {
            let _ = ip(&["link", "del", tap]);
        })?;
    }
    let Mac(mut own) = card.mac;
    own[0] = match MAC_BEGINS {
        [first, second] if own[0] == first => second,
        [first, _] => first,
    };
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
    Path::new(DEVICES).join(name).join(key)
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

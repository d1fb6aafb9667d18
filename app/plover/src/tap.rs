//! `plover tap`: makes the TAP devices of a configuration that names their bridges. The service does it before each start,
//! since the replica itself has no right to.

use anyhow::{Context, Result, bail, ensure};
use plover_node::ReplicaConfig;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Makes them, for the replica to run as `user`; or removes them.
pub fn run(config: &Path, user: Option<&str>, remove: bool) -> Result<ExitCode> {
    let config = ReplicaConfig::load(config)?;
    for card in config.attached() {
        match card.bridge {
            Some(_) if remove => self::remove(card.tap)?,
            Some(bridge) => make(card.tap, bridge, user)?,
            None => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes this TAP a port of `bridge`, which is up.
fn make(tap: &str, bridge: &str, user: Option<&str>) -> Result<()> {
    ensure!(
        is_bridge(bridge),
        "there is no bridge '{bridge}' on this host, which the configuration names for the TAP device '{tap}': make it as docs/networks.md says"
    );
    if of_device(tap, "ifindex").is_none() {
        let mut add = vec!["tuntap", "add", tap, "mode", "tap"];
        if let Some(user) = user {
            add.extend(["user", user]);
        }
        ip(&add)?;
    } else {
        let owner = of_device(tap, "owner").with_context(|| {
            format!("there is a device '{tap}' that is no TAP: give `tap` another name")
        })?;
        if let Some(user) = user {
            let wanted = uid(user)?;
            ensure!(
                owner == wanted,
                "the TAP device '{tap}' is there already, and is not {user}'s but that of the user with the number {owner}: \
                 remove it by `ip link del {tap}`, or give `tap` another name"
            );
        }
    }
    // A bridge's frames are no longer than its ports take.
    let mtu = of_device(bridge, "mtu").unwrap_or_else(|| "1500".into());
    ip(&["link", "set", tap, "mtu", &mtu, "master", bridge, "up"])
}

fn remove(tap: &str) -> Result<()> {
    match of_device(tap, "tun_flags") {
        Some(_) => ip(&["link", "del", tap]),
        None => Ok(()),
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

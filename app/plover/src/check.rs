//! `plover check`: whether a host has what its replica needs, before it is started.
//!
//! Nothing is changed: the disk is timed with a file that is removed again, and peers are only connected to.

mod disks;
mod guest;
mod others;
mod processors;
mod service;
mod state;
mod together;

use crate::capacity;
use crate::output;
use crate::tap::{is_bridge, of_device};
use anyhow::Result;
pub use guest::{IMAGE, guest};
use plover_lab::control::Control;
use plover_node::{Attached, ReplicaConfig};
use plover_types::ReplicaSet;
use plover_vm::{Accel, QemuConfig};
pub use processors::processors;
use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A peer that has not answered after this time is not reached.
const PEER_WITHIN: Duration = Duration::from_secs(2);
/// Connections to a peer, of which the quickest counts.
const PEER_TRIES: usize = 5;
/// The replica of this host, if it runs, has not answered after this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Frames of this size reach clients unfragmented. Replicas' connections adapt to any size; larger frames cost less CPU.
const MTU_USUAL: u32 = 1500;
/// IFF_TAP and IFF_NO_PI of `linux/if_tun.h`.
const TAP_FLAGS: u32 = 0x1002;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works, and could be better.
    Weak,
    /// The replica cannot work without it.
    Missing,
}

/// One line of the table.
#[derive(Debug)]
struct Row {
    what: String,
    verdict: Verdict,
    /// The state of the thing; if it is not good, also the remedy.
    found: String,
}

/// Looks at everything, prints a table, and fails if something is missing. If `is_together`, measures the ways to the other hosts
/// as well, which do the same.
pub fn run(file: &Path, is_together: bool) -> Result<ExitCode> {
    let config = ReplicaConfig::load(file)?;
    let mut report = Report::default();
    if is_together {
        together::together(&mut report, &config)?;
    }
    hypervisor(&mut report, &config);
    memory(&mut report, &config);
    network(&mut report, &config);
    keys(&mut report, &config);
    peers(&mut report, &config);
    state::state(&mut report, &config);
    disks::disks(&mut report, &config);
    service::service(&mut report, file, &config);
    others::others(&mut report, file, &config);
    output::print(&report)?;
    Ok(report.exit_code())
}

struct Report {
    rows: Vec<Row>,
    /// The last line if nothing is missing, and (`bad`) if something is.
    good: &'static str,
    bad: &'static str,
}

impl Default for Report {
    fn default() -> Self {
        Self::of(
            "the replica can run here",
            "the replica cannot run here yet",
        )
    }
}

impl Report {
    fn of(good: &'static str, bad: &'static str) -> Self {
        let rows = Vec::new();
        Self { rows, good, bad }
    }

    fn add(&mut self, what: impl Into<String>, verdict: Verdict, found: impl Into<String>) {
        self.rows.push(Row {
            what: what.into(),
            verdict,
            found: found.into(),
        });
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }

    fn exit_code(&self) -> ExitCode {
        let missing = self.count(Verdict::Missing);
        ExitCode::from(if missing == 0 { 0 } else { 2 })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .rows
            .iter()
            .map(|row| row.what.len())
            .max()
            .unwrap_or(0);
        for row in &self.rows {
            let verdict = match row.verdict {
                Verdict::Good => "ok",
                Verdict::Weak => "weak",
                Verdict::Missing => "MISSING",
            };
            writeln!(f, "{:<width$}  {verdict:<7}  {}", row.what, row.found)?;
        }
        match (self.count(Verdict::Missing), self.count(Verdict::Weak)) {
            (0, 0) => writeln!(f, "\n{}", self.good),
            (0, weak) => writeln!(f, "\n{}; weak: {weak}", self.good),
            (missing, _) => writeln!(f, "\n{}; missing: {missing}", self.bad),
        }
    }
}

/// Kernel, QEMU and processors.
fn hypervisor(report: &mut Report, config: &ReplicaConfig) {
    let qemu = config.qemu();
    let kernel = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    match plover_vm::check_host(&qemu) {
        Ok(()) => {
            let found = format!("Linux {kernel}; QEMU logs written pages and loads device state");
            report.add("kernel and QEMU", Verdict::Good, found);
            accelerator(report, &qemu);
            processors::model(report, &qemu);
        }
        Err(error) => report.add("kernel and QEMU", Verdict::Missing, error.to_string()),
    }
    let cpus = plover_node::usable_cpus().map_or(0, |cpus| cpus.len());
    let wanted = qemu.vcpus as usize + 1;
    let found = format!("{cpus} for {} of the guest and the replica", qemu.vcpus);
    if cpus >= wanted {
        report.add("processors", Verdict::Good, found);
    } else {
        let found = format!("{found}: outputs wait for each other; {wanted} would do");
        report.add("processors", Verdict::Weak, found);
    }
}

fn accelerator(report: &mut Report, qemu: &QemuConfig) {
    let choice = plover_vm::choose_accel(qemu);
    match choice.accel {
        Accel::Kvm => report.add("accelerator", Verdict::Good, choice.reason),
        _ => report.add(
            "accelerator",
            Verdict::Weak,
            format!(
                "{}; the guest is emulated, some ten times slower",
                choice.reason
            ),
        ),
    }
}

fn memory(report: &mut Report, config: &ReplicaConfig) {
    let control = Control::in_run_dir(&config.paths.run_dir).within(ANSWER_WITHIN);
    let role = control.status().map(|status| status.role);
    if role.is_ok_and(|role| role == "leader" || role == "secondary") {
        return report.add(
            "memory",
            Verdict::Good,
            "the replica runs, and holds the guest",
        );
    }
    let needed = capacity::of_replica(config);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(available) = capacity::mib_of(&text, "MemAvailable:") else {
        return report.add("memory", Verdict::Weak, "/proc/meminfo does not tell");
    };
    let found = format!("{available} MiB are free, {needed} needed");
    if available >= needed {
        return report.add("memory", Verdict::Good, found);
    }
    let found = format!("{found}: free some, or lower guest.mem_mib on all hosts");
    let is_short_for_the_guest = available < config.guest.mem_mib.into();
    let verdict = if is_short_for_the_guest {
        Verdict::Missing
    } else {
        Verdict::Weak
    };
    report.add("memory", verdict, found);
}

/// The kernel's device by which a program has a TAP device.
const TUN: &str = "/dev/net/tun";

/// The TAP device and the uplink.
fn network(report: &mut Report, config: &ReplicaConfig) {
    let open = std::fs::File::options().read(true).write(true).open(TUN);
    if let Some(error) = open
        .err()
        .filter(|it| it.kind() == ErrorKind::PermissionDenied)
    {
        let found = format!("{error}, so no TAP device can be used: chmod 666 {TUN}");
        report.add(TUN, Verdict::Missing, found);
    }
    config.attached().for_each(|card| self::card(report, card));
}

fn card(report: &mut Report, card: Attached<'_>) {
    let Attached {
        tap,
        bridge,
        uplink,
        ..
    } = card;
    let what = format!("TAP {tap}");
    let is_made = bridge.filter(|_| of_device(tap, "ifindex").is_none());
    let told = |key: &str| of_device(tap, key);
    let flags = told("tun_flags").and_then(|text| {
        let digits = text.trim_start_matches("0x").to_owned();
        u32::from_str_radix(&digits, 16).ok()
    });
    let make =
        format!("ip tuntap add {tap} mode tap user plover && ip link set {tap} master BRIDGE up");
    match (flags, is_made) {
        (None, _) if !Path::new(TUN).exists() => report.add(
            what,
            Verdict::Missing,
            "this kernel has no TAP devices: run `modprobe tun`",
        ),
        (None, Some(bridge)) if !is_bridge(bridge) => report.add(
            what,
            Verdict::Missing,
            format!("there is no bridge {bridge} to make it a port of: see docs/networks.md"),
        ),
        (None, Some(bridge)) => report.add(
            what,
            Verdict::Good,
            format!("the service makes it, a port of {bridge}"),
        ),
        (None, None) if told("ifindex").is_some() => report.add(
            what,
            Verdict::Missing,
            format!("there is a device of this name that is no TAP; take another one: {make}"),
        ),
        (None, None) => report.add(what, Verdict::Missing, format!("there is none: {make}")),
        (Some(flags), _) if flags & TAP_FLAGS != TAP_FLAGS => report.add(
            what,
            Verdict::Missing,
            "it is a TUN device, or adds packet information: make it with `ip tuntap add mode tap`",
        ),
        (Some(_), _) if told("flags").is_some_and(|flags| !is_up(&flags)) => {
            let found = format!("it is down: ip link set {tap} up");
            report.add(what, Verdict::Missing, found);
        }
        (Some(_), _) => match bridge_of(tap) {
            Some(bridge) => report.add(what, Verdict::Good, format!("a port of {bridge}")),
            None => report.add(
                what,
                Verdict::Weak,
                format!(
                    "it is no port of a bridge; unless you route: ip link set {tap} master BRIDGE"
                ),
            ),
        },
    }
    let Some(uplink) = uplink else {
        return report.add(
            format!("uplink of {tap}"),
            Verdict::Weak,
            "the configuration names none, so a leader whose cable is pulled keeps the guest",
        );
    };
    let what = format!("uplink {uplink}");
    let bridge = bridge_of(tap).or_else(|| bridge.map(str::to_owned));
    match (of_device(uplink, "carrier").as_deref(), bridge) {
        (Some("1"), Some(bridge)) if bridge_of(uplink).as_ref() != Some(&bridge) => report.add(
            what,
            Verdict::Weak,
            format!("it is no port of {bridge}, to which {tap} belongs: make sure that the clients' way leads through it"),
        ),
        (Some("1"), _) => report.add(what, Verdict::Good, "it has a carrier"),
        _ if of_device(uplink, "ifindex").is_none() => {
            report.add(
                what,
                Verdict::Missing,
                "there is no such device: see `ip link`",
            );
        }
        _ => report.add(
            what,
            Verdict::Missing,
            "it has no carrier: see its cable, or `ip link`",
        ),
    }
}

/// The bridge that a network device is a port of.
fn bridge_of(device: &str) -> Option<String> {
    let master = std::fs::read_link(format!("/sys/class/net/{device}/master")).ok()?;
    Some(master.file_name()?.to_string_lossy().into_owned())
}

/// Whether IFF_UP is among a device's flags.
fn is_up(flags: &str) -> bool {
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 1)
}

/// The keys of the links between the hosts.
fn keys(report: &mut Report, config: &ReplicaConfig) {
    let group = &config.group;
    let (verdict, found) = match group.keys(ReplicaSet::EMPTY) {
        Ok(Some(keys)) => (
            Verdict::Good,
            format!("this host shows {}, and all others have keys", keys.public()),
        ),
        Ok(None) if group.plaintext => (
            Verdict::Weak,
            "group.plaintext = true: anybody on the network between the replicas reads and changes everything".into(),
        ),
        Ok(None) => (Verdict::Good, "none are needed: the replicas do not leave this host".into()),
        Err(error) => (Verdict::Missing, error.to_string()),
    };
    report.add("keys", verdict, found);
}

/// This replica's address, and the way to the others.
fn peers(report: &mut Report, config: &ReplicaConfig) {
    for peer in &config.group.replica {
        let address = peer.address;
        if peer.id == config.group.me {
            let what = format!("own address {address}");
            match TcpListener::bind(address) {
                Ok(_) => report.add(what, Verdict::Good, "it is this host's, and free"),
                Err(error) if error.kind() == ErrorKind::AddrInUse => report.add(
                    what,
                    Verdict::Weak,
                    "it is in use: by this replica, if that runs already",
                ),
                Err(error) => report.add(
                    what,
                    Verdict::Missing,
                    format!("{error}: is group.me right, and is the address on this host?"),
                ),
            }
            continue;
        }
        let what = format!("replica {} at {address}", peer.id);
        match reach(address) {
            Ok((took, listens)) => {
                let us = took.as_micros();
                let plover = if listens {
                    "its replica listens"
                } else {
                    "its replica does not run yet"
                };
                let (verdict, mtu) = match mtu_towards(address) {
                    Some((device, mtu)) if mtu < MTU_USUAL => {
                        (Verdict::Weak, format!("; {device} has an MTU of {mtu} only"))
                    }
                    Some((device, mtu)) => (Verdict::Good, format!("; MTU {mtu} on {device}")),
                    None => (Verdict::Good, String::new()),
                };
                report.add(what, verdict, format!("reached in {us} us, {plover}{mtu}"));
            }
            Err(error) => report.add(
                what,
                Verdict::Missing,
                format!("not reached ({error}): see the cable, the route, and the firewall on both hosts"),
            ),
        }
    }
}

/// The quickest of some connections to a host, and whether somebody listens there. A refusal is an answer, too.
fn reach(address: SocketAddr) -> std::io::Result<(Duration, bool)> {
    let mut best: Option<(Duration, bool)> = None;
    for _ in 0..PEER_TRIES {
        let begun = Instant::now();
        let listens = match TcpStream::connect_timeout(&address, PEER_WITHIN) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => false,
            Err(error) => return Err(error),
        };
        let took = begun.elapsed();
        if best.is_none_or(|(quickest, _)| took < quickest) {
            best = Some((took, listens));
        }
        if listens {
            // A replica notes every stranger; one is enough.
            break;
        }
    }
    best.ok_or_else(|| ErrorKind::TimedOut.into())
}

/// The device by which an address is reached, and its MTU.
fn mtu_towards(address: SocketAddr) -> Option<(String, u32)> {
    let route = std::process::Command::new("ip")
        .args(["-o", "route", "get", &address.ip().to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8(route.stdout).ok()?;
    let mut words = text.split_ascii_whitespace();
    let device = words
        .find(|word| *word == "dev")
        .and_then(|_| words.next())?;
    let mtu = of_device(device, "mtu")?.parse().ok()?;
    Some((device.to_owned(), mtu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_ends_with_a_verdict() {
        let mut report = Report::default();
        report.add("kernel", Verdict::Good, "it is new enough");
        assert!(report.to_string().ends_with("\nthe replica can run here\n"));
        report.add("accelerator", Verdict::Weak, "none");
        assert!(report.to_string().contains("can run here; weak: 1"));
        report.add("memory", Verdict::Missing, "all of it");
        let text = report.to_string();
        assert!(text.contains("memory       MISSING  all of it\n"), "{text}");
        assert!(text.ends_with("cannot run here yet; missing: 1\n"));
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(reach(address).unwrap().1, "somebody listens");
        drop(listener);
        assert!(!reach(address).unwrap().1, "nobody does");
    }

    #[test]
    fn devices_tell_of_themselves() {
        assert!(of_device("lo", "mtu").is_some());
        assert!(of_device("no-such-device", "mtu").is_none());
        assert!(is_up("0x1003") && !is_up("0x1002"));
    }
}

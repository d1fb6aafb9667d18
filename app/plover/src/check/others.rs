//! Other guests with a replica on this host: what they must not share.

use super::{Report, Verdict};
use crate::capacity;
use plover_node::ReplicaConfig;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Compares this replica's configuration with all others in its folder.
pub fn others(report: &mut Report, file: &Path, config: &ReplicaConfig) {
    let mut others = Vec::new();
    for (path, read) in configurations_beside(file) {
        match read {
            Ok(other) => others.push((path, other)),
            Err(why) => report.add(
                format!("beside {}", path.display()),
                Verdict::Weak,
                format!("not compared: {why}"),
            ),
        }
    }
    let before = report.rows.len();
    for (path, other) in &others {
        for (verdict, found) in clashes(config, other) {
            report.add(format!("beside {}", path.display()), verdict, found);
        }
    }
    if report.rows.len() == before && !others.is_empty() {
        let found = format!("{} with a replica here; they share nothing", others.len());
        report.add("other guests", Verdict::Good, found);
    }
    // A spare replica waits, and takes nearly nothing.
    let members = || others.iter().filter(|(_, other)| !other.group.is_spare());
    let all = || members().map(|(_, other)| other).chain([config]);
    if let Some(host) = capacity::of_host().filter(|_| !others.is_empty()) {
        memory_of_all(report, all().map(capacity::of_replica).sum(), host);
    }
    let cpus = plover_node::usable_cpus().map_or(0, |cpus| cpus.len());
    if !others.is_empty() {
        let vcpus = all().map(|one| one.qemu().vcpus as usize).sum();
        processors_of_all(report, vcpus, cpus);
    }
}

fn memory_of_all(report: &mut Report, needed: u64, total: u64) {
    let mut found = format!("{needed} MiB of the {total} that this host has for replicas");
    let verdict = if needed <= total {
        Verdict::Good
    } else {
        found += ": they do not fit all at once; move one to another host";
        Verdict::Weak
    };
    report.add("memory of all guests", verdict, found);
}

fn processors_of_all(report: &mut Report, vcpus: usize, cpus: usize) {
    let found = format!("{vcpus} vCPUs on {cpus}");
    let what = "processors of all guests";
    if vcpus <= cpus {
        return report.add(what, Verdict::Good, found);
    }
    let found = format!("{found}: guests that work at once wait for each other");
    report.add(what, Verdict::Weak, found);
}

/// The configurations of other replicas in the folder of `file`, or why one, or the folder, could not be read. Files of another
/// kind are left out.
fn configurations_beside(file: &Path) -> Vec<(PathBuf, Result<ReplicaConfig, String>)> {
    let own = std::fs::canonicalize(file).ok();
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries.flatten(),
        Err(error) => return vec![(folder.to_path_buf(), Err(error.to_string()))],
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|ending| ending == "toml")
            && std::fs::canonicalize(path).ok() != own
    });
    paths.sort();
    let all = paths.into_iter().filter_map(|path| {
        let read = ReplicaConfig::load(&path).map_err(|error| error.to_string());
        let is_of_another_kind = read.is_err() && !is_of_a_guest(&path);
        (!is_of_another_kind).then_some((path, read))
    });
    all.collect()
}

/// Whether a file that is no configuration is meant to be one.
fn is_of_a_guest(path: &Path) -> bool {
    match std::fs::read_to_string(path) {
        Ok(text) => text.lines().any(|line| line.trim() == "[guest]"),
        Err(_) => true,
    }
}

/// All that two replicas would take from each other on one host, each with the remedy.
fn clashes(config: &ReplicaConfig, other: &ReplicaConfig) -> Vec<(Verdict, String)> {
    let mut found = Vec::new();
    let mut missing = |what: String| found.push((Verdict::Missing, what));
    if let Some(own) = address(config).filter(|own| address(other) == Some(*own)) {
        missing(format!(
            "both listen at {own}: choose another port in [[group.replica]] of one group, on all its hosts"
        ));
    }
    if config.group.name == other.group.name {
        missing(format!(
            "both are of the group \"{}\": name each group once, and run one replica of it on a host",
            config.group.name
        ));
    }
    let (taps, theirs) = (config.taps(), other.taps());
    for tap in taps.iter().filter(|tap| theirs.contains(tap)) {
        missing(format!(
            "both use the TAP device {tap}: make one for each, and set net.tap or nic.tap"
        ));
    }
    let (nics, theirs) = (config.qemu().nics, other.qemu().nics);
    let macs = nics.iter().map(|nic| nic.mac);
    for mac in macs.filter(|mac| theirs.iter().any(|nic| nic.mac == *mac)) {
        missing(format!(
            "both guests have the MAC address {mac}: set guest.mac or nic.mac, on all hosts"
        ));
    }
    let (own, theirs) = (&config.paths, &other.paths);
    if own.state_dir == theirs.state_dir {
        let dir = own.state_dir.display();
        missing(format!(
            "both keep their state in {dir}: set paths.state_dir"
        ));
    }
    if own.run_dir == theirs.run_dir {
        let dir = own.run_dir.display();
        missing(format!(
            "both have their sockets in {dir}: set paths.run_dir"
        ));
    }
    for disk in written(config).intersection(&written(other)) {
        let disk = disk.display();
        missing(format!(
            "both write {disk}: give each guest an image of its own"
        ));
    }
    let shared: Vec<_> = cpus(config).intersection(&cpus(other)).copied().collect();
    if !shared.is_empty() {
        let what =
            format!("[host] of both names the CPUs {shared:?}: their guests wait for each other");
        found.push((Verdict::Weak, what));
    }
    found
}

/// The address at which a replica listens for the others.
fn address(config: &ReplicaConfig) -> Option<SocketAddr> {
    let mut all = config.group.replica.iter();
    let own = all.find(|replica| replica.id == config.group.me)?;
    Some(own.address)
}

/// The images that a guest writes.
fn written(config: &ReplicaConfig) -> BTreeSet<&Path> {
    let disks = config.disk.iter().filter(|disk| !disk.is_read_only());
    disks.map(|disk| disk.path.as_path()).collect()
}

/// The CPUs that `[host]` names for the guest, in either role.
fn cpus(config: &ReplicaConfig) -> BTreeSet<usize> {
    let roles = config
        .host
        .iter()
        .flat_map(|host| [&host.leader, &host.follower]);
    roles.flat_map(|role| role.guest.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a configuration into `folder`.
    fn write(folder: &Path, name: &str, number: u8, more: &str) -> PathBuf {
        let file = folder.join(format!("{name}.toml"));
        let text = format!(
            "[group]\nname = \"{name}\"\nme = 0\nplaintext = true\nreplica = [\n\
             {{ id = 0, address = \"192.0.2.10:770{number}\" }},\n\
             {{ id = 1, address = \"192.0.2.11:770{number}\" }},\n\
             {{ id = 2, address = \"192.0.2.12:770{number}\" }},\n]\n\
             [guest]\nmachine = \"q35\"\nmac = \"52:54:00:00:00:0{number}\"\n\
             [[disk]]\npath = \"/images/{name}.raw\"\nsize_mib = 64\n\
             [net]\ntap = \"guest{number}\"\n\
             [paths]\nstate_dir = \"/var/lib/plover/{name}\"\nrun_dir = \"/run/plover/{name}\"\n{more}"
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    fn report(file: &Path) -> String {
        let mut report = Report::default();
        others(&mut report, file, &ReplicaConfig::load(file).unwrap());
        report.to_string()
    }

    #[test]
    fn guests_that_share_nothing_are_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let shop = write(folder.path(), "shop", 0, "");
        assert!(!report(&shop).contains("other guests"), "it is alone");
        write(folder.path(), "mail", 1, "");
        std::fs::write(folder.path().join("of-a-program.toml"), "[program]\n").unwrap();
        let told = report(&shop);
        assert!(!told.contains("not compared"), "{told}");
        assert!(told.contains("ok       1 with a replica here"), "{told}");
        assert!(told.contains("ok       1408 MiB of"), "{told}");
    }

    #[test]
    fn a_configuration_that_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let shop = write(folder.path(), "shop", 0, "");
        write(folder.path(), "mail", 1, "[gust]\n");
        let told = report(&shop);
        assert!(
            told.contains("mail.toml") && told.contains("not compared: "),
            "{told}"
        );
    }

    #[test]
    fn all_that_two_guests_share_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let host = "[host]\nleader = { guest = [1], replica = [0] }\nfollower = { guest = [2], replica = [0] }\n";
        let shop = write(folder.path(), "shop", 0, host);
        std::fs::copy(&shop, folder.path().join("shop-old.toml")).unwrap();
        let told = report(&shop);
        for shared in [
            "192.0.2.10:7700",
            "\"shop\"",
            "guest0",
            "52:54:00:00:00:00",
            "/var/lib/plover/shop:",
            "/run/plover/shop:",
            "/images/shop.raw",
            "[1, 2]",
        ] {
            assert!(told.contains(shared), "{shared}: {told}");
        }
        assert!(told.contains("missing: 7"), "{told}");
    }

    #[test]
    fn memory_that_is_not_there_is_counted_before_it_lacks() {
        let mut report = Report::default();
        memory_of_all(&mut report, 5000, 4000);
        processors_of_all(&mut report, 5, 4);
        assert!(report.to_string().contains("weak     5 vCPUs on 4"));
        assert!(report.to_string().contains(
            "weak     5000 MiB of the 4000 that this host has for replicas: they do not fit"
        ));
    }
}

//! The service `plover@NAME`: whether it lets the replica write where its configuration says. systemd shows a service only
//! the folders and devices that its unit and drop-ins name, so that an image can be there for root and not for the replica.

use super::{Report, Verdict};
use plover_node::ReplicaConfig;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the unit finds the configuration of each instance.
const FOLDER: &str = "/etc/plover";

/// Folders that `ProtectHome=` hides.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Looks, if the configuration is that of an instance of the unit, and systemd knows that.
pub fn service(report: &mut Report, file: &Path, config: &ReplicaConfig) {
    let Some(unit) = unit_of(file) else { return };
    let shown = Command::new("systemctl")
        .args(["show", "--property"])
        .arg("LoadState,ReadWritePaths,StateDirectory,ProtectSystem,ProtectHome,DeviceAllow")
        .arg(&unit)
        .output();
    let Some(sandbox) = shown.ok().and_then(|it| Sandbox::read(&it.stdout)) else {
        return;
    };
    let disks = config.disk.iter().zip(config.raw_disks());
    let disks = disks.filter(|(disk, _)| !disk.spec().read_only);
    let disks = disks.map(|(_, raw)| match real(&raw) {
        device if device.starts_with("/dev") => Wanted {
            real: device,
            told: raw,
        },
        // An image may be made, or be written anew under another name: its folder counts.
        mut image => {
            image.pop();
            Wanted::folder(image)
        }
    });
    let state = Wanted::folder(real(&config.paths.state_dir));
    let lines = sandbox.lacks(disks.chain([state]));
    if lines.is_empty() {
        let found = "it may write to the state directory and to all disks";
        return report.add(format!("service {unit}"), Verdict::Good, found);
    }
    let found = format!(
        "it may not write where the configuration says: run `systemctl edit {unit}`, and add below [Service]: {}",
        lines.join("; ")
    );
    report.add(format!("service {unit}"), Verdict::Missing, found);
}

/// A folder or block device to write to.
struct Wanted {
    /// Without links.
    real: PathBuf,
    /// As a drop-in is to name it: a device by the name that it keeps.
    told: PathBuf,
}

impl Wanted {
    fn folder(path: PathBuf) -> Self {
        let told = path.clone();
        Self { real: path, told }
    }
}

/// The path without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    let mut there = path.ancestors().filter_map(|folder| {
        let rest = path.strip_prefix(folder).ok()?;
        let folder = std::fs::canonicalize(folder).ok()?;
        Some(if rest == Path::new("") {
            folder
        } else {
            folder.join(rest)
        })
    });
    // A class of devices is no path.
    let found = there.next().filter(|_| path.is_absolute());
    found.unwrap_or_else(|| path.to_owned())
}

/// The instance whose configuration `file` is.
fn unit_of(file: &Path) -> Option<String> {
    let file = std::path::absolute(file).ok()?;
    let is_toml = file.extension() == Some(OsStr::new("toml"));
    let name = file.file_stem()?.to_str().filter(|_| is_toml)?;
    (file.parent()? == Path::new(FOLDER)).then(|| format!("plover@{name}"))
}

/// The parts of a unit that say where its processes may write.
#[derive(Debug, Default)]
struct Sandbox {
    folders: Vec<PathBuf>,
    /// Paths, or classes such as `block-sd`.
    devices: Vec<PathBuf>,
    hides_homes: bool,
}

impl Sandbox {
    /// Reads the output of `systemctl show`. `None` if the unit is not there, or keeps nothing from anybody.
    fn read(shown: &[u8]) -> Option<Self> {
        let shown = String::from_utf8_lossy(shown);
        let mut sandbox = Self::default();
        let (mut is_loaded, mut is_strict) = (false, false);
        for (key, value) in shown.lines().filter_map(|line| line.split_once('=')) {
            let words = value.split_ascii_whitespace();
            match key {
                "LoadState" => is_loaded = value == "loaded",
                "ProtectSystem" => is_strict = value == "strict",
                "ProtectHome" => sandbox.hides_homes = matches!(value, "yes" | "tmpfs"),
                "ReadWritePaths" => {
                    let paths = words.map(|word| word.trim_start_matches(['-', '+']));
                    sandbox
                        .folders
                        .extend(paths.map(|path| real(Path::new(path))));
                }
                "StateDirectory" => {
                    let below = |word| real(&Path::new("/var/lib").join(word));
                    sandbox.folders.extend(words.map(below));
                }
                "DeviceAllow" => {
                    let paths = words.take(1).map(|word| real(Path::new(word)));
                    sandbox.devices.extend(paths);
                }
                _ => {}
            }
        }
        (is_loaded && is_strict).then_some(sandbox)
    }

    /// The lines of a drop-in that these folders and block devices need.
    fn lacks(&self, wanted: impl Iterator<Item = Wanted>) -> Vec<String> {
        let is_class = |it: &Path| it.as_os_str().as_encoded_bytes().starts_with(b"block-");
        let mut lines = Vec::new();
        for Wanted { real, told } in wanted {
            let told = told.display();
            if real.starts_with("/dev") {
                if !self.devices.iter().any(|it| *it == real || is_class(it)) {
                    lines.push(format!("DeviceAllow={told} rw"));
                }
                continue;
            }
            if self.hides_homes && HOMES.iter().any(|home| real.starts_with(home)) {
                lines.push("ProtectHome=no".to_owned());
            }
            if !self.folders.iter().any(|folder| real.starts_with(folder)) {
                lines.push(format!("ReadWritePaths={told}"));
            }
        }
        lines.sort();
        lines.dedup();
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "LoadState=loaded\nReadWritePaths=/srv/images -/srv/more\nStateDirectory=plover\n\
                         ProtectSystem=strict\nProtectHome=yes\nDeviceAllow=/dev/kvm rw\nDeviceAllow=/dev/vg0/a rw\n";

    fn lacks(shown: &str, wanted: &[&str]) -> Vec<String> {
        let sandbox = Sandbox::read(shown.as_bytes()).expect("the unit is there");
        sandbox.lacks(wanted.iter().map(|path| Wanted::folder(path.into())))
    }

    #[test]
    fn folders_and_devices_of_the_unit_are_open() {
        let open = [
            "/var/lib/plover/shop-db",
            "/srv/images",
            "/srv/more/x",
            "/dev/vg0/a",
        ];
        assert!(lacks(SHOWN, &open).is_empty());
        let shut = [
            "/srv/imagesb",
            "/srv/imagesb",
            "/dev/vg0/b",
            "/home/me",
            "/var/lib/plover-a",
        ];
        let lines = [
            "DeviceAllow=/dev/vg0/b rw",
            "ProtectHome=no",
            "ReadWritePaths=/home/me",
            "ReadWritePaths=/srv/imagesb",
            "ReadWritePaths=/var/lib/plover-a",
        ];
        assert_eq!(lacks(SHOWN, &shut), lines);
        let classes = SHOWN.to_owned() + "DeviceAllow=block-device-mapper rw\n";
        assert!(lacks(&classes, &["/dev/vg0/b"]).is_empty());
    }

    #[test]
    fn links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = std::fs::canonicalize(dir.path()).unwrap().join("images");
        std::fs::create_dir(&target).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(
            real(&link.join("new/disk.raw")),
            target.join("new/disk.raw")
        );
        assert_eq!(real(Path::new("block-sd")), Path::new("block-sd"));
        let shown = format!("{SHOWN}ReadWritePaths={}\n", link.display());
        let sandbox = Sandbox::read(shown.as_bytes()).unwrap();
        assert!(
            sandbox
                .lacks([Wanted::folder(target)].into_iter())
                .is_empty()
        );
    }

    #[test]
    fn a_unit_that_is_not_there_or_not_ours_says_nothing() {
        assert!(Sandbox::read(b"LoadState=not-found\nProtectSystem=no\n").is_none());
        assert!(Sandbox::read(b"").is_none());
        let unit = |file: &str| unit_of(Path::new(file));
        assert_eq!(
            unit("/etc/plover/shop-db.toml").as_deref(),
            Some("plover@shop-db")
        );
        assert_eq!(unit("/tmp/shop-db.toml"), None);
        assert_eq!(unit("/etc/plover/shop-db.trust"), None);
    }
}

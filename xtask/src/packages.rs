//! The Debian packages that a task needs on the host.

use crate::run::{self, Result};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program or file that must be there, and its package.
pub(crate) struct Need {
    /// A program in `PATH`, or a file if it starts with a slash.
    probe: &'static str,
    package: &'static str,
}

const fn need(probe: &'static str, package: &'static str) -> Need {
    Need { probe, package }
}

/// To run replicas in a lab.
pub(crate) const LAB: &[Need] = &[
    need("qemu-system-x86_64", "qemu-system-x86"),
    need("ip", "iproute2"),
    need("bridge", "iproute2"),
];

/// To replicate an unmodified Redis.
pub(crate) const PROGRAMS: &[Need] = &[
    need("redis-server", "redis-server"),
    need("redis-cli", "redis-tools"),
    need("tar", "tar"),
];

/// To have a cluster place replicas.
pub(crate) const FLEET: &[Need] = &[
    need("corosync", "corosync"),
    need("pacemakerd", "pacemaker"),
    need("crm_attribute", "pacemaker-cli-utils"),
    need("crm", "crmsh"),
];

/// To replicate the other programs of the APUS report.
pub(crate) const MORE_PROGRAMS: &[Need] = &[
    need("memcached", "memcached"),
    need("mariadbd", "mariadb-server"),
    need("mariadb", "mariadb-client"),
    need("mariadb-backup", "mariadb-backup"),
    need("slapd", "slapd"),
    need("ldapsearch", "ldap-utils"),
    need("clamd", "clamav-daemon"),
    need("clamdscan", "clamdscan"),
    need("gerbera", "gerbera"),
    need("nginx", "nginx"),
    need("curl", "curl"),
];

/// To build a guest image. What is *in* the image is unpacked, never installed.
pub(crate) const GUEST: &[Need] = &[
    need("cc", "gcc"),
    need("/usr/lib/x86_64-linux-gnu/libc.a", "libc6-dev"),
    need("readelf", "binutils"),
    need("cpio", "cpio"),
    need("xz", "xz-utils"),
    need("zstd", "zstd"),
];

/// To build libFuzzer.
pub(crate) const FUZZER: &[Need] = &[need("c++", "g++")];

/// To import images.
pub(crate) const IMAGES: &[Need] = &[need("qemu-img", "qemu-utils")];

/// To unpack the QEMU of another Debian.
pub(crate) const NEWER_QEMU: &[Need] = &[
    need("patchelf", "patchelf"),
    need(
        "/usr/share/keyrings/debian-archive-keyring.gpg",
        "debian-archive-keyring",
    ),
];

/// To start a guest by UEFI.
pub(crate) const UEFI: &[Need] = &[need("/usr/share/ovmf/OVMF.fd", "ovmf")];

/// To check what a guest's disk holds.
pub(crate) const FSCK: &[Need] = &[need("mke2fs", "e2fsprogs"), need("e2fsck", "e2fsprogs")];

/// To build a disk image with a whole system.
pub(crate) const DISK: &[Need] = &[
    need("mmdebstrap", "mmdebstrap"),
    need("mke2fs", "e2fsprogs"),
    need("mformat", "mtools"),
];

/// To load a lab with the clients that people know: `redis-benchmark`.
pub(crate) const BENCH: &[Need] = &[need("redis-benchmark", "redis-tools")];

/// To load the web servers among the guests. Only `bench` asks for it.
pub(crate) const WEB: &[Need] = &[need("wrk", "wrk")];

/// To compare consensus with well-known systems. Only `bench consensus` asks for them.
pub(crate) const CONSENSUS: &[Need] = &[
    need("etcd", "etcd-server"),
    need("/usr/share/java/zookeeper.jar", "zookeeper"),
    need("java", "default-jre-headless"),
];

/// To build and test the fabric over libfabric.
pub(crate) const OFI: &[Need] = &[
    need("cc", "gcc"),
    need("/usr/include/rdma/fabric.h", "libfabric-dev"),
];

/// To build Debian packages: programs are stripped, and the packages of their libraries looked up.
pub(crate) const PACKAGE: &[Need] = &[
    need("dpkg-shlibdeps", "dpkg-dev"),
    need("strip", "binutils"),
];

/// Installs what is missing, and says so. Where that is not possible, the error names the
/// packages.
pub(crate) fn ensure(needs: &[&[Need]]) -> Result<()> {
    let missing = missing(needs.iter().copied().flatten(), is_there);
    if missing.is_empty() {
        return Ok(());
    }
    if !can_install() {
        bail!(
            "packages are missing: run 'apt-get install {}' as root",
            missing.join(" ")
        );
    }
    eprintln!("x: installing Debian packages: {}", missing.join(" "));
    update()?;
    let mut command = Command::new("sh");
    command.args(["-c", INSTALL, "install"]).args(&missing);
    apt(&mut command).with_context(|| format!("cannot install {}", missing.join(" ")))
}

/// Installs packages without starting the services among them: the programs are needed here, not the services. Debian's scripts
/// ask `policy-rc.d` whether they may start one; 101 says no. A rule that the machine has already is left alone. A shell does it,
/// since Ctrl-C must not leave the rule behind, and ends this program.
const INSTALL: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    trap 'exit 130' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
fi
apt-get install -y -qq --no-install-recommends "$@"
"#;

/// Whether no need is missing.
pub(crate) fn are_there(needs: &[&[Need]]) -> bool {
    missing(needs.iter().copied().flatten(), is_there).is_empty()
}

/// Installs `rustfmt` or `clippy` if the toolchain is the distribution's. `false` if it is not, or the
/// packages cannot be had.
pub(crate) fn install_rust_component(component: &str) -> bool {
    // Debian 12 has two toolchains, and `x` may have taken the one kept up for browsers.
    let web = is_there("/usr/share/doc/cargo-web");
    let package = match (component, web) {
        ("clippy", false) => "rust-clippy",
        ("clippy", true) => "rust-web-clippy",
        (_, false) => "rustfmt",
        (_, true) => "rustfmt-web",
    };
    if !is_there("/usr/bin/cargo") || !can_install() {
        return false;
    }
    eprintln!("x: installing Debian packages: {package}");
    let mut install = Command::new("apt-get");
    install.args(["install", "-y", "-qq", package]);
    let installed = update().and_then(|()| apt(&mut install));
    if let Err(error) = &installed {
        eprintln!("x: {error:#}");
    }
    installed.is_ok()
}

/// Whether packages can be installed at all.
pub(crate) fn can_install() -> bool {
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|out| out.stdout == b"0\n");
    root && is_there("apt-get")
}

/// Makes apt's lists of packages current.
pub(crate) fn update() -> Result<()> {
    let mut update = Command::new("apt-get");
    apt(update.args(["update", "-qq"])).context("cannot update apt's lists of packages")
}

/// How often apt-get is tried while another apt holds a lock, and the time between: five minutes in all. On a new machine
/// unattended-upgrades runs for minutes.
const TRIES: usize = 60;
const BETWEEN_TRIES: Duration = Duration::from_secs(5);

/// Runs apt-get, or a shell that runs it. An error holds apt's own. apt-get fails at once while another apt holds a lock: this
/// tries again. apt's own option for that, `DPkg::Lock::Timeout`, is not for the locks of the package lists and the downloads,
/// and it waits without a message.
fn apt(command: &mut Command) -> Result<()> {
    // apt's chatter is not our output, and apt translates its messages.
    command.envs([("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C")]);
    command.stdout(std::io::stderr());
    for tries in 1.. {
        // A file, not a pipe: a service that a package starts may keep the pipe open, and the read would not end.
        let mut errors = nameless_file()?;
        command.stderr(errors.try_clone()?);
        let status = command.status().context("cannot run apt-get")?;
        let mut said = Vec::new();
        errors.rewind()?;
        errors.read_to_end(&mut said)?;
        let said = String::from_utf8_lossy(&said);
        if status.success() {
            eprint!("{said}");
            break;
        }
        match held_lock(&said) {
            Some(lock) if tries < TRIES => {
                if tries == 1 {
                    eprintln!("x: another apt runs; waiting for up to 5 minutes: {lock}");
                }
                std::thread::sleep(BETWEEN_TRIES);
            }
            _ => bail!("apt-get failed ({status}): {}", said.trim_end()),
        }
    }
    Ok(())
}

/// apt's sentence about a lock that another apt holds.
fn held_lock(said: &str) -> Option<&str> {
    said.lines()
        .find(|line| line.contains("Could not get lock"))
}

/// A file beside this program that is gone once it is closed.
fn nameless_file() -> Result<File> {
    let path = run::built(&format!("apt-get.{}", std::process::id()))?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(&path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(file)
}

/// Each missing package once, in the order of the needs.
fn missing<'a>(
    needs: impl IntoIterator<Item = &'a Need>,
    is_there: impl Fn(&str) -> bool,
) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for need in needs {
        if !is_there(need.probe) && !packages.contains(&need.package) {
            packages.push(need.package);
        }
    }
    packages
}

fn is_there(probe: &str) -> bool {
    if probe.starts_with('/') {
        return Path::new(probe).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Root's own programs are not in everybody's PATH.
    let sbin = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path)
        .chain(sbin)
        .any(|folder| folder.join(probe).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_named_once() {
        let none = missing(LAB.iter().chain(GUEST), |_| true);
        assert!(none.is_empty());
        let all = missing(LAB, |_| false);
        assert_eq!(all, ["qemu-system-x86", "iproute2"]);
        assert_eq!(missing(LAB, |probe| probe != "bridge"), ["iproute2"]);
    }

    #[test]
    fn a_lock_of_another_apt_is_known_by_what_apt_says() {
        let held =
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (apt-get)";
        let said =
            format!("W: a warning\n{held}\nE: Unable to lock directory /var/lib/apt/lists/\n");
        assert_eq!(held_lock(&said), Some(held));
        assert_eq!(
            held_lock("E: Unable to locate package no-such-package\n"),
            None
        );
    }

    #[test]
    fn programs_and_files_are_found() {
        assert!(is_there("sh") && is_there("/proc/self/exe"));
        assert!(!is_there("no-such-program-here") && !is_there("/no/such/file"));
    }
}

//! The files of a new group go to their hosts, by ssh as root.

use super::group::Files;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

/// A host that does not answer is given up after this many seconds.
const CONNECT_S: u32 = 10;

/// Copies each host's folder to its `/etc/plover`, and then removes the keys here. Nothing is overwritten.
pub fn copy(files: &Files, hosts: &[IpAddr]) -> Result<()> {
    let names = files.names.join(" ");
    let script = format!(
        "cd /etc/plover || {{ echo 'install the package plover first' >&2; exit 1; }}\n\
         for file in {names}; do test ! -e $file || {{ echo \"/etc/plover/$file is there already\" >&2; exit 1; }}; done\n\
         exec tar -xf - --keep-old-files --no-same-owner"
    );
    for (folder, host) in files.folders.iter().zip(hosts) {
        let packed = Command::new("tar")
            .args(["-cf", "-", "-C"])
            .arg(folder)
            .args(&files.names)
            .output();
        let packed = packed.context("cannot run 'tar'")?;
        ensure!(
            packed.status.success(),
            "cannot read {}: {}",
            folder.display(),
            String::from_utf8_lossy(&packed.stderr).trim()
        );
        give(host, &script, &packed.stdout).with_context(|| {
            format!("the files in {} are not copied to {host}", folder.display())
        })?;
    }
    for folder in &files.folders {
        for name in files.names.iter().filter(|name| name.ends_with(".key")) {
            let file = folder.join(name);
            std::fs::remove_file(&file)
                .with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

/// Puts a file of the service's user on each host, at `path`, where none is yet.
pub fn put(hosts: &[IpAddr], content: &[u8], path: &Path) -> Result<()> {
    let path = path.display();
    let script = format!(
        "test ! -e '{path}' || {{ echo '{path} is there already' >&2; exit 1; }}\n\
         install -T -o plover -m 600 /dev/stdin '{path}.new' && test $(stat -c %s '{path}.new') = {} && mv -nT '{path}.new' '{path}'",
        content.len()
    );
    for host in hosts {
        give(host, &script, content).with_context(|| format!("{path} is not made on {host}"))?;
    }
    Ok(())
}

/// Whether this host has that address.
fn is_here(host: &IpAddr) -> bool {
    let asked = Command::new("ip")
        .args(["-o", "addr", "show", "to"])
        .arg(host.to_string())
        .output();
    asked.is_ok_and(|shown| shown.status.success() && !shown.stdout.is_empty())
}

/// Runs a script of the shell as root of a host, which may be this one, with this input.
fn give(host: &IpAddr, script: &str, input: &[u8]) -> Result<()> {
    let mut command = match is_here(host) && rustix::process::geteuid().is_root() {
        true => {
            let mut shell = Command::new("sh");
            shell.arg("-c");
            shell
        }
        false => {
            let mut ssh = Command::new("ssh");
            ssh.arg("-o").arg(format!("ConnectTimeout={CONNECT_S}"));
            // One that dies in the middle ends it as well.
            ssh.args(["-o", "ServerAliveInterval=5"]);
            ssh.arg(format!("root@{host}"));
            ssh
        }
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .arg(script)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let written = child.stdin.take().map(|mut to| to.write_all(input));
    // ssh asks for passwords at the terminal, and not here.
    let ended = child.wait_with_output()?;
    ensure!(
        ended.status.success(),
        "{program}: {}",
        String::from_utf8_lossy(&ended.stderr).trim()
    );
    written.transpose().context("its input broke off")?;
    Ok(())
}

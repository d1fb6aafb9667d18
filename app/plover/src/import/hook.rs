//! The hook that keeps libvirt from starting a guest that Plover protects.
//!
//! libvirt runs every program in `/etc/libvirt/hooks/qemu.d` before it starts a domain, and does not start it if one of them
//! fails. Two machines with one MAC address and one UUID would be the alternative: an operator's slip, or `autostart` after
//! the host's next boot.

use super::domain::{child, text};
use anyhow::{Context, Result};
use roxmltree::Node;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folder of hooks, since libvirt 6.5.
const FOLDER: &str = "/etc/libvirt/hooks/qemu.d";

/// The ending of its file beside the configurations.
pub const ENDING: &str = "hook";

/// The file in libvirt's folder for a group.
pub fn place(group: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("plover-{group}"))
}

/// The script. It knows the domain by its name, and by its UUID, which it keeps when it is renamed.
pub fn script(domain: Node<'_, '_>, group: &str) -> String {
    let of = |name| child(domain, name).map(text).unwrap_or_default();
    let name = quoted(of("name"));
    // A domain that was written by hand may have none yet.
    let by_uuid = match of("uuid") {
        "" => String::new(),
        uuid => format!(
            "case $xml in *\"<uuid>\"{}\"</uuid>\"*) is=yes ;; esac\n",
            quoted(uuid)
        ),
    };
    format!(
        "#!/bin/sh\n\
         # Keeps libvirt from starting a guest that Plover protects, as the group {group}.\n\
         # `plover import` wrote it, and `plover export` removes it.\n\
         # libvirt calls it with: NAME OPERATION SUB-OPERATION EXTRA, and the domain's XML on the standard input.\n\
         xml=$(cat)\n\
         [ \"$2\" = prepare ] || exit 0\n\
         is=no\n\
         [ \"$1\" = {name} ] && is=yes\n\
         {by_uuid}\
         [ $is = no ] && exit 0\n\
         echo \"Plover protects this guest, as the group {group}: use plover start; plover export gives it back to libvirt\" >&2\n\
         exit 1\n"
    )
}

/// A word for a shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Puts the script where libvirt looks for it.
pub fn install(script: &str, group: &str) -> Result<PathBuf> {
    let place = place(group);
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(FOLDER)?;
        // libvirt runs whatever is executable there, so the file is whole before it is.
        let new = Path::new(FOLDER).join(format!(".plover-{group}"));
        std::fs::write(&new, script)?;
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755))?;
        std::fs::rename(&new, &place)
    };
    write().with_context(|| {
        format!(
            "cannot write the hook {}: run this as root",
            place.display()
        )
    })?;
    Ok(place)
}

/// The script that is there.
pub fn found(group: &str) -> Option<String> {
    std::fs::read_to_string(place(group)).ok()
}

/// Takes an installation back. A hook of an earlier import protects a guest that runs.
pub fn put_back(before: Option<&str>, group: &str) {
    let _ = match before {
        Some(before) if found(group).as_deref() == Some(before) => Ok(()),
        Some(before) => install(before, group).map(drop),
        None => remove(group).map(drop),
    };
}

/// Takes the script away, if it is there. Says whether it was.
pub fn remove(group: &str) -> Result<bool> {
    let place = place(group);
    match std::fs::remove_file(&place) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => {
            Err(error).with_context(|| format!("cannot remove the hook {}", place.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    const UUID: &str = "2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e";

    /// Runs a script as libvirt does.
    fn lets(script: &str, name: &str, operation: &str, xml: &str) -> bool {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script, "hook", name, operation, "begin", "-"]);
        let shell = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(xml.as_bytes())
            .unwrap();
        let done = child.wait_with_output().unwrap();
        assert!(
            done.stdout.is_empty(),
            "libvirt takes what a hook prints for a new XML"
        );
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(
            said.contains("plover start"),
            !done.status.success(),
            "{said}"
        );
        done.status.success()
    }

    #[test]
    fn libvirt_starts_every_domain_but_this_one() {
        let xml = format!("<domain><name>it's \"$x\"</name><uuid>{UUID}</uuid></domain>");
        let document = roxmltree::Document::parse(&xml).unwrap();
        let script = script(document.root_element(), "shop");
        assert!(
            !lets(&script, "it's \"$x\"", "prepare", "<domain/>"),
            "by its name"
        );
        assert!(!lets(&script, "renamed", "prepare", &xml), "by its UUID");
        assert!(lets(&script, "it's \"$x\"", "release", &xml), "it may end");
        assert!(lets(
            &script,
            "other",
            "prepare",
            "<domain><uuid>1</uuid></domain>"
        ));
    }
}

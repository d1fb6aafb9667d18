//! `plover export`: gives an imported guest back to libvirt.
//!
//! Only the replica that leads, while the guest is off, knows that its disks are the newest and whole: what a secondary has
//! got last may still be in its journal. So this asks the replica of this host first, and takes its disks where they are.

use crate::import::domain::{Disk, Domain, Intent, Nvram, child};
use crate::import::{hook, parse, virsh};
use crate::init::group::ORIGINAL;
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use plover_lab::control::Control;
use plover_node::{ReplicaConfig, UEFI_VARIABLES};
use roxmltree::Node;
use serde_json::json;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The group, and its original.
#[derive(Debug, Args)]
pub struct ExportOptions {
    /// The configuration of this host's replica.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The original domain, which `plover import` kept; by default beside the configuration.
    #[arg(long, value_name = "FILE")]
    xml: Option<PathBuf>,
    /// Define the domain in the libvirt of this host, instead of printing it.
    #[arg(long)]
    define: bool,
}

/// Removes the hook, and prints or defines the original with the present disks.
pub fn run(options: &ExportOptions) -> Result<ExitCode> {
    let config = ReplicaConfig::load(&options.config)?;
    let beside = options
        .config
        .with_file_name(format!("{}.{ORIGINAL}", config.group.name));
    let file = options.xml.as_ref().unwrap_or(&beside);
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the original domain {}: copy it from where `plover import` ran, or name it with --xml",
            file.display()
        )
    })?;
    let xml = with_disks(&text, &file.display().to_string(), &config)?;
    is_off(&config)?;
    let group = &config.group.name;
    let mut done = match hook::remove(group)? {
        true => format!("removed the hook {}", hook::place(group).display()),
        false => "there was no hook on this host: remove it where the original was".into(),
    };
    if options.define {
        let said = virsh(&["define", "/dev/stdin"], Some(&xml))?;
        done += &format!("\n{}", said.trim());
    } else {
        output::print(&xml)?;
    }
    let variables = variables_step(&text, &file.display().to_string(), &config)?;
    eprintln!(
        "plover: {done}\nnext: on every host `systemctl disable --now plover@{group}`; then{variables} give the disks to \
         libvirt's user (in Debian: chown libvirt-qemu) and start the domain"
    );
    Ok(ExitCode::SUCCESS)
}

/// Checks that the guest is off and this host's disks are the ones to go on with.
fn is_off(config: &ReplicaConfig) -> Result<()> {
    let control = Control::in_run_dir(&config.paths.run_dir);
    let status = control.request(&json!({"op": "status"})).with_context(|| {
        "the replica of this host must say that its disks are the newest: start it, and shut the guest down with `plover shutdown`"
    })?;
    let run_dir = config.paths.run_dir.display();
    ensure!(
        status["role"] == "leader",
        "this host's replica is {}, not the leader: run this on host {}, whose disks are the newest",
        status["role"].as_str().unwrap_or("nothing"),
        status["leader"]
    );
    ensure!(
        status["guest_off"] == true,
        "the guest is not off, and two of it must not run: `plover shutdown --run-dir {run_dir}` first"
    );
    Ok(())
}

/// The words of the step that brings the UEFI variables back to libvirt's file; empty for a guest without variables.
fn variables_step(text: &str, from: &str, config: &ReplicaConfig) -> Result<String> {
    let document = parse(text, from)?;
    let domain = Domain::read(&document, intent(config))?;
    let nvram = domain.nvram().filter(Nvram::fits);
    let step = nvram.filter(|_| config.guest.firmware.is_uefi()).map(|it| {
        let of = |path: &Path| hook::quoted(&path.to_string_lossy());
        let from = of(&config.paths.state_dir.join(UEFI_VARIABLES));
        let to = of(it.source);
        format!(
            " bring the UEFI variables back with `qemu-img convert -f raw -O {} {from} {to}`,",
            it.format
        )
    });
    Ok(step.unwrap_or_default())
}

fn intent(config: &ReplicaConfig) -> Intent {
    Intent {
        name: config.group.name.clone(),
        folder: PathBuf::new(),
        tap: config.net.tap.clone(),
        bridges: Vec::new(),
        mib: std::collections::HashMap::new(),
    }
}

/// The original's text, in which the disks are this replica's. All else is byte for byte what it was, also the CDs.
fn with_disks(text: &str, from: &str, config: &ReplicaConfig) -> Result<String> {
    let document = parse(text, from)?;
    let domain = Domain::read(&document, intent(config))?;
    let mut disks = domain.kept_disks();
    disks.retain(|disk| !disk.is_cdrom);
    let raw = config.disk.iter().zip(config.raw_disks());
    let raw: Vec<_> = raw.filter(|(disk, _)| !disk.cdrom).collect();
    ensure!(
        disks.len() == raw.len(),
        "the original {from} has {} disks that Plover keeps, and the configuration {}: is it of this guest?",
        disks.len(),
        raw.len()
    );
    let mut edits = Vec::new();
    for (disk, (_, raw)) in disks.iter().zip(raw) {
        edits.extend(edits_of(disk, &raw)?);
    }
    edits.sort_by_key(|(range, _)| range.start);
    let mut text = text.to_owned();
    for (range, with) in edits.into_iter().rev() {
        text.replace_range(range, &with);
    }
    Ok(text)
}

/// The replacements after which a disk is the raw image `path`.
fn edits_of(disk: &Disk<'_>, path: &Path) -> Result<Vec<(Range<usize>, String)>> {
    let value = |element: Option<Node<'_, '_>>, name: &str| {
        element
            .and_then(|it| it.attribute_node(name))
            .map(|it| it.range_value())
    };
    let source = value(
        child(disk.node, "source"),
        if disk.is_block { "dev" } else { "file" },
    );
    let source = source.context("a disk of the original names no file")?;
    let mut edits = vec![(source, escaped(&path.to_string_lossy()))];
    if let Some(format) = value(child(disk.node, "driver"), "type") {
        edits.push((format, "raw".into()));
    }
    if let Some(backing) = child(disk.node, "backingStore") {
        edits.push((backing.range(), String::new()));
    }
    Ok(edits)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('\'', "&apos;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"
        [group]
        name = "shop"
        me = 0
        plaintext = true
        replica = [
            { id = 0, address = "192.0.2.10:7700" },
            { id = 1, address = "192.0.2.11:7700" },
            { id = 2, address = "192.0.2.12:7700" },
        ]
        [guest]
        machine = "q35"
        mac = "52:54:00:77:00:01"
        [[disk]]
        path = "/d/b & 'c'.raw"
        [[disk]]
        path = "/d/cd.iso"
        bus = "ide"
        cdrom = true
        [[disk]]
        path = "/d/a.raw"
        [net]
        tap = "guest0"
        [paths]
        state_dir = "/s"
        run_dir = "/no/such/replica"
    "#;

    const ORIGINAL: &str = "<domain type='kvm'>\n  <name>shop</name><!-- as it was -->\n  <devices>\n    \
        <disk type='file'><driver name='qemu' type='qcow2'/><source file='/i/a.qcow2'/><backingStore type='file'>\
        <source file='/i/base'/></backingStore><target dev='vda'/><boot order='2'/></disk>\n    \
        <disk type='file' device='cdrom'><source file='/i/cd.iso'/><target dev='sda' bus='sata'/></disk>\n    \
        <disk type='file'><source file='/i/b.img'/><target dev='vdb'/><boot order='1'/></disk>\n  </devices>\n</domain>\n";

    #[test]
    fn the_original_comes_back_with_the_present_disks_and_nothing_else_changed() {
        let config: ReplicaConfig = toml::from_str(CONFIG).unwrap();
        let xml = with_disks(ORIGINAL, "it", &config).unwrap();
        let expected = ORIGINAL
            .replace("type='qcow2'", "type='raw'")
            .replace("/i/a.qcow2", "/d/a.raw")
            .replace(
                "<backingStore type='file'><source file='/i/base'/></backingStore>",
                "",
            )
            .replace("/i/b.img", "/d/b &amp; &apos;c&apos;.raw");
        assert_eq!(xml, expected);
    }

    #[test]
    fn variables_go_back_to_where_they_were() {
        let with = |firmware: &str, os: &str| {
            let key = format!("[guest]\nfirmware = \"{firmware}\"");
            let config = toml::from_str(&CONFIG.replace("[guest]", &key)).unwrap();
            let original = ORIGINAL.replace("<devices>", &format!("{os}<devices>"));
            variables_step(&original, "it", &config).unwrap()
        };
        let os = "<os firmware='efi'><nvram format='qcow2'>/n/it's.qcow2</nvram></os>";
        let step = with("uefi", os);
        let words = r"-O qcow2 '/s/uefi-variables.fd' '/n/it'\''s.qcow2'`,";
        assert!(step.ends_with(words), "{step}");
        assert_eq!(with("uefi", "<os firmware='efi'/>"), "");
        assert_eq!(with("bios", os), "");
    }

    /// Nobody but a replica that answers knows where the newest disks are.
    #[test]
    fn nothing_is_given_back_while_no_replica_says_that_the_guest_is_off() {
        let config: ReplicaConfig = toml::from_str(CONFIG).unwrap();
        let error = format!("{:#}", is_off(&config).unwrap_err());
        assert!(error.contains("start it"), "{error}");
    }
}

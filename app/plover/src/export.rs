//! `plover export`: gives an imported guest back to libvirt.
//!
//! Only the replica that leads, while the guest is off, knows that its disks are the newest and whole: what a secondary has
//! got last may still be in its journal. So this asks the replica of this host first, and takes its disks where they are.

use crate::import::domain::{Disk, Domain, Intent, Nvram, child, text as text_of};
use crate::import::{hook, parse, refuse_saved_memory, virsh};
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

/// Prints or defines the original with the present disks, and says what is left to do.
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
    let document = parse(&text, &file.display().to_string())?;
    let domain = Domain::read(&document, intent(&config))?;
    let moves = moves(&domain, &config, Path::exists)?;
    let xml = with_disks(&text, &moves)?;
    is_off(&config)?;
    refuse_saved_memory(name_of(&domain), "")?;
    let hook = hook::place(&config.group.name);
    if options.define {
        let said = virsh(&["define", "/dev/stdin"], Some(&xml))?;
        tell!("plover: {}", said.trim());
        // Last: until then libvirt must not start what it knows of the guest.
        match hook::remove(&config.group.name)? {
            true => tell!("plover: removed the hook {}", hook.display()),
            false => {
                tell!("plover: there was no hook on this host: remove it where the original was")
            }
        }
    } else {
        output::print(&xml)?;
    }
    let steps = next_steps(&domain, &config, &moves, options.define);
    tell!("{}", steps.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The steps of the operator, who ends the group and lets libvirt go on.
fn next_steps(
    domain: &Domain<'_>,
    config: &ReplicaConfig,
    moves: &[Move<'_, '_>],
    is_defined: bool,
) -> String {
    let of = |path: &Path| hook::quoted(&path.to_string_lossy());
    let group = &config.group.name;
    let name = hook::quoted(name_of(domain));
    let mut text = format!(
        "plover: next, as root:\n\
         1. on every host, end the replica:\n     \
         systemctl disable --now plover@{group}      # or, without the package: end `plover replica`, then `plover tap --config FILE --remove`\n\
         2. here, give libvirt the disks:\n"
    );
    for Move { from, to, disk } in moves {
        let (from, to) = (of(from), of(to));
        text += &match disk.is_block {
            true => format!("     chown root:disk {to}\n"),
            false => format!(
                "     test ! -e {to} && mv {from} {to} && chown libvirt-qemu {to}      # qemu in Fedora\n"
            ),
        };
    }
    text += &variables_step(domain, config);
    text += &format!(
        "3. on every host, remove all that the group knew:\n     rm -rf {} {}",
        of(&config.paths.state_dir),
        of(&config.paths.run_dir)
    );
    // The service removes those that it makes.
    for card in config.attached().filter(|card| card.bridge.is_none()) {
        text += &format!(" && ip link del {}", card.tap);
    }
    text += "\n4. on the other hosts, and not here, remove their copies of the disks: a later group of this guest would begin with disks \
             of before\n";
    for Move { from, .. } in moves.iter().filter(|it| !it.disk.is_block) {
        text += &format!("     rm -f {}\n", of(from));
    }
    text += "5. on the original's host:\n";
    if !is_defined {
        text += &format!(
            "     virsh define FILE      # with what was printed\n     rm -f {}\n",
            of(&hook::place(group))
        );
    }
    text + &format!("     virsh start {name}\n")
}

fn name_of<'a>(domain: &Domain<'a>) -> &'a str {
    child(domain.root, "name").map(text_of).unwrap_or_default()
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
        "this host's replica is {}, not the leader, whose disks are the newest: run this on the host of replica {}, or let this \
         one lead first with `plover switchover --to {} --run-dir {run_dir}` (where it is not in sync, drain a replica that \
         is: `plover drain` on its host)",
        status["role"].as_str().unwrap_or("nothing"),
        status["leader"],
        config.group.me
    );
    ensure!(
        status["guest_off"] == true,
        "the guest is not off, and two of it must not run: `plover shutdown --run-dir {run_dir}` first"
    );
    Ok(())
}

/// The step that brings the UEFI variables back to libvirt's file; empty for a guest without variables.
fn variables_step(domain: &Domain<'_>, config: &ReplicaConfig) -> String {
    let nvram = domain.nvram().filter(Nvram::fits);
    let step = nvram.filter(|_| config.guest.firmware.is_uefi()).map(|it| {
        let of = |path: &Path| hook::quoted(&path.to_string_lossy());
        let from = of(&config.paths.state_dir.join(UEFI_VARIABLES));
        let to = of(it.source);
        format!(
            "   and the UEFI variables:\n     qemu-img convert -f raw -O {} {from} {to}\n",
            it.format
        )
    });
    step.unwrap_or_default()
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

/// A disk of the original that goes from Plover's place to one of libvirt's.
struct Move<'d, 'a> {
    disk: &'d Disk<'a>,
    from: PathBuf,
    to: PathBuf,
}

/// Where each disk is, and where libvirt finds it: a file beside the original's, since libvirt's user does not get into
/// Plover's folder, by a name that no file has.
fn moves<'d, 'a>(
    domain: &'d Domain<'a>,
    config: &ReplicaConfig,
    is_taken: impl Fn(&Path) -> bool,
) -> Result<Vec<Move<'d, 'a>>> {
    let mut disks = domain.kept_disks();
    disks.retain(|disk| !disk.is_cdrom);
    let raw = config.disk.iter().zip(config.raw_disks());
    let raw: Vec<_> = raw.filter(|(disk, _)| !disk.cdrom).collect();
    ensure!(
        disks.len() == raw.len(),
        "the original has {} disks that Plover keeps, and the configuration {}: is it of this guest?",
        disks.len(),
        raw.len()
    );
    let one = |(disk, (_, from)): (&'d Disk<'a>, (_, PathBuf))| {
        let to = match disk.is_block {
            true => from.clone(),
            false => free_name(disk.source, &from, &is_taken),
        };
        Move { disk, from, to }
    };
    Ok(disks.into_iter().zip(raw).map(one).collect())
}

fn free_name(beside: &Path, raw: &Path, is_taken: impl Fn(&Path) -> bool) -> PathBuf {
    let name = raw.file_stem().unwrap_or_default().to_string_lossy();
    let named = |number: u32| match number {
        0 => beside.with_file_name(format!("{name}.raw")),
        _ => beside.with_file_name(format!("{name}-{number}.raw")),
    };
    let is_free = |path: &PathBuf| path != beside && !is_taken(path);
    let free = (0..1000).map(named).find(is_free);
    free.unwrap_or_else(|| named(1000))
}

/// The original's text, in which the disks are at their new places. All else is byte for byte what it was, also the CDs.
fn with_disks(text: &str, moves: &[Move<'_, '_>]) -> Result<String> {
    let mut edits = Vec::new();
    for Move { disk, to, .. } in moves {
        edits.extend(edits_of(disk, to)?);
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

    /// Runs `work` with the moves of a domain's disks, where these files are there.
    fn exported<T>(
        original: &str,
        config: &str,
        there: &[&str],
        work: impl FnOnce(&Domain<'_>, &ReplicaConfig, &[Move<'_, '_>]) -> T,
    ) -> T {
        let config: ReplicaConfig = toml::from_str(config).unwrap();
        let document = parse(original, "it").unwrap();
        let domain = Domain::read(&document, intent(&config)).unwrap();
        let is_taken = |path: &Path| there.iter().any(|file| path == Path::new(file));
        let moves = moves(&domain, &config, is_taken).unwrap();
        work(&domain, &config, &moves)
    }

    #[test]
    fn the_original_comes_back_with_the_present_disks_and_nothing_else_changed() {
        let there = ["/i/a.raw"];
        let (xml, steps) = exported(ORIGINAL, CONFIG, &there, |domain, config, moves| {
            let xml = with_disks(ORIGINAL, moves).unwrap();
            (xml, next_steps(domain, config, moves, false))
        });
        let expected = ORIGINAL
            .replace("type='qcow2'", "type='raw'")
            .replace("/i/a.qcow2", "/i/a-1.raw")
            .replace(
                "<backingStore type='file'><source file='/i/base'/></backingStore>",
                "",
            )
            .replace("/i/b.img", "/i/b &amp; &apos;c&apos;.raw");
        assert_eq!(xml, expected);
        insta::assert_snapshot!(steps);
    }

    #[test]
    fn variables_go_back_to_where_they_were() {
        let with = |firmware: &str, os: &str| {
            let key = format!("[guest]\nfirmware = \"{firmware}\"");
            let config = CONFIG.replace("[guest]", &key);
            let original = ORIGINAL.replace("<devices>", &format!("{os}<devices>"));
            exported(&original, &config, &[], |domain, config, _| {
                variables_step(domain, config)
            })
        };
        let os = "<os firmware='efi'><nvram format='qcow2'>/n/it's.qcow2</nvram></os>";
        let step = with("uefi", os);
        let words = r"-O qcow2 '/s/uefi-variables.fd' '/n/it'\''s.qcow2'";
        assert!(step.trim_end().ends_with(words), "{step}");
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

//! `plover import`: a libvirt domain becomes a group's configurations, with an account of every element of its XML.
//!
//! ```text
//!  domain.xml ─▶ Domain ─▶ rules, node by node ─▶ Account ─▶ configurations, beside them the account, the original
//!                                                    │       and the hook that keeps libvirt from starting it
//!                                                    └─ a loss that nobody accepts: nothing is written, exit code 2
//! ```

mod account;
pub mod domain;
pub mod hook;
mod judge;
mod virsh;

use crate::init::copy::copy;
use crate::init::group::{Group, GroupOptions, ORIGINAL, Way, write_all_new};
use crate::init::{self, InitOptions, random_mac};
use crate::output;
use account::Account;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use domain::{Disk, Domain, Intent, Nvram, child, find, text};
use hook::quoted;
use roxmltree::Document;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
pub use virsh::virsh;

/// Where the domain is, and what may be lost.
#[derive(Debug, Args)]
pub struct ImportOptions {
    /// The domain: what `virsh dumpxml --inactive DOMAIN` prints.
    #[arg(value_name = "FILE", required_unless_present = "domain")]
    file: Option<PathBuf>,
    /// Ask the libvirt of this host for the domain of this name instead.
    #[arg(long, value_name = "DOMAIN", conflicts_with = "file")]
    domain: Option<String>,
    /// Accept that the guest loses what the account calls so. May be given several times.
    #[arg(long, value_name = "KIND")]
    without: Vec<String>,
    /// The folder for the raw disks, on each host.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/plover")]
    disks: PathBuf,
    /// The size of a disk that is not on this host, by the name of its target, such as vda=20480. Once for each.
    #[arg(long, value_name = "TARGET=MIB")]
    disk_mib: Vec<DiskMib>,
    /// Keep the libvirt of this host from starting the domain, from now on. Without it, the steps that are printed do it
    /// when the domain has been shut down.
    #[arg(long)]
    hook: bool,
    /// Print the account and write nothing.
    #[arg(long, conflicts_with = "hook")]
    account: bool,
    /// Print the account as one JSON object.
    #[arg(long)]
    json: bool,
    /// FILE is no domain but a cloud image, which configures itself by these user data: as `plover init --image FILE --cloud-init
    /// USER-DATA`, which has more options.
    #[arg(long, value_name = "USER-DATA", requires = "file", conflicts_with_all = ["without", "disk_mib", "hook", "account", "json"])]
    cloud_init: Option<PathBuf>,
    #[command(flatten)]
    group: GroupOptions,
}

/// `vda=20480`.
#[derive(Clone, Debug)]
struct DiskMib(String, u64);

impl FromStr for DiskMib {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "give a target and its size in MiB, such as vda=20480".to_owned();
        let (target, mib) = text.split_once('=').ok_or_else(form)?;
        Ok(Self(target.into(), mib.parse().map_err(|_| form())?))
    }
}

/// Judges the domain, and writes the group's files unless the guest would lose something.
pub fn run(options: &ImportOptions) -> Result<ExitCode> {
    if let (Some(image), Some(user_data)) = (&options.file, &options.cloud_init) {
        return init::run(&cloud_image(options, image, user_data)?);
    }
    let (text, from) = read(options)?;
    let document = parse(&text, &from)?;
    let name = child(document.root_element(), "name").map(self::text);
    let intent = Intent {
        name: options.group.name(name)?,
        folder: options.disks.clone(),
        tap: options.group.tap.clone(),
        bridges: options.group.bridges(),
        mib: options
            .disk_mib
            .iter()
            .map(|DiskMib(target, mib)| (target.clone(), *mib))
            .collect(),
    };
    ensure!(
        options.disks.is_absolute(),
        "--disks {} needs a path from / on, which is the same on all hosts",
        options.disks.display()
    );
    let domain = Domain::read(&document, intent)?;
    let account = Account::of(&domain, &options.without);
    let blocking = account.blocking();
    let is_written = blocking.is_empty() && !options.account;
    let files = is_written
        .then(|| write(options, &domain, &account, &text))
        .transpose()?;
    if options.json {
        output::line(account.to_json())?;
    } else {
        output::print(&account)?;
    }
    if !blocking.is_empty() {
        let flags: Vec<_> = blocking
            .iter()
            .map(|kind| format!("--without {kind}"))
            .collect();
        tell!(
            "plover: nothing is written, since the guest may miss what is refused: take it out of the domain as the account \
             says, or accept the loss with {}",
            flags.join(" ")
        );
        return Ok(ExitCode::from(2));
    }
    let Some((steps, copied)) = files else {
        return Ok(ExitCode::SUCCESS);
    };
    match options.json {
        false => output::print(format_args!("\n{steps}"))?,
        true if copied.is_err() => tell!("{}", steps.trim_end()),
        true => {}
    }
    copied.map(|()| ExitCode::SUCCESS)
}

/// The group of a cloud image. Its disk is as large as the image's, and named after the group, as the image is if nothing else is
/// said.
fn cloud_image(options: &ImportOptions, image: &Path, user_data: &Path) -> Result<InitOptions> {
    let usual = image.file_stem().and_then(|stem| stem.to_str());
    let mut group = options.group.clone();
    let name = group.name(usual)?;
    let disk = options.disks.join(format!("{name}.raw"));
    let mib = domain::image_bytes(image)?.div_ceil(1 << 20);
    group.name = Some(name);
    Ok(InitOptions::of_cloud_image(
        group,
        disk,
        mib,
        image.into(),
        user_data.into(),
    ))
}

/// The domain's XML, and where it is from.
fn read(options: &ImportOptions) -> Result<(String, String)> {
    match (&options.domain, &options.file) {
        (Some(domain), _) => {
            refuse_saved_memory(domain, "start the domain and shut it down, or ")?;
            let text = virsh(&["dumpxml", "--inactive", "--domain", domain], None)?;
            Ok((text, format!("the domain {domain}")))
        }
        (None, Some(file)) => {
            let bytes = std::fs::read(file)
                .with_context(|| format!("cannot read the domain {}", file.display()))?;
            let text = String::from_utf8(bytes).ok().with_context(|| {
                format!(
                    "{} is no domain's XML: of a cloud image a group is made with --cloud-init, of another disk image by `plover init \
                     --image`",
                    file.display()
                )
            })?;
            Ok((text, file.display().to_string()))
        }
        (None, None) => bail!("no domain is named: give FILE, or --domain DOMAIN"),
    }
}

/// Refuses a domain, and says what to do, `or` first, whose memory `virsh managedsave` has saved: libvirt's next start goes on from it, on whatever the disks hold then.
///
/// # Errors
/// There is such a memory.
pub fn refuse_saved_memory(domain: &str, or: &str) -> Result<()> {
    // A domain that libvirt does not know has none, and a host without libvirt.
    let about = virsh(&["dominfo", "--domain", domain], None).unwrap_or_default();
    let mut lines = about.lines().filter_map(|line| line.split_once(':'));
    let is_saved = lines.any(|(key, value)| key == "Managed save" && value.trim() == "yes");
    ensure!(
        !is_saved,
        "libvirt has a saved memory of {domain}, and would go on from it on disks of another time: {or}give it up with \
         `virsh managedsave-remove {domain}`"
    );
    Ok(())
}

/// Parses a domain's XML.
pub fn parse<'t>(text: &'t str, from: &str) -> Result<Document<'t>> {
    Document::parse(text).with_context(|| {
        format!("{from} is no XML: give what `virsh dumpxml --inactive DOMAIN` prints")
    })
}

/// Writes the files. Returns what the operator does next, and whether the files were copied, if they were to be.
fn write(
    options: &ImportOptions,
    domain: &Domain<'_>,
    account: &Account<'_>,
    xml: &str,
) -> Result<(String, Result<()>)> {
    let name = domain.intent.name.clone();
    let mut group = Group::new(&options.group, name, options.group.hosts()?);
    let disks = domain.kept_disks();
    let others = domain.nics.len().saturating_sub(1);
    (group.guest, group.disks, group.nics) = account.keys(disks.len(), others);
    for keys in std::iter::once(&mut group.guest).chain(&mut group.nics) {
        if !keys.iter().any(|(key, _)| key == "mac") {
            keys.push(("mac".into(), random_mac()?.to_string().into()));
        }
    }
    for (keys, disk) in group.disks.iter_mut().zip(&disks) {
        if disk.is_cdrom {
            continue;
        }
        let mib = i64::try_from(domain.mib(disk)?).context("a disk has at most 8 TiB")?;
        keys.push(("size_mib".into(), mib.into()));
    }
    group.ways = ways(domain);
    group.beside = vec![(ORIGINAL.into(), xml.to_owned())];
    let script = hook::script(domain.root, &group.name);
    let others = [
        (group.file(ORIGINAL), xml.to_owned()),
        (group.file("account.txt"), account.to_string()),
        (
            group.file("account.json"),
            format!("{:#}\n", account.to_json()),
        ),
        (group.file(hook::ENDING), script.clone()),
    ];
    write_all_new(&others)?;
    let others: Vec<_> = others.into_iter().map(|(file, _)| file).collect();
    // The hook comes first, since it fails unless we are root. If the rest fails, the one before is put back.
    let before = hook::found(&group.name);
    let hook = match options.hook {
        true => hook::install(&script, &group.name).map(Some),
        false => Ok(None),
    };
    let all = hook.and_then(|hook| Ok((group.write()?, hook)));
    let (files, hook) = all.inspect_err(|_| {
        for file in &others {
            let _ = std::fs::remove_file(file);
        }
        if options.hook {
            hook::put_back(before.as_deref(), &group.name);
        }
    })?;
    let mut done = String::new();
    if let Some(place) = hook {
        let _ = writeln!(
            done,
            "the hook {} keeps libvirt from starting the original from now on, also after a crash of it. If it is the first \
             hook of this host, libvirt looks for it when it is restarted: systemctl try-restart libvirtd virtqemud\n",
            place.display()
        );
    }
    let step = disk_step(domain, &group, &disks, options.hook)?;
    let copied = match options.group.copy {
        true => copy(&files, &group.hosts).map(|()| true),
        false => Ok(false),
    };
    let is_copied = copied.as_ref().is_ok_and(|is_copied| *is_copied);
    let steps = done + &group.next_steps(&files, &others, &step, is_copied);
    Ok((steps, copied.map(drop)))
}

/// How each TAP gets to its network.
fn ways(domain: &Domain<'_>) -> Vec<Way> {
    let places = 0..domain.nics.len().max(1);
    places.map(|place| way(domain, place)).collect()
}

fn way(domain: &Domain<'_>, place: usize) -> Way {
    let nic = domain.nics.get(place).copied();
    let of = |path: &str, name: &str| find(nic?, path)?.attribute(name);
    let known = domain.bridge(place).or_else(|| of("source", "bridge"));
    let bridge = known.unwrap_or("BRIDGE");
    let tap = domain.tap(place);
    let vlan = nic.and_then(|nic| child(nic, "vlan"));
    let is_trunk = vlan.is_some_and(|vlan| vlan.attribute("trunk") == Some("yes"));
    let tags = vlan.into_iter().flat_map(|vlan| vlan.children());
    let tags: Vec<_> = tags.filter_map(|tag| tag.attribute("id")).collect();
    if of("virtualport", "type") == Some("openvswitch") {
        let key = if is_trunk { "trunks" } else { "tag" };
        let vlan = match tags.as_slice() {
            [] => String::new(),
            tags => format!(" {key}={}", tags.join(",")),
        };
        return Way::ByHand(format!(
            "ip link set {tap} up && ovs-vsctl add-port {bridge} {tap}{vlan}"
        ));
    }
    // The service makes its TAP anew at each start, without an isolation or a limit that was set on it.
    let is_isolated = of("port", "isolated") == Some("yes");
    let is_limited = nic.is_some_and(|nic| child(nic, "bandwidth").is_some());
    let is_plain = tags.is_empty() && !is_isolated && !is_limited;
    if let Some(bridge) = known.filter(|_| is_plain) {
        return Way::Bridge(bridge.into());
    }
    let untagged = if is_trunk { "" } else { " pvid untagged" };
    let vlans = tags
        .iter()
        .map(|id| format!(" && bridge vlan add dev {tap} vid {id}{untagged}"));
    let vlans: String = vlans.collect();
    let isolated = match is_isolated {
        true => format!(" && bridge link set dev {tap} isolated on"),
        false => String::new(),
    };
    Way::ByHand(format!(
        "ip link set {tap} master {bridge} up{vlans}{isolated}"
    ))
}

/// The step that ends the original and takes its disks.
fn disk_step(
    domain: &Domain<'_>,
    group: &Group<'_>,
    disks: &[&Disk<'_>],
    is_hooked: bool,
) -> Result<String> {
    let of = |path: &Path| quoted(&path.to_string_lossy());
    let name = quoted(child(domain.root, "name").map(text).unwrap_or_default());
    let first: IpAddr = group.hosts[0];
    let mut step = format!(
        "on the host of the original, end it:\n     virsh shutdown {name}          # and wait: virsh domstate {name}\n"
    );
    if !is_hooked {
        let place = hook::place(&group.name);
        let _ = writeln!(
            step,
            "     install -D -m 755 {} {}      # libvirt does not start it any more\n     \
             systemctl try-restart libvirtd virtqemud      # it looks for hooks when it starts",
            of(&group.file(hook::ENDING)),
            of(&place)
        );
    }
    let _ = writeln!(
        step,
        "   and take its disks to {first}; the original's files stay as they are:"
    );
    for disk in disks {
        let (source, path) = (of(disk.source), domain.raw_path(disk));
        let raw = of(&path);
        if disk.is_cdrom {
            let _ = writeln!(
                step,
                "     plover disk import --format raw {source} {raw}      # and on every other host"
            );
            continue;
        }
        let mib = domain.mib(disk)?;
        if disk.source == path {
            let _ = writeln!(step, "     chown -h plover {raw}      # it is in its place");
            continue;
        }
        if disk.is_block {
            let _ = writeln!(
                step,
                "     chown plover {raw}      # the same device, with {mib} MiB, on every host: docs/install.md"
            );
            continue;
        }
        let _ = writeln!(
            step,
            "     plover disk import --format {} --size {mib}M {source} {raw}",
            disk.format
        );
        if disk.read_only {
            let _ = writeln!(
                step,
                "     # the guest only reads it: put the same file on every host"
            );
        }
    }
    if let Some(nvram) = domain.nvram().filter(Nvram::fits) {
        let to = of(&group.state_dir().join(plover_node::UEFI_VARIABLES));
        let (format, source) = (nvram.format, of(nvram.source));
        let _ = writeln!(
            step,
            "     plover disk import --format {format} {source} {to}"
        );
    }
    Ok(step)
}

#[cfg(test)]
mod tests;

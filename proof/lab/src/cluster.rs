//! Pacemaker and corosync on the hosts of a lab, to test `plover ocf` and `plover fleet` with.
//!
//! A host of a lab is a network namespace. Here it gets a mount namespace and a name too: `/etc`, `/var` and the agents are
//! overlays, `/run` and `/dev/shm` its own, so that nothing of the machine changes. All of it ends with the host's processes, which
//! `lab down` kills.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_lab::net::{Namespace, REPLICATION_DEVICE, replica_ip};
use plover_lab::process;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The names of the nodes, by the replicas' ids.
pub const NODES: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];

/// The fence device: a power switch whose buttons are files in the cluster's folder. The test looks at them
/// ([`Cluster::is_to_be_fenced`]) and pulls the plug.
const SWITCH: &str = r#"#!/bin/sh
while read -r line; do
    case "$line" in
    action=*) action=${line#*=} ;;
    plug=*|port=*) node=${line#*=} ;;
    esac
done
case "$action" in
metadata) cat << 'END'
<?xml version="1.0"?>
<resource-agent name="fence_lab" shortdesc="The power switch of a lab">
<longdesc>Its buttons are files.</longdesc>
<parameters><parameter name="plug" required="0"><shortdesc lang="en">Node</shortdesc><content type="string"/></parameter></parameters>
<actions><action name="off"/><action name="reboot"/><action name="status"/><action name="monitor"/><action name="metadata"/></actions>
</resource-agent>
END
;;
off|reboot)
    touch "FOLDER/$node.off"
    while [ -e "FOLDER/$node.off" ]; do sleep 0.1; done ;;
esac
"#;

/// Makes a host: `$DIR` is its folder, `$1` its name, `$2` the folder of agents, `$3` that of its guests' configurations. Its last
/// step is to wait for what it has started.
const HOST: &str = r#"
set -e
mount --make-rprivate /
hostname "$1"
mount -t tmpfs none "$DIR"
for folder in etc var usr/lib/ocf usr/sbin; do
    mkdir -p "$DIR/upper/$folder" "$DIR/work/$folder"
    mount -t overlay none -o "lowerdir=/$folder,upperdir=$DIR/upper/$folder,workdir=$DIR/work/$folder" "/$folder"
done
mkdir -p "$DIR/run/plover-lab" "$DIR/run/lock" "$DIR/run/netns" /etc/plover
mount --rbind /run/plover-lab "$DIR/run/plover-lab"
cp "$DIR/../corosync.conf" /etc/corosync/corosync.conf
cat "$DIR/../hosts" >> /etc/hosts
cp -r "$3"/. /etc/plover
cp -r "$2" /usr/lib/ocf/resource.d/plover
cp "$DIR/../fence_lab" /usr/sbin
mount --rbind "$DIR/run" /run
mount -t tmpfs none /dev/shm
rm -rf /var/lib/pacemaker/cib/* /var/lib/corosync/*
trap "" TERM
while :; do
    corosync -f > "$DIR/corosync.log" 2>&1 &
    until corosync-cmapctl > /dev/null 2>&1; do sleep 0.1; done
    pacemakerd > "$DIR/pacemaker.log" 2>&1 || true
    wait || true
    until [ -e "$DIR/again" ]; do sleep 0.1; done
    rm "$DIR/again"
done
"#;

/// A cluster whose nodes are the hosts of a lab.
#[derive(Debug)]
pub struct Cluster {
    hosts: Vec<Host>,
    folder: TempDir,
    guest: String,
}

#[derive(Debug)]
struct Host {
    id: u8,
    namespace: Namespace,
    /// The process that made it: the others are its children.
    keeper: Option<Child>,
}

impl Cluster {
    /// Starts the engine on all hosts of a lab, whose replicas run already.
    pub fn start(lab: &Lab) -> Result<Self> {
        Self::on(lab, hosts_of(lab))
    }

    /// The same, and on one more node that has no replica: the host of the clients.
    pub fn start_with_arbiter(lab: &Lab) -> Result<Self> {
        let mut hosts = hosts_of(lab);
        let (id, namespace) = (hosts.len() as u8, lab.topology().client());
        let address = replica_ip(id.into());
        let in_namespace = |namespace: &Namespace, words: &str| -> Result<String> {
            let mut command = namespace.exec_in(Command::new("sh"))?;
            let ended = command.args(["-e", "-c", words]).output()?;
            let said = String::from_utf8_lossy(&ended.stderr);
            ensure!(ended.status.success(), "{words}: {said}");
            // "eth0@if3  UP  02:00:00:77:01:0a  <BROADCAST,…>"
            let shown = String::from_utf8_lossy(&ended.stdout);
            let mac = shown.split_whitespace().nth(2).unwrap_or_default();
            Ok(mac.to_owned())
        };
        let make = format!("ip addr add {address}/24 dev eth0; ip -br link show eth0");
        let mac = in_namespace(&namespace, &make)?;
        for host in &hosts {
            let meet = format!(
                "ip neigh replace {address} lladdr {mac} dev {REPLICATION_DEVICE} nud permanent; \
                 ip -br link show {REPLICATION_DEVICE}"
            );
            let (its, at) = (
                in_namespace(&host.namespace, &meet)?,
                replica_ip(host.id.into()),
            );
            let meet = format!("ip neigh replace {at} lladdr {its} dev eth0 nud permanent");
            in_namespace(&namespace, &meet)?;
        }
        hosts.push(Host {
            id,
            namespace,
            keeper: None,
        });
        Self::on(lab, hosts)
    }

    fn on(lab: &Lab, hosts: Vec<Host>) -> Result<Self> {
        for program in ["corosync", "pacemakerd", "crm", "nsenter"] {
            let found = Command::new("sh")
                .args(["-c", "command -v \"$0\""])
                .arg(program)
                .stdout(Stdio::null())
                .status()?;
            ensure!(
                found.success(),
                "{program} is missing: apt-get install --no-install-recommends pacemaker corosync crmsh pacemaker-cli-utils"
            );
        }
        let folder = tempfile::tempdir()?;
        let ids: Vec<u8> = hosts.iter().map(|host| host.id).collect();
        std::fs::write(folder.path().join("corosync.conf"), configuration(&ids))?;
        let switch = folder.path().join("fence_lab");
        let text = SWITCH.replace("FOLDER", &folder.path().to_string_lossy());
        std::fs::write(&switch, text)?;
        std::fs::set_permissions(&switch, PermissionsExt::from_mode(0o755))?;
        // `crm` looks whether a node answers at its name.
        let names = ids
            .iter()
            .map(|id| format!("{} {}\n", replica_ip((*id).into()), NODES[usize::from(*id)]));
        std::fs::write(folder.path().join("hosts"), names.collect::<String>())?;
        let mut cluster = Self {
            hosts,
            folder,
            guest: format!("lab-{}", lab.name()),
        };
        for id in lab.ids() {
            let text = std::fs::read_to_string(lab.files(id).config())?;
            cluster.write(id, &cluster.guest, &text)?;
        }
        for id in ids {
            cluster.start_host(id)?;
        }
        Ok(cluster)
    }

    /// Whether the cluster wants a host's power off. It waits until [`Cluster::is_off`].
    pub fn is_to_be_fenced(&self, id: u8) -> bool {
        self.button(id).exists()
    }

    /// Tells the cluster that a host's power is off.
    pub fn is_off(&self, id: u8) -> Result<()> {
        Ok(std::fs::remove_file(self.button(id))?)
    }

    fn button(&self, id: u8) -> PathBuf {
        let name = format!("{}.off", NODES[usize::from(id)]);
        self.folder.path().join(name)
    }

    /// The guest's name.
    pub fn guest(&self) -> &str {
        &self.guest
    }

    fn host(&self, id: u8) -> Result<&Host> {
        self.hosts
            .iter()
            .find(|host| host.id == id)
            .context("no such host")
    }

    fn folder(&self, id: u8) -> PathBuf {
        self.folder.path().join(NODES[usize::from(id)])
    }

    /// Starts a host's engine: of one that was lost, with all its mounts.
    pub fn start_host(&mut self, id: u8) -> Result<()> {
        let (folder, files) = (self.folder(id), self.files(id));
        std::fs::create_dir_all(&folder)?;
        std::fs::create_dir_all(&files)?;
        let host = self
            .hosts
            .iter_mut()
            .find(|host| host.id == id)
            .context("no such host")?;
        let bin = crate::program()
            .parent()
            .context("the program lies in a folder")?;
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        let mut command = host.namespace.exec_in(Command::new("unshare"))?;
        command.args([
            "--mount",
            "--uts",
            "sh",
            "-c",
            HOST,
            "sh",
            NODES[usize::from(id)],
        ]);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share/ocf"));
        command.arg(files);
        command
            .env("DIR", &folder)
            .env("PATH", path)
            .process_group(0);
        let log = std::fs::File::create(folder.with_extension("log"))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(mut lost) = host.keeper.take() {
            lost.wait()?;
        }
        host.keeper = Some(command.spawn().context("cannot run unshare")?);
        Ok(())
    }

    /// A host's configurations, which it reads when it starts.
    fn files(&self, id: u8) -> PathBuf {
        self.folder.path().join("etc").join(NODES[usize::from(id)])
    }

    /// Writes a guest's configuration on a host, or for one that is lost.
    pub fn write(&self, id: u8, guest: &str, text: &str) -> Result<()> {
        let (files, name) = (self.files(id), format!("{guest}.toml"));
        std::fs::create_dir_all(&files)?;
        std::fs::write(files.join(&name), text)?;
        if self.host(id)?.keeper.is_some() {
            let from = files.join(&name);
            // It fails on a host that was lost.
            let _ = self.run(id, &["cp", &from.to_string_lossy(), "/etc/plover"]);
        }
        Ok(())
    }

    /// Writes something else into the guest's file on all hosts.
    pub fn configure(&self, from: &str, to: &str) -> Result<()> {
        for host in &self.hosts {
            let file = self.files(host.id).join(format!("{}.toml", self.guest));
            let text = std::fs::read_to_string(&file)?;
            ensure!(text.contains(from), "{from} is not in {}", file.display());
            self.write(host.id, &self.guest, &text.replace(from, to))?;
        }
        Ok(())
    }

    /// Kills the engine's own daemons on a host.
    pub fn kill_engine(&self, id: u8) -> Result<()> {
        let killed = self.host(id)?.kill_engine();
        ensure!(killed > 0, "no engine runs on host {id}");
        Ok(())
    }

    /// Starts the engine of a host again whose daemons were killed.
    pub fn restart_engine(&self, id: u8) -> Result<()> {
        let (folder, guest) = (self.folder(id), &self.guest);
        // The folder is a mount of the host's own.
        self.run(id, &["touch", &folder.join("again").display().to_string()])
            .with_context(|| format!("the engine of {guest} cannot be started again"))
            .map(drop)
    }

    /// Runs a command on a host and returns what it prints.
    pub fn run(&self, id: u8, words: &[&str]) -> Result<String> {
        let keeper = self
            .host(id)?
            .keeper
            .as_ref()
            .context("the host is not there")?;
        let mut command = Command::new("nsenter");
        command.args([
            "--net",
            "--mount",
            // Where this runs in a chroot, a mount namespace's root is outside of it.
            "--root",
            "--wd",
            "--uts",
            "--target",
            &keeper.id().to_string(),
            "--",
        ]);
        let ended = command.args(words).stdin(Stdio::null()).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if !ended.status.success() {
            bail!(
                "{words:?} on host {id}: {}{}",
                text(&ended.stdout),
                text(&ended.stderr)
            );
        }
        Ok(text(&ended.stdout))
    }
}

impl Host {
    /// Kills the engine's own daemons, and returns how many there were.
    fn kill_engine(&self) -> usize {
        let all = process::in_namespace(&self.namespace.path()).into_iter();
        let daemons = all.filter(|it| it.is_called("corosync") || it.is_called("pacemaker"));
        daemons.filter(|daemon| daemon.signal(Signal::KILL)).count()
    }
}

/// The replicas that the engine has started run on, as parts of the lab.
impl Drop for Cluster {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            // The keeper first: it would go on with the next step of its script.
            if let Some(mut keeper) = host.keeper.take() {
                let _ = keeper.kill();
                let _ = keeper.wait();
            }
            host.kill_engine();
        }
    }
}

fn hosts_of(lab: &Lab) -> Vec<Host> {
    let hosts = lab.ids().map(|id| Host {
        id,
        namespace: lab.topology().replica(id.into()),
        keeper: None,
    });
    hosts.collect()
}

fn configuration(ids: &[u8]) -> String {
    let nodes = ids.iter().map(|id| {
        let (name, number) = (NODES[usize::from(*id)], id + 1);
        let address = replica_ip((*id).into());
        format!(
            "  node {{\n    ring0_addr: {address}\n    name: {name}\n    nodeid: {number}\n  }}\n"
        )
    });
    format!(
        "totem {{\n  version: 2\n  cluster_name: lab\n  transport: udpu\n  token: 3000\n}}\nnodelist {{\n{}}}\nquorum {{\n  \
         provider: corosync_votequorum\n}}\nlogging {{\n  to_stderr: yes\n  to_syslog: no\n}}\n",
        nodes.collect::<String>()
    )
}

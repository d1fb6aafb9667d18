//! Pacemaker and corosync on the hosts of a lab, to test `plover ocf` and `plover fleet` with.
//!
//! A host of a lab is a network namespace. Here it gets a mount namespace and a name too: `/etc`, `/var` and the agents are
//! overlays, `/run` and `/dev/shm` its own, so that nothing of the machine changes. All of it ends with the host's processes, which
//! `lab down` kills.

use anyhow::{Context, Result, bail, ensure};
use plover_lab::Lab;
use plover_lab::net::{Namespace, replica_ip};
use plover_lab::process;
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// The names of the nodes, by the replicas' ids.
pub const NODES: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];

/// Makes a host: `$DIR` is its folder, `$1` its name, `$2` the folder of agents, `$3` that of its guests' configurations. Its last
/// step is to wait for what it has started.
const HOST: &str = r#"
set -e
mount --make-rprivate /
hostname "$1"
mount -t tmpfs none "$DIR"
for folder in etc var usr/lib/ocf; do
    mkdir -p "$DIR/upper/$folder" "$DIR/work/$folder"
    mount -t overlay none -o "lowerdir=/$folder,upperdir=$DIR/upper/$folder,workdir=$DIR/work/$folder" "/$folder"
done
mkdir -p "$DIR/run/plover-lab" "$DIR/run/lock" "$DIR/run/netns" /etc/plover
mount --rbind /run/plover-lab "$DIR/run/plover-lab"
cp "$DIR/../corosync.conf" /etc/corosync/corosync.conf
cat "$DIR/../hosts" >> /etc/hosts
cp "$3"/*.toml /etc/plover
cp -r "$2" /usr/lib/ocf/resource.d/plover
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
        std::fs::write(folder.path().join("corosync.conf"), configuration(lab))?;
        // `crm` looks whether a node answers at its name.
        let names = lab
            .ids()
            .map(|id| format!("{} {}\n", replica_ip(id.into()), NODES[usize::from(id)]));
        std::fs::write(folder.path().join("hosts"), names.collect::<String>())?;
        let hosts = lab.ids().map(|id| Host {
            id,
            namespace: lab.topology().replica(id.into()),
            keeper: None,
        });
        let mut cluster = Self {
            hosts: hosts.collect(),
            folder,
            guest: format!("lab-{}", lab.name()),
        };
        for id in lab.ids() {
            let text = std::fs::read_to_string(lab.files(id).config())?;
            cluster.write(id, &cluster.guest, &text)?;
        }
        for id in lab.ids() {
            cluster.start_host(id)?;
        }
        Ok(cluster)
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

fn configuration(lab: &Lab) -> String {
    let nodes = lab.ids().map(|id| {
        let (name, number) = (NODES[usize::from(id)], id + 1);
        let address = replica_ip(id.into());
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

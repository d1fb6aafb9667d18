//! Guests on the hosts of a lab beside the lab's own, for tests of many guests: Pacemaker starts their replicas.
//!
//! Each has three members and two spare hosts. The test is the operator: it makes a host that was replaced a spare one again.

use crate::cluster::Cluster;
use anyhow::{Context, Result, ensure};
use plover_lab::Lab;
use plover_lab::control::Control;
use plover_lab::net::replica_ip;
use plover_lab::status::GroupStatus;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml::{Table, Value};

/// The number of hosts.
pub const HOSTS: u8 = 5;
/// Ids of replicas that a group has in all: one that has left never comes back.
const IDS: u8 = 16;

/// A replacement of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// There was none.
    None,
    /// The new member has no copy yet.
    UnderWay,
    /// From the change of the members until the last copy of the guest that was made since.
    Took(Duration),
}

/// One such guest.
#[derive(Debug)]
pub struct Beside {
    /// 1 for the first beside the lab's own.
    number: u8,
    /// Its name.
    pub name: String,
    /// The file of the lab's own guest, which is the pattern.
    pattern: Table,
    /// Where the lab keeps a host's files, by host.
    folders: Vec<PathBuf>,
    /// The replica of each host.
    ids: Vec<u8>,
    /// The hosts of members.
    members: Vec<u8>,
    next_id: u8,
}

impl Beside {
    /// Makes a guest: its TAP devices, and its files on all hosts.
    ///
    /// # Errors
    /// A host has no room for it.
    pub fn new(lab: &Lab, cluster: &Cluster, number: u8) -> Result<Self> {
        let pattern = std::fs::read_to_string(lab.files(0).config())?;
        let rank = |host: u8| (host + HOSTS - number % HOSTS) % HOSTS;
        let it = Self {
            number,
            name: format!("{}-{number}", cluster.guest()),
            pattern: pattern.parse()?,
            folders: (0..HOSTS)
                .map(|id| lab.files(id).path().to_path_buf())
                .collect(),
            ids: (0..HOSTS).map(rank).collect(),
            members: (0..HOSTS).filter(|host| rank(*host) < 3).collect(),
            next_id: HOSTS,
        };
        for host in 0..HOSTS {
            let tap = it.tap();
            cluster.run(host, &["ip", "tuntap", "add", &tap, "mode", "tap"])?;
            let up = ["txqueuelen", "1000", "master", "br0", "up"];
            cluster.run(host, &[&["ip", "link", "set", &tap], &up[..]].concat())?;
        }
        it.write(cluster)?;
        Ok(it)
    }

    fn tap(&self) -> String {
        format!("beside{}", self.number)
    }

    /// Where it answers.
    pub fn service(&self) -> SocketAddrV4 {
        SocketAddrV4::new([10, 77, 0, 100 + self.number].into(), 6379)
    }

    fn folder(&self, host: u8) -> PathBuf {
        self.folders[usize::from(host)].join(&self.name)
    }

    fn write(&self, cluster: &Cluster) -> Result<()> {
        (0..HOSTS).try_for_each(|host| cluster.write(host, &self.name, &self.file(host)?))
    }

    /// The configuration of a member's host.
    pub fn file_of_a_member(&self) -> Result<String> {
        self.file(self.members[0])
    }

    /// The configuration of a host.
    fn file(&self, host: u8) -> Result<String> {
        let mut table = self.pattern.clone();
        let list = |hosts: Vec<u8>| -> Value {
            let one = |host: u8| {
                let address = format!(
                    "{}:{}",
                    replica_ip(host.into()),
                    7700 + 10 * u16::from(self.number)
                );
                let mut table = Table::new();
                table.insert("id".into(), i64::from(self.ids[usize::from(host)]).into());
                table.insert("address".into(), address.into());
                Value::from(table)
            };
            Value::Array(hosts.into_iter().map(one).collect())
        };
        let spares = (0..HOSTS).filter(|it| !self.members.contains(it)).collect();
        let first = self.ids[usize::from(self.members[0])];
        let mut members = self.members.clone();
        members.sort_by_key(|host| self.ids[usize::from(*host)]);
        let ip = self.service().ip().to_string();
        let cmdline = self.pattern["guest"].get("cmdline").and_then(Value::as_str);
        let cmdline = cmdline
            .context("the guest has a command line")?
            .replace("10.77.0.100", &ip);
        let dir = |name: &str| Value::from(self.folder(host).join(name).display().to_string());
        let of = |table: &mut Table, name: &str, keys: Vec<(&str, Value)>| -> Result<()> {
            let part = table.get_mut(name).and_then(Value::as_table_mut);
            let part = part.with_context(|| format!("the pattern has [{name}]"))?;
            part.extend(keys.into_iter().map(|(key, value)| (key.to_owned(), value)));
            Ok(())
        };
        of(
            &mut table,
            "group",
            vec![
                ("name", self.name.clone().into()),
                ("me", i64::from(self.ids[usize::from(host)]).into()),
                ("first_leader", i64::from(first).into()),
                ("replace_after_s", 5.into()),
                ("replica", list(members)),
                ("spare", list(spares)),
            ],
        )?;
        of(
            &mut table,
            "guest",
            vec![
                ("mac", format!("52:54:00:77:01:{:02x}", self.number).into()),
                ("cmdline", cmdline.into()),
            ],
        )?;
        of(&mut table, "net", vec![("tap", self.tap().into())])?;
        of(
            &mut table,
            "paths",
            vec![("state_dir", dir("state")), ("run_dir", dir("run"))],
        )?;
        Ok(table.to_string())
    }

    /// The status of the group, as the first replica tells it that knows a leader.
    pub fn status(&self) -> Option<GroupStatus> {
        let run_dirs = (0..HOSTS).map(|host| self.folder(host).join("run"));
        let answers = run_dirs.map(|dir| GroupStatus::ask(&Control::in_run_dir(&dir)));
        answers.flatten().find(|it| it.leader().is_some())
    }

    /// Whether it is protected, with three members and no change under way.
    pub fn is_whole(&self) -> bool {
        let Some(group) = self.status() else {
            return false;
        };
        let roles = ["leader", "secondary", "witness"];
        let voters = voters(&group);
        group.protected
            && voters.len() == 3
            && voters
                .iter()
                .all(|id| group.replica(*id).is_some_and(|it| it.answers()))
            && roles.iter().all(|role| group.with_role(role).is_some())
            && group.change_in_words().is_none()
    }

    /// Whether a member was replaced since then, by the logs of its replicas.
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn replacement(&self, since: OffsetDateTime) -> Result<Replacement> {
        let (mut begun, mut ended) = (None, None);
        for host in 0..HOSTS {
            let log = self.folder(host).join("state/replica.log");
            if !log.exists() {
                continue;
            }
            let log = std::fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
            for line in String::from_utf8_lossy(&log).lines() {
                let at = line.split_whitespace().next();
                let at = at.and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
                let Some(at) = at.filter(|at| *at >= since) else {
                    continue;
                };
                if line.contains(" is to join") && begun.is_none_or(|it| at < it) {
                    begun = Some(at);
                }
                let is_copied = line.contains("the guest is protected: replica")
                    || line.contains(" has a warm copy");
                if is_copied && ended.is_none_or(|it| at > it) {
                    ended = Some(at);
                }
            }
        }
        let Some(begun) = begun else {
            return Ok(Replacement::None);
        };
        Ok(match ended.filter(|it| *it >= begun) {
            Some(ended) => Replacement::Took((ended - begun).unsigned_abs()),
            None => Replacement::UnderWay,
        })
    }

    fn host_of(&self, id: u8) -> Option<u8> {
        (0..HOSTS).find(|host| self.ids[usize::from(*host)] == id)
    }

    /// Whether there is an id that nobody has had.
    pub fn has_an_id(&self) -> bool {
        self.next_id < IDS
    }

    /// Takes over the members of now, and makes each host that was replaced a spare one: its replica gets an id that nobody
    /// has had, and nothing of the old one is left. Returns how many were replaced.
    ///
    /// # Errors
    /// No leader is known, or the ids are used up.
    pub fn bring_up_to_date(&mut self, cluster: &Cluster) -> Result<usize> {
        let group = self.status().context("no replica knows a leader")?;
        let hosts = voters(&group).into_iter().filter_map(|id| self.host_of(id));
        let hosts: Vec<u8> = hosts.collect();
        let gone: Vec<u8> = self
            .members
            .iter()
            .copied()
            .filter(|it| !hosts.contains(it))
            .collect();
        self.members = hosts;
        for host in &gone {
            ensure!(self.has_an_id(), "{}: all ids are used", self.name);
            self.ids[usize::from(*host)] = self.next_id;
            self.next_id += 1;
            let folder = self.folder(*host);
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
        }
        if !gone.is_empty() {
            self.write(cluster)?;
        }
        Ok(gone.len())
    }
}

fn voters(group: &GroupStatus) -> Vec<u8> {
    let leader = group.leader();
    leader.map(|it| it.ids("voters")).unwrap_or_default()
}

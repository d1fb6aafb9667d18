//! The status of a group: all its replicas in one picture, of a lab or of hosts in earnest.

mod sentences;
mod table;
mod words;

use crate::control::{Control, ControlError, DaemonStatus, SyncStatus, refused, says};
use crate::process::Life;
use crate::state::{LabDir, LabState, ReplicaState};
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::Path;

pub use table::milliseconds;

/// A lab at one moment; `plover lab status --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabStatus {
    /// Where the guest answers.
    pub guest_ip: Ipv4Addr,
    /// Its replicas.
    #[serde(flatten)]
    pub group: GroupStatus,
}

/// A group at one moment; `plover status --json` prints it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupStatus {
    /// The group's name.
    #[serde(rename = "group")]
    pub name: String,
    /// Whether the guest would survive the loss of any one replica.
    pub protected: bool,
    /// The policy the guest runs under.
    pub policy: String,
    /// The replicas, by id.
    pub replicas: Vec<ReplicaStatus>,
    /// Whether it is a lab's, whose commands are others.
    #[serde(skip)]
    in_lab: bool,
}

impl Deref for LabStatus {
    type Target = GroupStatus;

    fn deref(&self) -> &GroupStatus {
        &self.group
    }
}

/// One replica at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplicaStatus {
    /// Its id.
    pub id: u8,
    /// The role it names (`leader`, `secondary`, `witness`, `joining`, `recovering`, `deposed`), or why
    /// it names none: `down` (its process has ended), `stopped` (by `fault stop`), `silent` (it does not
    /// answer).
    pub role: String,
    /// The number of the view it is in; none if it does not answer.
    pub view: Option<u64>,
    /// The replica that leads this view.
    pub view_leader: Option<u8>,
    /// The replicas that hold the guest's state, as far as it knows.
    pub isr: Vec<u8>,
    /// Whether it faces clients.
    pub serving: bool,
    /// Its process; none when it has ended.
    pub plover_pid: Option<u32>,
    /// Its hypervisor's process, when it has one.
    pub qemu_pid: Option<u32>,
    /// Its trouble and what to do: its disk fails, it leads and cannot copy the guest to
    /// anybody, it and another one refuse each other, or why its process ended.
    pub trouble: Option<String>,
    /// The cost of its syncs.
    pub sync: SyncStatus,
    /// All other fields that it sent.
    pub more: serde_json::Map<String, serde_json::Value>,
    /// Whether it says that the guest is protected.
    #[serde(skip)]
    claims_protected: bool,
}

impl LabStatus {
    /// Asks all replicas at the same time, so that a stopped one does not delay the others.
    pub fn gather(dir: &LabDir, state: &LabState) -> Self {
        let replicas: Vec<ReplicaStatus> = std::thread::scope(|scope| {
            let asked: Vec<_> = state
                .replicas
                .iter()
                .map(|replica| scope.spawn(|| ReplicaStatus::of(dir, replica)))
                .collect();
            asked
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .collect()
        });
        let mut status = Self::of(state.guest_ip, state.policy.clone(), replicas);
        status.group.name = dir.name().to_string();
        status
    }

    fn of(guest_ip: Ipv4Addr, policy: String, replicas: Vec<ReplicaStatus>) -> Self {
        let mut group = GroupStatus::of(String::new(), policy, replicas);
        group.in_lab = true;
        Self { guest_ip, group }
    }
}

impl GroupStatus {
    /// All replicas, as the one behind `control` and those that answer it say. One that does not answer is shown as
    /// such.
    ///
    /// # Errors
    /// The replica behind `control` does not answer.
    pub fn ask(control: &Control) -> Result<Self, ControlError> {
        let (asked, answers) = control.group()?;
        Ok(Self::of_answers(asked, &answers))
    }

    /// The same of what [`Control::group`] has returned.
    pub fn of_answers(asked: u64, answers: &[Value]) -> Self {
        let own = answers.iter().find(|answer| answer["id"] == asked);
        let text = |key: &str| own.and_then(|own| own[key].as_str()).unwrap_or_default();
        let replicas = answers.iter().filter_map(ReplicaStatus::answered).collect();
        Self::of(text("group").into(), text("policy").into(), replicas)
    }

    fn of(name: String, policy: String, replicas: Vec<ReplicaStatus>) -> Self {
        let mut status = Self {
            name,
            protected: false,
            policy,
            replicas,
            in_lab: false,
        };
        status.protected = status
            .leader()
            .is_some_and(|leader| leader.claims_protected);
        status
    }

    /// The replica that leads the newest view, not one that led an older view and has not heard of its
    /// end.
    pub fn leader(&self) -> Option<&ReplicaStatus> {
        self.with_role("leader")
    }

    /// The replica with this role; of several, the one in the newest view.
    pub fn with_role(&self, role: &str) -> Option<&ReplicaStatus> {
        let newest = |replica: &&ReplicaStatus| (replica.view, replica.view_leader);
        self.replicas
            .iter()
            .filter(|replica| replica.role == role)
            .max_by_key(newest)
    }

    /// The replica with this id.
    pub fn replica(&self, id: u8) -> Option<&ReplicaStatus> {
        self.replicas.iter().find(|replica| replica.id == id)
    }

    /// The replicas that are members, by the word of those that answer; all if none does. A spare host is none, nor is one that
    /// has left.
    pub fn members(&self) -> impl Iterator<Item = &ReplicaStatus> {
        let answering = self.replicas.iter().filter(|replica| replica.answers());
        let named: Vec<u8> = answering.flat_map(|it| it.ids("members")).collect();
        let is_member = move |id| named.is_empty() || named.contains(&id);
        self.replicas.iter().filter(move |it| is_member(it.id))
    }

    /// Whether the replica with this id has a warm copy of the guest, all of it.
    pub fn is_warm(&self, id: u8) -> bool {
        self.replicas.iter().any(|source| source.keeps_warm(id))
    }

    /// Whether every member answers, and no replica holds the guest's state.
    pub fn guest_is_lost(&self) -> bool {
        self.members().all(ReplicaStatus::answers)
            && !self.replicas.iter().any(ReplicaStatus::holds_state)
    }

    /// If the guest is lost: a replica that lost it, and why.
    pub fn why_guest_is_lost(&self) -> Option<(u8, &str)> {
        if !self.guest_is_lost() {
            return None;
        }
        let mut replicas = self.replicas.iter();
        replicas.find_map(|replica| Some((replica.id, replica.last_failure()?)))
    }

    /// Whether the guest is as well protected as its policy allows.
    pub fn is_settled(&self) -> bool {
        match self.policy.as_str() {
            "none" => self.leader().is_some_and(|leader| leader.serving),
            _ => self.protected,
        }
    }
}

impl ReplicaStatus {
    /// Whether it answered.
    pub fn answers(&self) -> bool {
        !matches!(self.role.as_str(), "down" | "stopped" | "silent")
    }

    /// Why it lost its guest, or could not start it, the last time it did.
    pub fn last_failure(&self) -> Option<&str> {
        self.more.get("last_failure")?.as_str()
    }

    /// Whether it says that it has the guest, in a state that counts.
    pub fn holds_state(&self) -> bool {
        says(&self.more, "holds_state")
    }

    /// The other one of two replicas, if it says that it waits until that one is heard or known to be off.
    pub fn awaits_off(&self) -> Option<u8> {
        self.more.get("awaits_off")?.as_u64()?.try_into().ok()
    }

    /// Whether it says that two replicas of its group may lead at once.
    fn can_split(&self) -> bool {
        says(&self.more, "can_split")
    }

    fn of(dir: &LabDir, replica: &ReplicaState) -> Self {
        let life = replica.daemon.map_or(Life::Gone, |daemon| daemon.life());
        let pid = replica
            .daemon
            .filter(|_| life != Life::Gone)
            .map(|daemon| daemon.pid);
        match life {
            Life::Gone => Self {
                trouble: last_error(&dir.replica(replica.id).log()),
                ..Self::mute(replica.id, "down", None)
            },
            // A stopped process does not answer, and waiting for that takes seconds.
            Life::Stopped => Self::mute(replica.id, "stopped", pid),
            Life::Running => {
                match Control::at(dir.replica(replica.id).control_socket()).status() {
                    Ok(said) => Self::said(replica.id, said),
                    // It may have ended since we looked at the process.
                    Err(ControlError::Absent { .. })
                        if replica.daemon.is_none_or(|daemon| !daemon.is_alive()) =>
                    {
                        Self::mute(replica.id, "down", None)
                    }
                    Err(_) => Self::mute(replica.id, "silent", pid),
                }
            }
        }
    }

    /// The status that a replica has answered to another one. One that has not is `{"id": 2, "silent": "why"}`.
    fn answered(answer: &Value) -> Option<Self> {
        let id = u8::try_from(answer["id"].as_u64()?).ok()?;
        let why = answer["silent"].as_str();
        let said = match why {
            Some(_) => None,
            None => serde_json::from_value(answer.clone()).ok(),
        };
        Some(match said {
            Some(said) => Self::said(id, said),
            None => Self {
                trouble: why.map(str::to_owned),
                ..Self::mute(id, "silent", None)
            },
        })
    }

    /// Whether an operator has drained its host.
    pub fn is_drained(&self) -> bool {
        says(&self.more, "drained")
    }

    fn said(id: u8, said: DaemonStatus) -> Self {
        let (view, view_leader) = said.view_parts().unzip();
        let text = |key: &str| Some(said.more.get(key)?.as_str()?.to_owned());
        let trouble = text("disk_failure").or_else(|| text("unprotected_because"));
        Self {
            id,
            trouble: trouble.or_else(|| refused(&said.more).into_iter().next()),
            role: said.role,
            view,
            view_leader,
            isr: said.isr,
            serving: said.serving,
            plover_pid: Some(said.plover_pid),
            qemu_pid: said.qemu_pid,
            sync: said.sync,
            more: said.more,
            claims_protected: said.protected,
        }
    }

    fn mute(id: u8, role: &str, plover_pid: Option<u32>) -> Self {
        Self {
            id,
            role: role.into(),
            plover_pid,
            ..Self::default()
        }
    }
}

/// The error with which a daemon has ended by itself, from the end of its log. `None` for a daemon that
/// was killed.
fn last_error(log: &Path) -> Option<String> {
    const END_BYTES: i64 = 4096;
    let mut file = File::open(log).ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    let back = END_BYTES.min(end.try_into().ok()?);
    file.seek(SeekFrom::End(-back)).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let error = text.lines().next_back()?.strip_prefix("plover: ")?;
    Some(error.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn said(id: u8, role: &str, view: &str, protected: bool) -> ReplicaStatus {
        let role = role.into();
        let view = view.into();
        ReplicaStatus::said(
            id,
            DaemonStatus {
                id,
                role,
                view,
                protected,
                ..Default::default()
            },
        )
    }

    pub(super) fn lab(replicas: Vec<ReplicaStatus>) -> LabStatus {
        LabStatus::of([10, 77, 0, 100].into(), "vsmr".into(), replicas)
    }

    /// A leader that is cut off still reports what was true before.
    #[test]
    fn the_newest_view_counts() {
        let status = lab(vec![
            said(0, "leader", "3@r0", true),
            said(1, "leader", "10@r1", false),
            ReplicaStatus::mute(2, "down", None),
        ]);
        assert_eq!(status.leader().unwrap().id, 1);
        assert!(!status.protected);
        assert!(status.with_role("secondary").is_none());
        let table = status.to_string();
        assert!(
            table.contains("NOT PROTECTED") && table.contains("10@r1"),
            "{table}"
        );
    }

    #[test]
    fn the_json_has_the_promised_shape() {
        let replicas = vec![
            said(0, "leader", "1@r0", true),
            said(1, "secondary", "1@r0", false),
        ];
        let json = serde_json::to_value(lab(replicas)).unwrap();
        assert_eq!(json["protected"], true);
        assert_eq!(json["guest_ip"], "10.77.0.100");
        assert_eq!(json["replicas"][1]["role"], "secondary");
        assert_eq!(json["replicas"][0]["view"], 1);
        for key in [
            "id",
            "role",
            "view",
            "isr",
            "plover_pid",
            "qemu_pid",
            "sync",
        ] {
            assert!(json["replicas"][0].get(key).is_some(), "{key}");
        }
        for key in [
            "count",
            "pause_us_p50",
            "slot_us_p50",
            "dirty",
            "same",
            "divergent",
            "bytes",
        ] {
            assert!(json["replicas"][0]["sync"].get(key).is_some(), "{key}");
        }
    }
}

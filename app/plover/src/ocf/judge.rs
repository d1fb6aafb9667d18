//! A replica's status in Pacemaker's terms.

use super::{Code, Outcome};
use plover_lab::control::DaemonStatus;
use plover_lab::status::{GroupStatus, ReplicaStatus};
use plover_node::{GroupConfig, Warm};
use serde_json::{Map, Value};

/// Attributes of a node: what follows the guest's name, and the value, if it has any.
pub(super) type Attributes = [(&'static str, Option<String>)];

/// The role of a replica that does not answer.
pub(super) const HUNG: &str = "hung";

/// The attribute of the leader's node that says what its group lacks.
pub(super) const LACKS: &str = "-lacks";

/// The role of a spare replica that waits to be added.
pub(super) fn spare(id: u8) -> String {
    format!("spare {id}")
}

/// The outcome of `monitor` for a replica that answers.
///
/// A replica that has given up its guest still votes, and takes a copy by itself when it can: Pacemaker must not stop it. It is
/// degraded until it keeps a copy again.
pub(super) fn health(own: &DaemonStatus) -> Outcome {
    let text = |key: &str| own.more.get(key).and_then(Value::as_str);
    if let Some(why) = text("disk_failure") {
        return Outcome::of(Code::Degraded, why);
    }
    let has_copy = own.holds_state() || keeps_copy(own);
    match text("last_failure").filter(|_| !has_copy) {
        Some(why) => Outcome::of(
            Code::Degraded,
            format!("replica {} has given up its guest: {why}", own.id),
        ),
        None => Outcome::SUCCESS,
    }
}

fn keeps_copy(own: &DaemonStatus) -> bool {
    let of = own.more.get("keeps_copy_of");
    of.is_some_and(|of| !of.is_null())
}

/// Whether a replica belongs to no group yet.
pub(super) fn waits(own: &DaemonStatus) -> bool {
    own.more.get("waits_to_be_added") == Some(&Value::Bool(true))
}

/// The end of the name of the attribute that says whether the guest is protected.
pub(super) const PROTECTED: &str = "-protected";

/// Whether this is the witness of three, which is to keep a warm copy. Of several witnesses one is.
pub(super) fn is_to_be_warm(own: &DaemonStatus, group: &GroupConfig) -> bool {
    own.role == "witness" && group.warm_witness != Warm::Off && group.replica.len() == 3
}

/// The attributes of the node: the replica's role, and on the leader's node whether the guest is protected. A witness that is
/// to keep a warm copy and is `cold` joins until it has that.
pub(super) fn attributes(
    own: &DaemonStatus,
    group: &GroupConfig,
    cold: bool,
) -> [(&'static str, Option<String>); 2] {
    let protected = if own.protected { "yes" } else { "no" };
    let role = match own.role.as_str() {
        _ if group.is_spare() && waits(own) => spare(own.id),
        "witness" if cold => "joining".into(),
        role => role.into(),
    };
    [
        ("", Some(role)),
        (PROTECTED, (own.role == "leader").then(|| protected.into())),
    ]
}

/// Those of a node without a replica that answers: its role is this, if it has any.
pub(super) fn attributes_of_none(role: Option<&str>) -> [(&'static str, Option<String>); 3] {
    [
        ("", role.map(str::to_owned)),
        (PROTECTED, None),
        (LACKS, None),
    ]
}

/// Whether a status is of a group of two.
pub(super) fn is_pair(status: &Map<String, Value>) -> bool {
    // A replica of a former release says only the second.
    let says = |key: &str| status.get(key) == Some(&Value::Bool(true));
    says("pair") || says("can_split")
}

/// The other one of two replicas, if this one waits until that one is heard or known to be off.
pub(super) fn awaits_off(own: &DaemonStatus) -> Option<u8> {
    own.more.get("awaits_off")?.as_u64()?.try_into().ok()
}

/// Whether a replica may leave its group now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// Nothing is lost by it.
    Now,
    /// The group goes on without it, but with one copy of the guest less: better to wait a while.
    Later(String),
    /// The guest would stop, or be lost.
    Never(String),
}

/// Judges whether replica `id`, which is drained, may end.
pub(super) fn leave(status: &GroupStatus, id: u8) -> Leave {
    let says =
        |replica: &ReplicaStatus, key: &str| replica.more.get(key) == Some(&Value::Bool(true));
    let Some(own) = status.replica(id) else {
        return Leave::Now;
    };
    let leader = status.leader();
    let is_off = leader.is_some_and(|leader| says(leader, "guest_off"));
    if is_off || status.guest_is_lost() || says(own, "waits_to_be_added") {
        return Leave::Now;
    }
    let others = status.replicas.iter();
    let others: Vec<_> = others
        .filter(|it| it.id != id && !says(it, "waits_to_be_added"))
        .collect();
    let silent = others.iter().find(|it| !it.answers());
    let knows = leader.unwrap_or(own);
    let voters = knows.ids("voters");
    // The other one of a pair goes on without a majority.
    let needed = match is_pair(&own.more) {
        true => 1,
        false => voters.len() / 2 + 1,
    };
    let is_heard = |other: u8| {
        let silent = knows.more.get("silences").and_then(Value::as_array);
        let mut silent = silent.into_iter().flatten();
        !silent.any(|it| it.get("id") == Some(&other.into()))
    };
    let votes = |it: &&&ReplicaStatus| {
        it.answers() && it.role != "recovering" && voters.contains(&it.id) && is_heard(it.id)
    };
    let has_left = others.iter().any(|it| it.ids("left").contains(&id));
    if !has_left && voters.contains(&id) && others.iter().filter(votes).count() < needed {
        return Leave::Never(match silent {
            Some(silent) => format!(
                "replica {} does not answer, and without replica {id} too the guest would stop: start that one first",
                silent.id
            ),
            None => format!(
                "of the {} members too few would be left without replica {id}, and the guest would stop: `plover status` says \
                 what they lack",
                voters.len()
            ),
        });
    }
    let is_holder = |it: &ReplicaStatus| it.holds_state() && it.isr.contains(&it.id);
    let holds = own.holds_state() || own.role == "leader";
    // It has just handed over, and is about to become another role: its end now would look like a death.
    if own.role == "deposed" {
        return Leave::Later(format!(
            "replica {id} does not know yet which replica leads"
        ));
    }
    if !holds {
        return Leave::Now;
    }
    if others.iter().filter(|it| is_holder(it)).count() == 0 {
        return Leave::Never(format!(
            "replica {id} is the only one that holds the guest's state: wait until `plover status` says \
             that it is protected; to stop the guest itself, run `plover shutdown` first"
        ));
    }
    // Two do not hand over: the other one goes on as after any loss.
    if is_pair(&own.more) {
        return Leave::Now;
    }
    Leave::Later(format!("replica {id} still is {}", own.role))
}

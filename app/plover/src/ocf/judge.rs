//! A replica's status in Pacemaker's terms.

use super::{Code, Outcome};
use plover_lab::control::DaemonStatus;
use plover_node::{GroupConfig, Warm};
use serde_json::Value;

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

/// The other one of two replicas, if this one waits until that one is heard or known to be off.
pub(super) fn awaits_off(own: &DaemonStatus) -> Option<u8> {
    own.more.get("awaits_off")?.as_u64()?.try_into().ok()
}

//! Whether a replica may leave its group: what `plover drain` waits for, and Pacemaker's agent before it ends one.

use crate::status::{GroupStatus, ReplicaStatus};
use serde_json::{Map, Value};

/// Whether a status is of a group of two.
pub fn is_pair(status: &Map<String, Value>) -> bool {
    // A replica of a former release says only the second.
    let says = |key: &str| status.get(key) == Some(&Value::Bool(true));
    says("pair") || says("can_split")
}

/// Whether a replica may leave its group now.
#[derive(Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing is lost by it.
    Now,
    /// The group goes on without it, but with one copy of the guest less: better to wait a while.
    Later(String),
    /// The guest would stop, or be lost.
    Never(String),
}

/// Judges whether replica `id`, which is drained, may end.
pub fn leave(status: &GroupStatus, id: u8) -> Leave {
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

//! An operator's orders: switch over, drain, undrain; and to the guest: start, shut down, reboot, reset, pause. The same for a lab and for hosts in earnest: every
//! replica's control socket takes these requests, and sends on those that are for the leader.

use crate::control::{Control, ControlError, DaemonStatus};
use crate::leaving::{Leave, leave};
use crate::status::{GroupStatus, ReplicaStatus};
use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How often the group is looked at while it moves.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often it is looked at while a host is replaced: a copy takes seconds or minutes.
const LOOK_OFTEN: Duration = Duration::from_millis(300);

/// How often it is looked at what holds a role: one that moves at once is not worth a word.
const HOLDS_AFTER: Duration = Duration::from_secs(2);

/// How long a switchover may take. The replica that leads gives one up after 5 s.
const SWITCHED_WITHIN: Duration = Duration::from_secs(8);

/// How long the replicas may take to carry an order to the guest out. Half a second is the longest slot.
const CARRIED_OUT_WITHIN: Duration = Duration::from_secs(5);

/// How long a replica that leaves may be silent before it takes its socket away. It has a guest to end.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A switchover that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switched {
    /// The replica that led.
    pub from: u8,
    /// The replica that leads now.
    pub to: u8,
    /// Whether the guest is protected.
    pub protected: bool,
}

/// Has the leader hand over to `to`, or to the replica that is in sync, and waits until that one serves.
///
/// # Errors
/// The leader refuses and says why, or another replica leads in the end.
pub fn switch_over(control: &Control, to: Option<u8>) -> Result<Switched> {
    let answer = control.request(&json!({"op": "switchover", "to": to}))?;
    let id = |key: &str| answer[key].as_u64().and_then(|id| u8::try_from(id).ok());
    let (Some(from), Some(to)) = (id("from"), id("to")) else {
        bail!("the answer of the replica that leads names no replicas: it is of another release");
    };
    let deadline = Instant::now() + SWITCHED_WITHIN;
    loop {
        let status = GroupStatus::ask(control)?;
        let leader = status.leader().filter(|leader| leader.serving);
        if leader.is_some_and(|leader| leader.id == to) {
            let protected = status.protected;
            return Ok(Switched {
                from,
                to,
                protected,
            });
        }
        if Instant::now() > deadline {
            let leads = leader.map_or_else(
                || "no replica serves".into(),
                |leader| format!("replica {} serves", leader.id),
            );
            bail!(
                "replica {to} does not lead after {} s, and {leads}: the log of replica {from} says why; try again when \
                 the guest is protected\n{status}",
                SWITCHED_WITHIN.as_secs()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// How long a drain holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Until it is taken back, also over restarts.
    UntilUndrained,
    /// Until the replica's process ends.
    UntilRestarted,
}

/// Drains the host of the replica behind `control`, and waits for so long until it has no role that matters and its group
/// goes on without it. `say` is told what holds it.
///
/// # Errors
/// It still matters: the error says what holds it. The host stays drained, and the role moves when it can.
pub fn drain(
    control: &Control,
    lasts: Drained,
    within: Duration,
    mut say: impl FnMut(&str),
) -> Result<u8> {
    let until_restart = lasts == Drained::UntilRestarted;
    control.request(&json!({"op": "drain", "until_restart": until_restart}))?;
    let deadline = Instant::now() + within;
    let (mut said, mut looked_at) = (String::new(), Instant::now());
    loop {
        let own = control.status()?;
        if matches!(own.role.as_str(), "witness" | "recovering") {
            let Some(why) = why_not_end(control, &own) else {
                return Ok(own.id);
            };
            if Instant::now() > deadline {
                bail!(
                    "replica {} is drained, and must not be stopped: {why}",
                    own.id
                );
            }
            let words = format!("replica {} must not be stopped yet: {why}", own.id);
            if words_are_new(&mut said, words) {
                say(&said);
            }
            std::thread::sleep(LOOK_OFTEN);
            continue;
        }
        if looked_at.elapsed() >= HOLDS_AFTER {
            looked_at = Instant::now();
            // A status that does not come is no reason to end.
            if let Ok(status) = GroupStatus::ask(control) {
                let holds = what_holds(&status, own.id);
                let words = format!("replica {} is still {}: {holds}", own.id, own.role);
                if words_are_new(&mut said, words) {
                    say(&said);
                }
            }
        }
        if Instant::now() > deadline {
            let status = GroupStatus::ask(control)?;
            bail!(
                "replica {} is drained, and still {}: {}. It gives the role up as soon as it can; `plover undrain` takes \
                 the order back\n{status}",
                own.id,
                own.role,
                what_holds(&status, own.id)
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Why the end of a replica without a role would stop the guest. While it follows no leader nothing rests on its vote, nor
/// on that of one that is still learning where its group stands.
fn why_not_end(control: &Control, own: &DaemonStatus) -> Option<String> {
    let follows = own
        .more
        .get("leader")
        .is_some_and(|leader| !leader.is_null());
    if own.role != "witness" || !follows {
        return None;
    }
    let status = match GroupStatus::ask(control) {
        Ok(status) => status,
        Err(error) => return Some(error.to_string()),
    };
    match leave(&status, own.id) {
        Leave::Never(why) => Some(why),
        _ => None,
    }
}

fn words_are_new(said: &mut String, words: String) -> bool {
    let are_new = words != *said;
    *said = words;
    are_new
}

/// Why a drained replica keeps its role.
fn what_holds(status: &GroupStatus, id: u8) -> String {
    let others: Vec<&ReplicaStatus> = status
        .replicas
        .iter()
        .filter(|replica| replica.id != id)
        .collect();
    if others.len() < 2 {
        return "a group of two has no third replica that could take its place".into();
    }
    if let Some(silent) = others.iter().find(|replica| !replica.answers()) {
        return format!(
            "replica {} does not answer, so it cannot take its place",
            silent.id
        );
    }
    if let Some(drained) = others.iter().find(|replica| replica.is_drained()) {
        return format!("replica {} is drained, too", drained.id);
    }
    "the guest is still being copied to another replica".into()
}

/// Lets the host of the replica behind `control` have roles again.
///
/// # Errors
/// It does not answer, or cannot write that down.
pub fn undrain(control: &Control) -> Result<u8> {
    control.request(&json!({"op": "undrain"}))?;
    Ok(control.status()?.id)
}

/// Takes back a drain that is to last until the replica is started again, and no other.
///
/// # Errors
/// The replica does not answer.
pub fn undrain_until_restart(control: &Control) -> Result<u8> {
    control.request(&json!({"op": "undrain", "until_restart": true}))?;
    Ok(control.status()?.id)
}

/// This host's clock, which goes on while it is suspended.
pub fn boot_time() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Tells the replica behind `control` that the other one of two is off, as was seen when [`boot_time`] was `seen_at`. Returns whether
/// it had waited for that.
///
/// # Errors
/// It does not answer; or it refuses, since its group waits for no such word, or has just heard that replica.
pub fn peer_is_off(control: &Control, id: u8, seen_at: Duration) -> Result<bool, ControlError> {
    let seen_at_us = seen_at.as_micros() as u64;
    let asked = control.request(&json!({"op": "peer_off", "id": id, "seen_at_us": seen_at_us}))?;
    Ok(asked.get("awaited") == Some(&true.into()))
}

/// A change of the members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChange {
    /// The replica that is to join, and the address at which it listens.
    pub add: Option<(u8, String)>,
    /// The replica that is to leave.
    pub remove: Option<u8>,
}

impl MemberChange {
    /// The request to a replica's control socket.
    pub fn request(&self) -> Value {
        let order = match (&self.add, self.remove) {
            (Some((new, address)), Some(old)) => {
                json!({"Replace": {"old": old, "new": new, "address": address}})
            }
            (Some((id, address)), None) => json!({"Add": {"id": id, "address": address}}),
            (None, id) => json!({"Remove": {"id": id}}),
        };
        json!({"op": "member", "order": order})
    }

    fn is_done(&self, leader: &ReplicaStatus) -> bool {
        let has = |key: &str, id: u8| leader.ids(key).contains(&id);
        let added = self.add.as_ref().is_none_or(|(id, _)| has("voters", *id));
        let removed = self.remove.is_none_or(|id| has("left", id));
        added && removed && leader.change().is_none()
    }
}

/// Changes the members, and waits for so long until that is done. `say` is told each step, and how far the copy is.
///
/// # Errors
/// The leader refuses and says why. Or it is not done yet: it goes on all the same.
pub fn change_members(
    control: &Control,
    change: &MemberChange,
    within: Duration,
    mut say: impl FnMut(&str),
) -> Result<Vec<u8>> {
    let own = control.status()?.id;
    control.request(&change.request())?;
    let (begun, mut ordered_at) = (Instant::now(), Instant::now());
    let (mut said, mut heard_at) = (String::new(), Instant::now());
    let leaves = change.remove == Some(own);
    while begun.elapsed() < within {
        let status = match GroupStatus::ask(control) {
            Ok(status) => status,
            // Its process ends when it has left, and takes its socket away; one that has crashed does not.
            Err(error) if leaves && error.has_no_socket() => return Ok(Vec::new()),
            Err(_) if leaves && heard_at.elapsed() < ENDS_WITHIN => {
                std::thread::sleep(LOOK_OFTEN);
                continue;
            }
            Err(error) => return Err(error).context("whether it is done is not known"),
        };
        heard_at = Instant::now();
        if let Some(leader) = status.leader() {
            if change.is_done(leader) {
                return Ok(leader.ids("voters"));
            }
            if leader.change().is_none() && ordered_at.elapsed() > CARRIED_OUT_WITHIN {
                // It was lost with the replica that led, or came to nothing: the answer says why.
                ordered_at = Instant::now();
                control.request(&change.request())?;
            }
        }
        if let Some(words) = status.change_in_words().filter(|words| *words != said) {
            say(&words);
            said = words;
        }
        std::thread::sleep(LOOK_OFTEN);
    }
    bail!(
        "not done within {} s: {}. It goes on without this command; `plover status` shows it",
        within.as_secs(),
        if said.is_empty() {
            "no replica leads"
        } else {
            &said
        }
    )
}

/// Switches a guest on that is off.
///
/// # Errors
/// It is not off, or no replica leads.
pub fn start(control: &Control) -> Result<()> {
    control.request(&json!({"op": "start"}))?;
    Ok(())
}

/// Presses the guest's power button.
///
/// # Errors
/// No replica leads.
pub fn shut_down(control: &Control) -> Result<()> {
    control.request(&json!({"op": "power"}))?;
    Ok(())
}

/// Presses the guest's power button, and waits for so long until it has powered off. It boots again then. `say` is told that
/// the waiting begins.
///
/// # Errors
/// The guest is off or paused, or no replica leads. Or it has not powered off: the order stands.
pub fn reboot(control: &Control, within: Duration, say: impl FnOnce(&str)) -> Result<()> {
    control.request(&json!({"op": "reboot"}))?;
    let ordered_at = Instant::now();
    let (mut is_taken, mut say) = (false, Some(say));
    while ordered_at.elapsed() < within {
        let status = GroupStatus::ask(control)?;
        let leader = status.leader().filter(|leader| leader.serving);
        let is_off = leader.is_some_and(|leader| leader.says("guest_off"));
        ensure!(
            !(is_taken && is_off),
            "the guest is off, and does not boot again: it has crashed, or the order was taken back by `shutdown`; `start` \
             switches it on"
        );
        match leader.map(|leader| leader.says("guest_reboots")) {
            Some(true) => {
                is_taken = true;
                if let Some(say) = say.take() {
                    let within = within.as_secs();
                    say(&format!(
                        "the guest's power button is pressed: it has {within} s to power off"
                    ));
                }
            }
            Some(false) if is_taken => return Ok(()),
            Some(false) if ordered_at.elapsed() > CARRIED_OUT_WITHIN => {
                bail!("the order to reboot was lost with the replica that led: give it again")
            }
            _ => {}
        }
        std::thread::sleep(LOOK_EVERY);
    }
    bail!(
        "the guest has not powered off within {} s: it may not listen to its power button (ACPI). It boots again \
         whenever it powers off; `shutdown` takes that back, and `reset` resets it at once",
        within.as_secs()
    )
}

/// Resets the guest's machine.
///
/// # Errors
/// The guest is off, or no replica leads.
pub fn reset(control: &Control) -> Result<()> {
    control.request(&json!({"op": "reset"}))?;
    Ok(())
}

/// Pauses the guest, and waits until it stands on every replica that runs it.
///
/// # Errors
/// The guest is off or paused, or no replica leads. Or it does not stand everywhere: the error says where.
pub fn pause(control: &Control) -> Result<()> {
    control.request(&json!({"op": "pause"}))?;
    wait_until_paused(control, true)
}

/// Lets a paused guest go on, and waits until it does on every replica that runs it.
///
/// # Errors
/// No operator has paused it, or no replica leads. Or it does not run everywhere: the error says where.
pub fn unpause(control: &Control) -> Result<()> {
    control.request(&json!({"op": "unpause"}))?;
    wait_until_paused(control, false)
}

fn wait_until_paused(control: &Control, paused: bool) -> Result<()> {
    let deadline = Instant::now() + CARRIED_OUT_WITHIN;
    loop {
        let status = GroupStatus::ask(control)?;
        let runs = |replica: &&ReplicaStatus| matches!(&replica.role[..], "leader" | "secondary");
        let differs = |replica: &&ReplicaStatus| replica.says("guest_paused") != paused;
        let mut running = status.replicas.iter().filter(runs);
        if status.leader().is_some() && !running.any(|replica| differs(&replica)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let word = if paused { "paused" } else { "running" };
            bail!(
                "the order was given, and the guest is not {word} everywhere after {} s: look at the status, and give \
                 the order again\n{status}",
                CARRIED_OUT_WITHIN.as_secs()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

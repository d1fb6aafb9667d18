//! The scripts of a lab: one fault after the other. The default and every other policy and setting are
//! tested with them.

use crate::crash::Moment;
use crate::experiment::Experiment;
use crate::{ask_guest, equal_syncs, recover, role};
use anyhow::{Context, Result, ensure};
use plover_lab::options::PolicyName;
use plover_lab::{Fault, Lab, Target};
use plover_policy::{Secondary, Sent};
use plover_syncvm::Phase;
use std::time::{Duration, Instant};

/// A sum over all slots that have ended under the present leader, by its name in the status.
pub fn total(lab: &Lab, name: &str) -> Option<u64> {
    let status = lab.status();
    status.leader()?.sync.more.get("totals")?[name].as_u64()
}

/// Waits until the leader has released outputs on a match alone.
pub fn outputs_match(lab: &mut Experiment) -> Result<()> {
    lab.wait("outputs go out on a match", |lab| {
        Ok(total(lab.lab(), "matched") > Some(0))
    })
}

/// Waits until the secondary's guest has rested under the present leader.
pub fn the_secondary_rests(lab: &mut Experiment) -> Result<()> {
    lab.wait("the secondary's guest rests", |lab| {
        let status = lab.lab().status();
        let rests = status
            .leader()
            .and_then(|leader| leader.more.get("secondary_rests"));
        Ok(rests.is_some_and(|rests| rests["slots"].as_u64() > Some(0)))
    })
}

/// Waits for `count` more syncs that both sides hash (`debug.checksum_each_sync`). All must leave memory
/// and disks equal.
pub fn equal_slots(lab: &mut Experiment, count: usize) -> Result<()> {
    let before = equal_syncs(lab.events())?;
    lab.wait("slots are over", |lab| {
        Ok(equal_syncs(lab.events())? >= before + count)
    })
}

/// Keys for a lab whose slots are compared ([`equal_slots`]). Both sides hash the whole memory at every sync, so a
/// replica's loop stands still much longer than usual, and the timeout must be longer than that.
pub const COMPARED: &str = "
[debug]
checksum_each_sync = true
trace_syncs = true
[group]
timeout_ms = 3000
";

/// As [`equal_slots`], of guests that differ between their syncs: without divergence nothing would be proved.
pub fn equal_slots_of_divergent_guests(lab: &mut Experiment, count: usize) -> Result<()> {
    equal_slots(lab, count)?;
    let status = lab.lab().status();
    let divergent = status.leader().map_or(0, |leader| leader.sync.divergent);
    ensure!(divergent > 0, "the guests never diverged:\n{status}");
    Ok(())
}

/// Waits until the witness has a warm copy.
pub fn the_witness_is_warm(lab: &mut Experiment, since_us: u64) -> Result<()> {
    lab.wait("the witness is warm", |lab| {
        Ok(lab.find_event("warm", since_us).is_some())
    })
}

/// The leader's host dies with its guest, and comes back.
pub fn the_leader_dies(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, leader)
}

/// The replica's process dies on a host that lives. The others are told, and it comes back.
pub fn a_process_dies(lab: &mut Experiment, of: &str) -> Result<()> {
    let (replica, at) = lab.strike(Fault::Crash, &role(of))?;
    lab.wait("its death is reported", |lab| {
        Ok(lab.find_event("death_reported", at).is_some())
    })?;
    if of == "leader" {
        lab.wait_for_failover(replica, at)?;
    } else {
        lab.wait_for_answers(at)?;
    }
    lab.wait_until_protected_again(at)?;
    recover(lab, replica)
}

/// The secondary's host dies, and comes back.
pub fn the_secondary_dies(lab: &mut Experiment) -> Result<()> {
    let (secondary, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, secondary)
}

/// The secondary's host dies, and then the leader's, once the third replica has the guest. It goes on
/// as soon as one of the two is back, although both have forgotten the log.
pub fn two_hosts_die(lab: &mut Experiment) -> Result<()> {
    let (secondary, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_until_protected_again(at)?;
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.restart(secondary)?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, leader)
}

/// The guest's clock, and when it was read.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    asked: Instant,
    guest: Duration,
    answered: Instant,
}

impl ClockReading {
    /// Asks the guest's shell.
    pub fn take(lab: &Experiment) -> Result<Self> {
        let asked = Instant::now();
        let said = ask_guest(lab.lab(), "cat /proc/uptime; echo to''ld", "told")?;
        let answered = Instant::now();
        let mut words = said.split_whitespace();
        let uptime = words.find_map(|word| word.parse().ok());
        let uptime = uptime.with_context(|| format!("the guest's uptime in: {said}"))?;
        Ok(Self {
            asked,
            guest: Duration::from_secs_f64(uptime),
            answered,
        })
    }

    /// The guest's clock has gone on as this host's did, but for `slack`.
    pub fn goes_on(&self, lab: &Experiment, slack: Duration) -> Result<()> {
        let now = Self::take(lab)?;
        let least = now.asked.duration_since(self.answered);
        let most = now.answered.duration_since(self.asked);
        let guest = now.guest.saturating_sub(self.guest);
        ensure!(
            guest + slack >= least && guest <= most + slack,
            "{least:?} to {most:?} have passed, and by the guest's clock {guest:?}"
        );
        Ok(())
    }
}

/// The witness's host dies, and comes back.
pub fn the_witness_dies(lab: &mut Experiment) -> Result<()> {
    let (witness, at) = lab.strike(Fault::Kill, &role("witness"))?;
    lab.wait_for_answers(at)?;
    recover(lab, witness)
}

/// The leader's host dies as soon as a sync that it leads enters this phase, and comes back.
pub fn the_leader_dies_in(lab: &mut Experiment, phase: Phase) -> Result<()> {
    let (leader, at) = dies_in(lab, phase)?;
    lab.wait_until_protected_again(at)?;
    recover(lab, leader)
}

/// As [`the_leader_dies_in`], with two replicas: the guest is not protected before the dead one is back.
pub fn one_of_two_dies_in(lab: &mut Experiment, phase: Phase) -> Result<()> {
    let (leader, _) = dies_in(lab, phase)?;
    recover(lab, leader)
}

fn dies_in(lab: &mut Experiment, phase: Phase) -> Result<(u8, u64)> {
    let (leader, at) = lab.crash_at(&role("leader"), &Moment::Phase(phase))?;
    lab.wait_for_failover(leader, at)?;
    Ok((leader, at))
}

/// The leader's host stands still for longer than any timeout, right before a frame that it was about to send to clients, and
/// goes on. The frame must not leave. Returns the new leader.
pub fn the_leader_stands_still(lab: &mut Experiment) -> Result<u8> {
    let (leader, at) = lab.stop_in_release()?;
    lab.progress().sleep(Duration::from_secs(3))?;
    lab.strike(Fault::Continue, &Target::Replica(leader))?;
    let new = lab.wait_for_failover(leader, at)?;
    lab.wait_for_part(leader)?;
    lab.wait_until_protected_again(at)?;
    Ok(new)
}

/// The leader's hypervisor alone stands still, and never goes on. The secondary takes over; what is left of
/// the old guest is ended without it.
pub fn the_leaders_hypervisor_hangs(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Hang, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_for_part(leader)?;
    lab.wait_until_protected_again(at)
}

/// The leader no longer reaches the clients, and is well otherwise. The service moves.
pub fn the_leader_is_unplugged(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Unplug, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.strike(Fault::Heal, &Target::Replica(leader))?;
    lab.wait_for_part(leader)?;
    lab.wait_until_protected_again(at)
}

/// As [`the_leaders_hypervisor_hangs`], with the secondary's. The leader goes on without it.
pub fn the_secondarys_hypervisor_hangs(lab: &mut Experiment) -> Result<()> {
    let (secondary, at) = lab.strike(Fault::Hang, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    lab.wait_for_part(secondary)?;
    lab.wait_until_protected_again(at)
}

/// The same with the secondary's host. The leader goes on without it, so its state is old when it wakes.
pub fn the_secondary_stands_still(lab: &mut Experiment) -> Result<()> {
    let (secondary, at) = lab.strike(Fault::Stop, &role("secondary"))?;
    lab.progress().sleep(Duration::from_secs(3))?;
    lab.strike(Fault::Continue, &Target::Replica(secondary))?;
    lab.wait_for_answers(at)?;
    lab.wait_until_protected_again(at)
}

/// The leader reaches no other replica. The others go on.
pub fn the_leader_is_cut_off(lab: &mut Experiment) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Cut { from: None }, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    lab.wait_until_protected_again(at)?;
    let (_, healed) = lab.strike(Fault::Heal, &Target::Replica(leader))?;
    lab.wait_for_part(leader)?;
    lab.wait_for_answers(healed)?;
    lab.wait_until_protected()
}

/// Both still reach the witness, which decides which of the two goes on.
pub fn the_leader_is_cut_from_the_secondary(lab: &mut Experiment) -> Result<()> {
    let secondary = lab.lab().find(&role("secondary"))?;
    let from = Some(secondary);
    let (leader, at) = lab.strike(Fault::Cut { from }, &role("leader"))?;
    lab.wait_for_answers(at)?;
    lab.wait_until_protected_again(at)?;
    let (_, healed) = lab.strike(Fault::Heal, &Target::Replica(leader))?;
    lab.wait_for_part(leader)?;
    lab.wait_for_part(secondary)?;
    lab.wait_for_answers(healed)?;
    lab.wait_until_protected()
}

/// All faults above, and the leader's death in each phase of a sync.
pub fn three_survive(lab: &mut Experiment, policy: PolicyName) -> Result<()> {
    the_leader_dies(lab)?;
    the_secondary_dies(lab)?;
    the_witness_dies(lab)?;
    for phase in phases(policy) {
        the_leader_dies_in(lab, *phase)?;
    }
    the_leader_stands_still(lab)?;
    the_secondary_stands_still(lab)?;
    the_leaders_hypervisor_hangs(lab)?;
    the_secondarys_hypervisor_hangs(lab)?;
    the_leader_is_unplugged(lab)?;
    the_leader_is_cut_from_the_secondary(lab)?;
    the_leader_is_cut_off(lab)
}

/// The faults of two replicas, with these phases. No third replica can take the dead one's place, so it
/// comes back first. Cuts are left out: two replicas survive a cut, but answers that clients got during
/// the cut may be lost.
pub fn two_survive(lab: &mut Experiment, phases: &[Phase]) -> Result<()> {
    let (leader, at) = lab.strike(Fault::Kill, &role("leader"))?;
    lab.wait_for_failover(leader, at)?;
    recover(lab, leader)?;
    let (secondary, at) = lab.strike(Fault::Kill, &role("secondary"))?;
    lab.wait_for_answers(at)?;
    recover(lab, secondary)?;
    for phase in phases {
        one_of_two_dies_in(lab, *phase)?;
    }
    the_leader_stands_still(lab)?;
    the_secondary_stands_still(lab)
}

/// The phases of a sync in which its leader does something or waits for something, by what the secondary
/// does. (`Wait` is a phase of the secondary, `Compare` is over before anything else can happen, and in
/// `Resume` and `Idle` the sync is done.)
pub fn phases(policy: PolicyName) -> &'static [Phase] {
    let PolicyName::Preset(preset) = policy else {
        return &[];
    };
    match (preset.policy.secondary, preset.policy.sent) {
        (Secondary::Waits, _) => &[
            Phase::Pause,
            Phase::Scan,
            Phase::Copy,
            Phase::Transfer,
            Phase::Apply,
            Phase::Release,
        ],
        (Secondary::Runs | Secondary::Semi, Sent::Divergent) => &[
            Phase::Pause,
            Phase::Scan,
            Phase::Hash,
            Phase::Exchange,
            Phase::Transfer,
            Phase::Apply,
            Phase::Release,
        ],
        // Nothing is hashed.
        (Secondary::Runs | Secondary::Semi, Sent::AllOfPrimary) => &[
            Phase::Pause,
            Phase::Scan,
            Phase::Exchange,
            Phase::Transfer,
            Phase::Apply,
            Phase::Release,
        ],
    }
}

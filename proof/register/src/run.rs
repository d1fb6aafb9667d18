//! One run: a group, clients, and faults from a seed; then the verdict.

use crate::check::{Checked, Judge};
use crate::clients::{self, Shared};
use crate::cluster::Cluster;
use crate::history::Operation;
use anyhow::{Context, ensure};
use plover_log::Durability;
use plover_types::SplitMix64;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What is tried.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many replicas.
    pub replicas: usize,
    /// When an acknowledgement counts.
    pub durability: Durability,
    /// How many clients.
    pub clients: u64,
    /// How long clients and faults go on.
    pub lasts: Duration,
    /// Decides about faults and operations. (When they meet is up to the machine.)
    pub seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// What clients did and saw.
    pub history: Vec<Operation>,
    /// What was checked of it.
    pub checked: Checked,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations that were given up: they may have happened or not.
    pub unanswered: u64,
    /// What was done to replicas, in words.
    pub faults: Vec<String>,
}

/// Runs `plan` with replicas that are processes of `program`, and checks every history.
///
/// # Errors
///
/// A history that is not linearizable, a group that does not become whole again after a fault, or
/// clients that got nothing done.
pub fn run(program: &Path, plan: &Plan) -> anyhow::Result<Outcome> {
    let mut cluster = Cluster::start(program.into(), plan.replicas, plan.durability)?;
    let shared = Shared::default();
    let doors = cluster.doors();
    let faults = std::thread::scope(|scope| {
        for client in 0..plan.clients {
            let (shared, doors) = (&shared, &doors);
            let seed = plan.seed.wrapping_mul(1000) + client;
            scope.spawn(move || clients::work(shared, doors, seed));
        }
        let faults = torment(&mut cluster, plan);
        shared.stop.store(true, Ordering::Relaxed);
        faults
    })
    .with_context(|| format!("{plan:?}"))?;
    let answered = shared.answered.load(Ordering::Relaxed);
    ensure!(answered > 0, "no operation was answered: {plan:?}");
    let unanswered = shared.unanswered.load(Ordering::Relaxed);
    let history = shared.history.into_inner();
    let history = history.unwrap_or_else(PoisonError::into_inner);
    let checked = Judge::whole(&history);
    let checked = checked.with_context(|| format!("{plan:?}, {faults:?}"))?;
    Ok(Outcome {
        history,
        checked,
        answered,
        unanswered,
        faults,
    })
}

/// Does one thing after the other to the replicas, waiting each time until the group is whole.
fn torment(cluster: &mut Cluster, plan: &Plan) -> anyhow::Result<Vec<String>> {
    let mut random = SplitMix64::new(plan.seed);
    let until = Instant::now() + plan.lasts;
    let mut done = Vec::new();
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(random.range(50, 400)));
        let anyone = random.range(0, plan.replicas as u64 - 1) as usize;
        // Every other time it hits the leader, where it hurts.
        let leader = cluster.leader().filter(|_| random.range(0, 1) == 1);
        let victim = leader.unwrap_or(anyone);
        let span = Duration::from_millis(random.range(50, 900));
        // Memory mode survives the loss of a minority at a time, disk mode that of everyone.
        let kinds = match plan.durability {
            Durability::Memory => 2,
            Durability::Disk => 3,
        };
        let fault = match random.range(0, kinds) {
            0 => {
                cluster.kill(victim)?;
                std::thread::sleep(span);
                cluster.launch(victim)?;
                format!("killed {victim}")
            }
            1 => {
                cluster.pause(victim, true)?;
                std::thread::sleep(span);
                cluster.pause(victim, false)?;
                format!("stopped {victim}")
            }
            2 => {
                cluster.cut(victim, true)?;
                std::thread::sleep(span);
                cluster.cut(victim, false)?;
                format!("cut {victim} off")
            }
            _ => {
                for id in 0..cluster.size() {
                    cluster.kill(id)?;
                }
                for id in 0..cluster.size() {
                    cluster.launch(id)?;
                }
                "killed all".into()
            }
        };
        cluster
            .wait_until_whole()
            .with_context(|| format!("after {fault}, after {done:?}"))?;
        done.push(fault);
    }
    Ok(done)
}

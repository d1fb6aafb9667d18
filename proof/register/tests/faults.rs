//! Short runs of every kind; `plover-register-proof run` makes longer ones.

use plover_log::Durability;
use plover_register_proof::check::{self, Judge};
use plover_register_proof::run::{Outcome, Plan, run};
use std::path::Path;
use std::time::Duration;

fn tried(replicas: usize, durability: Durability, seed: u64) -> Outcome {
    let plan = Plan {
        replicas,
        durability,
        clients: 4,
        lasts: Duration::from_secs(12),
        seed,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_plover-register-proof"));
    let outcome = run(program, &plan).unwrap_or_else(|error| {
        let mode = format!("{durability:?}").to_lowercase();
        panic!("{error:?}\nagain: plover-register-proof run {replicas} {mode} 12 {seed}")
    });
    assert!(!outcome.faults.is_empty());
    outcome
}

/// The canary: what these runs recorded, with one stale read, is not linearizable.
fn catches_stale_reads(outcome: &Outcome) {
    let stale = check::with_a_stale_read(&outcome.history).expect("something was overwritten");
    assert!(Judge::whole(&stale).is_err(), "{stale:#?}");
}

#[test]
fn three_replicas_in_memory() {
    catches_stale_reads(&tried(3, Durability::Memory, 1));
}

#[test]
fn three_replicas_on_disk() {
    catches_stale_reads(&tried(3, Durability::Disk, 2));
}

#[test]
fn five_replicas_in_memory() {
    tried(5, Durability::Memory, 3);
}

#[test]
fn five_replicas_on_disk() {
    tried(5, Durability::Disk, 4);
}

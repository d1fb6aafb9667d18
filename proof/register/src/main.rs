//! One replica's process, or a run by hand:
//!
//! ```text
//!  plover-register-proof run REPLICAS memory|disk SECONDS SEED
//! ```

use anyhow::{Context, bail};
use plover_log::Durability;
use plover_register_proof::replica;
use plover_register_proof::run::{Plan, run};
use std::time::Duration;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["replica", me, durability, dir, door, ref peers @ ..] => {
            let peers: Result<Vec<_>, _> = peers.iter().map(|it| it.parse()).collect();
            let durability = durability_of(durability)?;
            replica::run(
                me.parse()?,
                &peers?,
                door.parse()?,
                dir.as_ref(),
                durability,
            )
        }
        ["run", replicas, durability, seconds, seed] => {
            let plan = Plan {
                replicas: replicas.parse()?,
                durability: durability_of(durability)?,
                clients: 4,
                lasts: Duration::from_secs(seconds.parse()?),
                seed: seed.parse()?,
            };
            by_hand(&plan)
        }
        _ => bail!("usage: plover-register-proof run REPLICAS memory|disk SECONDS SEED"),
    }
}

fn durability_of(word: &str) -> anyhow::Result<Durability> {
    match word {
        "memory" => Ok(Durability::Memory),
        "disk" => Ok(Durability::Disk),
        other => bail!("'{other}' is neither memory nor disk"),
    }
}

fn by_hand(plan: &Plan) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("this program's own path")?;
    let outcome = run(&program, plan)?;
    println!(
        "the history is linearizable: {} operations answered, {} not, at most {} in a part; {} faults: {}",
        outcome.answered,
        outcome.unanswered,
        outcome.checked.longest,
        outcome.faults.len(),
        outcome.faults.join(", ")
    );
    Ok(())
}

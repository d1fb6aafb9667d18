//! Ten thousand connections, of which none is renewed.

use anyhow::{Context, Result};
use plover_lab::options::Options;
use plover_lab_proof::crowd::Crowd;
use plover_lab_proof::experiment::Experiment;
use plover_lab_proof::redis::Connection;
use plover_lab_proof::{prove, script};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CONNECTIONS: usize = 10_000;

/// Redis takes some 20 KB of memory for each.
const MEMORY_MIB: u32 = 1024;

fn open(lab: &Experiment) -> Result<Crowd> {
    let (client, service) = (lab.lab().topology().client(), lab.lab().service());
    client.run(|| {
        let mut redis = Connection::open(service, Duration::from_secs(60))?;
        redis.configure("maxmemory", "600mb")?;
        Ok(redis.configure("maxclients", &(CONNECTIONS + 100).to_string())?)
    })?;
    Crowd::open(&client, service, CONNECTIONS)
}

#[test]
fn ten_thousand_connections_outlive_the_leader() {
    let options = Options {
        mem_mib: Some(MEMORY_MIB),
        ..Options::default()
    };
    prove("t-crowd", options, |lab| {
        let mut crowd = open(lab).context("the crowd")?;
        crowd.count_up()?;
        script::outputs_match(lab)?;
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| -> Result<()> {
                while !ends.load(Ordering::Relaxed) {
                    crowd.count_up()?;
                }
                // Once more by all.
                crowd.count_up()
            });
            let faults = script::the_leader_dies(lab);
            ends.store(true, Ordering::Relaxed);
            let counted = counting.join();
            faults?;
            counted.expect("the crowd")
        })?;
        lab.progress().say(format!(
            "each of {CONNECTIONS} connections has counted {} times",
            crowd.rounds()
        ));
        Ok(())
    });
}
